"""Suggestions: the known word that is nearest to an unknown one, for messages to people."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from watchbill import limits

__all__ = ["did_you_mean", "nearest"]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, or None when none is near. Looks at a bounded number of words."""
    spelled = {each.lower(): each for each in reversed(list(islice(known, limits.SUGGEST_WORDS_MAX)))}
    # A word that was not written to its end: "llama" means llamacpp, though ollama has fewer other letters.
    begun = [
        each
        for each in spelled
        if len(word) >= limits.SUGGEST_BEGUN_CHARS_MIN and each.startswith(word.lower())
    ]
    if begun:
        return spelled[min(begun, key=len)]
    near = get_close_matches(word.lower()[: limits.SUGGEST_CHARS_MAX], spelled, n=1, cutoff=0.6)
    return spelled[near[0]] if near else None


def did_you_mean(word: str, known: list[str]) -> str:
    """A question that names the nearest known word, or the list of all when none is near."""
    if match := nearest(word, known):
        return f"did you mean {match}?"
    more = len(known) - limits.SUGGEST_LISTED_MAX
    listed = ", ".join(known[: limits.SUGGEST_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"known are {listed}" if known else ""
