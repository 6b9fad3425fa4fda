"""Names of models as Ollama's clients write them. Does no I/O.

`foo`, `Foo:latest`, `library/foo` and `registry.ollama.ai/library/foo:latest` are one model, as in Ollama. A name of
the config, an alias of it, and a name of the library are found in the same way, by every address.
"""

import re
from typing import NamedTuple

from watchbill.catalog import Model
from watchbill.errors import ModelNotFound, RequestError
from watchbill.gateway.options import split_alias
from watchbill.gateway.services import Services
from watchbill.quoting import cut, quoted
from watchbill.runtime.library import Entry, plain_name

__all__ = ["Found", "asked_name", "check_name", "find", "shortened"]

Fields = dict[str, object]

#: [host/][namespace/]model[:tag], each part as Ollama allows it; ours may have an @ or + as well.
_PART = r"[A-Za-z0-9_@+](?:[A-Za-z0-9_.@+-]{0,127})"
_NAME = re.compile(rf"(?:{_PART}(?::\d+)?/)?(?:{_PART}/)*{_PART}(?::{_PART})*")
_REGISTRY, _LIBRARY = "registry.ollama.ai/", "library/"


class Found(NamedTuple):
    """A model that a client asked for."""

    model: Model
    entry: Entry | None  # where the name is one of the library


def asked_name(body: Fields) -> str:
    """The model that a body names: in `model`, or in `name` where that is empty. Raises RequestError."""
    for field in ("model", "name"):
        value = body.get(field)
        if not isinstance(value, str | None):
            raise RequestError(f"{field} must be a text")
        if value:
            return value
    return ""


def shortened(name: str) -> str:
    """The name without what Ollama adds to every one: the registry, its own namespace, the tag `latest`."""
    name = name.removeprefix("https://").removeprefix("http://")
    name = name.removeprefix(_REGISTRY).removeprefix(_LIBRARY)
    return name.removesuffix(":latest")


def check_name(name: str, what: str = "model") -> str:
    """A name without its defaults, for something new. Raises RequestError."""
    short = shortened(name)
    if not _NAME.fullmatch(short) or len(short) > 200 or ".." in short:
        raise RequestError(f"{what} {quoted(name)} is invalid: use letters, digits and . _ - / :")
    return short


def find(services: Services, name: str) -> Found:
    """The model of a name. Raises RequestError for one that no model can have, ModelNotFound for an unknown one."""
    catalog, library = services.driver.catalog, services.library
    base = split_alias(name, catalog)[0]
    model = catalog.find_model(base) or catalog.find_model(shortened(base))
    if model is None:
        wanted = plain_name(shortened(base))
        model = next((each for each in catalog.offered.values() if _is_called(each, wanted)), None)
    if model is None:
        if not _NAME.fullmatch(shortened(base)):
            raise RequestError("invalid model name")
        raise ModelNotFound(f"model '{cut(name)}' not found")
    return Found(model, None if library is None else library.find(shortened(base)))


def _is_called(model: Model, wanted: str) -> bool:
    return any(plain_name(name) == wanted for name in (model.name, *model.aliases))
