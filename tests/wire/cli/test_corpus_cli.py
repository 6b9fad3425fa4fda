"""`watchbill corpus`: read deduplicated, checked, mended, counted, followed."""

import json

import pytest

from watchbill.cli import run

LINES = '{"id":"1","kind":"note"}\n{"id":"2","kind":"draft"}\n{"id":"1","kind":"note"}\n'


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(LINES)
    return path


def test_each_id_is_read_once_and_byte_for_byte(alone, corpus):
    """SPOOL-07: the corpus can be read deduplicated by id."""
    assert alone("corpus", "read", "c.jsonl").stdout == "".join(LINES.splitlines(keepends=True)[:2])
    assert alone("corpus", "read", "c.jsonl", "--all").stdout == LINES
    assert alone("corpus", "read", "c.jsonl", "--kind", "draft").stdout == '{"id":"2","kind":"draft"}\n'
    assert alone("corpus", "read", "c.jsonl", "--id-key", "kind", "--all").stdout == LINES


def test_a_torn_corpus_is_found_and_mended(alone, corpus):
    """R8: good lines are kept, bad ones quarantined with their offset, never deleted."""
    corpus.write_text("garbage\n" + LINES + '{"id":"3","ki')
    checked = alone("corpus", "check", "c.jsonl")
    assert checked.returncode == 1
    assert "byte 0: not JSON" in checked.stdout
    assert "a write was cut short" in checked.stdout
    told = json.loads(alone("corpus", "check", "c.jsonl", "--json").stdout)
    assert (told["ok"], told["events"], told["duplicates"], told["bad"], told["torn_tail"]) == (
        False,
        2,
        1,
        2,
        True,
    )
    mended = alone("corpus", "repair", "c.jsonl")
    assert mended.returncode == 0
    assert "took out 2 of 5 lines" in mended.stdout
    assert corpus.read_text() == LINES
    assert alone("corpus", "check", "c.jsonl").returncode == 0
    assert "nothing to mend" in alone("corpus", "repair", "c.jsonl").stdout
    kept = (corpus.parent / "c.jsonl.torn").iterdir()
    assert any(b"garbage".hex() in path.read_text() for path in kept)
    assert json.loads(alone("corpus", "repair", "c.jsonl", "--unique", "--json").stdout)["removed"] == 1
    assert corpus.read_text().count("\n") == 2


def test_events_are_counted_by_kind(alone, corpus):
    assert json.loads(alone("corpus", "count", "c.jsonl", "--json").stdout) == {
        "events": 2, "kinds": {"note": 1, "draft": 1},
    }  # fmt: skip
    table = alone("corpus", "count", "c.jsonl", "--all").stdout.splitlines()
    assert [line.split() for line in table] == [
        ["KIND", "EVENTS"],
        ["note", "2"],
        ["draft", "1"],
        ["all", "3"],
    ]


def test_the_end_is_shown_and_followed(alone, corpus):
    assert alone("corpus", "tail", "c.jsonl", "-n", "1").stdout == '{"id":"1","kind":"note"}\n'
    assert alone("corpus", "tail", "c.jsonl", "-n", "0").stdout == ""
    following = alone.start("corpus", "tail", "c.jsonl", "-n", "1", "-f")
    try:
        assert json.loads(following.stdout.readline())["id"] == "1"
        with corpus.open("a") as file:
            file.write('{"id":"4"}\n')
        assert json.loads(following.stdout.readline())["id"] == "4"
        corpus.write_text(corpus.read_text() + "garbage\n")
        assert following.stdout.readline() == b"garbage\n"
        assert alone("corpus", "repair", "c.jsonl").returncode == 0
        with corpus.open("a") as file:
            file.write('{"id":"5"}\n')
        assert json.loads(following.stdout.readline())["id"] == "5"
    finally:
        following.kill()
        following.communicate()


def test_a_reader_that_has_seen_enough_is_no_error(alone, tmp_path):
    (tmp_path / "big.jsonl").write_text(
        "".join(f'{{"id":"{n}","text":"{"x" * 200}"}}\n' for n in range(5_000))
    )
    reading = alone.start("corpus", "read", "big.jsonl")
    assert reading.stdout.readline()
    reading.stdout.close()
    error = reading.stderr.read()
    reading.stderr.close()
    assert (reading.wait(20), error) == (0, b"")


@pytest.mark.parametrize("command", ["read", "check", "repair", "count", "tail"])
@pytest.mark.parametrize(("file", "text"), [("nix.jsonl", "no such file"), (".", "is a directory")])
def test_a_corpus_that_is_not_there_is_one_clear_line(  # noqa: PLR0917 - fixtures and a row
    tmp_path, monkeypatch, capsys, command, file, text
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WATCHBILL_HOME", str(tmp_path / "root"))
    assert run(["corpus", command, file]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("watchbill: cannot read the corpus")
    assert text in said.err
    assert said.err.count("\n") == 1
