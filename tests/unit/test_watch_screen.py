"""What `watch` shows, without a terminal."""

from watchbill.cli.watch_screen import Pane, Picture


def test_models_in_memory_are_on_top() -> None:
    """Issue 19: with many models the few in memory are what one looks for; others keep the order of the config."""
    states = {
        "a": "absent",
        "b": "loading",
        "c": "ready",
        "d": "failed",
        "e": "absent",
        "f": "ready",
        "g": "asleep",
    }
    picture = Picture({"models": {name: {"state": state} for name, state in states.items()}})
    assert picture.rows(Pane.MODELS) == ["c", "f", "b", "g", "a", "d", "e"]
