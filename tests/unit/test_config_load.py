"""Reading a config: where it is looked for, what it means, and what happens when it cannot be read."""

import contextlib
import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from support.eventually import wait_until
from watchbill import catalog, limits
from watchbill.catalog import Catalog, WorkClass
from watchbill.config import ConfigFile, default_catalog, load, parse, read
from watchbill.config.engines import DRIVERS
from watchbill.config.models import FAILURES, ScriptTable
from watchbill.engines import registry, scripted
from watchbill.errors import ConfigError

BASE = Path("/srv/watchbill")
MODEL = '[models.{}]\nengine = "scripted"\n'


def parsed(text: str, **environment: str) -> Catalog:
    return parse(text, base=BASE, origin="w.toml", environment=environment)


# ------------------------------------------------------------------ what it means


def test_rotation_is_on_where_a_model_has_a_background_task_and_off_elsewhere() -> None:
    """RES-16, RES-18: every 12 min, at most 2 h; without any task there are no turns, and silence is no alarm."""
    assert parsed(MODEL.format("a")).rotation == catalog.RotationRules()
    task = MODEL.format("a") + "background = { prompt = 'Look around.' }\n"
    assert parsed(task).rotation == catalog.RotationRules(720_000, 7_200_000)
    assert parsed(task + "[rotation]\nevery = 'off'").rotation.every_ms is None
    assert parsed(task + "[rotation]\nevery = '3h'").rotation.max_ms == 10_800_000
    assert parsed(task + "[rotation]\nsilence = 'off'").rotation.silence is False
    assert parsed("[rotation]\nsilence = '1h'\n" + MODEL.format("a")).rotation.silence_ms == 3_600_000


def test_an_empty_config_has_the_documented_defaults() -> None:
    """RES-04, RES-07, RES-11, LANE-04: 2 GiB reserve, 5 min idle, 2 min and 15 min to wait, 10 min to answer."""
    found = parsed(
        "[lanes.batch]\nclass = 'background'\n[lanes.plans]\nclass = 'normal'\n" + MODEL.format("a")
    )
    assert found.server == catalog.Server()
    assert found.policy == catalog.PolicyRules()
    assert found.devices == {"ram": catalog.Device("ram", reserve=catalog.Bytes(2 * 2**30))}
    assert found.models["a"] == catalog.Model("a", "scripted", stays_if_room=True)
    assert found.models["a"].idle_ms == 300_000
    assert found.lanes["default"] == catalog.Lane("default")
    assert found.lanes["default"].max_wait_ms == 120_000
    assert found.lanes["batch"].max_wait_ms == found.lanes["plans"].max_wait_ms == 900_000
    assert found.lanes["batch"].timeout_ms == 600_000


def test_a_lane_with_a_fallback_answers_sooner() -> None:
    """LANE-04: 45 s for lanes that have something to say instead."""
    found = parsed(
        "[lanes.bot]\nfallback = 'I notice {summary}.'\n[lanes.slow]\nfallback = 'x'\ntimeout = '2m'"
    )
    assert found.lanes["bot"].timeout_ms == 45_000
    assert found.lanes["slow"].timeout_ms == 120_000


def test_every_key_reaches_the_catalog() -> None:
    found = parsed(
        """
[server]
host = "0.0.0.0"
port = 0
hosts = ["box.lan"]
origins = ["https://chat.lan:3000"]
body_max = "1MiB"
bodies_max = "8MiB"
connections_max = 64
store_responses = false
[server.keys.alice]
key = "env:ALICE_KEY"
lane = "chat"
admin = true
max_priority = 2
requests_max = 8
waiting_max = 4
tokens_per_minute = 9000
capture = "corpus"
bodies_max = "2MiB"
[spool.corpus]
[devices.ram]
capacity = "64GB"
reserve = "4GiB"
budget = 0.9
max_resident = 5
parallel_loads = 2
protect = ["routx"]
reservation = { model = "small", memory = "2GiB" }
[devices."gpu:0"]
max_temp_c = 80
max_vram_percent = 90
max_power_w = 140
[engines.own]
driver = "llamacpp"
binary = "bin/llama-server"
[engines.theirs]
driver = "ollama"
url = "http://box:11434"
shared = true
[models.big]
engine = "own"
source = "big.gguf"
memory = "4.6GB"
devices = ["ram"]
aliases = ["b"]
permanent = true
priority = 1
concurrency = 4
inertia = 3
idle = "1h"
group = "heavy"
family = "f"
tier = 1
exact = true
context = 8192
threads = 2
mmap = true
embedding = true
prompt_cache = "1GiB"
load_timeout = "90s"
health = "/up"
probe = "embed"
env = { A = "b" }
arguments = ["--flash-attn", "on"]
quota = "6GB"
private = true
set_fields = { dimensions = 64 }
drop_fields = ["user"]
set_fields_by_name = { b = { user = "b" } }
background = { command = "last-op" }
[models.other]
abilities = ["tools", "thinking"]
engine = "process"
command = "serve --port ${PORT}"
stop = "SIGINT"
sleep = "1m"
asleep = "600MB"
source = "/abs/x.bin"
served_as = "vendor/x"
background = { prompt = "Look." }
[models.unit]
engine = "systemd"
memory = "1GiB"
url = "http://127.0.0.1:9101"
unit = "x.service"
image = "i"
[models.small]
engine = "scripted"
script = { load = "3s", service = 0.5, memory = "1GiB", fail = "ignore-term", touch = false }
[policy]
name = "turns"
alpha = 2
linger = 0.5
inertia = 2.5
weights = { interactive = 20, background = 0.5 }
parallel_loads = 3
[lanes.chat]
class = "normal"
policy = "priority"
priority = 2
max_wait = "1m"
timeout = "30s"
queue_max = 7
concurrency = 3
fallback = "sorry"
private = true
[rotation]
every = "2h"
max = "4h"
order = ["other", "big"]
silence = "3h"
[epochs.ingest]
models = ["big"]
window = "5m"
every = "30m"
priority = 2
[sets.see]
models = ["small", "unit"]
[journal]
markdown = "~/radio/queue_log.md"
events = "e.jsonl"
traffic = false
[alerts]
command = "notify-send"
webhook = "http://127.0.0.1:9999/"
""",
        ALICE_KEY="s3cret-s3cret-s3cret",
    )
    gigabyte, gibibyte = 10**9, 2**30
    assert found.server == catalog.Server(
        "0.0.0.0", 0,
        (catalog.ApiKey("alice", "s3cret-s3cret-s3cret", "chat", True, 2, 8, 4, 9000, "corpus", catalog.Bytes(2**21)),),
        ("box.lan",), ("https://chat.lan:3000",), catalog.Bytes(2**20), catalog.Bytes(2**23), 64,
        store_responses=False, key_variables=frozenset({"ALICE_KEY"}),
    )  # fmt: skip
    assert found.devices["ram"] == catalog.Device(
        "ram", 64 * gigabyte, 4 * gibibyte, 0.9, 5, 2, ("routx",), catalog.Reservation("small", 2 * gibibyte)
    )
    assert found.devices["gpu:0"] == catalog.Device(
        "gpu:0", max_temp_c=80.0, max_vram_percent=90.0, max_power_w=140.0
    )
    assert found.engines["own"] == catalog.EngineRules(
        "own", "llamacpp", binary="/srv/watchbill/bin/llama-server"
    )
    assert found.models["big"] == catalog.Model(
        "big", "own", "/srv/watchbill/big.gguf", {"ram": 46 * gigabyte // 10}, ("ram",), ("b",), permanent=True,
        priority=1, concurrency=4, inertia=3.0, idle_ms=3_600_000, group="heavy", family="f", family_rank=1, exact=True,
        context=8192,
        threads=2, mmap=True, embedding=True, prompt_cache=gibibyte, load_timeout_ms=90_000, health="/up",
        probe="embed", env={"A": "b"}, arguments=("--flash-attn", "on"),
        quota=6 * gigabyte, background=catalog.BackgroundTask(command="last-op"),
        requests=catalog.RequestRules({"dimensions": 64}, frozenset({"user"}), {"b": {"user": "b"}}),
        private=True,
    )  # fmt: skip
    assert found.models["other"] == catalog.Model(
        "other",
        "process",
        "/abs/x.bin",
        served_as="vendor/x",
        command="serve --port ${PORT}",
        stop="SIGINT",
        sleep_ms=60_000,
        sleeps_when_told=True,
        asleep={"ram": 600_000_000},
        background=catalog.BackgroundTask("Look."),
        stays_if_room=True,
        abilities=frozenset({"tools", "thinking"}),
    )
    assert found.models["small"].memory == {"ram": gibibyte}
    assert found.policy == catalog.PolicyRules("turns", 2.0, 0.5, 2.5, (20.0, 3.0, 0.5, 0.3, 0.0), 3)
    assert found.lanes["chat"] == catalog.Lane(
        "chat", WorkClass.NORMAL, "priority", 2, 60_000, 30_000, 7, 3, "sorry", private=True
    )
    assert found.rotation == catalog.RotationRules(7_200_000, 14_400_000, ("other", "big"), 10_800_000)
    assert found.epochs == {"ingest": catalog.Epoch("ingest", ("big",), 300_000, 1_800_000, 2)}
    assert found.sets == {"see": ("small", "unit")}
    assert found.journal == catalog.JournalRules(
        str(Path.home() / "radio/queue_log.md"), "e.jsonl", traffic=False
    )
    assert found.alerts == catalog.AlertRules("notify-send", "http://127.0.0.1:9999/")


#: Fields of the catalog that no key sets, and why.
NOT_SET_BY_A_KEY = {
    ("Model", "is_placed"): "whether `devices` is said",
    ("Server", "key_variables"): "the names behind `env:` of its keys",
    ("Model", "shared"): "copied from its engine",
    ("Model", "sleeps_when_told"): "copied from its driver",
    ("Model", "writes_here"): "copied from its driver",
    ("Model", "stays_if_room"): "follows from leaving idle out",
    ("Model", "where"): "a tier's kind",
    ("Model", "site"): "a tier's name",
    ("Model", "copy_of"): "the model of the same name here",
    ("ApiKey", "peer"): "of a peer",
    ("ApiKey", "old_key"): "of a peer",
    ("EngineRules", "key"): "of a tier",
    ("EngineRules", "start"): "of a tier",
    ("EngineRules", "options"): "no driver reads any",
    ("PolicyRules", "strategy"): "the class that name means",
}


def test_no_field_of_the_catalog_was_forgotten() -> None:
    """A field that the config cannot set is a promise nobody can use: the test above must name it."""
    source = Path(__file__).read_text()
    body = source[source.index("def test_every_key_reaches") : source.index("NOT_SET_BY_A_KEY")]
    renamed = {"work_class": "class", "share": "budget", "idle_ms": "idle", "load_timeout_ms": "load_timeout",
               "max_wait_ms": "max_wait", "timeout_ms": "timeout", "every_ms": "every", "max_ms": "max",
               "window_ms": "window", "sleep_ms": "sleep", "silence_ms": "silence", "family_rank": "tier",
                   "requests": "set_fields",
               "name": ""}  # fmt: skip
    for record in (catalog.Device, catalog.EngineRules, catalog.Model, catalog.Lane, catalog.PolicyRules,
                   catalog.ApiKey, catalog.Server, catalog.JournalRules, catalog.AlertRules,
                   catalog.RotationRules, catalog.Epoch, catalog.BackgroundTask):  # fmt: skip
        for field in dataclasses.fields(record):
            key = renamed.get(field.name, field.name)
            named = f"{key} = " in body or f".{key}." in body or not key
            assert (record.__name__, field.name) in NOT_SET_BY_A_KEY or named, field


def test_the_scripts_of_the_config_are_those_of_the_scripted_engine() -> None:
    """Two layers, one list: the config may not import the engine, so this test holds them together."""
    assert set(ScriptTable.model_fields) == set(scripted.Script.__struct_fields__)
    assert set(FAILURES) == set(scripted.FAILURES)
    found = parsed(
        MODEL.format("a")
        + 'script = { load = "3s", service = 0.25, memory = "1GiB", fail = ["http-500"], tokens = 3 }'
    )
    read = scripted.check_script(found.models["a"].script)
    assert (read["load_ms"], read["service_ms"], read["memory_bytes"]) == (3000, 250, 2**30)
    assert (read["fail"], read["tokens"]) == (["http-500"], 3)


@pytest.mark.parametrize("key", ["load", "wake", "service", "linger"])
def test_every_duration_of_a_script_reaches_the_scripted_engine_as_it_was_written(key: str) -> None:
    found = parsed(MODEL.format("a") + f'script = {{ {key} = "2s" }}')
    assert scripted.check_script(found.models["a"].script)[f"{key}_ms"] == 2000


def test_the_drivers_of_the_config_are_those_there_are() -> None:
    assert {name for name, driver in DRIVERS.items() if driver.is_available} == set(registry.DRIVERS)


def test_a_drivers_name_serves_as_an_engine_without_a_table() -> None:
    found = parsed(MODEL.format("a"))
    assert found.engines == {"scripted": catalog.EngineRules("scripted", "scripted")}


def test_a_table_of_gpus_holds_defaults_for_each_of_them() -> None:
    """RES-01: what a single card says wins over what is said of all."""
    found = parsed(
        '[devices.gpu]\ncapacity = "24GB"\nbudget = 0.8\n[devices."gpu:1"]\nbudget = 0.5\n'
        + MODEL.format("a") + 'memory = { "gpu:0" = "9GB", "gpu:1" = "9GB" }\n'
    )  # fmt: skip
    assert set(found.devices) == {"ram", "gpu:0", "gpu:1"}
    assert (found.devices["gpu:0"].capacity, found.devices["gpu:0"].share) == (24 * 10**9, 0.8)
    assert (found.devices["gpu:1"].capacity, found.devices["gpu:1"].share) == (24 * 10**9, 0.5)
    assert found.devices["gpu:0"].reserve == 0
    assert found.models["a"].devices == ("gpu:0", "gpu:1")


def test_a_key_from_the_environment_never_shows_in_a_repr() -> None:
    found = parsed('[server.keys.me]\nkey = "env:MY_KEY"', MY_KEY="very-secret-indeed-1234")
    assert found.server.keys[0].key == "very-secret-indeed-1234"
    assert "very-secret" not in repr(found)


def test_the_same_text_makes_the_same_catalog() -> None:
    """A reload tells unchanged models from changed ones by comparing them."""
    text = MODEL.format("a") + 'env = { A = "b" }\n' + MODEL.format("b")
    assert parsed(text) == parsed(text)
    assert parsed(text).models["a"] != parsed(text.replace('"b"', '"c"', 1)).models["a"]


# ------------------------------------------------------------------ where it is


def test_the_config_is_the_named_one_else_the_variables_else_the_one_here_else_the_users_else_the_embedded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("WATCHBILL_HOME", raising=False)

    found = read(None)
    assert found.file is None
    assert found.catalog == default_catalog(tmp_path / "home/.local/share/watchbill")
    users = tmp_path / "home/.config/watchbill/watchbill.toml"
    users.parent.mkdir(parents=True)
    users.write_text(MODEL.format("users"))
    assert set(load().models) == {"users"}
    Path("watchbill.toml").write_text(MODEL.format("here"))
    assert set(load().models) == {"here"}
    (tmp_path / "named.toml").write_text(MODEL.format("named"))
    (tmp_path / "variable.toml").write_text(MODEL.format("variable"))
    monkeypatch.setenv("WATCHBILL_CONFIG", str(tmp_path / "variable.toml"))
    assert set(load().models) == {"variable"}
    assert set(load(tmp_path / "named.toml").models) == {"named"}


def test_the_embedded_config_names_the_model_that_setting_up_puts_under_the_root(tmp_path: Path) -> None:
    found = default_catalog(tmp_path)
    assert found.find_model("default") is found.models["smollm2"]
    assert found.models["smollm2"].source == str(tmp_path / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert found.models["smollm2"].engine == "llamacpp"


def test_paths_are_relative_to_the_file_not_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    text = '[models.a]\nengine = "llamacpp"\nsource = "m/a.gguf"\n'
    (tmp_path / "conf/w.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert load(Path("conf/w.toml")).models["a"].source == str(tmp_path / "conf/m/a.gguf")


# ------------------------------------------------------------------ what cannot be read


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[server\nport = 1", "w.toml:1: is not TOML: expected ']' at the end of a table declaration; see https://toml.io"),
        (b"a = 1\nb = \nc = 3", "w.toml:2: is not TOML: invalid value; see https://toml.io"),
        (b'a = 1\nb = "open\n', "w.toml:2: is not TOML: illegal character '\\n'; a quote is missing on this line"),
        (b"a = 1\r\nmemory = 4.6GB  # in all\r\n", "w.toml:2: is not TOML: expected newline or end of document after a "
         'statement; write memory = "4.6GB"'),
        (b"engine = llamacpp\n", 'w.toml:1: is not TOML: invalid value; write engine = "llamacpp"'),
        (b"permanent = True\n", "w.toml:1: is not TOML: invalid value; write permanent = true"),
        (b"idle = null\n", "w.toml:1: is not TOML: invalid value; leave the key out, for its default"),
        ("engine = \u201cllamacpp\u201d\n".encode(), 'w.toml:1: is not TOML: invalid value; write plain quotes: "'),
        (b'source = "C:\\x\\m.gguf"\n', "w.toml:1: is not TOML: unescaped '\\' in a string; "
         "put a text with backslashes into single quotes"),
        (b"[devices.gpu:0]\n", "w.toml:1: is not TOML: expected ']' at the end of a table declaration; "
         'write [devices."gpu:0"]'),
        (b"[models.meta/llama-3.1]\n", "w.toml:1: is not TOML: expected ']' at the end of a table declaration; "
         'write [models."meta/llama-3.1"]'),
        (b"port = 012\n", "w.toml:1: is not TOML: expected newline or end of document after a statement; "
         "see https://toml.io"),
        (b"a = " + b"x" * 1_000, "w.toml:1: is not TOML: invalid value; see https://toml.io"),
        (b'a = """open\n\n', "w.toml:2: is not TOML: unterminated string; see https://toml.io"),
        (b"models:\n  a:\n    cmd: serve\n", "w.toml:1: is not TOML: expected '=' after a key in a key/value pair; "
         "a config of llama-swap becomes one with: watchbill config import llama-swap w.toml"),
        (b"[server]\nport = 1\nport = 2\n", "w.toml:3: sets a key that is already set; keep one of them"),
        (b"[models.a]\n[models.a]\n", "w.toml:2: models.a: is declared twice; merge the two tables"),
        (b'[devices."gpu:0"]\n[devices."gpu:0"]\n',
         'w.toml:2: devices."gpu:0": is declared twice; merge the two tables'),
        (b"a = 1\n\xff\xfe", "w.toml:2: is not UTF-8 text; save the file as UTF-8"),
        (b"x" * (limits.CONFIG_FILE_BYTES_MAX + 1), "w.toml: larger than 512 KiB; is this the right file?"),
        (b"a = " + b"[" * 100_000, "w.toml: is nested too deeply"),
        (b"a = " + b"[" * 30 + b"]" * 30, "w.toml: is nested too deeply"),
        (b"a = " + b"{a = " * 30 + b"1" + b"}" * 30, "w.toml: is nested too deeply"),
        (b"b = 1\n" + b".".join([b"a"] * 50_000) + b" = 1", "w.toml:2: is nested too deeply"),
        (b"[" + b" . ".join([b"'a'"] * 50_000) + b"]", "w.toml:1: is nested too deeply"),
        (b"a = {" + b'."a".'.join([b"a"] * 50_000) + b" = 1}", "w.toml:1: is nested too deeply"),
        (b"b = 1\n[server]\nport = " + b"9" * 5_000, "w.toml:3: has a number of too many digits"),
        (b"[server]\nport = 0x" + b"f" * 5_000, "w.toml:2: server.port: is too large a number"),
        (b"[server]\nports = [1, -9223372036854775809]", "w.toml:2: server.ports[1]: is too large a number"),
        (b"[server]\n" + b"".join(b"[models.m%d]\n" % n for n in range(20_000)),
         "w.toml:2: models: has 20,000 entries; the most is 1,000"),
        (b"[server]\nhosts = [" + b"'a'," * 1_001 + b"]",
         "w.toml:2: server.hosts: has 1,001 entries; the most is 1,000"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_toml_is_refused_with_its_line(
    content: bytes, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(Path("w.toml"))
    assert str(caught.value) == line


def test_dots_in_texts_and_comments_are_no_keys() -> None:
    dots = ".".join("a" * 200)
    text = f"""# {dots}\n[models.a]\nengine = "scripted" # {dots}\nbackground = {{ prompt = "{dots}" }}\n
[models.b]\nengine = "scripted"\nbackground = {{ prompt = \'{dots}\' }}
[models.c]\nengine = "scripted"\n[models.c.background]\nprompt = \"\"\"\n{dots}\n"{dots}"\n\"\"\"\n"""
    assert set(parsed(text).models) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "piece", ["a", ".", "a.", '"', "'", '"""', "'''", "\\", "[", "a.'b'.", "# ", "1_", "=", '"a".']
)
def test_no_text_takes_long_to_refuse(piece: str) -> None:
    """A file of the largest size is read or refused in seconds, whatever is repeated in it."""
    began = time.process_time()
    for text in (piece * (300_000 // len(piece)), f"a = [{piece * (300_000 // len(piece))}]"):
        with contextlib.suppress(ConfigError):
            parsed(text)
    assert time.process_time() - began < 20


class HangingPath:
    """A path on a mount that hangs, until it is told to go on."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.looks = 0

    def __fspath__(self) -> str:
        self.looks += 1
        self.goes_on.wait(60)
        return "/nonexistent/w.toml"


def test_a_config_on_a_mount_that_hangs_is_given_up_in_time_and_looked_at_by_one_thread() -> None:
    """Not one more thread with every look: a mount may hang for days."""
    path = HangingPath()
    file = ConfigFile(cast("Path", path), deadline_ms=50)
    for look in (file.read, file.stamp, file.read):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            look()
    assert path.looks == 1
    path.goes_on.set()
    wait_until(lambda: not _is_looking())
    with pytest.raises(FileNotFoundError):
        file.read()


def _is_looking() -> bool:
    return any(thread.name == "watchbill-config" for thread in threading.enumerate())


def test_a_config_that_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50: nobody writes into this pipe, and an endless device would never end."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("watchbill.toml")
    for path in (None, Path("watchbill.toml"), Path("/dev/zero")):
        with pytest.raises(ConfigError, match="cannot be read: not a regular file"):
            load(path, environment={"XDG_CONFIG_HOME": str(tmp_path)})
    Path("watchbill.toml").unlink()
    Path("watchbill.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="no such file"):
        load(None, environment={"XDG_CONFIG_HOME": str(tmp_path)})


def test_a_byte_order_mark_is_not_an_error() -> None:
    assert set(parsed("\ufeff" + MODEL.format("a")).models) == {"a"}


def test_a_missing_file_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(Path("w.toml"))
    assert str(caught.value) == (
        "w.toml: cannot be read: no such file or directory; watchbill config init w.toml writes one"
    )
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        load(tmp_path)


def test_a_config_error_keeps_its_parts_for_programs() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("[server]\nprot = 1")
    assert [problem._asdict() for problem in caught.value.problems] == [
        {"file": "w.toml", "line": 2, "key": "server.prot", "text": "is not a key that Watchbill knows",
         "hint": "did you mean port?"}
    ]  # fmt: skip


def test_the_environment_of_the_process_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "WB_TEST_KEY", "0123456789abcdef")
    assert (
        parse('[server.keys.me]\nkey = "env:WB_TEST_KEY"', base=BASE).server.keys[0].key == "0123456789abcdef"
    )
