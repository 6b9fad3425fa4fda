"""Log probabilities of a plain completion, in the shape that OpenAI's older API has for them. Pure.

llama.cpp tells them as those of a chat: a list of tokens with their alternatives. Clients of /v1/completions look for
four lists of the same length. The list of the engine stays beside them.
"""

from typing import cast

__all__ = ["with_lists"]

Fields = dict[str, object]


def with_lists(choice: Fields, offset: int) -> tuple[Fields, int]:
    """A choice with the four lists, and where its text ends; `offset` is where it begins in the whole answer."""
    text, told = choice.get("text"), choice.get("logprobs")
    end = offset + (len(text) if isinstance(text, str) else 0)
    content = cast("Fields", told).get("content") if isinstance(told, dict) else None
    if not isinstance(content, list) or not isinstance(text, str):
        return choice, end
    tokens = [cast("Fields", each) for each in cast("list[object]", content) if isinstance(each, dict)]
    words = [str(token.get("token", "")) for token in tokens]
    offsets: list[int] = []
    at = offset
    for word in words:
        offsets.append(at)
        at += len(word)
    lists: Fields = {
        "tokens": words,
        "token_logprobs": [token.get("logprob") for token in tokens],
        "top_logprobs": [_best(token.get("top_logprobs")) for token in tokens],
        "text_offset": offsets,
    }
    return {**choice, "logprobs": {**cast("Fields", told), **lists}}, end


def _best(told: object) -> Fields:
    """The most likely tokens of one place."""
    listed = cast("list[object]", told) if isinstance(told, list) else []
    found = [cast("Fields", each) for each in listed if isinstance(each, dict)]
    return {str(each.get("token", "")): each.get("logprob") for each in found}
