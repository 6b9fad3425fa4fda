"""How many tokens a request took, by the bytes of its answer as they pass.

Where the engine tells (OpenAI's `usage`, Anthropic's, Ollama's counts, llama.cpp's timings), its figures count, prompt
and answer together. Until then, and where it never tells, it is estimated: a token for each BYTES_PER_TOKEN bytes
of the answer's texts and of the request, which is never more than the model's context. So a caller who leaves before
the end has spent what was made for it. Looks for names of fields, not for objects: within a JSON text their quotes are
escaped, so nothing that a model says can look like one.
"""

import re
from collections.abc import Callable

__all__ = ["BYTES_PER_TOKEN", "TokenCount"]

BYTES_PER_TOKEN = 4
#: The longest name of a figure with its quotes, colon and digits: what may stand across two pieces.
_SEAM_BYTES = 64
_PROMPT = frozenset({b"prompt_tokens", b"input_tokens", b"prompt_eval_count", b"prompt_n"})
_FIGURES = re.compile(
    rb'(?<!\\)"(prompt_tokens|input_tokens|prompt_eval_count|prompt_n|'
    rb'completion_tokens|output_tokens|eval_count|predicted_n)"\s*:\s*(\d{1,9})(?=\D)'
)
_TEXTS = re.compile(
    rb'(?<!\\)"(?:content|text|reasoning_content|reasoning|thinking|response|partial_json|arguments|delta)"'
    rb'\s*:\s*"((?:[^"\\]|\\.)*)"'
)


class TokenCount:
    """The tokens of one request. Tells of each change, by how much."""

    def __init__(self, spend: Callable[[int], None], prompt: int) -> None:
        self._spend = spend
        self._spent = 0
        self._prompt = prompt  # as estimated
        self._bytes = 0  # of the answer's texts
        self._told_prompt: int | None = None
        self._told_answer: int | None = None
        self._seam = b""

    def feed(self, piece: bytes) -> None:
        """Takes bytes of the answer."""
        for text in _TEXTS.findall(piece):
            self._bytes += len(text)
        for name, digits in _FIGURES.findall(self._seam + piece):
            figure = int(digits)
            if name in _PROMPT:
                self._told_prompt = max(figure, self._told_prompt or 0)
            else:
                self._told_answer = max(figure, self._told_answer or 0)
        self._seam = piece[-_SEAM_BYTES:]
        self._settle()

    def end(self) -> None:
        """The answer is over, or nobody wants the rest."""
        self._settle()

    def _settle(self) -> None:
        prompt = self._prompt if self._told_prompt is None else self._told_prompt
        answer = self._bytes // BYTES_PER_TOKEN if self._told_answer is None else self._told_answer
        change, self._spent = prompt + answer - self._spent, prompt + answer
        if change:
            self._spend(change)
