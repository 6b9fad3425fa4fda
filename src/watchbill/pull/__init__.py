"""Pull: model files from wherever they are into the models folder.

    smollm2                 the embedded model, out of a package on the Python package index
    hf:OWNER/REPO/FILE      a file of the hub; its address in a browser means the same
    http(s)://...           any address, together with its sha256
    ollama:NAME             Ollama fetches the model itself and keeps it
    PATH                    a file on this machine; it is copied

A name in the models folder always means a whole and checked file: what is half done lies in `.pull/` beside it
and is continued by the next call. A second call finds the file and returns at once. A file that is there already
is never replaced by another one.
"""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from watchbill.errors import NameRefused
from watchbill.names import check_model_name, header_text, inside, operator_path
from watchbill.pull import copy, ollama, web, wheel
from watchbill.pull.landing import Landing, Progress, Pulled, Wanted

__all__ = ["EMBEDDED", "HUB_URL", "OLLAMA_URL", "SMOLLM2_FILE", "Progress", "Pulled", "pull"]

HUB_URL = "https://huggingface.co"
OLLAMA_URL = "http://127.0.0.1:11434"
SMOLLM2_FILE = wheel.SMOLLM2.name

#: The name of the embedded model.
EMBEDDED = "smollm2"
#: A repository of the hub, or a file of its main branch. Another branch is fetched as it is, with its hash.
_HUB_PAGE = re.compile(
    r"https?://(?:huggingface\.co|hf\.co)/([^/?#]+)/([^/?#]+)/?(?:tree/main|(?:resolve|blob)/main/([^?#]+))?(?:[?#].*)?"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def pull(
    source: str,
    folder: Path,
    *,
    sha256: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    hub_url: str = HUB_URL,
    ollama_url: str = OLLAMA_URL,
) -> Pulled:
    """Fetches `source` into `folder`, as `name` where one is given, and says where it lies.

    Calls `progress(bytes_done, bytes_total)` every now and then, with None while the total is unknown. Raises
    NameRefused for a source or hash that cannot be one, PullFailed when it cannot be fetched or is not what
    was asked for.
    """
    report = progress or _silent
    expected = _checked_sha256(sha256)
    if source.startswith("ollama:"):
        if name is not None:
            raise NameRefused("Ollama keeps its models under its own names; leave --name out")
        return ollama.pull(check_model_name(source.removeprefix("ollama:")), ollama_url, report)
    wanted, fetch = _planned(source, expected, hub_url)
    landing = Landing(folder, wanted if name is None else wanted._replace(name=name), report)
    found = landing.found()
    if found is None:
        fetch(landing)
        return Pulled(landing.path, landing.path.stat().st_size, fetched=True)
    return found


def _planned(source: str, sha256: str | None, hub_url: str) -> tuple[Wanted, Callable[[Landing], None]]:
    """What is wanted, and the act that brings it."""
    source = _hub_source(source)
    if source == EMBEDDED:
        return wheel.SMOLLM2._replace(sha256=sha256 or wheel.SMOLLM2.sha256), wheel.fetch
    if source.startswith("hf:"):
        url, name = _hub_address(source, hub_url)
        return Wanted(name, source, sha256), lambda landing: web.fetch(url, landing)
    if source.startswith(("http://", "https://")):
        if sha256 is None:
            raise NameRefused(f"{header_text(source)} needs its hash, to be checked against: --sha256 HEX")
        return Wanted(web.file_name(source), source, sha256), lambda landing: web.fetch(source, landing)
    path = operator_path(Path.cwd(), source)
    return copy.wanted(path, sha256), lambda landing: copy.fetch(path, landing)


def _hub_source(source: str) -> str:
    """An address of the hub as people copy it from a browser, as hf:OWNER/REPO/FILE; every other source as it is."""
    found = _HUB_PAGE.fullmatch(source)
    return f"hf:{found[1]}/{found[2]}/{unquote(found[3] or '')}" if found else source


def _hub_address(source: str, hub_url: str) -> tuple[str, str]:
    """The address of hf:OWNER/REPO/FILE, and the name of the file."""
    owner, _, rest = source.removeprefix("hf:").partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository and file):
        raise NameRefused(
            f"{header_text(source)!r} is not a file of the hub; write hf:OWNER/REPO/FILE, or without hf: "
            "hf.co/OWNER/REPO:Q4_K_M"
        )
    inside(Path("/"), f"{owner}/{repository}/{file}")  # refuses .. and the like before it becomes an address
    url = f"{hub_url}/{quote(owner)}/{quote(repository)}/resolve/main/{quote(file)}"
    return url, file.rpartition("/")[2]


def _checked_sha256(text: str | None) -> str | None:
    if text is None or _SHA256.fullmatch(text.lower()):
        return text and text.lower()
    raise NameRefused(f"{header_text(text)!r} is not a sha256: write its 64 hexadecimal digits")


def _silent(done: int, total: int | None) -> None:
    """Shows nothing."""
