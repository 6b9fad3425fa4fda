"""What Watchbill says about a config: values in force, the reference, the schema, the starter, the examples."""

import json
import os
import stat
import tomllib
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchbill.cli import run
from watchbill.config import load, parse, read, read_text
from watchbill.config.document import TABLES, Document, place_of
from watchbill.config.engines import DRIVERS
from watchbill.config.keys import Key, keys_of
from watchbill.config.reference import reference, schema
from watchbill.config.show import entries, show
from watchbill.config.starter import EMBEDDED, starter
from watchbill.reactor.intents import unit_of
from watchbill.toml import spell_value

HERE = Path(__file__).parents[2]
EXAMPLES = sorted((HERE / "examples").glob("*.toml"))
EVERYTHING = """
[server]
port = 0
keys = { alice = { key = "env:ALICE_KEY", lane = "chat" } }
[devices.gpu]
capacity = "24GB"
budget = 0.8
[devices.ram]
reservation = { model = "a", memory = "1GiB" }
[engines.own]
driver = "llamacpp"
binary = "./llama-server"
[models.a]
engine = "scripted"
script = { load = "3s", memory = "531MB", fail = "ignore-term" }
memory = { "gpu:0" = "4.6GB", ram = 123_000 }
env = { A = "b\\\\\\"c" }
idle = "1h30m"
[models."b:7b"]
engine = "own"
source = "b c.gguf"
[models.c]
engine = "process"
command = '''serve "x" --port ${PORT}'''
[lanes.chat]
class = "background"
max_wait = 0.5
"""


def in_force(text: str) -> str:
    loaded = read_text(
        text, base=Path("/srv"), origin="w.toml", environment={"ALICE_KEY": "0123456789abcdef"}
    )
    return "\n".join(show(loaded))


def test_what_is_shown_is_a_config_that_means_the_same() -> None:
    environment = {"ALICE_KEY": "0123456789abcdef"}
    shown = in_force(EVERYTHING)
    again = parse(shown, base=Path("/srv"), environment=environment)
    assert again == parse(EVERYTHING, base=Path("/srv"), environment=environment)
    assert [line.split("# default")[0].strip() for line in in_force(shown).splitlines()] == [
        line.split("# default")[0].strip() for line in shown.splitlines()
    ]


def test_every_key_in_force_is_shown_and_only_what_was_not_said_is_marked_as_default() -> None:
    loaded = read_text("[server]\nport = 8470\n", base=Path("/srv"), origin="w.toml", environment={})
    shown = show(loaded)
    assert "port = 8470" in shown
    assert 'host = "127.0.0.1"'.ljust(44) + "# default" in shown
    assert 'reserve = "2GiB"'.ljust(44) + "# default" in shown
    assert 'max_wait = "2m"'.ljust(44) + "# default" in shown
    assert [entry.path for entry in entries(loaded) if not entry.is_default] == [("server", "port")]


def test_what_is_said_of_all_gpus_is_not_marked_as_default() -> None:
    shown = in_force(EVERYTHING).split('[devices."gpu:0"]')[1].split("[")[0]
    assert 'capacity = "24GB"\n' in shown
    assert "budget = 0.8\n" in shown
    assert "parallel_loads = 1".ljust(44) + "# default" in shown


def test_a_key_that_stands_in_the_file_is_not_shown() -> None:
    loaded = read_text(
        '[server.keys.me]\nkey = "0123456789abcdef"', base=Path("/srv"), origin="w.toml", environment={}
    )
    assert "0123456789abcdef" not in "\n".join(show(loaded))
    assert 'key = "***"' in show(loaded)


def test_secrets_of_processes_and_webhooks_are_not_shown() -> None:
    text = """
[alerts]
webhook = "https://me:pass@hooks.example:8443/services/T0/B1/sesame?x=sesame"
[models.a]
engine = "process"
command = "serve --port ${PORT}"
health = "/health"
memory = "1GB"
env = { HF_TOKEN = "sesame", CUDA_DEVICE_ORDER = "PCI_BUS_ID" }
"""
    loaded = read_text(text, base=Path("/srv"), origin="w.toml", environment={})
    shown = "\n".join(show(loaded))
    assert "sesame" not in shown and "me:pass" not in shown
    assert 'webhook = "https://hooks.example:8443/***"' in shown
    assert 'HF_TOKEN = "***"' in shown and 'CUDA_DEVICE_ORDER = "PCI_BUS_ID"' in shown


# ------------------------------------------------------------------ reference and schema


def test_the_docs_hold_the_reference_that_the_tables_make() -> None:
    """Run `watchbill config reference` and put its output below the marker when this fails."""
    docs = (HERE / "docs/config.md").read_text()
    assert docs.split("<!-- made by: watchbill config reference -->\n")[1].strip() == reference().strip()


def test_the_docs_name_every_driver_with_the_keys_it_reads() -> None:
    docs = (HERE / "docs/config.md").read_text()
    for name, driver in DRIVERS.items():
        row = next((line for line in docs.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert bool(row) == driver.is_available, name
        assert all(f"`{key}`" in row for key in driver.reads if row), name


def test_every_key_has_a_sentence_that_explains_it() -> None:
    for place, table in TABLES.items():
        for key in keys_of(table).values():
            assert key.meaning.endswith("."), (*place, key.name)


def test_every_table_of_the_document_is_in_the_list_of_tables() -> None:
    drawn = schema()["$defs"]
    assert isinstance(drawn, dict)
    assert set(drawn) == {table.__name__ for table in TABLES.values() if table is not Document}
    assert place_of(("models", "a", "script", "fail", 0)) == ("models", "*", "script", "fail", "*")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_right(path: Path) -> None:
    found = load(path)
    assert found.models
    assert jsonschema_rs.validator_for(schema()).is_valid(tomllib.loads(path.read_text()))


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"minimal.toml", "two-of-three.toml", "bridge.toml"}


def test_the_bridge_is_the_server_that_its_document_describes() -> None:
    """RES-02, RES-03: one permanent model, the others by priority, 2 GiB reserve on 15 GB."""
    found = load(HERE / "examples/bridge.toml")
    assert [model.name for model in found.models.values() if model.permanent] == ["mnemos"]
    rotating = sorted(
        (model for model in found.models.values() if not model.permanent), key=lambda m: m.priority
    )
    assert [model.name for model in rotating][:5] == ["sisters", "logos", "gamma", "musashi", "mantis"]
    assert [model.memory["ram"] for model in rotating] == [4_600_000_000] * 4 + [531_000_000] * 2
    assert (found.devices["ram"].capacity, found.devices["ram"].reserve) == (15 * 10**9, 2 * 2**30)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (EMBEDDED, True),
        ("[server]\nprot = 1", False),
        ('[models.a]\nengine = "scripted"\nmemory = { ram = "1GB" }', True),
        ('[models.a]\nengine = "scripted"\nmemory = []', False),
        ('[models.a]\nidle = "5m"', False),
        ("[lanes.a]\nclass = 'odd'", False),
        ("[lanes.a]\nclass = 'normal'\nmax_wait = 1.5", True),
    ],
)
def test_the_schema_tells_right_from_wrong_as_the_reader_does(text: str, is_valid: bool) -> None:
    assert jsonschema_rs.validator_for(schema()).is_valid(tomllib.loads(text)) == is_valid


@given(value=st.recursive(st.text() | st.booleans() | st.integers(-(2**60), 2**60), st.lists, max_leaves=5))
def test_any_value_is_spelled_so_that_toml_reads_it_back(value: object) -> None:
    assert tomllib.loads(f"value = {spell_value(value)}")["value"] == value


def test_every_unit_of_an_example_is_one_that_its_reactor_may_touch() -> None:
    """RES-22: whoever copies the commands of an example has a reactor that serves all of its models."""
    seen = 0
    for path in EXAMPLES:
        words = path.read_text().split()
        allowed = [after.strip("'") for word, after in pairwise(words) if word == "--allow"]
        for model in load(path).models.values():
            if load(path).engines[model.engine].driver == "systemd":
                seen += 1
                assert any(fnmatchcase(unit_of(model), each) for each in allowed), (path.name, model.name)
    assert seen


def test_examples_in_hints_are_right_themselves() -> None:
    """A hint that leads to the next error is worse than none."""
    for place, table in TABLES.items():
        for key in (key for key in keys_of(table).values() if place and key.example):
            name = ".".join("ram" if part == "*" else part for part in place)
            text = f"[{name}]\n{key.name} = {key.example}\n{_rest(place, key)}"
            errors = [error["loc"] for error in _errors(tomllib.loads(text))]
            assert errors == [], text


def _rest(place: tuple[str, ...], key: Key) -> str:
    table = TABLES[place]
    required = [
        each for each in keys_of(table).values() if each.field.is_required() and each.name != key.name
    ]
    rest = "\n".join(f"{each.name} = {each.example}" for each in required)
    inside = place[:2] == ("models", "*") and len(place) > 2
    return rest + ('\n[models.ram]\nengine = "scripted"\n' if inside else "")


def _errors(raw: dict[str, object]) -> list[dict[str, object]]:
    from pydantic import ValidationError

    try:
        Document.model_validate(raw)
    except ValidationError as error:
        return [dict(each) for each in error.errors()]
    return []


# ------------------------------------------------------------------ the commands


def test_init_writes_a_config_that_is_right_and_private(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    assert run(["config", "init", str(file), "--root", str(tmp_path / "root")]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    source = load(file).models["smollm2"].source
    assert source == str(tmp_path / "root/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    told = capsys.readouterr().err
    assert f"config check {file}" in told and f"--root {tmp_path / 'root'}" in told


def test_what_the_starter_shows_in_comments_is_right_as_well(tmp_path: Path) -> None:
    lines = starter(tmp_path).splitlines()
    shown = "\n".join(
        line.removeprefix("# ") if "=" in line or line.startswith("# [") else line for line in lines
    )
    found = parse(shown, base=tmp_path, environment={"WATCHBILL_KEY": "0123456789abcdef"})
    assert set(found.models) == {"smollm2", "assistant", "speech"}
    assert set(found.lanes) == {"default", "batch"}
    assert found.server.host == "0.0.0.0"


def test_init_does_not_overwrite_a_config_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("# mine\n")
    assert run(["config", "init", str(file)]) == 2
    assert "exists; --force overwrites it" in capsys.readouterr().err
    assert file.read_text() == "# mine\n"
    assert run(["config", "init", str(file), "--force"]) == 0
    assert "[models.smollm2]" in file.read_text()
    assert run(["config", "init", str(tmp_path / "no/such/folder/w.toml")]) == 2


def test_check_says_every_problem_with_its_line_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[server]\nprot = 1\nport = 'x'\n")
    assert run(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{file}:2: server.prot: is not a key that Watchbill knows; did you mean port?",
        f'{file}:3: server.port: must be a whole number, not "x"; write port = 8470',
    ]
    assert run(["config", "check", "--config", str(file), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [(error["line"], error["key"]) for error in told["errors"]] == [
        (2, "server.prot"),
        (3, "server.port"),
    ]


def test_check_reports_a_missing_model_file_though_up_would_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    file.write_text('[models.a]\nengine = "llamacpp"\nsource = "gone.gguf"\n')
    assert load(file).models["a"].source == str(tmp_path / "gone.gguf")
    assert run(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"{file}:3: models.a.source: {tmp_path}/gone.gguf does not exist; "
        "fetch it with watchbill pull, or correct the path\n"
    )


def test_check_reports_a_corrupt_model_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    file.write_text('[models.a]\nengine = "llamacpp"\nsource = "bad.gguf"\n')
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    assert run(["config", "check", str(file)]) == 2
    assert "models.a.source: " in (told := capsys.readouterr().err)
    assert "GGUF" in told


def test_check_reports_a_command_that_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(
        '[models.a]\nengine = "process"\ncommand = "no-such-program --port ${PORT}"\n'
        '[models.b]\nengine = "process"\ncommand = "true --port ${PROT}"\n'
    )
    assert run(["config", "check", str(file)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert (
        first
        == f"{file}:3: models.a.command: there is no program no-such-program; install it or correct the command"
    )
    assert second.startswith(f"{file}:6: models.b.command: unknown placeholder ${{PROT}}")


def test_check_is_content_with_a_right_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    file.write_text('[models.a]\nengine = "scripted"\n')
    file.chmod(0o600)
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is right: 1 model, 1 lane, 1 device\n"
    assert run(["config", "check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "errors": [], "findings": []}


def test_show_prints_values_for_people_and_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[server]\nport = 1\n")
    assert run(["config", "show", str(file)]) == 0
    assert "port = 1\n" in capsys.readouterr().out
    assert run(["config", "show", str(file), "--json"]) == 0
    values = {each["key"]: each for each in json.loads(capsys.readouterr().out)["values"]}
    assert values["server.port"] == {"key": "server.port", "value": 1, "default": False}
    assert values["devices.ram.reserve"] == {"key": "devices.ram.reserve", "value": "2GiB", "default": True}


def test_show_of_a_wrong_config_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[server]\nprot = 1\n")
    assert run(["config", "show", str(file)]) == 2
    assert f"{file}:2: server.prot" in capsys.readouterr().err


def test_schema_and_reference_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "watchbill.toml"
    assert run(["config", "reference"]) == 0
    assert capsys.readouterr().out.strip() == reference().strip()


def test_the_environment_decides_which_config_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "XDG_CONFIG_HOME", str(tmp_path / "conf"))
    assert read(None, root=tmp_path).file is None
    assert run(["config", "check", "--root", str(tmp_path)]) == 0  # its model is fetched by `up`
    assert "the embedded default is right" in capsys.readouterr().out
