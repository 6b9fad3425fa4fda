"""Embeddings of an engine's answer: found a vector at a time, and passed on undecoded. Does no I/O.

An answer to many texts has millions of numbers, and a decoder that only passes over them takes a tenth of a second for
64 MiB. So the vectors are cut out first. What is left is small, and has the bounds of every other answer of an engine.
"""

import math
import re
import sys
from array import array
from base64 import b64encode

import msgspec

from watchbill.decodable import is_decodable, json_decoder
from watchbill.errors import EngineFailed
from watchbill.gateway.limits import VECTOR_BYTES_MAX, VECTORS_OUTLINE_BYTES_MAX
from watchbill.limits import JSON_VALUES_MAX
from watchbill.steps import Steps, join

__all__ = [
    "Vectors",
    "as_base64",
    "count_dimensions",
    "cut_vectors",
    "is_in_numbers",
    "read_vectors",
    "write_rows",
    "write_vectors",
]

#: A list of numbers and nothing else.
_NUMBERS = re.compile(rb"\[[-+.0-9eE,\s]{1,%d}+\]" % VECTOR_BYTES_MAX)
#: The first embedding of an answer, and how it begins.
_FIRST = re.compile(rb'"embedding"\s*+:\s*+(.)', re.DOTALL)


class Vectors(msgspec.Struct, frozen=True):
    """The embeddings of several texts, as JSON."""

    embeddings: list[bytes]
    usage: dict[str, object]


class _Row(msgspec.Struct):
    embedding: msgspec.Raw  # the number of the vector that was cut out, or an empty list


class _Outline(msgspec.Struct):
    data: list[_Row] = []
    usage: dict[str, object] | None = None


_encode = msgspec.json.Encoder().encode
_decode = json_decoder(_Outline).decode
_decode_numbers = json_decoder(list[float]).decode


def read_vectors(body: bytes) -> Steps[Vectors]:
    """The vectors of an answer, in steps. Raises EngineFailed where there are none."""
    outline, vectors = yield from _cut_out(body)
    if not is_decodable(outline, bytes_max=VECTORS_OUTLINE_BYTES_MAX, values_max=JSON_VALUES_MAX):
        raise EngineFailed("the engine's answer has no embeddings, or too much beside them")
    try:
        told = _decode(outline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailed(f"the engine's answer has no embeddings: {error}") from None
    return Vectors([_vector(bytes(row.embedding), vectors) for row in told.data], told.usage or {})


def cut_vectors(vectors: list[bytes], dimensions: int) -> Steps[list[bytes]]:
    """The first dimensions of each vector, of length one again, in steps. Raises EngineFailed."""
    cut: list[bytes] = []
    for vector in vectors:
        numbers = _numbers(vector)[:dimensions]
        length = math.sqrt(math.fsum(number * number for number in numbers)) or 1.0
        cut.append(_encode([number / length for number in numbers]))
        yield
    return cut


def as_base64(vectors: list[bytes]) -> Steps[list[bytes]]:
    """Each vector as OpenAI's clients ask for it: a text of 32-bit numbers, as JSON. In steps; raises EngineFailed."""
    texts: list[bytes] = []
    for vector in vectors:
        numbers = array("f", _numbers(vector))
        if sys.byteorder == "big":
            numbers.byteswap()
        texts.append(b'"%b"' % b64encode(numbers.tobytes()))
        yield
    return texts


def is_in_numbers(body: bytes) -> bool:
    """Whether an answer's first embedding is a list of numbers, which a client that asked for base64 cannot read."""
    found = _FIRST.search(body)
    return found is not None and found[1] == b"["


def count_dimensions(vector: bytes) -> int:
    """How many numbers a vector has."""
    return 0 if vector == b"[]" else vector.count(b",") + 1


async def write_rows(fields: dict[str, object], embeddings: list[bytes]) -> bytes:
    """These fields as JSON, and the embeddings as OpenAI's `data`."""
    pieces = [_encode(fields)[:-1], b',"data":[']
    for index, embedding in enumerate(embeddings):
        pieces += (b'{"object":"embedding","index":%d,"embedding":' % index, embedding, b"}", b",")
    pieces[-1] = b"]}" if embeddings else b',"data":[]}'
    return await join(pieces, sum(map(len, pieces)))


async def write_vectors(fields: dict[str, object], vectors: list[bytes]) -> bytes:
    """These fields as JSON, and the vectors as `embeddings`."""
    pieces = [_encode(fields)[:-1], b',"embeddings":[']
    for vector in vectors:
        pieces += (vector, b",")
    pieces[-1] = b"]}" if vectors else b',"embeddings":[]}'
    return await join(pieces, sum(map(len, pieces)))


def _numbers(vector: bytes) -> list[float]:
    try:
        return _decode_numbers(vector)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the engine's embedding is no list of numbers: {error}") from None


def _vector(told: bytes, vectors: list[bytes]) -> bytes:
    if told == b"[]":
        return told
    if not told.isdigit() or int(told) >= len(vectors):
        raise EngineFailed("the engine's answer has an embedding that is no list of numbers")
    return vectors[int(told)]


def _cut_out(body: bytes) -> Steps[tuple[bytes, list[bytes]]]:
    """The answer with a number in place of each list of numbers, and these lists."""
    outline, vectors, at, others = bytearray(), list[bytes](), 0, 0
    while (start := body.find(b"[", at)) >= 0 and len(outline) <= VECTORS_OUTLINE_BYTES_MAX:
        found = _NUMBERS.match(body, start)
        if found is None:
            others += 1
            if others > JSON_VALUES_MAX:
                raise EngineFailed("the engine's answer has too many lists beside its embeddings")
            outline += body[at : start + 1]
            at = start + 1
        else:
            outline += b"%b%d" % (body[at:start], len(vectors))
            vectors.append(found.group())
            at = found.end()
        yield
    outline += body[at : at + VECTORS_OUTLINE_BYTES_MAX]
    return bytes(outline), vectors
