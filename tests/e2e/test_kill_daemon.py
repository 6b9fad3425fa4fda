"""kill -9 of the daemon, at many points of a busy moment: nothing survives, and the next start needs no help.

At each point a stream of the real llama.cpp runs, a model drains because an answer still runs on it, another one is
being stopped and ignores it, and a fourth is being loaded; the points lie along that load.
"""

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from e2e.place import Daemon, Place, Stream, is_listening, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until
from support.stopping import stop

CONFIG = """
[devices.ram]
reserve = "200MB"

[models.streamer]
engine = "llamacpp"
source = "{path}"
context = 4096
threads = 1
"""
MODELS = (
    scripted("drainer", 'service = "60s", tokens = 600'),
    scripted("leaver", 'fail = ["ignore-term", "fork-and-exit"]'),
    scripted("loader", 'load = "2s", memory = "20MB", fail = "ignore-term"'),
)
#: From the moment in which the load was asked for: the guard starts, the engine starts, binds, takes its memory.
POINTS_MS = [point * 75 for point in range(20)]
GONE_S = 10.0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(POINTS_MS[::7], id="3-points"),
        pytest.param(POINTS_MS[3::7], id="3-others"),
        pytest.param(POINTS_MS, id="20-points", marks=pytest.mark.torture),
    ],
)
def test_nothing_outlives_a_killed_daemon(place: Place, gguf_files: GgufFiles, points: list[int]) -> None:
    """RES-01, R36, P6, P7: within 10 s no process and no listener; the next start works, and its ledger is empty."""
    place.config.write_text(CONFIG.format(path=gguf_files.chat("20MB")) + "".join(MODELS))
    for point in [*points, None]:
        daemon = place.up()
        ledger_is_empty(daemon)
        if point is None:
            assert daemon.chat("loader")[0] == 200
            assert daemon.stop() == 0
            return
        streams = make_busy(daemon)
        ports = place.listeners()
        assert len(ports) == 3, ports
        asking = threading.Thread(target=ask_in_vain, args=(daemon, "/wb/v1/models/loader/load"))
        asking.start()
        time.sleep(point / 1000)  # the point itself, not a wait for anything
        daemon.signal(signal.SIGKILL)
        daemon.wait(5)
        killed = time.monotonic()
        ports += [int(claim.name) for claim in (place.root / "run" / "ports").iterdir()]
        wait_until(lambda: not place.leftovers(), GONE_S)
        assert not any(is_listening(port) for port in ports)
        assert time.monotonic() - killed < GONE_S
        asking.join(5)
        for stream in streams:
            stream.close()


def make_busy(daemon: Daemon) -> list[Stream]:
    """A stream that runs, a model that drains, one that is being stopped."""
    streamed, drained = daemon.stream("streamer", 3900), daemon.stream("drainer", 600)
    assert streamed.event() and drained.event()
    assert daemon.chat("leaver")[0] == 200
    for name in ("drainer", "leaver"):
        threading.Thread(
            target=ask_in_vain, args=(daemon, f"/wb/v1/models/{name}/evict"), daemon=True
        ).start()
    wait_until(lambda: daemon.is_in("drainer", "draining") and daemon.is_in("leaver", "stopping"))
    assert daemon.model("streamer")["in_flight"] == 1
    return [streamed, drained]


def ask_in_vain(daemon: Daemon, path: str) -> None:
    """An operator whose daemon is killed meanwhile."""
    try:
        daemon.ask(path, {})
    except OSError:
        return


def ledger_is_empty(daemon: Daemon) -> None:
    status = daemon.status()
    ram = status["devices"]["ram"]
    assert (ram["used"], ram["loading"], ram["stopping"]) == (0, 0, 0)
    assert {model["state"] for model in status["models"].values()} == {"absent"}
    assert sum(model["in_flight"] + model["queued"] for model in status["models"].values()) == 0


@pytest.mark.timeout(240)
def test_a_daemon_that_is_ended_again_and_again_needs_no_repair(place: Place) -> None:
    """R57, P1, P7: kills and polite ends in turn while a spool fills; every start answers, nothing is lost."""
    spool, corpus = place.folder / "spool", place.folder / "corpus.jsonl"
    place.config.write_text(
        scripted("first", 'text = "one"') + f'[spool.events]\npath = "{spool}"\ncorpus = "{corpus}"\n'
    )
    acknowledged: set[str] = set()
    for round_, number in enumerate([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM]):
        daemon = place.up()
        assert daemon.chat("first")[0] == 200
        for one in range(5):
            (place.folder / "event.json").write_text(f'{{"id": "{round_}-{one}", "kind": "x", "ts": 1}}')
            done = place.run("spool", "enqueue", "--spool", str(spool), "event.json")
            assert done.returncode == 0, done.stderr
            acknowledged.add(f"{round_}-{one}")
        daemon.signal(number)
        assert daemon.wait() == (0 if number == signal.SIGTERM else -number)
        wait_until(lambda: place.leftovers() == [], GONE_S)
    daemon = place.up()
    wait_until(lambda: acknowledged <= ids_in(corpus))
    assert daemon.stop() == 0


def ids_in(corpus: Path) -> set[str]:
    return {json.loads(line)["id"] for line in corpus.read_text().splitlines()} if corpus.exists() else set()


def test_a_stopped_guard_does_not_keep_an_engine_alive(place: Place) -> None:
    """P6: the death of the daemon lets a guard go on that somebody has stopped, and it ends its engine."""
    place.config.write_text(scripted("held"))
    daemon = place.up()
    assert daemon.chat("held")[0] == 200
    engine = int(daemon.status()["models"]["held"]["pid"])
    guard = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
    stop(guard)
    daemon.signal(signal.SIGKILL)
    daemon.wait(5)
    wait_until(lambda: not place.leftovers(), GONE_S)
