"""Network: which hosts a program would reach, as far as its words tell. Pure.

A rule `Net(HOST)` is about one such host. Hosts are found in addresses (`https://HOST/x`, `user@HOST:x`) wherever they
stand, and in the operands of programs that are known to use the network. Where such a program does not name its host (a
package index, a variable, an option that is not known), the host may be any: `ANYTHING`.

A script that is allowed opens whatever connections it likes. `net = "none"` of the sandbox is the boundary.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from watchbill.plans.second_reading import EXPANSION as ANYTHING

__all__ = ["host_of_device", "hosts_of"]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/@\s]*@)?(\[[^\]]*\]|[^/:?#\s]*)")
_REMOTE = re.compile(r"(?:[^@/:\s]+@)?([A-Za-z0-9.-]+|\[[^\]]*\]):(?!//)")
_AT_HOST = re.compile(r"[^@/:\s]+@([A-Za-z0-9.-]+)")
_DEVICE = re.compile(r"/dev/(?:tcp|udp)/([^/]*)(?:/.*)?", re.DOTALL)
_BARE = re.compile(r"(\[[^\]]*\]|[^/:?#\s]+)(?:[:/?#].*)?", re.DOTALL)


class _Reach(NamedTuple):
    """How a program that uses the network names its hosts."""

    operands: int = 0  # how many of its first operands are hosts; 0: none, its addresses tell
    valued: str = ""  # short options that take a value
    long_valued: tuple[str, ...] = ()  # long options that take a value
    verbs: tuple[str, ...] = ()  # it uses the network with these first operands alone; none: always


_ALL = 1_000
_CURL = _Reach(
    _ALL, "odHXAbceFmuwxTKCErtyYzDUPQ",
    ("--output", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--header", "--request", "--user-agent",
     "--user", "--max-time", "--connect-timeout", "--retry", "--retry-delay", "--referer", "--cookie", "--cookie-jar",
     "--form", "--write-out", "--cacert", "--cert", "--key", "--range", "--limit-rate", "--output-dir", "--json"),
)  # fmt: skip
_WGET = _Reach(
    _ALL, "oOaieBtTwQPAURDIXl",
    ("--output-document", "--output-file", "--tries", "--timeout", "--wait", "--directory-prefix", "--header",
     "--user-agent", "--post-data", "--limit-rate", "--level", "--accept", "--reject"),
)  # fmt: skip
_SSH = _Reach(1, "BbcDEeFIiJLlmOoPpQRSWw")
_FIRST = _Reach(1)
_ANYWHERE = _Reach()
_PROGRAMS: dict[str, _Reach] = {
    "curl": _CURL, "wget": _WGET, "ssh": _SSH, "sftp": _SSH, "mosh": _SSH, "ssh-copy-id": _SSH,
    "telnet": _FIRST, "ftp": _FIRST, "lftp": _FIRST, "nc": _Reach(1, "wpsXx"), "ncat": _Reach(1, "wpsXx"),
    "ping": _Reach(1, "cWiIst"), "traceroute": _FIRST, "dig": _ANYWHERE, "host": _FIRST, "nslookup": _FIRST,
    "whois": _FIRST, "nmap": _ANYWHERE, "socat": _ANYWHERE, "scp": _ANYWHERE, "aria2c": _ANYWHERE, "axel": _ANYWHERE,
    "yt-dlp": _ANYWHERE, "youtube-dl": _ANYWHERE, "http": _ANYWHERE, "https": _ANYWHERE, "xh": _ANYWHERE,
    "lynx": _ANYWHERE, "w3m": _ANYWHERE, "rclone": _ANYWHERE, "aws": _ANYWHERE, "gsutil": _ANYWHERE,
    "gcloud": _ANYWHERE, "az": _ANYWHERE, "gh": _ANYWHERE, "kubectl": _ANYWHERE, "psql": _ANYWHERE, "mysql": _ANYWHERE,
    "redis-cli": _ANYWHERE, "mosquitto_pub": _ANYWHERE, "mosquitto_sub": _ANYWHERE, "smbclient": _ANYWHERE,
    "git": _Reach(verbs=("clone", "fetch", "pull", "push", "ls-remote", "submodule", "remote", "archive", "lfs")),
    "pip": _Reach(verbs=("install", "download", "wheel", "index", "search")),
    "pipx": _Reach(verbs=("install", "run", "upgrade", "inject")),
    "conda": _Reach(verbs=("install", "create", "update")),
    "uv": _Reach(verbs=("pip", "add", "sync", "lock", "tool", "run", "python", "build", "publish")), "uvx": _ANYWHERE,
    "poetry": _Reach(verbs=("install", "add", "update", "lock", "publish")),
    "npm": _Reach(verbs=("install", "i", "ci", "add", "update", "publish", "exec", "audit")), "npx": _ANYWHERE,
    "yarn": _ANYWHERE, "pnpm": _ANYWHERE, "gem": _Reach(verbs=("install", "update", "fetch", "push")),
    "cargo": _Reach(verbs=("install", "fetch", "add", "update", "publish", "build")),
    "go": _Reach(verbs=("get", "install", "mod")), "brew": _ANYWHERE,
    "apt": _Reach(verbs=("install", "update", "upgrade", "full-upgrade", "dist-upgrade", "download", "source")),
    "apt-get": _Reach(verbs=("install", "update", "upgrade", "dist-upgrade", "download", "source")),
    "dnf": _ANYWHERE, "yum": _ANYWHERE, "apk": _Reach(verbs=("add", "update", "upgrade", "fetch")),
    "docker": _Reach(verbs=("pull", "push", "run", "build", "login", "compose", "create")),
    "podman": _Reach(verbs=("pull", "push", "run", "build", "login", "create")),
    "ollama": _Reach(verbs=("pull", "push", "run", "create")), "huggingface-cli": _ANYWHERE, "hf": _ANYWHERE,
    "rsync": _ANYWHERE,
}  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9._:-]+")
_PIP = re.compile(r"pip\d*(?:\.\d+)?")
_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)*")
#: They use the network only where a word names another host.
_LOCAL_TOO = frozenset({"rsync", "scp"})


def hosts_of(words: Sequence[str]) -> tuple[str, ...]:
    """The hosts that a program with these words would reach, each once; `ANYTHING` for one that is not known."""
    name, rest = _as_program(words)
    found = [host for word in words for host in _addressed(word)]
    reach = _PROGRAMS.get(name)
    if reach is None:
        return _once(found)
    operands, is_clear = _operands(rest, reach)
    if reach.verbs and not any(verb in reach.verbs or ANYTHING in verb for verb in operands[:1]):
        return _once(found)
    if name in _LOCAL_TOO:
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
    if _PYTHON.fullmatch(name) and len(rest) > 1 and rest[0] == "-m":
        name, rest = rest[1], rest[2:]
    return ("pip" if _PIP.fullmatch(name) else name), rest


def _addressed(word: str) -> Iterator[str]:
    """The hosts of the addresses in a word. One whose scheme is all that is known may be any."""
    for match in _ADDRESS.finditer(word):
        if not match[0].lower().startswith("file:"):
            yield match[1].strip("[]") or ANYTHING


def _operands(words: Sequence[str], reach: _Reach) -> tuple[list[str], bool]:
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
