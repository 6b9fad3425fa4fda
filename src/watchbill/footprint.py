"""The footprint of a model: how much memory llama.cpp will need for it, before it is started.

    weights    every tensor of the file
    kv cache   keys and values for the whole context of all slots; llama.cpp takes them at once, not as they fill
    compute    the activations of one batch, the attention mask, the logits of each slot
    overhead   in RAM the process itself, the tokenizer's tables, the prompt cache; on a card what CUDA takes there

A prediction that is too low breaks the budget; one that is too high only wastes some of it. So every term is an upper
bound, calibrated on the real engine (`docs/memory.md` has the table): never below the measurement, at most a quarter
and 64 MiB above. After the first load the measured figure replaces it.
"""

from dataclasses import dataclass
from itertools import pairwise

from watchbill.catalog import RAM, Model
from watchbill.units import Bytes

__all__ = ["Header", "Prediction", "predict", "predict_model", "usable_context"]

MIB = 2**20
#: Tokens that llama.cpp processes at once (its n_ubatch).
BATCH_TOKENS = 512
#: Contexts are rounded up to this many tokens per slot.
CONTEXT_STEP_TOKENS = 256
#: The interpreter, llama.cpp's library, 64 HTTP threads, and the guard beside them: 45 MiB measured.
PROCESS_BYTES = 56 * MIB
#: The context of CUDA and the workspaces of its libraries, on each card: 797 MiB measured on an H200, of which 0.6 GiB
#: are the context. Smaller cards take less.
CARD_BYTES = 800 * MIB
#: Maps from text to token and back: 390 bytes per token with its merge measured, of which half are the merge's.
VOCABULARY_BYTES_PER_ENTRY = 240
#: Logits and two candidate lists per slot: 17 bytes per token of the vocabulary measured.
SAMPLER_BYTES_PER_TOKEN = 24
#: Embedding-sized activations that live at the same time.
LIVE_EMBEDDINGS = 10
#: llama.cpp keeps snapshots of a state that cannot be rewound: one per this many tokens, and two at the least.
SNAPSHOT_TOKENS = 8192
#: Architectures whose attention cannot be fused: all scores of a batch exist at once.
UNFUSED = frozenset({"t5", "t5encoder", "grok"})
#: Arguments of llama.cpp that give a model more context than it was trained on.
_STRETCHING = ("--rope", "--yarn", "--override-kv")
_KEY_TYPE, _VALUE_TYPE = ("--cache-type-k", "-ctk"), ("--cache-type-v", "-ctv")
#: Bytes of one figure in the cache, by the names that llama.cpp has for its types: 32 figures share a scale or two.
_FIGURE_BYTES = {
    "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}  # fmt: skip
_USUAL_FIGURE_BYTES = _FIGURE_BYTES["f16"]


@dataclass(frozen=True, slots=True)
class Header:
    """The facts in the header of a model file."""

    architecture: str
    name: str
    n_layer: int
    n_embd: int
    n_ff: int  # the widest layer, including all experts that are used at once
    heads: int
    kv_heads: tuple[int, ...]  # per layer; 0 where a layer has no attention
    key_length: int
    value_length: int
    context_length: int
    experts: int
    experts_used: int
    vocabulary: int
    merges: int
    file_type: int | None
    file_bytes: Bytes
    tensor_bytes: Bytes
    parameters: int
    knows_tools: bool  # its chat template supports them
    knows_thinking: bool  # its chat template has a place for thoughts
    knows_insert: bool  # its tokens have marks for a text to fill in
    pooling: int | None
    is_encoder: bool  # reads its whole input at once; has no cache
    is_embedding: bool
    sliding_window: int
    recurrent_bytes: Bytes  # state per slot; 0 for plain attention
    tokenizer: str
    parts: int = 1
    token_bytes: int = 0  # of a text that one token may stand for; 0 where no bound is known


@dataclass(frozen=True, slots=True)
class Prediction:
    """The memory that a model will need on the device that holds it."""

    weights: Bytes
    kv_cache: Bytes
    compute: Bytes
    overhead: Bytes

    @property
    def total(self) -> Bytes:
        """The sum: the ledger reserves it before the load."""
        return Bytes(self.weights + self.kv_cache + self.compute + self.overhead)


def predict(
    header: Header,
    *,
    context: int,
    slots: int,
    key_figure_bytes: float = _USUAL_FIGURE_BYTES,
    value_figure_bytes: float = _USUAL_FIGURE_BYTES,
    prompt_cache: int = 0,
    mmap: bool = False,
    embedding: bool = False,
    cards: int = 0,
) -> Prediction:
    """The memory of `slots` slots of `context` tokens each; 0 tokens mean the model's own context.

    Mapped weights count in full: pages that are not resident now must be when the model answers. A text to embed is
    processed in one piece, so the batch of an embedding model is its context. On cards the process and the prompt cache
    take nothing: they stay in RAM.
    """
    tokens = _round_up(context or header.context_length, CONTEXT_STEP_TOKENS)
    whole = embedding or header.is_embedding
    batch = tokens if whole else min(tokens * slots, BATCH_TOKENS)
    slot = _slot_bytes(header, tokens, key_figure_bytes, value_figure_bytes)
    # The prompt cache accepts a whole slot's state before it drops the oldest one to get below its bound.
    cached = prompt_cache + slot if prompt_cache else 0
    return Prediction(
        weights=header.tensor_bytes,
        kv_cache=Bytes(slot * slots),
        compute=Bytes(
            _compute_bytes(header, tokens, slots, batch) + (_vector_bytes(header, batch) if whole else 0)
        ),
        overhead=Bytes(cards * CARD_BYTES or _overhead_bytes(header, mmap=mmap) + cached),
    )


def usable_context(model: Model, header: Header) -> int:
    """Tokens of context for each request: never more than the model was trained on.

    llama.cpp's server caps every slot there, so a larger context would be promised and paid for, and then refused.
    Arguments that stretch a model are the operator's own responsibility.
    """
    if not header.context_length or any(word.startswith(_STRETCHING) for word in model.arguments):
        return model.context
    return min(model.context, header.context_length)


def predict_model(model: Model, header: Header) -> Prediction:
    """The memory that a model of the config will need, on all its devices together."""
    return predict(
        header,
        context=usable_context(model, header),
        slots=model.concurrency,
        key_figure_bytes=_figure_bytes(model, _KEY_TYPE),
        value_figure_bytes=_figure_bytes(model, _VALUE_TYPE),
        prompt_cache=model.prompt_cache,
        mmap=model.mmap,
        embedding=model.embedding,
        cards=sum(device != RAM for device in model.devices),
    )


def _figure_bytes(model: Model, flags: tuple[str, ...]) -> float:
    """The bytes of a figure in the cache, as the arguments of its model say last. llama.cpp refuses other types."""
    named = [value for flag, value in pairwise(model.arguments) if flag in flags]
    return _FIGURE_BYTES.get(named[-1], _USUAL_FIGURE_BYTES) if named else _USUAL_FIGURE_BYTES


def _slot_bytes(header: Header, tokens: int, key_figure_bytes: float, value_figure_bytes: float) -> int:
    """Layers with a sliding window count as full ones: their snapshots take what they save."""
    if header.is_encoder:
        return 0
    figures = header.key_length * key_figure_bytes + header.value_length * value_figure_bytes
    per_token = sum(header.kv_heads) * figures
    snapshots = 2 + tokens // SNAPSHOT_TOKENS
    return round(per_token * tokens) + header.recurrent_bytes * (1 + snapshots)


def _compute_bytes(header: Header, tokens: int, slots: int, batch: int) -> int:
    width = max(header.n_embd, header.heads * header.key_length)
    spread = 2 * header.n_ff + (LIVE_EMBEDDINGS + header.experts_used) * width
    activations = 4 * batch * spread * (2 if header.recurrent_bytes else 1)
    scratch = 4 * batch * max(header.n_ff, width)  # the wider operand, converted for the multiplication
    mask = batch * tokens * (6 if header.is_encoder or header.sliding_window else 2)
    scores = 4 * header.heads * batch * tokens if header.architecture in UNFUSED else 0
    sampler = SAMPLER_BYTES_PER_TOKEN * header.vocabulary * slots
    return activations + scratch + mask + scores + sampler


def _vector_bytes(header: Header, batch: int) -> int:
    """The memory that embedding adds.

    A decoder that embeds also computes the logits of every token, and keeps a copy: 1.1 GiB for 1,024 tokens of a
    vocabulary of 150,000 were measured.
    """
    logits = 0 if header.is_encoder else 2 * 4 * batch * header.vocabulary
    return logits + 2 * 4 * batch * header.n_embd


def _overhead_bytes(header: Header, *, mmap: bool) -> int:
    tables = VOCABULARY_BYTES_PER_ENTRY * (header.vocabulary + header.merges)
    # The file's header is mapped with the weights, or read otherwise.
    head = max(0, header.file_bytes - header.tensor_bytes) if mmap else 0
    return PROCESS_BYTES + tables + head


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
