"""Network: which hosts a program would reach, as far as its words tell. Pure.

A rule `Net(HOST)` is about one such host. Hosts are found in addresses (`https://HOST/x`, `user@HOST:x`) wherever they
stand, and in the operands of programs that are known to use the network. Where such a program does not name its host (a
package index, a variable, an option that is not known), the host may be any: `ANYTHING`.

A script that is allowed opens whatever connections it likes. `net = "none"` of the sandbox is the boundary.
"""

import re
from collections.abc import Iterator, Sequence

from watchbill.plans.programs import Kind, Reach, program_named
from watchbill.plans.second_reading import EXPANSION as ANYTHING

__all__ = ["host_of_device", "hosts_of"]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/@\s]*@)?(\[[^\]]*\]|[^/:?#\s]*)")
_REMOTE = re.compile(r"(?:[^@/:\s]+@)?([A-Za-z0-9.-]+|\[[^\]]*\]):(?!//)")
_AT_HOST = re.compile(r"[^@/:\s]+@([A-Za-z0-9.-]+)")
_DEVICE = re.compile(r"/dev/(?:tcp|udp)/([^/]*)(?:/.*)?", re.DOTALL)
_BARE = re.compile(r"(\[[^\]]*\]|[^/:?#\s]+)(?:[:/?#].*)?", re.DOTALL)


_PLAIN = re.compile(r"[A-Za-z0-9._:-]+")


def hosts_of(words: Sequence[str]) -> tuple[str, ...]:
    """The hosts that a program with these words would reach, each once; `ANYTHING` for one that is not known."""
    name, rest = _as_program(words)
    found = [host for word in words for host in _addressed(word)]
    reach = program_named(name).reach
    if reach is None:
        return _once(found)
    operands, is_clear = _operands(rest, reach)
    if reach.verbs and not any(verb in reach.verbs or ANYTHING in verb for verb in operands[:1]):
        return _once(found)
    if reach.is_local_too:
        remote = [_REMOTE.match(word) for word in operands]
        found += [match[1] for match in remote if match is not None]
        found += [ANYTHING for word in operands if word.startswith(ANYTHING)]
        return _once(found)
    if reach.operands:
        found += [_bare(word) for word in operands[: reach.operands] if not _ADDRESS.match(word)]
    else:
        found += [match[1] for word in operands if (match := _AT_HOST.match(word)) is not None]
    return _once(found if found and is_clear else [*found, ANYTHING])


def host_of_device(path: str) -> str:
    """The host behind bash's own /dev/tcp/HOST/PORT; "" for any other file."""
    match = _DEVICE.fullmatch(path)
    return "" if match is None else match[1] or ANYTHING


def _as_program(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The program that counts, and its arguments: `python3 -m pip install x` is pip."""
    name, rest = words[0].rpartition("/")[2], words[1:]
    if program_named(name).kind is Kind.PYTHON and len(rest) > 1 and rest[0] == "-m":
        name, rest = rest[1], rest[2:]
    return name, rest


def _addressed(word: str) -> Iterator[str]:
    """The hosts of the addresses in a word. One whose scheme is all that is known may be any."""
    for match in _ADDRESS.finditer(word):
        if not match[0].lower().startswith("file:"):
            yield match[1].strip("[]") or ANYTHING


def _operands(words: Sequence[str], reach: Reach) -> tuple[list[str], bool]:
    """The words that are neither options nor their values, and whether that is certain."""
    operands: list[str] = []
    is_clear, at = True, 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return [*operands, *words[at:]], is_clear
        if not word.startswith("-") or len(word) == 1:
            operands.append(word)
        elif word.startswith("--"):
            has_value = "=" not in word and at < len(words) and not words[at].startswith("-")
            if has_value and word in reach.long_valued:
                at += 1
            elif has_value and reach.operands and not _ADDRESS.match(words[at]):
                is_clear = False  # the next word is a value of the option, or a host
        elif word[-1] in reach.valued:
            at += 1
    return operands, is_clear


def _bare(word: str) -> str:
    """The host of an operand: user@HOST, HOST:PORT, HOST/path."""
    match = _BARE.fullmatch(word.rpartition("@")[2])
    return ANYTHING if match is None else match[1].strip("[]")


def _once(hosts: Sequence[str]) -> tuple[str, ...]:
    """Hosts in small letters; one that is no plain name may be any, as curl and bash expand braces and brackets."""
    return tuple(dict.fromkeys(host.lower() if _PLAIN.fullmatch(host) else ANYTHING for host in hosts))
