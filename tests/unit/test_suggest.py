"""Suggestions: which known word is meant."""

import pytest

from watchbill.suggest import nearest

ENGINES = ["ollama", "process", "llamacpp", "remote", "systemd"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("llama", "llamacpp"),
        ("LLAMA", "llamacpp"),
        ("olama", "ollama"),
        ("llamacp", "llamacpp"),
        ("pr", None),
    ],
)
def test_a_word_that_was_not_written_to_its_end_is_meant_first(word, meant):
    """Issue 19: `engine = "llama"` was told "did you mean ollama?"."""
    assert nearest(word, ENGINES) == meant
