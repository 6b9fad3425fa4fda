"""Small GGUF models with random weights that the real llama.cpp loads, answers from, and can be measured
with.

Nothing of anybody's model is in them: the vocabulary is the 256 bytes, the weights are noise. Two tricks
make them useful. One feature of the residual stream is constant, and the output layer reads it as a bias,
so that text is made of small letters and blanks and the end token never comes by itself: a request always
runs to its max_tokens. And the same size and seed give the same file, so that it is made once and kept in
pytest's cache.

    python tests/gguf_models.py FILE.gguf 20MB [SEED]
    python tests/gguf_models.py FILE.gguf embedding
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from watchbill.units import parse_bytes

__all__ = ["GgufFiles", "gguf_files", "make_chat_model", "make_embedding_model"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
#: llama.cpp knows these by their names.
INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
F16_BYTES = 2
CONTEXT = 4096
#: The constant feature, and how strongly the output layer pulls towards letters and away from the rest.
CONSTANT, LIKELY, UNLIKELY = 4.0, 2.0, -6.0


class GgufFiles:
    """Models on demand, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def chat(self, size: str, seed: int = 1) -> Path:
        """A chat model of about this size."""
        path = self.folder / f"chat-{size}-{seed}.gguf"
        if not path.exists():
            _make_whole(path, lambda draft: make_chat_model(draft, parse_bytes(size), seed))
        return path

    def infill(self) -> Path:
        """A small chat model that also knows the tokens for what is between two texts."""
        path = self.folder / "infill.gguf"
        if not path.exists():
            _make_whole(path, lambda draft: make_chat_model(draft, parse_bytes("5MB"), further=INFILL))
        return path

    def embedding(self) -> Path:
        """A tiny encoder for /v1/embeddings."""
        path = self.folder / "embedding.gguf"
        if not path.exists():
            _make_whole(path, make_embedding_model)
        return path


@pytest.fixture(scope="session")
def gguf_files(request: pytest.FixtureRequest) -> GgufFiles:
    """Real model files for the real llama.cpp, kept between runs."""
    return GgufFiles(request.config.cache.mkdir("gguf"))


def make_chat_model(path: Path, size: int, seed: int = 1, *, further: tuple[str, ...] = ()) -> None:
    """Writes a llama-like chat model of about `size` bytes, with further special tokens."""
    width = next(
        width for width, most in ((128, 8e6), (256, 30e6), (512, 200e6), (1024, 10e9)) if size < most
    )
    head = 32 if width < 512 else 64
    heads, kv_heads, inner = width // head, max(1, width // head // 4), 3 * width
    tokens, types = _byte_vocabulary(further)
    layer = 2 * width * width + 2 * width * kv_heads * head + 3 * width * inner
    layers = max(1, round((size / F16_BYTES - 2 * len(tokens) * width) / layer))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"noise-{size}")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(len(tokens))
    _add_byte_tokenizer(writer, tokens, types)
    _add_chat_weights(
        writer, np.random.default_rng(seed),
        width=width, kv=kv_heads * head, inner=inner, layers=layers, tokens=len(tokens),
    )  # fmt: skip
    _write(writer)


def _add_chat_weights(
    writer: gguf.GGUFWriter,
    noise: np.random.Generator,
    *,
    width: int,
    kv: int,
    inner: int,
    layers: int,
    tokens: int,
) -> None:
    def add(name: str, rows: int, columns: int, spread: float = 0.02) -> None:
        weights = noise.standard_normal((rows, columns), dtype=np.float32) * spread
        writer.add_tensor(name, weights.astype(np.float16))

    embedding = noise.standard_normal((tokens, width), dtype=np.float32) * 0.3
    embedding[:, 0] = CONSTANT
    output = noise.standard_normal((tokens, width), dtype=np.float32) * 0.25 * (128 / width) ** 0.5
    output[:, 0] = UNLIKELY
    output[[*range(ord("a"), ord("z") + 1), ord(" ")], 0] = LIKELY
    writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
    writer.add_tensor("output.weight", output.astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for number in range(layers):
        block = f"blk.{number}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(width, np.float32))
        add(f"{block}.attn_q.weight", width, width)
        add(f"{block}.attn_k.weight", kv, width)
        add(f"{block}.attn_v.weight", kv, width)
        # What goes back into the stream is kept small, or it would drown the constant.
        add(f"{block}.attn_output.weight", width, width, 0.005)
        add(f"{block}.ffn_gate.weight", inner, width)
        add(f"{block}.ffn_up.weight", inner, width)
        add(f"{block}.ffn_down.weight", width, inner, 0.005)


def make_embedding_model(path: Path, seed: int = 1) -> None:
    """Writes a BERT of two layers with mean pooling: its vectors mean nothing and are always the same."""
    width, inner, layers, context = 128, 512, 2, 512
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *("▁" + letter for letter in letters), *letters]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("noise-embedding")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    _add_word_tokenizer(writer, tokens)
    rows = {"token_embd": len(tokens), "token_types": 2, "position_embd": context}
    noise = np.random.default_rng(seed)
    _add_embedding_weights(writer, noise, width=width, inner=inner, layers=layers, rows=rows)
    _write(writer)


def _add_embedding_weights(
    writer: gguf.GGUFWriter,
    noise: np.random.Generator,
    *,
    width: int,
    inner: int,
    layers: int,
    rows: dict[str, int],
) -> None:
    def add(name: str, out: int, into: int) -> None:
        weights = noise.standard_normal((out, into), dtype=np.float32) * 0.05
        writer.add_tensor(f"{name}.weight", weights.astype(np.float16))
        writer.add_tensor(f"{name}.bias", np.zeros(out, np.float32))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))

    for name, count in rows.items():
        writer.add_tensor(f"{name}.weight", noise.standard_normal((count, width), dtype=np.float32) * 0.5)
    add_norm("token_embd_norm")
    for number in range(layers):
        block = f"blk.{number}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}", width, width)
        add(f"{block}.ffn_up", inner, width)
        add(f"{block}.ffn_down", width, inner)
        add_norm(f"{block}.attn_output_norm")
        add_norm(f"{block}.layer_output_norm")


def _byte_vocabulary(further: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """A token for each byte, as GPT-2 writes bytes, one merge (the format wants one), and the special ones."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    tokens = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    tokens.append(tokens[ord(" ")] + "t")
    special = [*SPECIAL, *further]
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(special)
    return [*tokens, *special], [int(kind) for kind in types]


def _add_byte_tokenizer(writer: gguf.GGUFWriter, tokens: list[str], types: list[int]) -> None:
    begin = tokens.index("<|im_start|>")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{tokens[ord(' ')]} t"])
    writer.add_bos_token_id(begin)
    writer.add_eos_token_id(begin + 1)
    writer.add_pad_token_id(begin + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_word_tokenizer(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 5 + [gguf.TokenType.NORMAL] * (len(tokens) - 5))
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
    writer.add_sep_token_id(3)
    writer.add_eos_token_id(3)
    writer.add_mask_token_id(4)


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _make_whole(path: Path, make: Callable[[Path], None]) -> None:
    """Several test processes may want the same model at once: each makes its own and the last one stays."""
    draft = path.with_suffix(f".{os.getpid()}")
    make(draft)
    draft.replace(path)


if __name__ == "__main__":
    target, what, *rest = sys.argv[1:]
    if what == "embedding":
        make_embedding_model(Path(target))
    else:
        make_chat_model(Path(target), parse_bytes(what), *map(int, rest))
