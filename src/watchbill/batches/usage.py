"""Usage: the tokens of a batch, added up from what its answers tell.

`tokens_of` reads one answer, whatever its endpoint calls its counts; an answer that tells none counts as none. Blocks
for as long as one answer takes to read.
"""

import msgspec

__all__ = ["Tokens", "tokens_of"]


class Tokens(msgspec.Struct, frozen=True):
    """Tokens that were read, and made; of these some came from a cache, or were thoughts."""

    read: int = 0
    made: int = 0
    cached: int = 0
    thought: int = 0

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum of both."""
        return Tokens(
            self.read + other.read,
            self.made + other.made,
            self.cached + other.cached,
            self.thought + other.thought,
        )


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    # The same, as responses and messages call it.
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Answer).decode
_NONE = Tokens()
#: More than this no engine has read or made for one answer.
_TOLD_MAX = 2**32


def tokens_of(body: msgspec.Raw) -> Tokens:
    """What an answer tells of its tokens. An engine may tell anything; what makes no sense counts as none."""
    try:
        usage = _decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NONE
    if usage is None:
        return _NONE
    read = usage.input_tokens_details or usage.prompt_tokens_details or _Details()
    made = usage.output_tokens_details or usage.completion_tokens_details or _Details()
    counts = (
        usage.input_tokens or usage.prompt_tokens, usage.output_tokens or usage.completion_tokens, read.cached_tokens,
        made.reasoning_tokens,
    )  # fmt: skip
    return Tokens(*(count if count is not None and 0 < count < _TOLD_MAX else 0 for count in counts))
