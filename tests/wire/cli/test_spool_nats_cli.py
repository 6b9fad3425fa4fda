"""`watchbill spool` on a broker: the same commands as on files, with a real nats-server (SPOOL-08)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nats_server import TOKEN, Broker, broker

CONFIG = """
[nats]
servers = ["{url}"]
token = "{token}"
timeout = "5s"
[spool.jobs]
backend = "nats"
lease = "2s"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def event(number: object) -> str:
    return json.dumps({"id": str(number), "kind": "note", "ts": 0}) + "\n"


def test_every_command_works_on_a_broker(alone, tmp_path: Path, server: Broker):
    """SPOOL-01 to SPOOL-07: in, listed, shown, leased by a script, finished, poisoned, corrected, drained, counted."""
    (tmp_path / "watchbill.toml").write_text(CONFIG.format(url=server.url, token=TOKEN))

    def spool(*words: str, code: int = 0, stdin: str | None = None) -> str:
        done = alone("spool", *words, stdin=stdin)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    names = spool("enqueue", stdin=event(1) + event(2) + event(3)).split()
    assert len(names) == 3
    listed = json.loads(spool("list", "--json"))
    assert [each["name"] for each in listed["events"]] == names and listed["total"] == 3
    assert json.loads(spool("show", names[0][:30], "--raw")) == json.loads(event(1))
    path = spool("dequeue", "--for", "10m").strip()
    assert json.loads(Path(path).read_text())["id"] == "1"
    assert "is leased by" in spool("release", names[0], code=1)
    assert spool("renew", path, "--for", "20m").strip() == path
    spool("done", path)
    assert "not leased any more" in spool("done", path, code=1)
    spool("poison", names[1], "--reason", "no good")
    assert "no good" in spool("list", "--state", "poison")
    (tmp_path / "corrected.json").write_text(event("two"))
    spool("requeue", names[1], "--content", "corrected.json")
    assert spool("drain", "--once") == "appended 2, already there 0, poisoned 0\n"
    found = next(tmp_path.rglob("corpus/jobs.jsonl"))
    assert sorted(json.loads(line)["id"] for line in found.read_text().splitlines()) == ["3", "two"]
    stats = json.loads(spool("stats", "--json", "--spool", "jobs"))
    assert (stats["queue"], stats["in_flight"], stats["done"], stats["poison"]) == (0, 0, 3, 0)
    assert "removed" in spool("gc")
    assert "cannot be archived" in spool("gc", "--archive", "old", code=2)
    assert "no event nothing in" in spool("show", "nothing", code=1)


def test_events_move_to_files_and_back(alone, tmp_path: Path, server: Broker):
    """SPOOL-08: one command each way, and what to set in the config."""
    config = CONFIG.format(url=server.url, token=TOKEN).replace("spool.jobs", "spool.moved")
    (tmp_path / "watchbill.toml").write_text(config)
    assert alone("spool", "enqueue", stdin=event(1) + event(2)).returncode == 0
    there = alone("spool", "move", "--to", "files")
    assert there.returncode == 0, there.stderr
    assert there.stdout == "moved 2 that waited and 0 of poison to files\n"
    assert 'set backend = "files" in [spool.moved]' in there.stderr
    assert len(list(tmp_path.rglob("spool/moved/queue/*.jsonl"))) == 2
    back = alone("spool", "move", "--to", "nats", "--json")
    assert json.loads(back.stdout) == {"waiting": 2, "poison": 0, "refused": 0, "leased": 0, "left": 0}
    assert alone("spool", "drain", "--once").stdout.startswith("appended 2,")


def test_a_broker_that_is_not_there_is_named(alone, tmp_path: Path):
    """One line, within the bound, with what to do."""
    (tmp_path / "watchbill.toml").write_text('[spool.jobs]\nbackend = "nats"\n')
    done = alone("spool", "enqueue", stdin=event(1))
    assert done.returncode != 0 and "up --with-nats" in done.stderr and "[nats]" in done.stderr
    text = CONFIG.format(url="nats://127.0.0.1:1", token="x").replace("5s", "1s")
    (tmp_path / "watchbill.toml").write_text(text)
    done = alone("spool", "stats")
    assert done.returncode == 1
    assert (
        "jobs: cannot count the events: the broker at nats://127.0.0.1:1 did not answer within 1 s"
        in done.stderr
    )
