"""Naming: what a model file is called, by its own name and as people type it. Does no I/O.

    qwen2.5-0.5b-instruct-q4_k_m.gguf    qwen2.5-0.5b-instruct-q4_k_m
                                         also qwen2.5-0.5b-instruct, qwen2.5:0.5b-instruct, qwen2.5:0.5b, qwen2.5

The first name is the file's own and is always the same. The others are claims: several files may make the same one,
and `settle` gives it to the file that people would expect, an instruct model before a base model and Q4_K_M before
other quantizations. A family alone, as `qwen2.5`, means a file only where one size of it is there.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from watchbill.errors import NameRefused
from watchbill.names import check_model_name

__all__ = ["Names", "names_of", "settle"]

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_QUANTIZATION = re.compile(
    r"[-_.](?:ud-|imat-|i1-)?(?:i?q\d[a-z0-9_]*|tq\d[a-z0-9_]*|b?f(?:16|32)|fp(?:8|16|32)|mxfp4[a-z0-9_]*)$"
)
_SIZED = re.compile(
    r"(?P<family>.+?)[-_. ](?P<size>(?:\d+x)?\d+(?:\.\d+)?[bm]|e\d+b)(?:[-_. ](?P<variant>.+))?$"
)
#: Words that people leave out when they ask for a model: qwen2.5:0.5b is the instruct model.
_TUNED = frozenset({"instruct", "chat", "it"})
_USUAL = re.compile(r"instruct|chat|it|base|pt|hf|gguf|v\d[\d.]*|\d{4}|a\d+b|text|preview")
#: Names of files that say nothing about the model inside.
_NAMELESS = frozenset({"model", "ggml-model", "ggml", "main", "weights", "gguf", "consolidated"})
_PREFERRED = "q4_k_m"
#: Letters that are not written as the bare letter where their marks are missing.
_SPELLED = {
    "ä": "ae",
    "ö": "oe",
    "ü": "ue",
    "ß": "ss",
    "æ": "ae",
    "œ": "oe",
    "ø": "oe",
    "å": "aa",
    "ł": "l",
    "ð": "d",
    "þ": "th",
}


class Names(NamedTuple):
    """What one file is called, and what it claims to be called, with the rank of its claims."""

    name: str
    claims: tuple[str, ...]
    family: str  # the claim that holds for a single size only; empty where none can be told
    size: str
    rank: tuple[bool, bool, str]


def names_of(stem: str, title: str = "", folder: str = "") -> Names:
    """The names of a file with this stem, whose metadata have this title, in this folder below the models folder."""
    own = _slug(_SHARD.sub("", stem.lower()))
    bare, quantization = _split_quantization(own)
    if bare in _NAMELESS or not bare:
        bare = _split_quantization(_slug(title.lower()))[0] or _slug(folder.lower()) or "model"
        own = f"{bare}-{quantization}" if quantization else bare
    claims = dict.fromkeys([bare])
    found = _SIZED.fullmatch(bare)
    family = size = variant = ""
    if found is not None:
        family, size, variant = _family(found["family"]), found["size"], found["variant"] or ""
        tag = f"{size}-{variant}" if variant else size
        claims |= dict.fromkeys([f"{family}:{tag}-{quantization}"] if quantization else [])
        claims |= dict.fromkeys([f"{family}:{tag}"] if variant else [])
        words = set(re.split(r"[-_. ]+", re.sub(r"v\d+(?:\.\d+)*", "base", variant))) - {""}
        if all(_USUAL.fullmatch(word) for word in words):
            claims[f"{family}:{size}"] = None
        else:
            family = ""
    tuned = bool(_TUNED & set(re.split(r"[-_. ]+", variant)))
    rank = (not tuned, quantization != _PREFERRED, own)
    return Names(
        own, tuple(claim for claim in claims if claim != own and _is_name(claim)), family, size, rank
    )


def settle(files: Mapping[str, Names], taken: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """File -> the further names it gets. None of them is another file's own name, or one of `taken`."""
    claimed = {names.name for names in files.values()} | set(taken)
    by_rank = sorted(files, key=lambda file: files[file].rank)
    given: dict[str, list[str]] = {file: [] for file in files}
    for file in by_rank:
        for claim in _claims(files[file], files.values()):
            if claim not in claimed:
                claimed.add(claim)
                given[file].append(claim)
    return {file: tuple(names) for file, names in given.items()}


def _claims(names: Names, others: Collection[Names]) -> Sequence[str]:
    sizes = {other.size for other in others if other.family == names.family}
    alone = names.family and len(sizes) == 1
    return [*names.claims, names.family] if alone and _is_name(names.family) else names.claims


def _split_quantization(text: str) -> tuple[str, str]:
    found = _QUANTIZATION.search(text)
    return (text[: found.start()], found[0].lstrip("-_.")) if found else (text, "")


def _family(text: str) -> str:
    """As Ollama writes it: llama-3.2 is llama3.2."""
    short = re.sub(r"^(?:meta|google|microsoft|mistralai|qwen)[-_](?=[a-z])", "", text)
    return re.sub(r"[-_ ](?=\d+(?:\.\d+)?[a-z]?$)", "", short)


def _slug(text: str) -> str:
    """The text with nothing in it that a model's name may not have; letters with marks as ASCII spells them."""
    text = "".join(_SPELLED.get(letter, letter) for letter in unicodedata.normalize("NFC", text))
    text = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    cleaned = re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9._+@-]+", "-", text))
    return cleaned.strip("-._+@")[:100].rstrip("-._+@")


def _is_name(text: str) -> bool:
    try:
        check_model_name(text)
    except NameRefused:
        return False
    return True
