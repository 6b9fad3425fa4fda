"""`watchbill spool` as people and scripts use it: the real command on a real spool."""

import json
import os
import signal
from pathlib import Path
from unittest.mock import ANY

import pytest

from support.eventually import wait_until
from watchbill.cli import run
from watchbill.spool import Spool

STATES = ("queue", "queue-in-flight", "queue-done", "queue-poison")


def event(number: int, **more: object) -> str:
    return json.dumps({"id": str(number), "kind": "note", "ts": number, **more})


def events(*numbers: int) -> str:
    return "".join(event(number) + "\n" for number in numbers)


def counts(folder: Path) -> dict[str, int]:
    return {state: len(list((folder / state).rglob("*.jsonl"))) for state in STATES}


def ids(corpus: Path) -> list[str]:
    return [json.loads(line)["id"] for line in corpus.read_text().splitlines()] if corpus.exists() else []


def one_line(done) -> str:
    """An error is one line for people and nothing on standard output."""
    assert done.stderr.startswith("watchbill: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


# ------------------------------------------------------------------ in, through, out


def test_events_go_from_a_pipe_into_the_corpus(alone, tmp_path):
    """SPOOL-01, SPOOL-04: the exact forms that scripts rely on."""
    put = alone("spool", "enqueue", "--spool", "s", "-", stdin=events(1, 2))
    assert (put.returncode, put.stderr) == (0, "")
    assert sorted(put.stdout.split()) == sorted(path.name for path in (tmp_path / "s/queue").glob("*.jsonl"))
    (tmp_path / "more.jsonl").write_text(events(3))
    assert alone("spool", "enqueue", "--spool", "s", "more.jsonl").returncode == 0
    stats = json.loads(alone("spool", "stats", "--spool", "s", "--json").stdout)
    assert {key: stats[key] for key in ("queue", "in_flight", "done", "poison")} == {
        "queue": 3, "in_flight": 0, "done": 0, "poison": 0,
    }  # fmt: skip
    assert stats["oldest_ms"] >= 0
    drained = alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once", "--workers", "2")
    assert (drained.returncode, drained.stderr) == (0, "")
    assert drained.stdout == "appended 3, already there 0, poisoned 0\n"
    assert sorted(ids(tmp_path / "c.jsonl")) == ["1", "2", "3"]
    after = json.loads(alone("spool", "stats", "--spool", "s", "--json").stdout)
    assert (after["queue"], after["done"], after["oldest_ms"]) == (0, 3, None)


def test_an_event_is_stored_byte_for_byte(alone, tmp_path):
    """SPOOL-07: enqueue never alters an event."""
    odd = '{ "id":"1",  "kind":"note" ,"ts":1.50, "text":"\\u00e4 ä" }'
    alone("spool", "enqueue", "--spool", "s", stdin=odd + "\n")
    alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once")
    assert (tmp_path / "c.jsonl").read_text() == odd + "\n"


def test_a_bundle_is_one_file(alone, tmp_path):
    put = alone("spool", "enqueue", "--spool", "s", "--bundle", "--json", stdin=events(1, 2, 3))
    assert json.loads(put.stdout)["names"][0].endswith(".bundle.jsonl")
    assert counts(tmp_path / "s")["queue"] == 1
    assert json.loads(alone("spool", "stats", "--spool", "s", "--json").stdout)["queue"] == 3


def test_a_bad_line_of_a_file_stores_nothing(alone, tmp_path):
    (tmp_path / "e.jsonl").write_text(events(1) + "\n" + "{pretty\n" + events(2))
    refused = alone("spool", "enqueue", "--spool", "s", "e.jsonl")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "e.jsonl:3: not JSON" in one_line(refused)
    assert counts(tmp_path / "s")["queue"] == 0


def test_a_pipe_is_stored_as_it_comes(alone, tmp_path):
    """What a producer has sent is safe before it sends the rest; a bad line ends it, what came before is stored."""
    read, write = os.pipe()
    process = alone.start_with(read, "spool", "enqueue", "--spool", "s", "--json")
    os.close(read)
    os.write(write, events(1).encode())
    wait_until(lambda: (tmp_path / "s/queue").is_dir() and counts(tmp_path / "s")["queue"] == 1)
    os.write(write, (events(2) + "nonsense\n" + events(3)).encode())
    os.close(write)
    out, error = process.communicate(timeout=20)
    assert process.returncode == 1
    assert json.loads(out)["enqueued"] == 2
    assert b"standard input:3:" in error
    assert counts(tmp_path / "s")["queue"] == 2


# ------------------------------------------------------------------ poison


def test_poison_is_inspected_edited_and_requeued(alone, tmp_path):
    """SPOOL-06: with its reason beside it; nothing else is held up."""
    alone("spool", "enqueue", "--spool", "s", stdin='{"id":"1"}\n' + events(2))
    drained = alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once", "--json")
    assert json.loads(drained.stdout)["poisoned"] == 1
    listed = alone("spool", "list", "--spool", "s", "--state", "poison")
    assert "schema: `kind` is missing" in listed.stdout
    (bad,) = json.loads(alone("spool", "list", "--spool", "s", "--state", "poison", "--json").stdout)[
        "events"
    ]
    shown = json.loads(alone("spool", "show", bad["name"], "--spool", "s", "--json").stdout)
    assert (shown["state"], shown["content"]) == ("poison", [{"id": "1"}])
    assert shown["reason"]["reason"] == "schema: `kind` is missing"
    Path(shown["path"]).write_text(event(1) + "\n")
    assert alone("spool", "requeue", bad["name"], "--spool", "s").returncode == 0
    alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once")
    assert sorted(ids(tmp_path / "c.jsonl")) == ["1", "2"]
    assert counts(tmp_path / "s")["queue-poison"] == 0


def test_everything_in_poison_is_requeued_at_once(alone, tmp_path):
    names = alone("spool", "enqueue", "--spool", "s", stdin=events(1, 2, 3)).stdout.split()
    given_up = alone("spool", "poison", *names[:2], "--spool", "s", "--reason", "not now")
    assert given_up.returncode == 0
    assert counts(tmp_path / "s")["queue-poison"] == 2
    assert "not now" in alone("spool", "list", "--spool", "s").stdout
    back = alone("spool", "requeue", "--all", "--spool", "s", "--json")
    assert len(json.loads(back.stdout)["moved"]) == 2
    assert counts(tmp_path / "s")["queue"] == 3


# ------------------------------------------------------------------ beside workers


def test_looking_and_moving_beside_a_living_worker(alone, tmp_path):
    """A lease of a living worker is seen with its owner, and not taken from it unless forced."""
    with Spool(tmp_path / "s") as spool:
        spool.enqueue(json.loads(event(1)))
        item = spool.lease()
        assert item is not None
        (entry,) = json.loads(alone("spool", "list", "--spool", "s", "--json").stdout)["events"]
        assert (entry["state"], entry["attempt"]) == ("in-flight", 1)
        assert entry["folder"]
        refused = alone("spool", "release", item.name, "--spool", "s")
        assert refused.returncode == 1
        assert "alive" in one_line(refused)
        assert alone("spool", "release", item.name, "--spool", "s", "--force").returncode == 0
        assert counts(tmp_path / "s") == {
            "queue": 1,
            "queue-in-flight": 0,
            "queue-done": 0,
            "queue-poison": 0,
        }


def test_a_drain_goes_on_until_it_is_told_to_stop(alone, tmp_path):
    """SPOOL-04, SPOOL-09: it takes what arrives, and ends on SIGTERM with nothing in its hands."""
    drain = alone.start("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--json")
    wait_until((tmp_path / "s/queue").is_dir)
    alone("spool", "enqueue", "--spool", "s", stdin=events(1))
    wait_until(lambda: ids(tmp_path / "c.jsonl") == ["1"])
    drain.send_signal(signal.SIGTERM)
    out, error = drain.communicate(timeout=20)
    assert drain.returncode == 0, error
    assert json.loads(out)["appended"] == 1
    assert counts(tmp_path / "s")["queue-in-flight"] == 0


def test_ctrl_c_ends_a_drain_cleanly(alone, tmp_path):
    screen = alone.on_terminal("spool", "drain", "--spool", "s", "--corpus", "c.jsonl")
    screen.see("Ctrl-C ends it")
    screen.type("\x03")
    assert screen.end() == 130
    assert "appended 0" in screen.seen
    assert "Traceback" not in screen.seen


def test_a_drain_ends_by_itself_when_nothing_comes(alone, tmp_path):
    """SPOOL-09: a tier that is started on demand stops after an idle time."""
    alone("spool", "enqueue", "--spool", "s", stdin=events(1))
    ended = alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--idle", "300ms")
    assert ended.returncode == 0
    assert "nothing arrived" in ended.stderr
    assert ids(tmp_path / "c.jsonl") == ["1"]


def test_what_a_killed_drain_held_is_drained_by_the_next(alone, tmp_path):
    """SPOOL-05: kill -9 while an event is leased; the next start takes it up."""
    (tmp_path / "hold").mkdir()
    script = (
        "import sys, time\nfrom watchbill.spool import Spool\n"
        "spool = Spool('s')\nitem = spool.lease()\nprint(item.name, flush=True)\ntime.sleep(60)\n"
    )
    alone("spool", "enqueue", "--spool", "s", stdin=events(1))
    worker = alone.start_python(script)
    assert worker.stdout.readline()
    worker.kill()
    worker.communicate()
    assert counts(tmp_path / "s")["queue-in-flight"] == 1
    alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once")
    assert ids(tmp_path / "c.jsonl") == ["1"]


# ------------------------------------------------------------------ a spool of the config


CONFIG = """
[server.keys.me]
key = "env:NOT_SET_HERE"

[models.broken]
engine = "llamacpp"
source = "nix.gguf"

[spool.notes]
corpus = "kept/notes.jsonl"
id_key = "key"
schema = "any"
"""


def test_a_spool_is_known_by_its_name(alone, tmp_path):
    """A spool of the config: its folder and corpus lie in the root, and its rules count."""
    (tmp_path / "watchbill.toml").write_text(CONFIG)
    root = tmp_path / "root"
    assert alone("spool", "enqueue", stdin='{"key":"a"}\n{"key":"a"}\n').returncode == 0
    assert counts(root / "spool/notes")["queue"] == 2
    drained = alone("spool", "drain", "--spool", "notes", "--once")
    assert drained.stdout == "appended 1, already there 1, poisoned 0\n"
    assert (root / "kept/notes.jsonl").read_text() == '{"key":"a"}\n'
    assert alone("corpus", "read", "notes").stdout == '{"key":"a"}\n'
    told = json.loads(alone("spool", "stats", "--json").stdout)
    assert told["spools"]["notes"]["done"] == 2


def test_a_folder_and_a_name_are_told_apart(alone, tmp_path):
    (tmp_path / "watchbill.toml").write_text(CONFIG)
    alone("spool", "enqueue", "--spool", "./notes", stdin=events(1))
    assert counts(tmp_path / "notes")["queue"] == 1
    assert not (tmp_path / "root/spool/notes").exists()


# ------------------------------------------------------------------ signatures


def test_unsigned_events_are_poisoned_where_signatures_are_asked_for(alone, tmp_path):
    """SPOOL-11: signed and verified; the signature stands beside the event, never inside it."""
    pytest.importorskip("cryptography", reason="needs the extra watchbill[sign]")
    made = alone("spool", "key", "me.pem")
    assert made.returncode == 0
    assert (tmp_path / "me.pem").stat().st_mode & 0o077 == 0
    alone("spool", "enqueue", "--spool", "s", "--sign", "me.pem", stdin=events(1))
    alone("spool", "enqueue", "--spool", "s", stdin=events(2))
    drained = alone(
        "spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once", "--verify", "me.pem.pub"
    )
    assert drained.stdout == "appended 1, already there 0, poisoned 1\n"
    assert (tmp_path / "c.jsonl").read_text() == event(1) + "\n"
    assert "signature: none beside the event" in alone("spool", "list", "--spool", "s").stdout
    again = alone("spool", "key", "me.pem")
    assert (again.returncode, "exists" in one_line(again)) == (1, True)


# ------------------------------------------------------------------ looking


def test_a_list_is_readable_and_bounded(alone, tmp_path):
    alone("spool", "enqueue", "--spool", "s", stdin=events(*range(60)))
    listed = alone("spool", "list", "--spool", "s")
    assert len(listed.stdout.splitlines()) == 51
    assert listed.stdout.splitlines()[0].split() == ["NAME", "STATE", "AGE", "TRY", "EVENTS", "SIZE", "WHERE"]
    assert "and 10 more" in listed.stderr
    assert len(alone("spool", "list", "--spool", "s", "-n", "0").stdout.splitlines()) == 61
    whole = json.loads(alone("spool", "list", "--spool", "s", "--json").stdout)
    assert (len(whole["events"]), whole["total"]) == (60, 60)
    ages = [each["age_ms"] for each in whole["events"]]
    assert ages == sorted(ages, reverse=True)
    some = json.loads(alone("spool", "list", "--spool", "s", "--json", "-n", "7").stdout)
    assert (some["events"], some["total"]) == ([{**each, "age_ms": ANY} for each in whole["events"][:7]], 60)
    none = json.loads(alone("spool", "list", "--spool", "s", "--json", "--state", "poison").stdout)
    assert none == {"events": [], "total": 0, "unreplayed": 0, "in_folders": 0}
    assert alone("spool", "list", "--spool", "s", "--json").stdout.count("\n") == 1


def test_a_long_list_for_scripts_is_written_while_it_is_read(alone, tmp_path):
    """SPOOL-01: files are looked at one by one, no faster than the reader takes them, and never held all at once."""
    with Spool(tmp_path / "s", durability="none") as spool:
        spool.enqueue_many([json.loads(event(number)) for number in range(3_000)])
    with alone.start("spool", "list", "--spool", "s", "--json") as listing:
        assert listing.stdout is not None
        begun = listing.stdout.read(100)
        for path in (tmp_path / "s" / "queue").rglob("*.jsonl"):
            path.unlink()
        told = json.loads(begun + listing.stdout.read())
    assert listing.returncode == 0
    assert told["total"] == 3_000
    assert 0 < len(told["events"]) < 2_000  # what is gone by now is not told of


def test_hostile_names_and_texts_do_not_paint_the_terminal(alone, tmp_path):
    alone("spool", "enqueue", "--spool", "s", stdin=events(1))
    (tmp_path / "s/queue/evil\x1b[31m.jsonl").write_text('{"text": "\x1b[31m"}\n')
    for command in (("list",), ("show", "evil")):
        shown = alone("spool", *command, "--spool", "s")
        assert shown.returncode == 0
        assert "\x1b" not in shown.stdout


def test_finished_events_are_collected(alone, tmp_path):
    """SPOOL-12: whole days; today stays."""
    alone("spool", "enqueue", "--spool", "s", stdin=events(1, 2))
    alone("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once")
    assert alone("spool", "gc", "--spool", "s").stdout == "compacted 0, removed 0, archived 0\n"
    (day,) = (tmp_path / "s/queue-done").iterdir()
    day.rename(day.with_name("2020-01-01"))
    done = json.loads(alone("spool", "gc", "--spool", "s", "--archive", "old", "--json").stdout)
    assert done["archived"] == 2
    assert len(list((tmp_path / "old").glob("*.jsonl"))) == 1
    assert counts(tmp_path / "s")["queue-done"] == 0


def test_a_progress_bar_is_drawn_only_on_a_terminal(alone, tmp_path):
    alone("spool", "enqueue", "--spool", "s", stdin=events(*range(40)))
    screen = alone.on_terminal("spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once")
    assert screen.end() == 0
    assert "40/40" in screen.seen or "/40" in screen.seen
    assert "appended 40" in screen.seen


# ------------------------------------------------------------------ wrong use


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("stats", "--spool", "./nix"), 2, "there is no spool in"),
        (("stats",), 2, "no spool is named"),
        (("enqueue", "nix.jsonl", "--spool", "s"), 1, "no such file"),
        (("enqueue", ".", "--spool", "s"), 1, "is a directory"),
        (("enqueue", "--bogus", "--spool", "s"), 2, "Unknown option: --bogus"),
        (("enqueue", "--spool", ""), 2, "--spool is empty"),
        (("enqueue", "--spool", "/proc/nix"), 1, "cannot open the spool"),
        (("enqueue", "--spool", "/dev/null/x"), 2, "is not a folder"),
        (("list", "--spool", "made", "--state", "odd"), 2, "odd is not a state"),
        (("list", "--spool", "made", "--limit", "-1"), 2, "--limit"),
        (("show", "nix", "--spool", "made"), 1, "no event nix"),
        (("release", "nix", "--spool", "made"), 1, "no event nix in in-flight"),
        (("requeue", "--spool", "made"), 2, "name the events"),
        (("drain", "--spool", "made", "--once"), 2, "no corpus is named"),
        (("drain", "--spool", "made", "--corpus", "/", "--once"), 2, "cannot be a corpus"),
        (("drain", "--spool", "made", "--corpus", "/proc", "--once"), 1, "Is a directory"),
        (("drain", "--spool", "made", "--corpus", "made/queue/c.jsonl", "--once"), 2, "inside its own spool"),
        (("drain", "--spool", "made", "--corpus", "c", "--schema", "nix.json"), 2, "no usable JSON Schema"),
        (("drain", "--spool", "made", "--corpus", "c", "--workers", "0"), 2, "--workers"),
        (("drain", "--spool", "made", "--corpus", "c", "--idle", "soon"), 2, "is not a duration"),
        (("drain", "--spool", "made", "--corpus", "c", "--verify", "nix.pem"), 2, "no usable public key"),
        (("gc", "--spool", "made", "--keep", "7"), 2, "is not a duration"),
        (("hook", "install", ".", "--spool", "made"), 2, "is not a git repository"),
        (("hook", "remove", "."), 2, "is not a git repository"),
        (("frob",), 2, "Unknown command"),
    ],
)
def test_wrong_use_is_one_clear_line(  # noqa: PLR0917 - fixtures and a row
    tmp_path, monkeypatch, capsys, arguments, code, text
):
    """In this process, because it is many; what a process adds is tested above."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WATCHBILL_HOME", str(tmp_path / "root"))
    Spool(tmp_path / "made").close()
    before = set(tmp_path.rglob("*"))
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert run(["spool", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("watchbill: ")
    assert said.err.count("\n") == 1
    assert text in said.err
    if code == 2 and "made" in arguments:
        assert set(tmp_path.rglob("*")) == before
