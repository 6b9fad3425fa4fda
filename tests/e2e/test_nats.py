"""The daemon with a broker of its own, and with one that goes away: `examples/nats.toml` (SPOOL-08)."""

import contextlib
import json
import os
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path

from e2e.place import Place
from support.eventually import wait_until
from support.nats_server import TOKEN, Broker
from support.small_disk import free_up, leave_blocks, small_disks
from watchbill.runtime.broker import own_reach
from watchbill.spool import Spool
from watchbill.spool.faults import SpoolBroken, SpoolFull
from watchbill.spool.jetstream import JetSpool

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nats.toml"


def event(number: object) -> str:
    return json.dumps({"id": str(number), "kind": "note", "ts": 0})


def test_the_example_drains_through_a_broker_that_is_killed_and_ends_with_the_daemon(tmp_path: Path) -> None:
    """SPOOL-08: started, used, killed, alerted, started anew, drained, stopped; hooks' files are forwarded."""
    place = Place(tmp_path, EXAMPLE.read_text())
    try:
        daemon = place.up("--with-nats")
        corpus = place.root / "corpus/jobs.jsonl"

        def drained() -> set[str]:
            lines = corpus.read_text().splitlines() if corpus.exists() else []
            return {json.loads(line)["id"] for line in lines}

        def pid() -> int | None:
            return daemon.status()["programs"]["nats-server"]["pid"]

        (tmp_path / "one.jsonl").write_text(event(1) + "\n")
        assert place.run("spool", "enqueue", str(tmp_path / "one.jsonl"), "--spool", "jobs").returncode == 0
        wait_until(lambda: "1" in drained())
        with Spool(place.root / "spool/jobs") as outbox:  # as a git hook does
            outbox.enqueue(event("hook"))
        wait_until(lambda: "hook" in drained())
        first = wait_until(pid)
        os.kill(first, signal.SIGKILL)
        second = wait_until(lambda: pid() not in (None, first) and pid())
        (tmp_path / "two.jsonl").write_text(event(2) + "\n")
        wait_until(
            lambda: (
                place.run("spool", "enqueue", str(tmp_path / "two.jsonl"), "--spool", "jobs").returncode == 0
            )
        )
        wait_until(lambda: "2" in drained())
        mode = (place.root / "nats/server.conf").stat().st_mode & 0o777
        assert mode == 0o600 and "sync_interval: always" in (place.root / "nats/server.conf").read_text()
        assert daemon.stop() == 0
        assert not Path(f"/proc/{second}").exists()
    finally:
        place.close()


def test_an_outage_is_alerted_and_shown_and_passes(tmp_path: Path) -> None:
    """SPOOL-08: a broker elsewhere that is away: an alert, a complaint in status, models are served, recovery."""
    server = Broker(tmp_path / "broker")
    config = EXAMPLE.read_text().replace('lease = "30s"', 'lease = "2s"')
    config += f'\n[nats]\nservers = ["{server.url}"]\ntoken = "{TOKEN}"\ntimeout = "1s"\n'
    (tmp_path / "place").mkdir()
    place = Place(tmp_path / "place", config)
    try:
        daemon = place.up()
        complaint = wait_until(lambda: daemon.status()["spools"]["jobs"]["complaint"])
        assert f"the broker at {server.url} did not answer within 1 s" in complaint
        wait_until(lambda: any("did not answer" in str(each) for each in place.events("alert")))
        assert daemon.chat("small")[0] == 200
        server.start()
        (tmp_path / "one.jsonl").write_text(event(1) + "\n")
        wait_until(
            lambda: (
                place.run("spool", "enqueue", str(tmp_path / "one.jsonl"), "--spool", "jobs").returncode == 0
            )
        )
        corpus = place.root / "corpus/jobs.jsonl"
        wait_until(lambda: corpus.exists() and '"1"' in corpus.read_text())
        wait_until(lambda: not daemon.status()["spools"]["jobs"]["complaint"])
        assert daemon.stop() == 0
    finally:
        place.close()
        server.kill()


def test_a_broker_at_its_own_limit_is_named_with_what_to_do(tmp_path: Path) -> None:
    """SPOOL-08, docs/nats.md: nothing can be leased there; status, an alert and doctor say why, and what frees it."""
    server = Broker(tmp_path / "broker")
    unbounded = server.config.read_text()
    server.config.write_text(unbounded.replace("jetstream {", "jetstream { max_file_store: 1MB,"))
    (tmp_path / "place").mkdir()
    config = EXAMPLE.read_text() + f'\n[nats]\nservers = ["{server.url}"]\ntoken = "{TOKEN}"\n'
    place = Place(tmp_path / "place", config)
    stored = 0
    try:
        server.start()
        with JetSpool("watchbill_jobs", server.reach) as spool, contextlib.suppress(SpoolFull):
            while True:
                spool.enqueue({"id": str(stored), "kind": "note", "ts": 0, "text": "x" * 9_000})
                stored += 1
        daemon = place.up()
        complaint = wait_until(lambda: daemon.status()["spools"]["jobs"]["complaint"])
        assert "insufficient resources" in complaint and "max_file_store" in complaint
        assert any("shorten keep_done" in str(each) for each in place.events("alert"))
        assert "shorten keep_done" in " ".join(place.run("doctor").stdout.split())
        server.kill()
        server.config.write_text(unbounded)
        server.start()
        corpus = place.root / "corpus/jobs.jsonl"
        wait_until(lambda: corpus.exists() and len(corpus.read_text().splitlines()) >= stored, 60.0)
        assert daemon.stop() == 0
    finally:
        place.close()
        server.kill()


def test_a_broker_whose_disk_was_full_stores_again_when_there_is_room(tmp_path: Path) -> None:
    """SPOOL-08, R4: a nats-server that could not write once stores nothing more until it is restarted, so the daemon
    restarts its own. No acknowledged event is lost."""
    place = Place(tmp_path, EXAMPLE.read_text())
    with small_disks(tmp_path) as mount, contextlib.ExitStack() as closing:
        disk = mount("size=64M")
        place.move_root(disk / "root")
        closing.callback(place.close)  # the disk is in use until then
        daemon = place.up("--with-nats")
        spool = closing.enter_context(JetSpool("watchbill_jobs", replace(own_reach(place.root), wait_s=2)))
        acknowledged: list[str] = []

        def is_stored(number: object) -> bool:
            try:
                spool.enqueue({"id": str(number), "kind": "note", "ts": 0, "pad": "x" * 20_000})
            except (SpoolBroken, SpoolFull):
                return False
            acknowledged.append(str(number))
            return True

        assert is_stored("first")
        leave_blocks(disk, 50)
        numbers = count()
        while is_stored(next(numbers)):
            pass
        free_up(disk)
        wait_until(lambda: is_stored("last"), 60)
        corpus = place.root / "corpus/jobs.jsonl"
        wait_until(
            lambda: set(acknowledged) <= {json.loads(x)["id"] for x in corpus.read_text().splitlines()}
        )
        assert daemon.stop() == 0
