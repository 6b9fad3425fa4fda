"""GGUF model files: the contents of their header.

It reads the header only, never the weights, and trusts nothing in it: counts, lengths and dimensions are bounded, and
every tensor must lie inside the file. A violation raises GgufError with the offset at which reading failed. So a
truncated download is found before an engine is started for it. Versions 2 and 3, little-endian.

    magic "GGUF" · version u32 · tensor count u64 · key count u64 · keys · tensor infos · padding · weights

`footprint.predict` computes the memory of a model from its header.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from struct import Struct, calcsize, unpack_from

from watchbill.errors import ModelFailed
from watchbill.footprint import Header, Prediction, predict
from watchbill.limits import (
    GGUF_ALIGNMENT_BYTES_MAX,
    GGUF_ARRAY_LEN_MAX,
    GGUF_DIMENSIONS_MAX,
    GGUF_HEADER_BYTES_MAX,
    GGUF_KEY_BYTES_MAX,
    GGUF_KEYS_MAX,
    GGUF_LAYERS_MAX,
    GGUF_NUMBERS_MAX,
    GGUF_SHARDS_MAX,
    GGUF_TENSORS_MAX,
    GGUF_TEXT_BYTES_MAX,
)
from watchbill.quoting import quoted
from watchbill.units import Bytes

__all__ = ["GgufError", "Header", "Prediction", "predict", "read_header"]

MAGIC = b"GGUF"
#: No figure of a real model comes near it; it keeps products of corrupt figures printable.
MOST = 2**40
VERSIONS = (2, 3)
#: Value types by number, with their packing. 8 is a text, 9 an array.
NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
TEXT, ARRAY = 8, 9
ALIGNMENT_BYTES = 32
_CHUNK_BYTES = 256 * 1024
_TEMPLATE, _U64 = "tokenizer.chat_template", Struct("<Q")
#: Words of chat templates that let a model think.
_THOUGHTS = ("enable_thinking", "reasoning_content", "reasoning_effort", "<think>")
#: Tokens that stand before a text to fill in, by their newer and their older name.
_INSERTS = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")

#: Tensor type -> (values per block, bytes per block). A type that is missing here is sized by its neighbours.
TENSOR_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip

Value = int | float | str | tuple[int | float, ...]


def _as_int(value: Value | None) -> int:
    """A key's value as a count; 0 for a missing value or one that is no number."""
    if isinstance(value, tuple):
        return max((_as_int(entry) for entry in value), default=0)
    return min(max(0, int(value)), MOST) if isinstance(value, int | float) and isfinite(value) else 0


class GgufError(ModelFailed):
    """The file is not a usable GGUF model."""

    def __init__(self, path: Path, what: str, offset: int) -> None:
        self.complaint = f"{path}: {what}" + (f" (at byte {offset})" if offset else "")
        self.hint = "fetch it again with watchbill pull, or correct the path"
        super().__init__(f"{self.complaint}; {self.hint}")
        self.path, self.what, self.offset = path, what, offset


def read_header(path: Path) -> Header:
    """Reads the header of a model file, and of its other parts when it is split into several.

    Raises GgufError when the file is missing, not a regular file, truncated, or invalid.
    """
    first = _read_part(path)
    shards = _as_int(first.values.get("split.count"))
    if shards <= 1:
        return _header_of(path, first, first.weights, first.parameters, first.file_bytes)
    others = [_read_part(part) for part in _shards_of(path, shards) if part != path]
    parts = [first, *others]
    return _header_of(
        path, first, sum(part.weights for part in parts), sum(part.parameters for part in parts),
        sum(part.file_bytes for part in parts),
    )  # fmt: skip


def _shards_of(path: Path, count: int) -> list[Path]:
    match = _SHARD.fullmatch(path.name)
    if match is None or count > GGUF_SHARDS_MAX or int(match[3]) != count:
        raise GgufError(path, f"it claims to be one of {count} parts, but its name does not", 0)
    return [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


# ------------------------------------------------------------------ one file


@dataclass(frozen=True, slots=True)
class _Part:
    values: Mapping[str, Value]
    lengths: Mapping[str, int]  # of texts and arrays, kept or not
    longest: Mapping[str, int]  # bytes of the longest text of each array of texts
    weights: int
    parameters: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    values: int
    kind: int
    offset: int
    row: int


def _read_part(path: Path) -> _Part:
    try:
        # Non-blocking: opening a named pipe without a writer would wait without end.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as failure:  # any errno: the model cannot be used, and the text has the reason
        raise GgufError(path, f"cannot be opened: {failure.strerror}", 0) from failure
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise GgufError(path, "not a regular file", 0)
        return _Reader(path, fd, facts.st_size).part()
    finally:
        os.close(fd)


class _Reader:
    """Reads one header from front to back. `_at` is the offset in the file of the next byte."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self._path, self._fd, self._size = path, fd, size
        self._buffer = bytearray()
        self._at = 0
        self._values: dict[str, Value] = {}
        self._lengths: dict[str, int] = {}
        self._longest: dict[str, int] = {}

    def part(self) -> _Part:
        if self._take(4) != MAGIC:
            raise self._error("not a GGUF file: it does not begin with GGUF", 0)
        version = self._number("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big") in VERSIONS
            raise self._error("a big-endian GGUF file" if swapped else f"unknown GGUF version {version}", 4)
        tensors = self._count("tensors", GGUF_TENSORS_MAX)
        for _ in range(self._count("keys", GGUF_KEYS_MAX)):
            self._read_key()
        infos = [self._read_tensor() for _ in range(tensors)]
        weights = self._check_extents(infos)
        parameters = sum(info.values for info in infos)
        return _Part(self._values, self._lengths, self._longest, weights, parameters, self._size)

    def _read_key(self) -> None:
        key = self._text(GGUF_KEY_BYTES_MAX)
        kind = int(self._number("<I"))
        if kind in NUMBERS:
            self._values[key] = self._number(NUMBERS[kind])
        elif kind == TEXT:
            length = self._length("text", GGUF_HEADER_BYTES_MAX)
            self._lengths[key] = length
            raw = self._take(length)
            if length <= GGUF_TEXT_BYTES_MAX or key == _TEMPLATE:
                self._values[key] = raw.decode(errors="replace")
        elif kind == ARRAY:
            self._read_array(key)
        else:
            raise self._error(f"key {quoted(key)} has the unknown type {kind}")

    def _read_array(self, key: str) -> None:
        kind = int(self._number("<I"))
        count = self._count(f"entries in {quoted(key)}", GGUF_ARRAY_LEN_MAX)
        self._lengths[key] = count
        if kind == TEXT:
            self._longest[key] = self._skip_texts(count)
        elif kind in NUMBERS:
            packed = NUMBERS[kind]
            raw = self._take(count * calcsize(packed))
            if count <= GGUF_NUMBERS_MAX:
                self._values[key] = unpack_from(f"<{count}{packed[1]}", raw)
        else:  # arrays of arrays are legal, but no model has them, and nesting is a way to crash parsers
            raise self._error(f"array {quoted(key)} holds values of the unknown type {kind}")

    def _skip_texts(self, count: int) -> int:
        """Skips a vocabulary: half a million texts, so only the lengths are read. Returns the longest."""
        at, unpack, longest = self._at, _U64.unpack_from, 0
        for _ in range(count):
            if at + 8 > len(self._buffer):
                self._fill(at + 8)
            length = unpack(self._buffer, at)[0]
            at += 8 + length
            if at > self._size:
                raise self._error("a text runs past the end of the file", at)
            longest = max(longest, length)
        self._at = at
        return longest

    def _read_tensor(self) -> _Tensor:
        name = self._text(GGUF_KEY_BYTES_MAX)
        dimensions = int(self._number("<I"))
        if dimensions > GGUF_DIMENSIONS_MAX:
            raise self._error(f"tensor {quoted(name)} has {dimensions} dimensions")
        shape = [int(self._number("<Q")) for _ in range(dimensions)]
        kind, offset = int(self._number("<I")), int(self._number("<Q"))
        values = 1
        for extent in shape:
            values *= extent
        if values >= 2**63 or offset >= 2**63:
            raise self._error(f"tensor {quoted(name)} is impossibly large")
        return _Tensor(values, kind, offset, shape[0] if shape else 1)

    def _check_extents(self, infos: list[_Tensor]) -> int:
        """The bytes of all tensors. Raises when one of them lies outside the file: an incomplete download."""
        alignment = _as_int(self._values.get("general.alignment", ALIGNMENT_BYTES))
        if not 0 < alignment <= GGUF_ALIGNMENT_BYTES_MAX or alignment & (alignment - 1):
            raise self._error(f"the alignment {alignment} is not a power of two")
        start = -(-self._at // alignment) * alignment
        offsets = sorted({info.offset for info in infos} | {max(0, self._size - start)})
        after = dict(pairwise(offsets))
        total = 0
        for info in infos:
            size = self._bytes_of(info, after)
            if start + info.offset + size > self._size:
                missing = start + info.offset + size - self._size
                raise self._error(f"truncated: at least {missing} bytes of weights are missing", self._size)
            total += size
        return total

    def _bytes_of(self, info: _Tensor, after: Mapping[int, int]) -> int:
        # A type newer than this table: it reaches at most to its neighbour.
        if info.kind not in TENSOR_BLOCKS:
            return max(0, after.get(info.offset, info.offset) - info.offset)
        per_block, size = TENSOR_BLOCKS[info.kind]
        if info.row % per_block:
            raise self._error(f"a tensor row of {info.row} values is no multiple of its block of {per_block}")
        return info.values // per_block * size

    # -------------------------------------------------------------- the bytes

    def _number(self, packed: str) -> int | float:
        return unpack_from(packed, self._take(calcsize(packed)))[0]

    def _length(self, what: str, most: int) -> int:
        length = int(self._number("<Q"))
        if length > most:
            raise self._error(f"a {what} of {length} bytes; at most {most} are read")
        return length

    def _count(self, what: str, most: int) -> int:
        count = int(self._number("<Q"))
        if count > most:
            raise self._error(f"{count} {what}; at most {most} are read")
        return count

    def _text(self, most: int) -> str:
        return self._take(self._length("name", most)).decode(errors="replace")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._buffer):
            self._fill(end)
        taken = bytes(self._buffer[self._at : end])
        self._at = end
        return taken

    def _fill(self, end: int) -> None:
        """Reads until the header is in the buffer up to `end`."""
        if end > self._size:
            raise self._error(f"truncated: the header continues beyond its {self._size} bytes")
        if end > GGUF_HEADER_BYTES_MAX:
            raise self._error(f"the header is longer than {GGUF_HEADER_BYTES_MAX} bytes")
        while len(self._buffer) < end:
            have = len(self._buffer)
            chunk = os.pread(self._fd, max(end - have, _CHUNK_BYTES), have)
            if not chunk:
                raise self._error("truncated while it was read")
            self._buffer += chunk

    def _error(self, what: str, offset: int | None = None) -> GgufError:
        return GgufError(self._path, what, self._at if offset is None else offset)


# ------------------------------------------------------------------ the meaning of the keys

#: Architectures that read their whole input at once, for files that do not contain this fact.
ENCODERS = (
    "bert",
    "nomic-bert",
    "nomic-bert-moe",
    "jina-bert-v2",
    "modern-bert",
    "neo-bert",
    "eurobert",
    "t5encoder",
)
#: Pooling types of embedding models: mean, first token, last token. 4 ranks, 0 means none.
EMBEDDING_POOLINGS = (1, 2, 3)


def _header_of(path: Path, part: _Part, weights: int, parameters: int, file_bytes: int) -> Header:
    architecture = part.values.get("general.architecture")
    if not isinstance(architecture, str):
        raise GgufError(path, "general.architecture is missing", 0)
    keys = _Keys(architecture, part)
    heads, n_embd, n_layer = (
        keys.most("attention.head_count"),
        keys.most("embedding_length"),
        keys.most("block_count"),
    )
    if not n_layer or not n_embd:
        raise GgufError(path, f"{architecture}.block_count or {architecture}.embedding_length is missing", 0)
    if not 0 < n_layer <= GGUF_LAYERS_MAX:
        raise GgufError(
            path, f"{architecture}.block_count is {n_layer}; at most {GGUF_LAYERS_MAX} layers are read", 0
        )
    head_length = n_embd // heads if heads else 0
    pooling = keys.optional("pooling_type")
    is_encoder = architecture in ENCODERS or keys.optional("attention.causal") == 0
    return Header(
        architecture=architecture,
        name=str(part.values.get("general.name", "")),
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=keys.feed_forward(),
        heads=heads,
        kv_heads=keys.per_layer("attention.head_count_kv", n_layer, heads),
        key_length=keys.most("attention.key_length") or head_length,
        value_length=keys.most("attention.value_length") or head_length,
        context_length=keys.most("context_length"),
        experts=keys.most("expert_count"),
        experts_used=keys.most("expert_used_count"),
        vocabulary=part.lengths.get("tokenizer.ggml.tokens", 0) or keys.most("vocab_size"),
        merges=part.lengths.get("tokenizer.ggml.merges", 0),
        token_bytes=_token_bytes(part),
        file_type=_as_int(part.values["general.file_type"]) if "general.file_type" in part.values else None,
        file_bytes=Bytes(file_bytes),
        tensor_bytes=Bytes(weights),
        parameters=parameters,
        knows_tools="tools" in str(part.values.get(_TEMPLATE, "")),
        knows_insert=any(key in part.values for key in _INSERTS),
        knows_thinking=any(word in str(part.values.get(_TEMPLATE, "")) for word in _THOUGHTS),
        pooling=pooling,
        is_encoder=is_encoder,
        is_embedding=pooling in EMBEDDING_POOLINGS or (is_encoder and not pooling),
        sliding_window=keys.most("attention.sliding_window"),
        recurrent_bytes=Bytes(keys.recurrent_state(n_embd) * n_layer * 4),
        tokenizer=str(part.values.get("tokenizer.ggml.model", "")),
        parts=max(1, _as_int(part.values.get("split.count"))),
    )


def _token_bytes(part: _Part) -> int:
    """The bytes of the longest token; 0 where a text may become fewer tokens than its bytes tell: other tokenizers drop
    white space, or make one unknown token of a long word."""
    is_plain = part.values.get("tokenizer.ggml.model") in ("gpt2", "llama")
    return part.longest.get("tokenizer.ggml.tokens", 0) if is_plain else 0


class _Keys:
    """The keys of one architecture. A figure that differs per layer counts with its largest value."""

    def __init__(self, architecture: str, part: _Part) -> None:
        self._prefix, self._values = architecture, part.values

    def optional(self, key: str) -> int | None:
        value = self._values.get(f"{self._prefix}.{key}")
        return None if value is None else _as_int(value)

    def most(self, key: str) -> int:
        return self.optional(key) or 0

    def per_layer(self, key: str, layers: int, otherwise: int) -> tuple[int, ...]:
        value = self._values.get(f"{self._prefix}.{key}", otherwise)
        if isinstance(value, tuple):
            given = tuple(_as_int(entry) for entry in value)[:layers]
            return given + (max(given, default=otherwise),) * (layers - len(given))
        return (_as_int(value),) * layers

    def feed_forward(self) -> int:
        experts = self.most("expert_feed_forward_length") or self.most("feed_forward_length")
        used = experts * self.most("expert_used_count") + self.most("expert_shared_feed_forward_length")
        return max(self.most("feed_forward_length"), used)

    def recurrent_state(self, n_embd: int) -> int:
        """Numbers per layer and slot that a recurrent layer keeps; every layer is counted as one."""
        inner, state, groups = (
            self.most("ssm.inner_size"),
            self.most("ssm.state_size"),
            self.most("ssm.group_count"),
        )
        if inner:
            return max(1, self.most("ssm.conv_kernel")) * (inner + 2 * groups * state) + inner * state
        wkv = self.most("wkv.head_size")
        shift = n_embd * (2 if wkv else self.most("shortconv.l_cache"))
        return wkv * n_embd + shift
