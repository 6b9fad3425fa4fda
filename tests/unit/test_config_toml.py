"""Where keys stand: an error is worth little without its line."""

import tomllib
from collections.abc import Iterator

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from watchbill.toml import KeyPath, line_of, locate, spell_key

TEXT = '''\
# a comment with [brackets] and = signs
title = "x # not a comment"   # a comment

[server]
port = 1
keys = { alice = { key = "a}b" }, "bob smith" = { key = "]" } }
hosts = [
  "a",      # first
  "b,c",
  "d",
]
[devices."gpu:0"]
when = 1979-05-27 07:32:00
text = """
[not.a.table]
key = "quoted \\"""  inside"
"""
literal = \'\'\'
[neither]
\'\'\'
after.dotted . key = 3
[[plans]]
name = "one"
[[plans]]
name = "two"
[plans.inner]
deep = [[1, 2], [3,
 4]]
'''

LINES: dict[KeyPath, int] = {
    ("title",): 2, ("server",): 4, ("server", "port"): 5, ("server", "keys", "alice", "key"): 6,
    ("server", "keys", "bob smith", "key"): 6, ("server", "hosts"): 7, ("server", "hosts", 0): 8,
    ("server", "hosts", 1): 9, ("server", "hosts", 2): 10, ("devices",): 12, ("devices", "gpu:0"): 12,
    ("devices", "gpu:0", "when"): 13, ("devices", "gpu:0", "text"): 14, ("devices", "gpu:0", "literal"): 18,
    ("devices", "gpu:0", "after", "dotted", "key"): 21, ("plans", 0, "name"): 23, ("plans", 1, "name"): 25,
    ("plans", 1, "inner", "deep", 1): 27, ("plans", 1, "inner", "deep", 1, 1): 28,
}  # fmt: skip


@pytest.mark.parametrize(("path", "line"), LINES.items(), ids=str)
def test_every_key_is_found_on_its_line(path: KeyPath, line: int) -> None:
    assert locate(TEXT)[path] == line


def test_a_key_that_is_missing_is_reported_at_the_table_that_lacks_it() -> None:
    assert line_of(locate(TEXT), ("server", "keys", "carol", "key")) == 6
    assert line_of(locate(TEXT), ("nothing",)) is None


def test_a_file_with_windows_line_ends_has_the_same_lines() -> None:
    assert locate(TEXT.replace("\n", "\r\n")) == locate(TEXT)


scalars = st.one_of(
    st.integers(-(2**40), 2**40), st.booleans(), st.text(max_size=12), st.floats(allow_nan=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(document=st.dictionaries(st.text(max_size=8), values, max_size=5))
def test_the_scanner_sees_exactly_the_keys_that_the_parser_sees(document: dict[str, object]) -> None:
    """Any document, written by another library: same keys, and each on a line that holds its own name."""
    text = tomlkit.dumps(document)
    lines = locate(text)
    assert set(lines) == set(_paths(tomllib.loads(text)))
    for path, line in lines.items():
        assert 1 <= line <= text.count("\n") + 1, path


def _paths(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _paths(inner, (*path, place))


@given(path=st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_a_key_is_spelled_in_one_printable_line(path: list[str]) -> None:
    assert spell_key(tuple(path)).isprintable()


def test_a_key_is_spelled_as_toml_writes_it() -> None:
    assert spell_key(("devices", "gpu:0", "reserve")) == 'devices."gpu:0".reserve'
    assert spell_key(("models", "a", "aliases", 1)) == "models.a.aliases[1]"


@pytest.mark.parametrize("key", ["größe", 'it\'s "x"', "a\\b", "\x9b\x1b", "\u202e", "", "a b"])
def test_a_key_that_was_spelled_is_read_again(key: str) -> None:
    """`config show` wrote "gr\\xf6\\xdfe" for a key of `set_fields`, which is no TOML."""
    assert tomllib.loads(f"{spell_key((key,))} = 1") == {key: 1}


@pytest.mark.parametrize("text", ['"""one # [1, 2]"""', "'''one # [1, 2]'''", '""" "" """""', "''' '' '''''"])
def test_a_text_of_three_quotes_may_be_on_one_line(text: str) -> None:
    """What stands in it is no key, and the keys behind it have their lines."""
    lines = locate(f"[a]\nx = {text}\ny = 2\n")
    assert lines == {("a",): 1, ("a", "x"): 2, ("a", "y"): 3}
