"""Names: what outside text may become a path, a unit, a header or an id."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watchbill import limits, names
from watchbill.errors import NameRefused

NASTY = [
    "../x", "..", ".", "a/../b", "/etc/passwd", "a//b", "a/", "a/./b", "a./b", "a.", ".hidden", "-rf",
    "--help", "", "a\0b", "a\nb", "a\r\nX-Evil: 1", "a b", "a\tb", "x" * 5000, "qwen\u0430", "\uff0e\uff0e/x",
    "a\\b", "a\u202eb", "\ud800", "~root", "$(id)", "`id`", "a;b", "a|b", "a'b", 'a"b', "%2e%2e%2f", "C:\\x",
    "a\x7f", "caf\u00e9",
]  # fmt: skip
ORDINARY = [
    "smollm2", "qwen2.5:7b", "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "@cf/meta/llama",
    "org/m@rev", "a+b", "_x",
]  # fmt: skip

# Text as attackers write it: path parts, controls, look-alikes, long runs and plain letters in any mixture.
# Each byte that hypothesis draws is one piece: 500 draws of 100 names take seconds, 50,000 draws a minute.
DANGEROUS = [
    "..", "/", "\\", ".", "-", "\0", "\n", "\r", "~", "%2f", "\u2215", "\u0430", "\ud800", "\x7f", ":", "@",
    "+", "_", "x" * 90, "-0123456789abcdef",
]  # fmt: skip
PIECES = (DANGEROUS * 6 + list("abcxyzABCXYZ0189" * 10))[:256]
NAMES_PER_DRAW = 100


def _as_names(drawn: bytes) -> list[str]:
    """Six bytes are one name: how many pieces it has, then the pieces."""
    sixes = [drawn[at : at + 6] for at in range(0, len(drawn), 6)]
    return ["".join(PIECES[piece] for piece in six[1 : 2 + six[0] % 5]) for six in sixes]


many_names = st.binary(min_size=6 * NAMES_PER_DRAW, max_size=6 * NAMES_PER_DRAW).map(_as_names)


@pytest.mark.parametrize("text", NASTY)
def test_text_that_could_be_a_path_an_option_or_a_header_never_names_a_model(text: str) -> None:
    """R49: escapes, controls, look-alikes, leading dashes, trailing dots and over-long names are refused."""
    with pytest.raises(NameRefused) as caught:
        names.check_model_name(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ORDINARY)
def test_names_that_people_use_on_hubs_are_accepted_unchanged(text: str) -> None:
    assert names.check_model_name(text) == text


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=many_names)
def test_no_text_whatever_becomes_a_path_outside_the_root(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """R49: 50,000 texts; each is refused or lands below the root, and no two share a file."""
    root = tmp_path_factory.getbasetemp()
    stems: dict[str, str] = {}
    for text in texts:
        stem = names.file_stem(text)
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", stem)
        assert ".." not in stem
        assert len(stem.encode()) <= limits.FILE_STEM_BYTES_MAX
        assert stems.setdefault(stem, text) == text
        _assert_below(root, text)
        _assert_model_name_is_harmless(text)


def _assert_below(root: Path, text: str) -> None:
    try:
        path = names.inside(root, text)
    except NameRefused:
        return
    assert path.is_relative_to(root)
    assert path != root
    assert ".." not in path.parts


def _assert_model_name_is_harmless(text: str) -> None:
    try:
        name = names.check_model_name(text)
    except NameRefused:
        return
    assert name == text
    assert name.isascii()
    assert ".." not in name
    assert not name.startswith(("-", "/", "."))
    assert not name.endswith((".", "/"))
    assert len(name) <= limits.MODEL_NAME_CHARS_MAX


def test_a_readable_name_keeps_its_file_name_and_another_gets_a_hash() -> None:
    assert names.file_stem("qwen2.5-7b") == "qwen2.5-7b"
    assert names.file_stem("qwen2.5:7b").startswith("qwen2.5_7b-")
    assert len(names.file_stem("x" * 5000)) == limits.FILE_STEM_BYTES_MAX


def test_a_name_made_to_look_like_anothers_hash_gets_a_file_of_its_own() -> None:
    """R49: the stem of "a/b" is a legal model name, too; as such it must not open the file of "a/b"."""
    victim = names.file_stem("a/b")
    assert names.check_model_name(victim) == victim
    assert names.file_stem(victim) != victim


def test_a_symlink_that_leads_out_of_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "models").symlink_to(tmp_path)
    with pytest.raises(NameRefused, match="symlink"):
        names.inside(root, "models/x")


def test_a_root_that_is_itself_a_symlink_still_takes_files(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    assert names.inside(tmp_path / "root", "a/b.gguf") == tmp_path / "root" / "a" / "b.gguf"


@given(text=st.text(max_size=600))
def test_text_in_a_header_is_one_bounded_line_of_printable_ascii(text: str) -> None:
    """R43: CR, LF and NUL are never reflected."""
    safe = names.header_text(text)
    assert all(" " <= character <= "~" for character in safe)
    assert len(safe) <= limits.HEADER_TEXT_CHARS_MAX


def test_the_operators_paths_are_relative_to_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert names.operator_path(tmp_path, "models/a.gguf") == tmp_path / "models" / "a.gguf"
    assert names.operator_path(tmp_path, "/srv/a.gguf") == Path("/srv/a.gguf")
    assert names.operator_path(tmp_path, "~/a.gguf") == Path("/home/somebody/a.gguf")


@pytest.mark.parametrize("text", ["", "a\0b", "a\nb", "~no-such-user-here/x", "x" * 5000])
def test_what_cannot_be_a_path_is_refused_even_from_the_operator(text: str, tmp_path: Path) -> None:
    with pytest.raises(NameRefused):
        names.operator_path(tmp_path, text)


@pytest.mark.parametrize("text", ["a b", "", "-x", "a..b", "a.", "gpu:0", "a/b", "x" * 65, "\u00e9"])
def test_lanes_engines_and_keys_have_plain_names(text: str) -> None:
    with pytest.raises(NameRefused, match="cannot be a lane"):
        names.check_plain_name(text, "a lane's name")


@pytest.mark.parametrize("text", ["", "a b", "a\r\nb", "-x", "x" * 129])
def test_a_callers_request_id_is_refused_when_it_could_split_a_header(text: str) -> None:
    with pytest.raises(NameRefused):
        names.check_request_id(text)


def test_a_callers_request_id_may_be_a_uuid() -> None:
    assert names.check_request_id("0b7f2f0e-6e4b-4c5b-9d7c-1f2a3b4c5d6e")
