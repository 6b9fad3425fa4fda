"""Traces: written by a daemon, replayed by the simulator."""

import json
from dataclasses import replace

import pytest

from support.traffic import write_traffic
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.cli import run as main
from watchbill.core.messages import Event, Request
from watchbill.errors import ConfigError
from watchbill.runtime.recorder import Recorder
from watchbill.runtime.ticket import Ticket
from watchbill.simulate.adjust import adjust
from watchbill.simulate.compare import CONTENDERS, run
from watchbill.simulate.trace import Trace
from watchbill.units import Bytes, Millis

GB = 10**9


class Nobody:
    """A desk at which nobody sits."""

    def feed(self, event: Event, /) -> None: ...
    def ended(self, ticket: Ticket, event: Event, outcome: str, /, *, served: bool) -> None: ...


def two_models(capacity_gb: float | None = 8) -> Catalog:
    capacity = None if capacity_gb is None else Bytes(int(capacity_gb * GB))
    return Catalog(
        {"ram": Device("ram", capacity=capacity)},
        {"scripted": EngineRules("scripted", "scripted")},
        {name: Model(name, "scripted", aliases=(f"{name}-alias",)) for name in ("one", "two")},
        {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000))},
    )


def line(**more: object) -> str:
    usual = {"at_ms": 0, "lane": "chat", "work_class": "interactive", "waited_ms": 0, "forecast_ms": 0}
    return json.dumps({"kind": "request", **usual, "service_ms": 500, "outcome": "ok", **more})


@pytest.fixture
def trace(tmp_path):
    """Two models of 6 GB that were asked in turn, every 4 s, on a machine with 10 GB of which others use 2."""
    loads = [
        json.dumps({"kind": "load", "at_ms": 0, "model": name, "ms": 2_000, "memory": {"ram": 6 * GB}})
        for name in ("one", "two")
    ]
    machine = json.dumps(
        {"kind": "machine", "at_ms": 0, "devices": {"ram": {"capacity": 10 * GB, "free": 8 * GB}}}
    )
    asked = [line(at_ms=4_000 * i, model=("one", "two")[i % 2]) for i in range(40)]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join([machine, *loads, *reversed(asked)]) + "\n")
    return file


def test_a_replay_answers_what_was_asked(trace):
    """RES-21: every recorded arrival comes at its time, and the laws hold."""
    report = run(Trace.read(trace).scenario(two_models()), CONTENDERS["rate"], 0)
    assert report.answered == 40
    assert report.broken == {}
    assert report.loads > 5


def test_a_replay_says_what_more_memory_would_buy(trace):
    """RES-21, RES-25: with room for both models each is loaded once."""
    scenario = adjust(Trace.read(trace).scenario(two_models()), ["devices.ram.capacity=16GB"])
    report = run(scenario, CONTENDERS["rate"], 0)
    assert report.loads == 2
    assert report.classes[WorkClass.INTERACTIVE].wait_p95_ms <= 2_000


def test_what_other_programs_use_is_not_lent_to_models(trace):
    """RES-04: a config without a capacity has what the recorded machine had free."""
    assert Trace.read(trace).scenario(two_models(None)).catalog.devices["ram"].capacity == 8 * GB
    assert Trace.read(trace).scenario(two_models(32)).catalog.devices["ram"].capacity == 30 * GB
    assert Trace.read(trace).scenario(two_models(6)).catalog.devices["ram"].capacity == 6 * GB


def test_an_unanswered_request_is_replayed_with_its_models_usual_time(tmp_path):
    """RES-21: what was refused then may be answered now."""
    file = tmp_path / "trace.jsonl"
    load = json.dumps({"kind": "load", "at_ms": 0, "model": "one", "ms": 1_000, "memory": {"ram": GB}})
    refused = line(at_ms=10, model="one", service_ms=None, outcome="wait_exceeded")
    file.write_text("\n".join([load, line(model="one", service_ms=700), refused]) + "\n")
    catalog = replace(two_models(), models={"one": Model("one", "scripted")})
    scenario = Trace.read(file).scenario(catalog)
    assert scenario.traffic[0].arrivals[1][:4] == (10.0, "one", "chat", 700.0)


def test_a_recording_that_was_cut_off_is_read_up_to_there(trace):
    """RES-21: a killed daemon leaves half a line."""
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-20])
    assert len(Trace.read(trace).requests) == 39


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no requests"),
        ("nonsense\n", "trace.jsonl:1"),
        (line(model="three") + "\n", "model three"),
        (line(model="one", lane="night") + "\n", "lane night"),
        (line(model="one") + "\n", "models.one.memory"),
    ],
)
def test_a_trace_that_does_not_go_with_the_config_says_why(tmp_path, text, said):
    """RES-21: a message with the name, never a traceback."""
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        Trace.read(file).scenario(two_models())


async def test_a_recorder_writes_what_a_replay_reads(tmp_path):
    """RES-21: times and names, and nothing of what was said."""
    file = tmp_path / "trace.jsonl"
    recorder = Recorder(file, 1_000)
    recorder.machine({"ram": (10 * GB, 8 * GB)}, 1_000)
    recorder.loaded("one", 2_000, {"ram": 6 * GB}, 3_000)
    recorder.loaded("two", 2_000, {"ram": 6 * GB}, 3_000)
    for number, started in ((1, 3_100), (2, None)):
        request = Request(f"r{number}", "one", "chat", WorkClass.INTERACTIVE, 1_100, 60_000, 60_000)
        ticket = Ticket(request, Nobody(), request.id, request.model)
        ticket.started_at = started
        recorder.ended(ticket, "ok" if started else "wait_exceeded", 3_600)
    recorder.close()
    answered, refused = Trace.read(file).requests
    assert (answered.at_ms, answered.waited_ms, answered.service_ms, answered.outcome) == (
        100,
        2_000,
        500,
        "ok",
    )
    assert (refused.waited_ms, refused.service_ms, refused.outcome) == (2_500, None, "wait_exceeded")
    assert run(Trace.read(file).scenario(two_models()), CONTENDERS["rate"], 0).answered == 2


def test_a_recording_goes_on_after_one_that_a_full_disk_cut(tmp_path):
    """RES-21: its last line had no end, the first new one continued it, and no replay read the file any more."""
    file = tmp_path / "trace.jsonl"
    request = Request("r1", "one", "chat", WorkClass.INTERACTIVE, 0, 60_000, 60_000)
    for _ in range(2):
        recorder = Recorder(file, 0)
        recorder.machine({"ram": (10 * GB, 8 * GB)}, 0)
        recorder.ended(Ticket(request, Nobody(), request.id, request.model), "ok", 1_000)
        recorder.close()
        with file.open("ab") as torn:
            torn.write(b'{"kind":"request","at_')
    assert len(Trace.read(file).requests) == 2


def test_a_recorder_without_a_file_writes_nothing(tmp_path, monkeypatch):
    """RES-21: what `up` has without --record."""
    monkeypatch.chdir(tmp_path)
    recorder = Recorder()
    recorder.loaded("one", 1, {}, 1)
    recorder.close()
    assert not recorder.is_on and list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_recording_and_not_the_daemon(caplog):
    """RES-21: /dev/full takes the first flush and fails it."""
    from pathlib import Path

    recorder = Recorder(Path("/dev/full"), 0)
    recorder.loaded("one", 1, {}, 5_000)
    recorder.loaded("one", 1, {}, 10_000)
    recorder.close()
    assert "recording ends" in caplog.text


# ------------------------------------------------------------------ the command


def test_simulate_plays_a_day_and_names_the_laws(capsys):
    """RES-21: without arguments, and the same seed says the same."""
    assert main(["simulate", "--seed", "7"]) == 0
    first = capsys.readouterr().out
    assert "laws checked after each of" in first.splitlines()[-1]
    assert "none broken" in first.splitlines()[-1]
    assert main(["simulate", "--seed", "7"]) == 0
    assert capsys.readouterr().out == first


def test_simulate_compares_the_policies(capsys, scenario_file):
    """RES-21: every policy on the same traffic, as JSON."""
    assert main(["simulate", str(scenario_file), "--compare", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["runs"]) == ["fifo", "exhaustive", "turns", "rate"]
    assert told["runs"]["rate"]["classes"]["interactive"]["answered"] == 12


def test_simulate_walks_along_the_frontier(capsys, scenario_file):
    """RES-11: weights 2 to 20."""
    assert main(["simulate", str(scenario_file), "--frontier"]) == 0
    rows = [row.split()[0] for row in capsys.readouterr().out.splitlines() if row.strip()]
    assert [row for row in rows if row.isdigit()] == ["2", "3", "5", "7", "10", "14", "20"]


def test_simulate_replays_a_trace_against_a_config(capsys, trace, tmp_path):
    """RES-21: --trace with --config, and a change by hand."""
    config = tmp_path / "watchbill.toml"
    models = "".join(f'[models.{n}]\nengine = "scripted"\nmemory = "6GB"\n' for n in ("one", "two"))
    config.write_text('[devices.ram]\ncapacity = "8GB"\nreserve = "0GB"\n[lanes.chat]\n' + models)
    arguments = ["simulate", "--trace", str(trace), "--config", str(config), "--json"]
    assert main(arguments) == 0
    small = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--set", "devices.ram.capacity=20GB"]) == 0
    large = json.loads(capsys.readouterr().out)
    assert large["runs"]["rate"]["loads"] == 2 < small["runs"]["rate"]["loads"]


def test_simulate_replays_the_last_day_of_a_root(capsys, tmp_path):
    """RES-21: --trace with a folder of traffic, and a difference in place of a size."""
    write_traffic(
        tmp_path / "traffic", ("one", "two"), requests=40, memory=6 * GB, capacity=8 * GB, hours=0.5
    )
    config = tmp_path / "watchbill.toml"
    models = "".join(f'[models.{name}]\nengine = "scripted"\n' for name in ("one", "two"))
    config.write_text(f'[devices.ram]\nreserve = "0GB"\n{models}')
    arguments = ["simulate", "--trace", str(tmp_path / "traffic"), "--config", str(config), "--json"]
    loads = []
    for change in ("+0GB", "+16GB"):
        assert main([*arguments, "--set", f"devices.ram.capacity={change}"]) == 0
        loads.append(json.loads(capsys.readouterr().out)["runs"]["rate"]["loads"])
    assert loads[0] > loads[1] == 2
    assert main([*arguments, "--set", "devices.ram.capacity=-8GB"]) == 2
    assert "no memory for models" in capsys.readouterr().err


@pytest.fixture
def scenario_file(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text("""
duration = "30s"
[devices.ram]
capacity = "8GB"
[models]
one = { memory = "6GB", load = "1s", service = "0.5s" }
two = { memory = "6GB", load = "1s", service = "0.5s" }
[lanes]
chat = { class = "interactive", max_wait = "30s" }
[[traffic]]
kind = "times"
models = ["one", "two"]
lane = "chat"
every = "2s"
count = 12
service = "0.5s"
""")
    return file


@pytest.mark.parametrize(
    "words",
    [
        ["--trace", "a", "b.toml"],
        ["--seeds", "0"],
        ["--config", "x.toml"],
        ["nowhere.toml"],
        ["--set", "x=1"],
    ],
)
def test_simulate_says_what_it_does_not_understand(capsys, words):
    """RES-21: one line and exit code 2."""
    assert main(["simulate", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
