"""`watchbill spool` and `watchbill corpus` where the surroundings are not as they should be."""

import json
import os
import subprocess
import sys

import pytest

from watchbill.spool import Spool
from watchbill.spool.limits import EVENT_BYTES_MAX


def event(number: int, **more: object) -> str:
    return json.dumps({"id": str(number), "kind": "note", "ts": number, **more})


def in_shell(alone, redirection: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command with its streams redirected as a shell does it."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "watchbill", *arguments],
        env=alone.environment, cwd=alone.home, capture_output=True, text=True, timeout=30, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_who_reads_only_the_first_names_still_stores_every_event(alone, tmp_path):
    """SPOOL-02: `enqueue FILE | head -1` ends with 0, so all of FILE is stored."""
    (tmp_path / "many.jsonl").write_text("".join(event(number) + "\n" for number in range(3000)))
    storing = alone.start("spool", "enqueue", "many.jsonl", "--spool", "s")
    assert storing.stdout.readline().endswith(b"~0.jsonl\n")
    storing.stdout.close()
    assert (storing.wait(30), storing.stderr.read()) == (0, b"")
    storing.stderr.close()
    assert json.loads(alone("spool", "stats", "--spool", "s", "--json").stdout)["queue"] == 3000


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_error(alone, tmp_path, closed):
    """pitfalls: exit code 0, no traceback, where a script closed what it does not need."""
    (tmp_path / "one.jsonl").write_text(event(1) + "\n")
    done = in_shell(alone, closed, "spool", "enqueue", "one.jsonl", "--spool", "s")
    assert (done.returncode, done.stderr) == (0, "")
    for command in (["spool", "stats", "--spool", "s", "--quiet"], ["corpus", "tail", "one.jsonl"]):
        done = in_shell(alone, closed, *command)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["spool", "list", "--spool", "s"], ["corpus", "read", "one.jsonl"]])
def test_output_that_cannot_be_written_is_one_line_and_failure(alone, tmp_path, command):
    """pitfalls: exit code 1, no traceback."""
    (tmp_path / "one.jsonl").write_text(event(1) + "\n")
    alone("spool", "enqueue", "one.jsonl", "--spool", "s")
    done = in_shell(alone, "> /dev/full", *command)
    assert done.returncode == 1
    assert done.stderr == "watchbill: cannot read or write: no space left on device\n"


def test_a_folder_that_the_system_refuses_is_one_line(alone):
    """pitfalls: exit code 1, what and which; no traceback."""
    done = alone("spool", "list", "--spool", "./" + "x" * 300)
    assert done.returncode == 1
    assert done.stderr.endswith("/queue: file name too long\n")
    assert done.stderr.count("\n") == 1


def test_a_source_that_is_a_folder_is_named(alone, tmp_path):
    """SPOOL-02: what cannot be read is said by its name."""
    (tmp_path / "folder").mkdir()
    done = alone("spool", "enqueue", "folder", "--spool", "s")
    assert (done.returncode, done.stderr) == (1, "watchbill: cannot read folder: is a directory\n")


def test_a_broken_schema_is_told_in_one_line(alone, tmp_path):
    """SPOOL-04: exit code 2, and nothing is drained."""
    pytest.importorskip("jsonschema_rs", reason="needs the extra watchbill[schema]")
    with Spool(tmp_path / "s") as spool:
        spool.enqueue(event(1))
    (tmp_path / "bad.json").write_text('{"type": "nonsense"}')
    done = alone("spool", "drain", "--spool", "s", "--corpus", "c", "--once", "--schema", "bad.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert '"nonsense"' in done.stderr


def test_a_name_with_a_newline_makes_no_row_of_its_own(alone, tmp_path):
    """R49: neither a file's name nor the reason of its poison can forge a line of the table."""
    with Spool(tmp_path / "s") as spool:
        spool.enqueue(event(1))
        with spool.dequeue() as item:
            spool.poison(item, "bad\nfake~1.jsonl  done")
    (tmp_path / "s/queue/a\nfake~0.jsonl").write_text(event(2))
    shown = alone("spool", "list", "--spool", "s").stdout.splitlines()
    assert len(shown) == 4  # head, two files, one reason
    assert not any(line.startswith("fake") for line in shown)
    for name in ("a", item.name):
        told = alone("spool", "show", name, "--spool", "s").stdout.splitlines()
        assert not any(line.startswith("fake") for line in told)


def test_several_corpora_are_named_as_they_can_be_given(alone, tmp_path):
    """SPOOL-04: one of the names in the refusal, given instead, is found from any folder."""
    root = tmp_path / "root"
    (tmp_path / "c.toml").write_text(
        '[models.m]\nengine = "scripted"\n[spool.s]\ncorpus = { a = "a.jsonl", b = "b.jsonl" }\n'
    )
    refused = alone("corpus", "count", "s", "--config", "c.toml")
    assert refused.returncode == 1
    assert f"name one of {root / 'a.jsonl'}, {root / 'b.jsonl'}" in refused.stderr


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_a_file_is_repaired(alone, tmp_path, kind):
    """R8: one line, exit code 1, and nothing is replaced; a pipe is not waited for."""
    (tmp_path / "c.jsonl").write_text("rubbish\n")
    (tmp_path / "link").symlink_to("c.jsonl")
    os.mkfifo(tmp_path / "pipe")
    done = alone("corpus", "repair", kind)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "only a regular file can be repaired" in done.stderr


def test_an_event_that_cannot_be_moved_does_not_keep_the_others(alone, tmp_path):
    """SPOOL-06: what was moved is named, what was not is told, and the exit code is 1."""
    with Spool(tmp_path / "s") as spool:
        stuck, free = spool.enqueue(event(1)), spool.enqueue(event(2))
    (tmp_path / "s/queue-poison" / f"{stuck}.reason.json").mkdir()
    done = alone("spool", "poison", stuck, free, "--spool", "s")
    assert (done.returncode, done.stdout) == (1, f"{free}\n")
    assert done.stderr.startswith(f"watchbill: cannot write the reason of {stuck}")
    assert done.stderr.count("\n") == 1


def test_one_spool_that_cannot_be_opened_does_not_hide_the_others(alone, tmp_path):
    """SPOOL-01: the counts of the rest, one line about that one, exit code 1."""
    (tmp_path / "file").touch()
    (tmp_path / "c.toml").write_text(
        '[models.m]\nengine = "scripted"\n'
        f'[spool.bad]\npath = "{tmp_path}/file/s"\n[spool.good]\npath = "{tmp_path}/good"\n'
    )
    done = alone("spool", "stats", "--config", "c.toml", "--json")
    assert done.returncode == 1
    assert list(json.loads(done.stdout)["spools"]) == ["good"]
    assert done.stderr.startswith("watchbill: bad: ")
    assert done.stderr.count("\n") == 1


def test_a_line_that_is_being_written_is_followed_whole(alone, tmp_path):
    """SPOOL-04: `tail -f` that starts in the middle of a write prints that line once, and in one piece."""
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(event(1) + "\n" + event(2)[:10])
    following = alone.start("corpus", "tail", "-f", "c.jsonl")
    try:
        assert following.stdout.readline().decode() == event(1) + "\n"
        with open(corpus, "a") as file:
            file.write(event(2)[10:] + "\n")
        assert following.stdout.readline().decode() == event(2) + "\n"
    finally:
        following.kill()
        following.communicate()


@pytest.mark.parametrize("source", ["missing", "folder", "bad", "large", "pipe"])
@pytest.mark.parametrize("bundle", [[], ["--bundle"]], ids=["each", "bundle"])
def test_an_enqueue_that_fails_leaves_nothing_behind(alone, tmp_path, source, bundle):
    """SPOOL-02: no folder is made for a file that cannot be read or has a line that is no event."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad").write_text(event(1) + "\nno event\n")
    (tmp_path / "large").write_text(event(1, text="x" * EVENT_BYTES_MAX) + "\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    named = [] if source == "pipe" else [source]
    done = alone("spool", "enqueue", *named, "--spool", "./deep/spool", *bundle, stdin="no event\n")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before
