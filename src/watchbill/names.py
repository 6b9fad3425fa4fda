"""Names: the only way from outside text to a path, a unit, a header value or an id.

Text from a config, a request, a plan or a spool is either accepted whole or refused with NameRefused. It is never
repaired into something else: if two texts become one name, one caller can read the other's file. Only ASCII passes: a
Cyrillic "а" in a model's name would be a second model that looks the same.

Owns no state. Reads the file system only in `inside`, to see where a symlink leads.
"""

import hashlib
import re
from pathlib import Path

from watchbill import limits
from watchbill.errors import NameRefused
from watchbill.quoting import quoted

__all__ = [
    "check_model_name",
    "check_plain_name",
    "check_request_id",
    "check_unit_name",
    "file_stem",
    "header_text",
    "inside",
    "operator_path",
]

_MODEL = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9._:/@+-]*")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: No globs, no escapes, no leading dash: systemctl expands the first two and takes the last for an option.
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*\.service")
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
#: Characters that are safe in a file name, in the stem of a systemd unit and in a URL, without quoting.
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
#: A stem that ends like this is always one of ours, so a name that looks like it gets a hash, too.
_HASHED = re.compile(r".*-[0-9a-f]{16}")
#: A part of a path as a shell would replace it.
_VARIABLE = re.compile(r"(?:^|/)\$(?:[A-Z_][A-Z0-9_]*|\{[A-Za-z_]\w*\})(?=/|$)")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def check_model_name(text: str) -> str:
    """Returns the text when it can name a model: letters, digits and . _ - : / @ + as in "qwen2.5:7b"."""
    what = "a model's name"
    _check_shape(text, what, _MODEL, "letters, digits and . _ - : / @ +", limits.MODEL_NAME_CHARS_MAX)
    if ".." in text or any(part in ("", ".") or part.endswith(".") for part in text.split("/")):
        raise _refusal(text, what, "it reads like a path: leave out .., // and a last dot or slash")
    return text


def check_plain_name(text: str, what: str = "a name") -> str:
    """Returns the text when it can name a lane, engine, group, key or plan: letters, digits and . _ -"""
    _check_shape(text, what, _PLAIN, "letters, digits and . _ -", limits.PLAIN_NAME_CHARS_MAX)
    if ".." in text or text.endswith("."):
        raise _refusal(text, what, "leave out the double or last dot")
    return text


def check_folder_name(text: str, what: str = "a folder") -> str:
    """Returns the text when it can name one folder that a person made: any printable characters, blanks inside."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if not text or size > limits.PATH_PART_BYTES_MAX or not text.isprintable() or "/" in text:
        allowed = f"1 to {limits.PATH_PART_BYTES_MAX} bytes of printable characters without /"
        raise _refusal(text, what, f"use {allowed}")
    if text.startswith(".") or text != text.strip():
        raise _refusal(text, what, "let it begin with neither a dot nor a blank, and end without a blank")
    return text


def check_request_id(text: str) -> str:
    """Returns the text when a caller may use it as the id of a request."""
    allowed = "letters, digits and . _ : -"
    return _check_shape(text, "a request id", _REQUEST_ID, allowed, limits.REQUEST_ID_CHARS_MAX)


def check_unit_name(text: str) -> str:
    """Returns the text when it names one systemd service, and nothing else that systemctl understands."""
    allowed = "letters, digits and . _ : @ -, end with .service"
    return _check_shape(text, "the name of a unit", _UNIT, allowed, limits.PATH_PART_BYTES_MAX)


def file_stem(name: str) -> str:
    """A file name for any text: at most 64 bytes, plain ASCII, and never the same for two different texts.

    A name that is already safe is unchanged, so that people recognise it. Any other name becomes its readable part and
    64 bits of its hash. The result also serves as the stem of a systemd unit.
    """
    if _is_safe_stem(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = _UNSAFE.sub("_", name[: limits.FILE_STEM_BYTES_MAX - 17]).replace("..", "__").lstrip(".-")
    return f"{readable or '_'}-{digest}"


def inside(root: Path, relative: str) -> Path:
    """Joins outside text to a root.

    Raises NameRefused when the result would not lie below the root, because of its parts or of a symlink.
    """
    what = "a path below the root"
    _check_path_text(relative, what)
    parts = relative.split("/")
    if any(part in ("", ".", "..") or part.startswith("-") or "\\" in part for part in parts):
        raise _refusal(relative, what, "write it relative, without . or .. or a leading - or a backslash")
    if any(len(part.encode()) > limits.PATH_PART_BYTES_MAX for part in parts):
        raise _refusal(relative, what, "a part of it is longer than a file name may be")
    joined = root.joinpath(*parts)
    if not joined.resolve().is_relative_to(root.resolve()):
        raise _refusal(relative, what, "a symlink on the way leads out of it: remove the symlink")
    return joined


def operator_path(base: Path, text: str) -> Path:
    """The absolute path that the operator's own file means.

    `~` is the home folder, other paths are relative to `base`. The operator may point anywhere; only a text that cannot
    be a path is refused. Symlinks and ".." stay as written: a link that is switched to another file later is followed
    later.
    """
    _check_path_text(text, "a path")
    if _VARIABLE.search(text):
        hint = "variables are not replaced here: write ~ for your home folder, or the path itself"
        raise _refusal(text, "a path", hint)
    try:
        return (base / Path(text).expanduser()).absolute()
    except RuntimeError as error:  # pathlib's way to say that "~nobody" has no home
        raise _refusal(text, "a path", "there is no such home folder") from error


def header_text(text: str, chars_max: int = limits.HEADER_TEXT_CHARS_MAX) -> str:
    """The text for a header or a log line: one line of printable ASCII, bounded, with "?" for other characters."""
    return _UNPRINTABLE.sub("?", text[:chars_max]).strip()


def _check_shape(text: str, what: str, shape: re.Pattern[str], allowed: str, chars_max: int) -> str:
    if not text:
        raise _refusal(text, what, "it is empty: write one")
    if len(text) > chars_max:
        raise _refusal(text, what, f"it is longer than {chars_max} characters")
    if not shape.fullmatch(text):
        raise _refusal(text, what, f"use {allowed}, and begin with a letter or digit")
    return text


def _check_path_text(text: str, what: str) -> None:
    if not text:
        raise _refusal(text, what, "it is empty: write one")
    if not text.isprintable():  # control characters, line separators, and the lone surrogates of broken UTF-8
        raise _refusal(text, what, "leave out control characters")
    if len(text.encode()) > limits.PATH_BYTES_MAX:
        raise _refusal(text, what, "it is longer than any path may be")


def _is_safe_stem(name: str) -> bool:
    if len(name) > limits.FILE_STEM_BYTES_MAX or not _STEM.fullmatch(name):
        return False
    return ".." not in name and not name.endswith(".") and not _HASHED.fullmatch(name)


def _refusal(text: str, what: str, why: str) -> NameRefused:
    """The error for a refused text. The text is shortened and escaped, so that it cannot harm a terminal or a log."""
    return NameRefused(f"{quoted(text)} cannot be {what}", hint=why)
