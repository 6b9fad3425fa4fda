"""Checks across tables: what no single value can be wrong about."""

from pathlib import Path

import pytest

from watchbill.config import parse, refuse_open_bind
from watchbill.errors import ConfigError

BASE = Path("/srv/watchbill")
SCRIPTED = 'engine = "scripted"\n'


def complaints(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, base=BASE, origin="w.toml", environment=environment)
    return [line.removeprefix("w.toml:") for line in str(caught.value).splitlines()]


def two(first: str, second: str) -> str:
    """Two scripted models."""
    return f"[models.a]\n{SCRIPTED}{first}\n[models.b]\n{SCRIPTED}{second}\n"


TASK = f"[models.a]\n{SCRIPTED}background = {{ prompt = 'Look around.' }}\n"

EXTERNAL = '[tiers.cloud]\nkind = "external"\nurl = "https://api.example.com/v1"\n'
BURST = '[tiers.box]\nkind = "burst"\nurl = "http://127.0.0.1:9000"\nmodels = ["a"]\n'

MATRIX = [
    # peers
    ('[peers.rig]', "1: peers.rig: neither serves this machine nor is served by it; add url and key, or their_key"),
    ('[peers.rig]\nurl = "http://127.0.0.1:9"\nkey = "k"', "1: peers.rig.models: is missing; this machine asks there; "
     "add models = ..."),
    ('[peers.rig]\ntheir_key = "k"\nmodels = ["a"]',
     '3: peers.rig.models: means nothing without url; add url = "http://10.0.0.8:8470", or remove it'),
    ('[peers.rig]\ntheir_key = "k"\nlends = ["a"]',
     "3: peers.rig.lends[0]: there is no model a; name models of this machine"),
    ('[peers.rig]\ntheir_key = "k"\n[peers.box]\ntheir_key = "k"',
     "4: peers.box.their_key: is the same key as rig's; give each a key of its own"),
    # tiers
    (EXTERNAL + 'models = ["a"]\nprice_in = 1',
     "1: tiers.cloud.daily: is missing; an external tier costs money; add daily = 5.0, or what a day may cost"),
    (EXTERNAL + 'models = ["a"]\ndaily = 5',
     "5: tiers.cloud.daily: cannot be kept without a price; add price_in and price_out"),
    (EXTERNAL + 'models = []\ndaily = 5\nprice_in = 1',
     '4: tiers.cloud.models: is empty, so that nothing would ever be served there; write models = ["NAME"]'),
    (EXTERNAL + 'models = ["a"]\ndaily = 5\nprice_in = 1\nstart = "x"',
     "7: tiers.cloud.start: means nothing for a tier of kind external; remove it"),
    (EXTERNAL + 'models = ["a"]\ndaily = 5\nprice_in = 1\nenabled = true\nkey = "env:NOT_SET"',
     "8: tiers.cloud.key: the environment variable 'NOT_SET' is not set; export NOT_SET=... before starting"),
    (BURST + 'start = "x"',
     '1: tiers.box.stop: is missing; a burst tier is started and stopped by commands; add stop = "..."'),
    (BURST + 'start = "x"\nstop = "y"\nprice_out = 1',
     "7: tiers.box.price_out: means nothing for a tier of kind burst; remove it"),
    (BURST + 'start = "x"\nstop = "y"\n[routing]\norder = ["local", "bax", "box"]',
     "8: routing.order[1]: there is no tier or peer bax; did you mean box?"),
    (BURST + 'start = "x"\nstop = "y"\n[routing]\norder = ["local"]',
     "8: routing.order: leaves out box, so that nothing would ever be served there; add it, or remove its table"),
    (BURST.replace("[tiers.box]", "[tiers.local]") + 'start = "x"\nstop = "y"',
     "1: tiers.local: local is this machine; choose another name"),
    (BURST + f'start = "x"\nstop = "y"\n[models."a@box"]\n{SCRIPTED}',
     "7: models.\"a@box\": is the name of the copy of a at box; choose another name"),
    # engines and drivers
    ('[models.a]\nengine = "lamacpp"\nsource = "x"',
     "2: models.a.engine: there is no engine lamacpp; did you mean llamacpp?"),
    ('[engines.lab]\ndriver = "tgi"',
     "2: engines.lab.driver: 'tgi' is not a driver; known are llamacpp, process, scripted, ollama, "
     "remote, systemd"),
    ('[engines.process]\ndriver = "llamacpp"',
     "1: engines.process: is the name of another driver than llamacpp; choose another name"),
    ('[engines.lab]\ndriver = "scripted"\nbinary = "x"',
     "3: engines.lab.binary: the driver scripted does not read it; remove it"),
    ('[engines.lab]\ndriver = "llamacpp"\nshared = true',
     "3: engines.lab.shared: the driver llamacpp does not read it; it starts its models itself"),
    ('[models.a]\nengine = "llamacpp"',
     "1: models.a.source: is missing; the driver llamacpp needs it; add source = ..."),
    ('[models.a]\nengine = "process"',
     "1: models.a.command: is missing; the driver process needs it; add command = ..."),
    ('[models.a]\nengine = "process"\ncommand = "x"\ncontext = 8192',
     "4: models.a.context: the driver process does not read it; remove it"),
    ('[models.a]\nengine = "llamacpp"\nsource = "x"\nscript = {}',
     "4: models.a.script: the driver llamacpp does not read it; remove it"),
    ('[models.a]\nengine = "llamacpp"\nsource = "a\\u0000b"',
     "3: models.a.source: must not be empty; write a text or leave the key out"),
    ('[models.a]\nengine = "llamacpp"\nsource = "~nobody-here-at-all/x"',
     "3: models.a.source: '~nobody-here-at-all/x' cannot be a path; there is no such home folder"),
    # devices
    ('[devices.vram]', '1: devices.vram: is not a device; write ram, gpu for the defaults of all GPUs, or "gpu:0"'),
    (f'[models.a]\n{SCRIPTED}devices = ["gpu:0"]',
     '3: models.a.devices[0]: there is no device gpu:0; add [devices."gpu:0"] with its capacity'),
    (f'[models.a]\n{SCRIPTED}memory = {{ "gpu:1" = "1GB" }}',
     '3: models.a.memory."gpu:1": there is no device gpu:1; add [devices."gpu:1"] with its capacity'),
    ("[devices.ram]\nmax_temp_c = 85",
     "2: devices.ram.max_temp_c: is a limit of cards; ram has no such figure; remove it"),
    (f'[models.a]\n{SCRIPTED}devices = ["ram", "ram"]', "3: models.a.devices[1]: names ram twice; remove one"),
    ('[devices."gpu:0"]\ncapacity = "8GB"\n' + f'[models.a]\n{SCRIPTED}devices = ["gpu:0", "ram"]\nmemory = "1GB"',
     '6: models.a.memory: one size for several devices; write memory = { "gpu:0" = ..., "ram" = ... }'),
    ('[devices."gpu:0"]\ncapacity = "8GB"\n'
     f'[models.a]\n{SCRIPTED}devices = ["gpu:0"]\nmemory = {{ "gpu:0" = 4096, ram = 4096 }}',
     "6: models.a.memory: ram is not among its devices; name the same devices in memory and devices"),
    ('[devices.ram]\ncapacity = "1GiB"',
     "1: devices.ram.reserve: leaves nothing of the capacity of 1GiB; make it smaller"),
    ('[devices.ram]\nreservation = { model = "cor", memory = "1GB" }\n' + f"[models.core]\n{SCRIPTED}",
     "2: devices.ram.reservation.model: there is no model cor; did you mean core?"),
    # names
    (two('aliases = ["x"]', 'aliases = ["x"]'),
     "6: models.b.aliases[0]: x is already an alias of a; remove one of them"),
    (two("", 'aliases = ["a"]'), "6: models.b.aliases[0]: a is already the name of a model; choose another alias"),
    (two('aliases = ["b:latest"]', ""),
     "3: models.a.aliases[0]: b:latest is already the name of a model; choose another alias"),
    (f'[models.a]\n{SCRIPTED}[models."a:latest"]\n{SCRIPTED}',
     '3: models."a:latest": is the same name as a; rename one'),
    ("[lanes.chat]\n[lanes.Chat]",
     "2: lanes.Chat: is named twice: also as chat; headers do not tell case: rename one"),
    ("[lanes.chat]\n[lanes.chat]", "2: lanes.chat: is declared twice; merge the two tables"),
    ('[server]\nkeys = { me = { key = "0123456789abcdef", lane = "caht" } }\n[lanes.chat]',
     "2: server.keys.me.lane: there is no lane caht; did you mean chat?"),
    (f"[models.a]\n{SCRIPTED}tier = 1", '3: models.a.tier: means nothing without a family; add family = "NAME"'),
    (two('family = "f"\ntier = 1', 'family = "f"\ntier = 1'),
     "8: models.b.tier: a has this place in the family f; choose another"),
    # who may call
    ('[server]\nhost = "0.0.0.0"',
     "2: server.host: a non-loopback bind without an API key: everyone who reaches 0.0.0.0 could use it; "
     'add [server.keys.me] with key = "env:WATCHBILL_KEY", or listen on 127.0.0.1'),
    ('[server.keys.me]\nkey = "env:NOT_SET"',
     "2: server.keys.me.key: the environment variable 'NOT_SET' is not set; export NOT_SET=... before starting"),
    ('[server.keys.me]\nkey = "env:ODD"',
     "2: server.keys.me.key: the key cannot travel in a header; use printable ASCII without spaces"),
    ('[server.keys]\nme = { key = "0123456789abcdef" }\nyou = { key = "env:SAME" }',
     "3: server.keys.you.key: is the same key as me's; give each caller a key of their own"),
    # sleep
    (f"[models.a]\n{SCRIPTED}sleep = '2m'\npermanent = true",
     "3: models.a.sleep: a permanent model stays warm; remove one of the two"),
    (f"[models.a]\n{SCRIPTED}asleep = '1GB'", '3: models.a.asleep: means nothing without sleep; add sleep = "2m"'),
    (f"[models.a]\n{SCRIPTED}sleep = '2m'\nidle = '1m'",
     "3: models.a.sleep: it leaves before it sleeps; make sleep shorter than idle"),
    (f"[models.a]\n{SCRIPTED}sleep = '2m'\nasleep = {{ 'gpu:0' = '1GB' }}",
     "4: models.a.asleep: gpu:0 is not among its devices; name the devices of its memory"),
    # companion sets
    (two("", "") + "[sets.see]\nmodels = ['a']",
     "8: sets.see.models: needs at least two models; write for example [\"vision\", \"big\"]"),
    (two("", "") + "[sets.see]\nmodels = ['a', 'c']", "8: sets.see.models[1]: there is no model c; known are a, b"),
    (two("", "") + "[sets.see]\nmodels = ['a', 'b', 'a']", "8: sets.see.models[2]: names a twice; remove one"),
    (two("", "") + "[sets.a]\nmodels = ['a', 'b']",
     "7: sets.a: is the name of a model, too; rename one: a header could mean either"),
    (two("group = 'g'", "group = 'g'") + "[sets.see]\nmodels = ['a', 'b']",
     "8: sets.see.models: a and b exclude each other on ram: only one of a group is there; name smaller models, or "
     "give a member a smaller sibling in a family"),
    ("[devices.ram]\ncapacity = '12GB'\nreserve = '2GB'\n" + two("memory = '6GB'", "memory = '7GB'")
     + "[sets.see]\nmodels = ['a', 'b']",
     "11: sets.see.models: ram cannot hold them together: a 6 GB + b 7 GB into 10 GB; name smaller models, or "
     "give a member a smaller sibling in a family"),
    ("[devices.ram]\ncapacity = '12GB'\nmax_resident = 1\n" + two("", "") + "[sets.see]\nmodels = ['a', 'b']",
     "11: sets.see.models: ram takes 1 models at a time, too few for a, b; name smaller models, or give a member "
     "a smaller sibling in a family"),
    # background tasks and epochs
    (TASK + "[rotation]\nevery = '4m'",
     "5: rotation.every: the rotation's interval of 4m does not exceed the idle time of a, 5m: models would come and "
     "go without rest; let [rotation] every be more than 5m, or models idle for less"),
    (TASK + "idle = '12m'",
     "4: models.a.idle: the rotation's interval of 12m does not exceed the idle time of a, 12m: models would come and "
     "go without rest; let [rotation] every be more than 12m, or models idle for less"),
    (TASK + "[rotation]\nmax = '1m'", "5: rotation.max: is shorter than every, 12m; make it longer"),
    (f"[rotation]\nevery = '12m'\n[models.a]\n{SCRIPTED}",
     "2: rotation.every: no model has a background task, so nothing would ever run; "
     'give a model background = { prompt = "..." }, or remove it'),
    (TASK + f"[models.b]\n{SCRIPTED}[rotation]\norder = ['a', 'b']",
     "7: rotation.order[1]: b has no background task; give it one, or remove it here"),
    (TASK + "[rotation]\norder = ['a', 'aa']",
     "5: rotation.order[1]: there is no model aa; did you mean a?"),
    (TASK + "[rotation]\norder = ['a', 'a']", "5: rotation.order[1]: names a twice; remove one"),
    (TASK + TASK.replace("models.a", "models.b") + "[rotation]\norder = ['a']",
     "8: rotation.order: leaves out b, so that this background task would never run; add it, or remove its task"),
    (f"[models.a]\n{SCRIPTED}background = {{}}",
     '3: models.a.background: says nothing to do; add prompt = "..." or command = "..."'),
    (f"[models.a]\n{SCRIPTED}background = {{ command = 'say \"x' }}".replace("'say \"x'", '"say \'x"'),
     "3: models.a.background.command: cannot be split into words: no closing quotation; fix its quotes"),
    (TASK + "[epochs.ingest]\nmodels = ['embedder']",
     "5: epochs.ingest.models[0]: there is no model embedder; known are a"),
    (TASK + "[epochs.ingest]\nmodels = []", "5: epochs.ingest.models: must not be empty; name at least one model"),
    (TASK + "[epochs.ingest]\nmodels = ['a']\nevery = '10m'",
     "6: epochs.ingest.every: a window of 10m every 10m never closes; make window shorter than every"),
    # what fits
    ('[devices.ram]\ncapacity = "15GB"\n' + f'[models.a]\n{SCRIPTED}memory = "13GB"',
     "5: models.a.memory: 13GB can never fit into the 12.9 GB that ram has for models; "
     "raise the capacity, lower the reserve, or take a smaller model"),
    ('[devices.ram]\ncapacity = "10GB"\nreserve = 0\nbudget = 0.5\n'
     f'[models.a]\n{SCRIPTED}script = {{ memory = "6GB" }}',
     "7: models.a.script: 6GB can never fit into the 5 GB that ram has for models; "
     "raise the capacity, lower the reserve, or take a smaller model"),
    ('[devices.ram]\ncapacity = "10GB"\nreserve = 0\n'
     + two('memory = "6GB"\npermanent = true', 'memory = "5GB"\npermanent = true'),
     "1: devices.ram: what must stay needs 11 GB of 10 GB: a + b; make one of them rotate, or raise the capacity"),
    ('[devices.ram]\ncapacity = "10GB"\nreserve = 0\nreservation = { model = "b", memory = "5GB" }\n'
     + two('memory = "6GB"\npermanent = true', ""),
     "1: devices.ram: what must stay needs 11 GB of 10 GB: a + the reservation for b; "
     "make one of them rotate, or raise the capacity"),
    ("[devices.ram]\nmax_resident = 1\n" + two("permanent = true", "permanent = true"),
     "2: devices.ram.max_resident: fewer than the 2 permanent models: a, b; raise it, or make one of them rotate"),
    (two('permanent = true\ngroup = "g"', 'permanent = true\ngroup = "g"'),
     "7: models.b.permanent: only one of the group g can be on ram, but a and b are permanent; "
     "make one of them rotate"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), MATRIX, ids=[line.split(";")[0][:70] for _, line in MATRIX])
def test_what_does_not_go_together_is_named_with_its_line(text: str, line: str) -> None:
    assert complaints(text, ODD="a b", SAME="0123456789abcdef") == [line]


def test_a_model_of_a_shared_engine_may_not_be_managed() -> None:
    """RES-09: a shared engine is only routed to, so nothing about its memory is ours to say."""
    text = """\
[engines.lab]
driver = "remote"
url = "http://127.0.0.1:9000"
shared = true
[models.a]
engine = "lab"
permanent = true
memory = "2GB"
"""
    assert complaints(text) == [
        "7: models.a.permanent: the engine lab is shared, so Watchbill does not manage it; remove it",
        "8: models.a.memory: the engine lab is shared, so Watchbill does not manage it; remove it",
    ]


def test_a_shared_engine_without_an_address_is_refused() -> None:
    text = '[engines.lab]\ndriver = "remote"\nshared = true\n'
    assert (
        '1: engines.lab: a shared engine needs its address; add url = "http://127.0.0.1:9000"'
        in complaints(text)
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_bind_needs_no_key(host: str) -> None:
    assert parse(f'[server]\nhost = "{host}"', base=BASE).server.host == host
    refuse_open_bind(host, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.lan", "127.0.0.1.evil.example"])
def test_any_other_bind_needs_one_also_when_it_comes_from_the_command_line(host: str) -> None:
    with pytest.raises(ConfigError, match="non-loopback bind without an API key"):
        refuse_open_bind(host, has_keys=False)
    refuse_open_bind(host, has_keys=True)
    text = f'[server]\nhost = "{host}"\nkeys = {{ me = {{ key = "0123456789abcdef" }} }}'
    assert parse(text, base=BASE).server.host == host


def test_a_permanent_core_model_counts_once_beside_its_reservation() -> None:
    """RES-15: the margin is for the core model itself, not on top of it."""
    text = (
        '[devices.ram]\ncapacity = "10GB"\nreserve = 0\nreservation = { model = "a", memory = "6GB" }\n'
        f'[models.a]\n{SCRIPTED}memory = "6GB"\npermanent = true\n'
    )
    assert parse(text, base=BASE).devices["ram"].reservation is not None
