"""`config import`: configs of llama-swap and of an installed Ollama become configs that pass their check."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from gguf_models import make_embedding_model
from support.ollama_folder import keep_model, snapshot
from watchbill.config import parse
from watchbill.engines import scripted_server
from watchbill.engines.scripted import check_script

FIXTURES = Path(__file__).parents[2] / "fixtures" / "llama_swap"
FILES = sorted(FIXTURES.glob("*.yaml"))
#: What the fixtures' own variables hold.
VARIABLES = {
    "SWAP_KEY": "sk-from-the-environment", "CLOUD_KEY": "sk-cloud", "PYTHON": sys.executable,
    "SERVER": scripted_server.__file__, "SCRIPT": json.dumps(check_script({"text": "imported"}, 4)),
}  # fmt: skip


@pytest.fixture
def importing(alone):
    alone.settings.update(VARIABLES)
    return alone


def imported(importing, name: str) -> tuple[dict, str]:
    done = importing("config", "import", "llama-swap", str(FIXTURES / f"{name}.yaml"), "--output", "-")
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout), done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_config_becomes_one_that_passes_its_check(importing, file):
    """The programs and files of the fixtures are not here: the import says what `config check` then says."""
    done = importing("config", "import", "llama-swap", str(file), "--json")
    assert done.returncode == 0, done.stderr
    text = (importing.home / "watchbill.toml").read_text()
    parse(text, base=importing.home, environment=VARIABLES)
    assert "${env." not in text
    checked = json.loads(importing("config", "check", "--json").stdout)
    assert checked["errors"] == [], checked
    grave = [each["key"] for each in checked["findings"] if each["grave"]]
    assert [each["key"] for each in json.loads(done.stdout)["wanting"]] == grave


#: Each key of odd.yaml that cannot be carried over, and the words by which it is named.
ODD = (
    "nightMode", "12", "thisKeyIsOdd", "ten minutes", "with space", "NOVALUE", "unlisted", "capabilities",
    "somethingNew", "peers.nowhere", "peers.twice.weight", "hooks.on_startup.run", "hooks.on_stop",
    "groups.g.swap",
    "groups.g.priority", "My Model (Q4)", "load_timeout", "health", "concurrency", "alias 'My-Model-Q4'",
)  # fmt: skip


def test_every_key_that_is_not_carried_over_is_named_in_the_file_and_to_the_person(importing):
    """Also those that no version of llama-swap has, and values that are not what they should be."""
    done = importing("config", "import", "llama-swap", str(FIXTURES / "odd.yaml"), "-o", "-")
    assert done.returncode == 0, done.stderr
    comments = "\n".join(line for line in done.stdout.splitlines() if line.startswith("#"))
    assert [word for word in ODD if word not in comments] == []
    assert [word for word in ODD if word not in done.stderr] == []
    made = tomllib.loads(done.stdout)
    assert set(made["models"]) == {"My-Model-Q4", "My-Model-Q4-2", "quoted", "fine", "not-fine"}
    assert made["models"]["My-Model-Q4-2"]["idle"] == "300s", "a number in quotes is a number"
    assert made["models"]["My-Model-Q4-2"]["concurrency"] == 3
    assert made["models"]["My-Model-Q4"]["env"]["AS_TABLE"] == "1"


def test_what_a_person_must_fill_in_is_said_at_once(importing):
    del importing.settings["SWAP_KEY"]
    done = importing("config", "import", "llama-swap", str(FIXTURES / "every-key.yaml"))
    assert done.returncode == 0, done.stderr
    assert "fill in: watchbill.toml" in done.stderr and "SWAP_KEY" in done.stderr
    assert "before you start it; check it with: " in done.stderr
    done = importing(
        "config", "import", "llama-swap", str(FIXTURES / "sound-and-pictures.yaml"), "-o", "b.toml"
    )
    assert "there is no program whisper-server" in done.stderr
    assert "portless: fill in where its command listens" in done.stderr
    models = tomllib.loads((importing.home / "b.toml").read_text())["models"]
    assert "--listen-port ${PORT}" in models["picture"]["command"]


def test_routing_as_newer_versions_nest_it(importing):
    done = importing("config", "import", "llama-swap", str(FIXTURES / "nested-routing.yaml"), "-o", "-")
    models = tomllib.loads(done.stdout)["models"]
    assert models["a"]["group"] == models["b"]["group"] and models["stays"]["permanent"] is True
    assert "routing.scheduler" in done.stderr and "groups.main.colour" in done.stderr
    models = imported(importing, "nested-matrix")[0]["models"]
    assert models["gemma-3.1"]["group"] == models["qwen"]["group"]
    assert "group" not in models["stable-diffusion"]


def test_there_are_at_least_ten():
    assert len(FILES) >= 10


def test_commands_macros_ttl_and_names(importing):
    made, text = imported(importing, "macros-and-env")
    home = importing.home
    big = made["models"]["big"]
    assert big["command"] == (
        "llama-server --host 127.0.0.1 --port ${PORT} --ctx-size 32768 --flash-attn on "
        f"--model {home}/models/big.gguf"
    )
    assert big["env"] == {"CUDA_VISIBLE_DEVICES": "0,1", "LLAMA_ARG_ALIAS": "${MODEL_ID}"}
    assert "--ctx-size 8192" in made["models"]["small"]["command"]
    assert "Filled in from the environment of this import: $HOME." in text
    made, _ = imported(importing, "two-models-ttl")
    coder, writer = made["models"]["coder"], made["models"]["writer"]
    assert (coder["idle"], coder["aliases"], coder["load_timeout"]) == (
        "120s",
        ["gpt-4o-mini", "copilot"],
        "300s",
    )
    assert "idle" not in writer, "never unloaded: it stays while there is room"
    assert (writer["concurrency"], coder["concurrency"]) == (2, 4)
    assert coder["group"] == writer["group"], "llama-swap runs one at a time"


def test_groups_and_a_matrix_keep_the_same_models_apart(importing):
    models = imported(importing, "groups")[0]["models"]
    groups = {name: model.get("group") for name, model in models.items()}
    assert groups["chat-a"] == groups["chat-b"] == groups["alone"] is not None
    assert groups["draft-x"] == groups["draft-y"] not in (None, groups["alone"])
    assert (groups["embed"], models["embed"]["permanent"], models["rerank"]["permanent"]) == (
        None,
        True,
        True,
    )
    models = imported(importing, "matrix")[0]["models"]
    groups = {name: model.get("group") for name, model in models.items()}
    assert groups["gemma"] == groups["qwen"] == groups["mistral"] is not None
    assert groups["voice"] is None


def test_fixed_ports_become_free_ones_and_what_cannot_be_started_is_left_out_in_words(importing):
    done = importing("config", "import", "llama-swap", str(FIXTURES / "fixed-ports.yaml"), "-o", "-")
    models = tomllib.loads(done.stdout)["models"]
    assert models["tts"]["command"] == "/opt/tts/run --listen 127.0.0.1:${PORT} --voice anna"
    assert models["whisper"]["probe"] == "none"
    assert "elsewhere" not in models
    assert "# [models.elsewhere]" in done.stdout and "model elsewhere is left out" in done.stderr


def test_what_has_no_counterpart_is_a_comment_and_a_note(importing):
    made, text = imported(importing, "filters")
    thinker = made["models"]["thinker"]
    assert thinker["aliases"] == ["gpt-oss", "thinker:high", "thinker:low"]
    assert thinker["abilities"] == ["tools", "vision"]
    assert "# No counterpart: unlisted" in text and "# No counterpart: filters" not in text
    assert thinker["drop_fields"] == ["temperature", "top_p"]
    assert thinker["set_fields"] == {"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": True}}
    assert thinker["set_fields_by_name"] == {
        "thinker:high": {"reasoning_effort": "high"}, "thinker:low": {"reasoning_effort": "low"},
    }  # fmt: skip
    made, text = imported(importing, "docker")
    assert made["models"]["vllm-70b"]["served_as"] == "some/model-70b"
    made, text = imported(importing, "keys-peers-hooks")
    assert made["server"]["keys"] == {
        "key1": {"key": "sk-plain-key-of-a-person"}, "key2": {"key": "env:SWAP_KEY"},
    }  # fmt: skip
    assert "sk-from-the-environment" not in text, "a secret of the environment stays there"
    assert made["engines"]["other-box"] == {"driver": "remote", "url": "http://192.168.1.23:8080"}
    assert made["models"]["far/b"] == {"engine": "other-box", "source": "far/b"}
    assert (made["tiers"]["cloud"]["key"], made["tiers"]["cloud"]["enabled"]) == ("env:CLOUD_KEY", False)
    assert "watchbill load local" in text
    _, text = imported(importing, "draft-and-offload")
    assert "futureSection" in text and "someNewKey" in text


def test_no_file_is_overwritten_without_force(importing):
    target = importing.home / "watchbill.toml"
    target.write_text("# mine\n")
    again = ("config", "import", "llama-swap", str(FIXTURES / "minimal.yaml"))
    refused = importing(*again)
    assert (refused.returncode, "exists" in refused.stderr, target.read_text()) == (2, True, "# mine\n")
    assert importing(*again, "--force").returncode == 0
    assert "qwen" in target.read_text()
    told = json.loads(importing(*again, "-o", "other.toml", "--json").stdout)
    assert (told["file"], told["notes"]) == ("other.toml", [])


WRONG = {
    "not yaml": ("models: [", "is not YAML"),
    "no config": ("a: 1", "has no `models`"),
    "no command": ("models: {a: {ttl: 3}}", "models.a.cmd: is missing"),
    "unknown macro": ("models: {a: {cmd: 'x ${PORT} ${nothing}'}}", "models.a: ${nothing} is not known"),
    "unset variable": ("models: {a: {cmd: 'x ${PORT} ${env.NOT_SET}'}}", "models.a: ${env.NOT_SET} is not known"),
    "unknown member": ("models: {a: {cmd: x}}\ngroups: {g: {members: [b]}}", "there is no model b"),
    "bad matrix": ("models: {a: {cmd: x}}\nmatrix: {vars: {a: a}, sets: {s: 'a & ('}}", "matrix.sets: it ends"),
    "a bomb": ("a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    ) + "models: *h", "values, aliases counted each time"),
    "a loop": ("models: &m {a: *m}", "values, aliases counted each time"),
    "an object": ("models: !!python/object/apply:os.getcwd []", "is not YAML"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_config_that_cannot_be_imported_is_refused_with_its_reason(importing, case):
    text, reason = WRONG[case]
    (importing.home / "config.yaml").write_text(text)
    refused = importing("config", "import", "llama-swap", "config.yaml")
    assert refused.returncode == 2 and reason in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (importing.home / "watchbill.toml").exists()


def test_a_model_that_stays_needs_no_word_on_its_preload(importing):
    """Issue 19: `persistent` became `permanent`, which loads it at start."""
    (importing.home / "config.yaml").write_text(
        "models: {a: {cmd: 'x ${PORT}'}, b: {cmd: 'x ${PORT}'}}\n"
        "groups: {g: {persistent: true, swap: false, members: [a]}}\n"
        "hooks: {on_startup: {preload: [a, b]}}\n"
    )
    done = importing("config", "import", "llama-swap", str(importing.home / "config.yaml"))
    assert "preload b" in done.stderr and "preload a" not in done.stderr


def test_a_variable_that_is_not_set_hides_no_program_that_is_missing(importing):
    """Issue 19: everything that a person must fill in, at once."""
    (importing.home / "config.yaml").write_text(
        "apiKeys: ['${env.NOT_SET_HERE}']\nmodels: {a: {cmd: 'no-such-program ${PORT}'}}\n"
    )
    done = importing("config", "import", "llama-swap", str(importing.home / "config.yaml"))
    assert done.returncode == 0
    assert "'NOT_SET_HERE' is not set" in done.stderr and "no program no-such-program" in done.stderr


def test_without_an_ollama_nothing_is_written(importing):
    refused = importing("config", "import", "ollama")
    assert refused.returncode == 2 and "no models of an Ollama are here" in refused.stderr
    assert "OLLAMA_MODELS=DIR" in refused.stderr
    assert not (importing.home / "watchbill.toml").exists()


def test_an_installed_ollama_is_imported_and_not_changed(importing):
    make_embedding_model(importing.home / "made.gguf")
    model = (importing.home / "made.gguf").read_bytes()
    store = importing.home / ".ollama" / "models"
    blob = keep_model(store, "nomic:v1", model)
    keep_model(store, "mine", model, system="Be brief.")
    before = snapshot(store)
    importing.settings.update(
        OLLAMA_NUM_PARALLEL="3", OLLAMA_KEEP_ALIVE="1h30m", OLLAMA_MAX_LOADED_MODELS="2", OLLAMA_DEBUG="1",
        OLLAMA_HOST="0.0.0.0:11434", OLLAMA_ORIGINS="https://a.example,https://b.example",
    )  # fmt: skip
    done = importing("config", "import", "ollama")
    assert done.returncode == 0, done.stderr
    text = (importing.home / "watchbill.toml").read_text()
    made = tomllib.loads(text)
    assert made["library"] == {"ollama": True, "ollama_folder": str(store)}
    assert made["models"]["nomic:v1"] == {
        "engine": "llamacpp", "source": str(blob), "embedding": True, "concurrency": 3, "idle": "5400s",
    }  # fmt: skip
    assert "mine" not in made["models"] and made["devices"]["ram"]["max_resident"] == 2
    assert made["server"]["origins"] == ["https://a.example", "https://b.example"]
    assert "OLLAMA_HOST=0.0.0.0:11434" in done.stderr and "OLLAMA_DEBUG" in text
    assert importing("config", "check").returncode == 0
    (listed,) = json.loads(importing("list", "--json").stdout)["models"]
    assert (listed["name"], listed["aliases"]) == ("nomic:v1", ["mine"]), "one file, one model in memory"
    assert snapshot(store) == before
