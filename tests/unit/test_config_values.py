"""Wrong values: each is reported with its line, its key, what is wrong and what to do."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from watchbill import limits
from watchbill.config import parse
from watchbill.config.document import TABLES
from watchbill.config.keys import keys_of
from watchbill.errors import ConfigError

BASE = Path("/srv/watchbill")
MODEL = '[models.a]\nengine = "scripted"\n'


def complaints(text: str, **environment: str) -> list[str]:
    """The lines that Watchbill says about a config, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        parse(text, base=BASE, origin="w.toml", environment=environment)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("w.toml:") for line in lines)
    return [line.removeprefix("w.toml:") for line in lines]


MATRIX = [
    # unknown keys
    ("[server]\nprot = 1", "2: server.prot: is not a key that Watchbill knows; did you mean port?"),
    ("[servr]", "1: servr: is not a key that Watchbill knows; did you mean server?"),
    (MODEL + 'idel = "5m"', "3: models.a.idel: is not a key that Watchbill knows; did you mean idle?"),
    (MODEL + "Permanent = true", "3: models.a.Permanent: is not a key that Watchbill knows; did you mean permanent?"),
    ("[policy.weights]\nurgent = 1",
     "2: policy.weights.urgent: is not a key that Watchbill knows; known are interactive, normal, background"),
    ('[server]\nkeys = { al = { key = "0123456789abcdef", lan = "x" } }',
     "2: server.keys.al.lan: is not a key that Watchbill knows; did you mean lane?"),
    (MODEL + 'script = { laod = "3s" }',
     "3: models.a.script.laod: is not a key that Watchbill knows; did you mean load?"),
    # wrong kinds
    ('[server]\nport = "8470"', '2: server.port: must be a whole number, not "8470"; write port = 8470'),
    ("[server]\nport = 84.5", "2: server.port: must be a whole number, not 84.5; write port = 8470"),
    ("[server]\nhost = 1", '2: server.host: must be a text, not 1; write host = "127.0.0.1"'),
    ("server = 1", "1: server: must be a table, not 1"),
    ("[[models]]\nengine = 'scripted'", "1: models: must be a table, not a list"),
    ("models.a = []", "1: models.a: must be a table, not a list"),
    ("server.keys.a = 's3cret'", '1: server.keys.a: must be a table; write { key = "env:ALICE_KEY" }'),
    ("server.keys.a.key = 5551234", '1: server.keys.a.key: must be a text; write key = "env:ALICE_KEY"'),
    (MODEL + 'permanent = "yes"', '3: models.a.permanent: must be true or false, not "yes"; write permanent = true'),
    (MODEL + "permanent = 1", "3: models.a.permanent: must be true or false, not 1; write permanent = true"),
    (MODEL + "permanent = 'never'",
     '3: models.a.permanent: must be true or false, not "never"; write permanent = false'),
    ("[models.a]\nengine = 'llamacpp'\nsource = 'x'\ncontext = '8k'",
     '4: models.a.context: must be a whole number, not "8k"; write context = 8192'),
    (MODEL + 'aliases = "b"', '3: models.a.aliases: must be a list, not "b"; write aliases = ["b"]'),
    ("[models.a]\nengine = 'llamacpp'\nsource = 'x'\narguments = '--flash-attn on'",
     '4: models.a.arguments: must be a list, not "--flash-attn on"; write arguments = ["--flash-attn", "on"]'),
    ("[models.llama3.2.1b]\nengine = 'llamacpp'\nsource = 'x'",
     '1: models.llama3.2: a name with a dot needs quotes; write [models."llama3.2.1b"]'),
    ("[models.qwen2.5]\nengine = 'llamacpp'",
     '1: models.qwen2.5: a name with a dot needs quotes; write [models."qwen2.5"]'),
    # words of other programs
    (MODEL + "ttl = 300", '3: models.a.ttl: is not a key that Watchbill knows; write idle = "5m"'),
    (MODEL + "path = 'x.gguf'", "3: models.a.path: is not a key that Watchbill knows; write source = ..."),
    (MODEL + "num_ctx = 1", "3: models.a.num_ctx: is not a key that Watchbill knows; write context = 8192"),
    (MODEL + "n-gpu-layers = 99", "3: models.a.n-gpu-layers: is not a key that Watchbill knows; models go to a card "
     'where one has room; write devices = ["gpu:0"] to choose one'),
    (MODEL + 'aliases = [\n "b",\n 3]', "5: models.a.aliases[1]: must be a text, not 3"),
    (MODEL + "set_fields = { stream = true }",
     "3: models.a.set_fields.stream: stream is for the caller to say; remove it"),
    (MODEL + "set_fields = { seed = 1979-05-27 }",
     "3: models.a.set_fields: 'seed' cannot be written as JSON; use texts, numbers, switches, lists, tables"),
    (MODEL + 'drop_fields = ["model"]', "3: models.a.drop_fields[0]: model is for the caller to say; remove it"),
    (MODEL + 'set_fields_by_name = { "a:high" = { top_k = 1 } }',
     "3: models.a.set_fields_by_name.\"a:high\": a:high is no name of this model; add it: aliases = [\"a:high\"]"),
    (MODEL + "priority = true", "3: models.a.priority: must be a whole number, not true; write priority = 3"),
    (MODEL + "env = { A = 1 }", "3: models.a.env.A: must be a text, not 1"),
    ("[models.a]\nengine = 1979-05-27", '2: models.a.engine: must be a text, not a date; write engine = "llamacpp"'),
    # missing
    ("[models.a]\npermanent = true", '1: models.a.engine: is missing; add engine = "llamacpp"'),
    (
        '[models.a]\nengine = "vLLM"',
        '2: models.a.engine: there is no engine vLLM; write engine = "process" and command = "vLLM ... --port ${PORT}"',
    ),
    ("\n[engines.x]\nbinary = 'y'", '2: engines.x.driver: is missing; add driver = "llamacpp"'),
    ("[server]\nkeys = { me = {} }", '2: server.keys.me.key: is missing; add key = "env:ALICE_KEY"'),
    # bounds
    ("[server]\nport = 65536", "2: server.port: must be at most 65535"),
    ("[server]\nport = -1", "2: server.port: must be at least 0"),
    ("[server]\nbody_max = '3GiB'", "2: server.body_max: must be at most 1GiB"),
    (MODEL + "priority = 0", "3: models.a.priority: must be at least 1"),
    (MODEL + "priority = 6", "3: models.a.priority: must be at most 5"),
    (MODEL + "concurrency = 0", "3: models.a.concurrency: must be at least 1"),
    (MODEL + "inertia = nan", "3: models.a.inertia: must be a finite number, not nan"),
    (MODEL + "inertia = inf", "3: models.a.inertia: must be a finite number, not inf"),
    (MODEL + "inertia = -0.1", "3: models.a.inertia: must be at least 0"),
    (MODEL + "idle = 0", "3: models.a.idle: must be at least 1ms"),
    ("[devices.ram]\nbudget = 0", "2: devices.ram.budget: must be more than 0"),
    ("[devices.ram]\nbudget = 1.5", "2: devices.ram.budget: must be at most 1"),
    ("[devices.ram]\nmax_resident = 0", "2: devices.ram.max_resident: must be at least 1"),
    # sizes and durations
    (MODEL + 'memory = "9 gigs"',
     "3: models.a.memory: '9 gigs' is not a size; write for example 4.6GB, 2GiB or 512MiB"),
    ("[devices.ram]\ncapacity = 12", '2: devices.ram.capacity: 12 has no unit: it would be 12 bytes; write "12GB"'),
    (MODEL + 'memory = "4"', '3: models.a.memory: 4 has no unit: it would be 4 bytes; write "4GB"'),
    ('[models.a]\nengine = "llamacpp"\nsource = "$HOME/models/a.gguf"',
     "3: models.a.source: '$HOME/models/a.gguf' cannot be a path; variables are not replaced here: "
     "write ~ for your home folder, or the path itself"),
    (MODEL + "memory = -1",
     "3: models.a.memory: -1 is not a size; write a number of bytes, or for example 4.6GB or 2GiB"),
    (MODEL + "memory = 4.6",
     "3: models.a.memory: must be a size; write for example 4.6GB, 2GiB or 512MiB in quotes"),
    (MODEL + 'memory = { ram = "x" }',
     "3: models.a.memory.ram: 'x' is not a size; write for example 4.6GB, 2GiB or 512MiB"),
    (MODEL + 'memory = { vram = "1GB" }',
     '3: models.a.memory.vram: \'vram\' is not a device; write ram or for example "gpu:0"'),
    (MODEL + 'idle = "5 minutes"',
     "3: models.a.idle: '5 minutes' is not a duration; write for example 30s, 5m or 1h30m"),
    (MODEL + "idle = false",
     "3: models.a.idle: False is not a duration in seconds; write for example 30s, 5m or 1h30m"),
    (MODEL + 'idle = "1000d"', "3: models.a.idle: '1000d' is longer than 100 days; write for example 30s, 5m or 1h30m"),
    # words
    ("[policy]\nname = 'rates'",
     "2: policy.name: must be one of rate, turns, fifo, or package.module:Class, not 'rates'; did you mean rate?"),
    ("[lanes.x]\nclass = 'zzz'", '2: lanes.x.class: must be one of interactive, normal, background, not "zzz"'),
    ("[lanes.x]\nclass = 3", "2: lanes.x.class: must be one of interactive, normal, background, not 3"),
    (MODEL + "script = { fail = 'crash-on-laod' }",
     "3: models.a.script.fail: 'crash-on-laod' is not a failure that can be scripted; did you mean crash-on-load?"),
    # names
    ('[models."../x"]\nengine = "scripted"',
     "1: models.\"../x\": '../x' cannot be a model's name; use letters, digits and . _ - : / @ +, "
     "and begin with a letter or digit"),
    ('[models."a..b"]\nengine = "scripted"',
     "1: models.\"a..b\": 'a..b' cannot be a model's name; it reads like a path: "
     "leave out .., // and a last dot or slash"),
    ('[lanes."a b"]',
     "1: lanes.\"a b\": 'a b' cannot be a name; use letters, digits and . _ -, and begin with a letter or digit"),
    (MODEL + 'devices = ["vram"]', "3: models.a.devices[0]: 'vram' is not a device; write ram, gpu:0, gpu:1 and so on"),
    (MODEL + "devices = []", "3: models.a.devices: must not be empty; write at least one, or leave the key out"),
    ("[server]\nhost = 'a b'",
     "2: server.host: 'a b' is not a host name or address; write for example 127.0.0.1 or box.lan"),
    ("[server]\norigins = ['*']",
     "2: server.origins[0]: '*' is not the origin of a web page; write for example "
     "https://chat.lan:3000, https://*.lan, http://localhost:* or app://*"),
    (MODEL + "health = 'health'",
     "3: models.a.health: 'health' is not the path of an address; write for example /health"),
    (MODEL + 'env = { "A B" = "x" }',
     "3: models.a.env.\"A B\": 'A B' cannot name an environment variable; use letters, digits and _"),
    (MODEL + 'group = " "',
     "3: models.a.group: ' ' cannot be a name; use letters, digits and . _ -, and begin with a letter or digit"),
    ("[alerts]\ncommand = ''", "2: alerts.command: must not be empty; write a text or leave the key out"),
    ("[alerts]\nwebhook = 'ftp://x'",
     "2: alerts.webhook: 'ftp://x' is not an address; write for example http://127.0.0.1:11434"),
    ('[server]\nkeys = { me = { key = "a b" } }',
     '2: server.keys.me.key: cannot be an API key; use printable ASCII without spaces, '
     'or "env:NAME" to read it from $NAME'),
    ("[rotation]\nevery = 'soon'",
     "2: rotation.every: 'soon' is not a duration; write for example 30s, 5m or 1h30m, or \"off\""),
    ("[rotation]\nevery = 0", '2: rotation.every: must be longer than nothing; write for example 12m, or "off"'),
    ("[rotation]\nsilence = []",
     '2: rotation.silence: must be a duration; write for example 12m in quotes, or "auto" or "off"'),
    (MODEL + "background = 'x'", "3: models.a.background: must be a table, not \"x\""),
    (MODEL + "[coordinator]\nmodel = 'b'", "4: coordinator.model: there is no model b; known are a"),
    (MODEL + "[agents.a]\nmodel = 'b'", "4: agents.a.model: there is no model b; known are a"),
    ("[agents.brain]",
     "1: agents.brain: is the coordinator's own agent; rename it; [coordinator] has the slots of that one"),
    # a card, or a pair of them, belongs to one agent (FLEET-01, FLEET-14)
    ("[agents.a]\ndevice = ['gpu:0', 'gpu:3']\n[agents.b]\ndevice = 'gpu:3'",
     "4: agents.b.device: gpu:3 belongs to the agent a already; give every card to one agent, and that one more "
     "cpu_slots or llm_slots"),
    ("[agents.a]\nport = 1\ndevice = 'ram'\n[agents.b]\ndevice = 'ram'\nport = 1",
     "6: agents.b.port: 1 is the port of the agent a already; choose another one, or none for any that is free"),
    ("[agents.a_b]", "1: agents.a_b: 'a_b' cannot be an agent; use at most 40 letters, digits and -, as in cpu-1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), MATRIX, ids=[line.split(";")[0][:70] for _, line in MATRIX])
def test_a_wrong_value_is_named_with_its_line_and_what_to_do(text: str, line: str) -> None:
    assert complaints(text) == [line]


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    text = """\
[server]
prot = 1
port = "x"
[models.a]
engine = "lamacpp"
idle = "soon"
[models.b]
idle = false
[models.c]
engine = "scripted"
aliases = ["b"]
memory = 1.5
[agents.a]
port = 0
"""
    assert complaints(text) == [
        "2: server.prot: is not a key that Watchbill knows; did you mean port?",
        '3: server.port: must be a whole number, not "x"; write port = 8470',
        "5: models.a.engine: there is no engine lamacpp; did you mean llamacpp?",
        "6: models.a.idle: 'soon' is not a duration; write for example 30s, 5m or 1h30m",
        '7: models.b.engine: is missing; add engine = "llamacpp"',
        "8: models.b.idle: False is not a duration in seconds; write for example 30s, 5m or 1h30m",
        "11: models.c.aliases[0]: b is already the name of a model; choose another alias",
        "12: models.c.memory: must be a size; write for example 4.6GB, 2GiB or 512MiB in quotes",
        "14: agents.a.port: must be at least 1",
    ]


def test_a_wrong_value_does_not_make_right_ones_look_wrong() -> None:
    """What depends on a value that could not be read is left unsaid: it would send the operator astray."""
    text = """\
[server]
host = "0.0.0.0"
keys = { me = { key = 5 } }
[devices.ram]
capacity = "15GB"
reserve = "lots"
reservation = { model = "b", memory = "1GB" }
[models.a]
engine = "scripted"
memory = "14GB"
[models.b]
engin = "scripted"
"""
    assert [line.split(":")[0] for line in complaints(text)] == ["3", "6", "11", "12"]


def test_a_hopeless_file_is_reported_in_bounds() -> None:
    lines = complaints("\n".join(f"key{number} = 1" for number in range(limits.CONFIG_PROBLEMS_MAX + 5)))
    assert len(lines) == limits.CONFIG_PROBLEMS_MAX + 1
    assert lines[-1].endswith("and 5 more problems")


ODD_VALUES = [
    "true", "-1", "1.5", "nan", '""', '"\\u0000"', '"x"', "[]", "[[]]", "{}", "{ a = {} }", "1979-05-27", "12:00:00",
    '["\\n"]', '"' + "9" * 300 + '"', "9" * 30, "[1, 'a', {}]", '{ "" = "" }', '"\\u202e"',
]  # fmt: skip
ANY_KEY = [(place, name) for place, table in TABLES.items() if place for name in keys_of(table)]


@pytest.mark.parametrize(
    ("place", "name"), ANY_KEY, ids=[".".join((*place, name)) for place, name in ANY_KEY]
)
def test_no_value_whatever_makes_reading_fail_in_any_other_way(place: tuple[str, ...], name: str) -> None:
    """Every key of the reference with every odd value: accepted, or refused in sentences of one line each."""
    table = ".".join("ram" if part == "*" else part for part in place)
    needed = [
        f"{key.name} = {key.example}" for key in keys_of(TABLES[place]).values() if key.field.is_required()
    ]
    others = "\n".join(line for line in needed if not line.startswith(f"{name} "))
    for value in ODD_VALUES:
        with suppress(Refused):
            read(f"[{table}]\n{name} = {value}\n{others}\n")


class Refused(Exception):
    """The config was refused in the proper form."""


def read(text: str) -> None:
    try:
        parse(text, base=BASE, origin="w.toml", environment={})
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines
        for line in lines:
            assert re.match(r"w\.toml:\d+: \S+: \S", line), line
            assert line.isprintable()
            assert len(line) < 500
        raise Refused from error


@pytest.mark.parametrize(("text", "is_right"), [
    ("I notice {summary}.", True), ("Later.", True), ('{"a": 1}', True), ("{{x}}", True),
    ("{type}", False), ("{payload.mood}", False), ("{sumary}", False),
])  # fmt: skip
def test_a_lanes_fallback_has_no_place_that_a_door_cannot_fill(text: str, is_right: bool) -> None:
    """LANE-03, LANE-05: what would be answered literally is an error of the config."""
    written = f"{MODEL}[lanes.b]\nfallback = '{text}'\n"
    if is_right:
        assert parse(written, base=BASE, origin="w.toml", environment={}).lanes["b"].fallback == text
    else:
        assert "lanes.b.fallback" in complaints(written)[0]


def test_a_config_of_llama_swap_is_told_how_it_becomes_one() -> None:
    """Issue 19: `up --config config.yaml` is what people who come from there type first."""
    with pytest.raises(ConfigError) as failure:
        parse("models:\n  a:\n    cmd: x\n", base=Path("/nowhere"), origin="config.yaml", environment={})
    assert str(failure.value).endswith("watchbill config import llama-swap config.yaml")
