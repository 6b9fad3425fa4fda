"""Configs of any size and kind: checked in a bounded time, and complained about in a bounded number of words."""

import time
from pathlib import Path

import pytest

from watchbill.config.document import TABLES
from watchbill.config.keys import keys_of
from watchbill.config.load import read_text
from watchbill.errors import ConfigError
from watchbill.limits import CONFIG_FILE_BYTES_MAX, CONFIG_PROBLEMS_MAX, CONFIG_VALUES_MAX, QUOTED_CHARS_MAX
from watchbill.quoting import quoted

#: Of processor time, on a slow machine. A quick one took 3 to 5 s for some of them, and now takes half a second.
CHECK_S_MAX = 4.0
#: What is wrong with one value, and what to do: the longest hints list the keys of a table.
PROBLEM_CHARS_MAX = 2_000
BASE = '[models.echo]\nengine = "scripted"\nmemory = "100MB"\n'
FILLED = (CONFIG_FILE_BYTES_MAX - 1_000) // 10
LARGE: dict[str, str] = {
    "keys": "".join(f"k{at} = 1\n" for at in range(90_000)),
    "floats": "x = [" + "1.5e308," * 100_000 + "]\n",
    "texts": "x = [" + '"",' * 300_000 + "]\n",
    "lists": "x = [" + "[]," * 300_000 + "]\n",
    "tables in lists": "x = [" + "{a=1,b=2}," * 90_000 + "]\n",
    "tables": "".join(f"[t{at}]\n" for at in range(100_000)),
    "lists of tables": "[[z]]\na = 1\n" * 80_000,
    "dotted keys": "".join(f"a.b.c.d.k{at} = 1\n" for at in range(60_000)),
    "unknown keys": "".join(
        f'[models.m{at}]\nengine = "scripted"\n' + "".join(f"u{n} = 1\n" for n in range(27)) for at in range(600)
    ),
    "wrong models": "".join(f'[models.m{at}]\nengine = 1\nmemory = "x"\nlane = 3\n' for at in range(900)),
    "blank lines": "\n" * FILLED * 9,
    "comments": "#,=[\n" * FILLED * 2,
}  # fmt: skip
HUGE = "A" * 5_000


def refusal(text: str, environment: dict[str, str] | None = None) -> ConfigError | None:
    try:
        read_text(text, base=Path("/nowhere"), origin="x.toml", environment=environment or {})
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize("name", LARGE)
def test_a_large_config_is_checked_in_a_bounded_time(name: str) -> None:
    """R42: the answer comes before anybody takes the daemon for dead, whatever the file is full of."""
    began = time.thread_time()
    error = refusal(BASE + LARGE[name])
    assert time.thread_time() - began < CHECK_S_MAX
    assert (error is None) == (name in ("blank lines", "comments"))


def test_too_many_values_are_refused_by_their_number() -> None:
    """R42: with the bound, and in a file that may well be another one."""
    error = refusal(BASE + LARGE["keys"])
    assert error is not None
    assert (
        str(error) == f"x.toml: has more than {CONFIG_VALUES_MAX:,} keys and values; is this the right file?"
    )


def test_marks_in_texts_and_comments_are_no_values() -> None:
    """R42: a prompt may have as many commas as it likes."""
    prose = "a, b = [c], " * (CONFIG_VALUES_MAX // 3)
    texts = f"[lanes.x]\nmax_wait = '1s' # {prose}\n"
    assert refusal(f"{BASE}{texts}") is None
    # No duration, that is all.
    assert refusal(f'{BASE}[models.echo.script]\nservice = """{prose}"""\n') is not None


def test_only_problems_that_are_shown_are_put_into_words() -> None:
    """R42: the first ones of the file, and the number of the others."""
    error = refusal(BASE + LARGE["unknown keys"])
    assert error is not None and len(error.problems) == CONFIG_PROBLEMS_MAX + 1
    lines = [problem.line or 0 for problem in error.problems[:-1]]
    assert lines == sorted(lines) and lines[0] == 6
    assert error.problems[-1].text == f"and {600 * 27 - CONFIG_PROBLEMS_MAX} more problems"


def every_key() -> list[str]:
    """Every key of every table, as it is written in a file; names of the operator's own are `echo` or `x`."""
    found: list[str] = []
    for place, table in TABLES.items():
        path = [
            "echo" if part == "*" and place[0] == "models" else "x" if part == "*" else part for part in place
        ]
        found += [".".join([*path, name]) for name in keys_of(table)]
    return found


@pytest.mark.parametrize("value", [f'"{HUGE}"', f'"env:{HUGE}"', f'["{HUGE}"]', f'{{"{HUGE}" = "{HUGE}"}}', "9" * 4000],
                         ids=["text", "variable", "list", "table", "number"])  # fmt: skip
def test_no_message_repeats_a_long_value_whole(value: str) -> None:
    """R42: whichever key has it: a message of 200 kB drowns all others."""
    for key in every_key():
        error = refusal(f"{key} = {value}\n", {HUGE: ""})
        for problem in error.problems if error is not None else ():
            assert len("".join(map(str, problem))) < PROBLEM_CHARS_MAX, key


def test_a_long_name_is_cut_where_it_is_complained_about() -> None:
    """R42"""
    error = refusal(f'[models."{HUGE}"]\nengine = "scripted"\n')
    assert error is not None and len(str(error)) < PROBLEM_CHARS_MAX


@pytest.mark.parametrize(
    "value", ["a" * 1_000, "\U0010ffff" * 1_000, "\x1b[31m" * 1_000, "'\"" * 900, 10**300, b"x" * 500]
)
def test_what_a_message_shows_is_short_and_plain(value: object) -> None:
    """R43: escaped, on one line, and marked where it was cut."""
    shown = quoted(value)
    assert len(shown) <= 2 * QUOTED_CHARS_MAX and shown.isascii() and shown.isprintable() and "..." in shown
    assert quoted("short") == "'short'" and quoted(17) == "17"
