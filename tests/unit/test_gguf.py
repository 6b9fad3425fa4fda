"""GGUF headers: read what is there, believe nothing, and say where it went wrong."""

import os
import struct
from pathlib import Path

import gguf as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchbill.catalog import Model
from watchbill.errors import ModelFailed
from watchbill.footprint import CARD_BYTES, predict_model
from watchbill.gguf import TENSOR_BLOCKS, GgufError, Header, predict, read_header
from watchbill.limits import GGUF_ARRAY_LEN_MAX, GGUF_KEYS_MAX, GGUF_TENSORS_MAX

MIB = 2**20
F16, Q8_0, UNKNOWN = 1, 8, 999


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value: object) -> bytes:
    """One key in the file's own encoding."""
    match value:
        case bool():
            return text(name) + struct.pack("<IB", 7, value)
        case int():
            return text(name) + struct.pack("<II", 4, value)
        case str():
            return text(name) + struct.pack("<I", 8) + text(value)
        case list() if value and isinstance(value[0], str):
            return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(word) for word in value)
        case list():
            return text(name) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
        case _:
            raise TypeError(value)


KEYS: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "general.file_type": 1,
    "llama.block_count": 4,
    "llama.embedding_length": 128,
    "llama.feed_forward_length": 384,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 8192,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.chat_template": "{{ messages }}" * 1000,
}
Tensor = tuple[str, list[int], int, int]
TENSORS: list[Tensor] = [
    ("token_embd.weight", [128, 3], F16, 0),
    ("blk.0.attn_q.weight", [128, 128], Q8_0, 768),
]
DATA_BYTES = 768 + 128 * 128 // 32 * 34


def build(keys: dict[str, object] = KEYS, tensors: list[Tensor] = TENSORS, data: int = DATA_BYTES) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(key(name, value) for name, value in keys.items())
    for name, shape, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return head + bytes(-len(head) % 32) + bytes(data)


def header_of(folder: Path, content: bytes) -> Header:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return read_header(path)


def changed(**keys: object) -> bytes:
    return build({**KEYS, **{name.replace("__", "."): value for name, value in keys.items()}})


def test_a_header_says_what_the_file_holds(tmp_path: Path) -> None:
    header = header_of(tmp_path, build())
    assert (header.architecture, header.name, header.n_layer, header.n_embd, header.n_ff) == (
        "llama", "tiny", 4, 128, 384,
    )  # fmt: skip
    assert (header.heads, header.kv_heads, header.key_length, header.value_length) == (4, (2,) * 4, 32, 32)
    assert (header.context_length, header.vocabulary, header.merges) == (8192, 3, 1)
    assert header.tensor_bytes == DATA_BYTES
    assert header.parameters == 128 * 3 + 128 * 128
    assert header.knows_tools is False and not header.is_embedding and header.tokenizer == "gpt2"


def test_a_template_with_a_place_for_tools_is_noticed(tmp_path: Path) -> None:
    """LANE-01: clients offer tools only to models of which it is known, however long the template is."""
    template = "{{ messages }}" * 1000 + "{% if tools %}{{ tools | tojson }}{% endif %}"
    assert header_of(tmp_path, build({**KEYS, "tokenizer.chat_template": template})).knows_tools


def test_a_file_of_the_reference_writer_is_read(tmp_path: Path) -> None:
    """The hand-made files above could share a misunderstanding with the reader; these cannot."""
    path = tmp_path / "reference.gguf"
    writer = reference.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv([1, 2])
    writer.add_token_list(["x"] * 1000)
    writer.add_pooling_type(reference.PoolingType.MEAN)
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((1000, 64), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    assert (header.n_layer, header.kv_heads, header.vocabulary) == (2, (1, 2), 1000)
    assert header.tensor_bytes == 128_000 and header.is_embedding


def test_tensor_sizes_agree_with_the_reference() -> None:
    ours = {
        kind: TENSOR_BLOCKS[kind] for kind in map(int, reference.GGML_QUANT_SIZES) if kind in TENSOR_BLOCKS
    }
    assert ours == {int(kind): sizes for kind, sizes in reference.GGML_QUANT_SIZES.items()}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "truncated"),
        (b"GG", "truncated"),
        (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "unknown GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, GGUF_TENSORS_MAX + 1, 0), "tensors; at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, GGUF_KEYS_MAX + 1), "keys; at most"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "at most"),
        (build()[:200], "truncated"),
        (build(data=DATA_BYTES - 1), "at least 1 bytes of weights are missing"),
        (build(keys={"general.architecture": "llama"}), "block_count"),
        (build(keys={"llama.block_count": 3}), "general.architecture is missing"),
        (build(tensors=[("t", [1] * 5, F16, 0)]), "5 dimensions"),
        (build(tensors=[("t", [2**40, 2**40], F16, 0)]), "impossibly large"),
        (build(tensors=[("t", [33], Q8_0, 0)]), "no multiple of its block"),
        (changed(general__alignment=48), "not a power of two"),
        (changed(general__alignment=0), "not a power of two"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_reason_and_offset(tmp_path: Path, content: bytes, what: str) -> None:
    """RES-20: a corrupt or truncated model is found before an engine is started for it."""
    with pytest.raises(GgufError, match=what) as caught:
        header_of(tmp_path, content)
    assert isinstance(caught.value, ModelFailed) and "model.gguf" in str(caught.value)
    assert 0 <= caught.value.offset <= len(content) + 2**60


def test_counts_that_promise_too_much_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    huge = text("k") + struct.pack("<IIQ", 9, 4, GGUF_ARRAY_LEN_MAX + 1)
    nested = text("k") + struct.pack("<IIQ", 9, 9, 1)
    strange = text("k") + struct.pack("<I", 77)
    runs_out = text("k") + struct.pack("<IIQQ", 9, 8, 3, 2**62)
    for body, what in (
        (huge, "entries"),
        (nested, "unknown type 9"),
        (strange, "type 77"),
        (runs_out, "past the end"),
    ):
        with pytest.raises(GgufError, match=what):
            header_of(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A named pipe in the place of a model must not hang the daemon."""
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for path, what in (
        (pipe, "not a regular file"),
        (tmp_path, "not a regular"),
        (tmp_path / "no", "No such file"),
    ):
        with pytest.raises(GgufError, match=what):
            read_header(path)


def test_a_tensor_type_younger_than_we_are_is_sized_by_its_neighbours(tmp_path: Path) -> None:
    header = header_of(
        tmp_path, build(tensors=[("a", [100], UNKNOWN, 0), ("b", [64], F16, 4096)], data=4096 + 128)
    )
    assert header.tensor_bytes == 4096 + 128


def test_a_split_model_counts_all_its_parts(tmp_path: Path) -> None:
    keys = {**KEYS, "split.count": 2}
    for number in (1, 2):
        (tmp_path / f"big-{number:05}-of-00002.gguf").write_bytes(build(keys))
    header = read_header(tmp_path / "big-00001-of-00002.gguf")
    assert (header.tensor_bytes, header.parts) == (2 * DATA_BYTES, 2)
    (tmp_path / "big-00002-of-00002.gguf").unlink()
    with pytest.raises(GgufError, match="No such file"):
        read_header(tmp_path / "big-00001-of-00002.gguf")


@pytest.mark.parametrize("layers", [2**20, 2**32 - 1])
def test_a_count_of_layers_that_no_model_has_is_refused(tmp_path: Path, layers: int) -> None:
    """One flipped bit there was a list of billions: minutes, all memory, or a MemoryError."""
    with pytest.raises(GgufError, match=f"block_count is {layers}; at most"):
        header_of(tmp_path, changed(llama__block_count=layers))


@settings(max_examples=300, deadline=None)
@given(
    cut=st.integers(0, 2000), flips=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=8)
)
def test_no_damage_makes_it_do_anything_but_refuse(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    """Whatever the bytes, the answer is a header or a GgufError, quickly and in little memory."""
    content = bytearray(build({**KEYS, "tokenizer.chat_template": "short"}))
    for spot, value in flips:
        content[spot % len(content)] = value
    try:
        header = header_of(
            tmp_path_factory.mktemp("damaged"), bytes(content[: len(content) - cut % len(content)])
        )
    except GgufError:
        return
    assert predict(header, context=512, slots=1).total >= header.tensor_bytes


# ------------------------------------------------------------------ prediction


def test_the_cache_holds_the_whole_context_of_all_slots(tmp_path: Path) -> None:
    """RES-04: what llama.cpp takes at once is counted at once."""
    header = header_of(tmp_path, build())
    per_token = 4 * 2 * (32 + 32) * 2  # layers x kv heads x (key + value) x bytes
    assert predict(header, context=2048, slots=1).kv_cache == 2048 * per_token
    assert predict(header, context=2048, slots=4).kv_cache == 4 * 2048 * per_token
    # Rounded up, as llama.cpp does.
    assert predict(header, context=2000, slots=1).kv_cache == 2048 * per_token
    assert predict(header, context=0, slots=1).kv_cache == 8192 * per_token


@pytest.mark.parametrize(
    ("arguments", "key_bytes", "value_bytes"),
    [
        (("--cache-type-k", "q8_0", "--cache-type-v", "q4_0"), 34 / 32, 18 / 32),
        (("-ctk", "f32", "-ctk", "q4_1"), 20 / 32, 2),  # the last one counts
        (("--cache-type-v",), 2, 2),
    ],
)
def test_the_cache_is_as_small_as_the_arguments_make_it(
    tmp_path: Path, arguments: tuple[str, ...], key_bytes: float, value_bytes: float
) -> None:
    """RES-04: a model that fits with a smaller cache was refused as one that can never fit."""
    header = header_of(tmp_path, build())
    model = Model("m", "llamacpp", context=2048, arguments=arguments)
    assert predict_model(model, header).kv_cache == 2048 * 4 * 2 * 32 * (key_bytes + value_bytes)


def test_layers_with_heads_of_their_own_are_added_up(tmp_path: Path) -> None:
    header = header_of(tmp_path, changed(llama__attention__head_count_kv=[2, 0, 2, 0]))
    assert predict(header, context=256, slots=1).kv_cache == 256 * (2 + 2) * 64 * 2


def test_a_longer_context_more_slots_or_a_prompt_cache_never_need_less(tmp_path: Path) -> None:
    header = header_of(tmp_path, build())
    totals = [
        predict(header, context=context, slots=slots).total for context in (512, 4096) for slots in (1, 4)
    ]
    assert totals == sorted(totals)
    plain = predict(header, context=512, slots=1)
    assert predict(header, context=512, slots=1, prompt_cache=64 * MIB).total >= plain.total + 64 * MIB
    on_cards = predict(header, context=512, slots=1, prompt_cache=64 * MIB, cards=2)
    assert on_cards.overhead == 2 * CARD_BYTES  # a context on each; the prompt cache stays in RAM
    assert predict(header, context=512, slots=1, mmap=True).weights == header.tensor_bytes


def test_an_encoder_has_no_cache_and_a_decoder_that_embeds_computes_every_logit(tmp_path: Path) -> None:
    keys = {name.replace("llama.", "bert."): value for name, value in KEYS.items()}
    encoder = header_of(tmp_path, build({**keys, "general.architecture": "bert"}))
    assert encoder.is_embedding and predict(encoder, context=512, slots=4).kv_cache == 0
    decoder = header_of(tmp_path, changed(tokenizer__ggml__tokens=["x"] * 10_000))
    chat, embed = (predict(decoder, context=1024, slots=1, embedding=flag).compute for flag in (False, True))
    assert embed - chat > 1024 * 10_000 * 8


def test_recurrent_and_windowed_layers_are_counted_on_the_safe_side(tmp_path: Path) -> None:
    plain = predict(header_of(tmp_path, build()), context=4096, slots=2)
    windowed = predict(
        header_of(tmp_path, changed(llama__attention__sliding_window=512)), context=4096, slots=2
    )
    state = changed(llama__ssm__inner_size=256, llama__ssm__state_size=16, llama__ssm__conv_kernel=4)
    recurrent = predict(header_of(tmp_path, state), context=4096, slots=2)
    assert windowed.kv_cache >= plain.kv_cache and windowed.compute > plain.compute
    assert recurrent.kv_cache > plain.kv_cache and recurrent.compute > plain.compute
