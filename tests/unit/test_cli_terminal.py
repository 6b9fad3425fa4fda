"""What the terminal draws: bars that add up, tables that fit, text that cannot steer it; and the short way in."""

import io
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchbill.cli.quick import Asked, lead_with_command, understand
from watchbill.cli.terminal import Column, Part, Terminal, plain
from watchbill.cli.up import UpScreen, next_steps
from watchbill.root import command_for, find_root

AMOUNTS = st.lists(st.integers(0, 2**50), min_size=1, max_size=5)


def terminal(**environment: str) -> Terminal:
    return Terminal(out=io.StringIO(), error=io.StringIO(), environment=environment)


@given(AMOUNTS, st.integers(10, 60))
def test_a_bar_is_exactly_as_long_as_asked_and_hides_nothing(amounts, cells):
    """A load of a few MB on a device of a TB is still one cell."""
    signs = "abcde"
    bar = terminal().bar(
        [Part(amount, sign, "dim") for amount, sign in zip(amounts, signs, strict=False)], cells
    )
    assert len(bar) == cells
    if any(amounts):
        assert set(bar) == {sign for amount, sign in zip(amounts, signs, strict=False) if amount}


@given(st.lists(st.tuples(st.text(max_size=100), st.integers(0, 99)), max_size=5), st.integers(40, 120))
def test_a_table_never_leaves_the_terminal(rows, width):
    lines = terminal(COLUMNS=str(width)).table(
        [Column("NAME"), Column("COUNT", right=True)],
        [[plain(name).replace("\n", " ").replace("\t", " "), str(count)] for name, count in rows],
    )
    assert len(lines) == len(rows) + 1
    assert all(len(line) <= width for line in lines)


def test_a_table_that_is_too_wide_loses_empty_columns_before_names_are_cut():
    names = ["agent", "state", "in memory", "C", "VRAM", "throttled", "constrained", "tasks"]
    row = ["gpu-1", "serving", "", "76", "1024 of 6144 MB", "", "", "3"]
    lines = terminal(COLUMNS="50").table([Column(name) for name in names], [row])
    assert lines[0].split() == ["agent", "state", "C", "VRAM", "tasks"]
    assert "gpu-1" in lines[1] and "1024 of 6144 MB" in lines[1]


@given(st.text(alphabet=st.sampled_from("ab \x1b"), max_size=300), st.integers(40, 100), st.integers(0, 16))
def test_wrapped_text_keeps_its_words_and_its_margin(text, width, indent):
    lines = terminal(COLUMNS=str(width)).wrapped(plain(text), indent)
    assert all(len(line) <= width and line.startswith(" " * indent) for line in lines)


@given(st.text())
def test_no_control_character_survives(text):
    assert all(sign.isprintable() or sign in "\n\t" or ord(sign) > 0x9F for sign in plain(text))


@pytest.mark.parametrize(
    ("given_words", "meant"),
    [
        (["status"], Asked("status")),
        (["models", "--json"], Asked("models", json=True)),
        (["status", "-q", "--url", "u", "--root=r"], Asked("status", "u", Path("r"), quiet=True)),
        (["--root", "r", "-q", "requests"], Asked("requests", root=Path("r"), quiet=True)),
        (["--url=u", "status"], Asked("status", "u")),
    ],
)
def test_the_short_way_understands_plain_listings(given_words, meant):
    assert understand(lead_with_command(given_words)) == meant


@pytest.mark.parametrize(
    "words",
    [
        [], ["up"], ["status", "--help"], ["status", "-h"], ["status", "more"], ["status", "--url"],
        ["status", "--url", "--json"], ["status", "--json=yes"], ["--version"], ["--root", "r"], ["load", "--json"],
    ],
)  # fmt: skip
def test_the_short_way_leaves_everything_else_to_the_long_one(words):
    assert understand(lead_with_command(words)) is None


@given(
    st.lists(st.sampled_from(["--root", "r", "--url=u", "-q", "status", "load", "m", "--json", "--", "--x"]))
)
def test_moving_options_behind_the_command_loses_no_word(words):
    assert sorted(lead_with_command(words)) == sorted(words)


def test_a_warning_to_a_terminal_that_is_gone_is_no_error(monkeypatch):
    """design 9: who started the daemon may have closed the terminal; the daemon goes on, and so does its watch of the
    config, which warns."""
    screen = UpScreen(Terminal(quiet=True), "watchbill")
    with open("/dev/full", "wb", buffering=0) as gone:
        monkeypatch.setattr("sys.stderr", io.TextIOWrapper(gone, write_through=True))
        screen.warn("the changed config was refused")
        with pytest.raises(OSError, match="No space left"):
            print("another", file=sys.stderr)


@pytest.mark.parametrize(
    ("started_as", "home", "told"),
    [
        (".venv/bin/watchbill", "", ".venv/bin/watchbill"),
        (".venv/bin/watchbill", "/other", ".venv/bin/watchbill --root {usual}"),
        ("/site/watchbill/__main__.py", "", f"{shlex.quote(sys.executable)} -m watchbill"),
    ],
)
def test_what_to_try_next_works_as_it_stands(tmp_path, started_as, home, told):
    """design 9: after `make up` no `watchbill` is on the PATH, and a root that was named once is named again."""
    usual = find_root(None, {}).path
    environment = {"PATH": str(tmp_path), "WATCHBILL_HOME": home}
    told = told.format(usual=usual)
    assert command_for(usual, started_as=[started_as], environment=environment) == told
    assert next_steps("http://h:1", "m", told)[2] == f"{told} status"


@pytest.mark.parametrize("home", ["", "/r", "/other"])
def test_a_root_that_another_terminal_would_not_find_is_named(tmp_path, home):
    """design 9: $WATCHBILL_HOME may be set in this terminal only, and a hint is pasted into any."""
    environment = {"PATH": str(tmp_path), "WATCHBILL_HOME": home}
    told = command_for(Path("/r"), "status", started_as=["bin/watchbill"], environment=environment)
    assert told == "bin/watchbill --root /r status"


def test_a_program_on_the_path_is_called_by_its_name(tmp_path):
    """design 9: where it was installed, nobody needs to know where."""
    (tmp_path / "watchbill").touch(mode=0o755)
    usual = find_root(None, {}).path
    assert (
        command_for(usual, started_as=["bin/watchbill"], environment={"PATH": str(tmp_path)}) == "watchbill"
    )
