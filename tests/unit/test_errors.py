"""Errors: one tree, drawn at the top of its module, and codes that scripts may rely on."""

import inspect
import re

import pytest

from watchbill import errors
from watchbill.errors import ConfigError, Problem, TheirsError, WatchbillError

TREE = [
    each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, WatchbillError)
]  # fmt: skip

#: Scripts match these; a code may be added, never changed or taken away.
CODES = {
    "model_not_found", "lane_full", "wait_exceeded", "run_timeout", "engine_failed", "model_failed",
    "maintenance", "too_large", "never_fits", "preempted",
}  # fmt: skip


def test_every_error_is_drawn_in_the_tree_and_listed_as_public() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) | {"WatchbillError"}
    assert drawn == {each.__name__ for each in TREE}
    assert {each.__name__ for each in TREE} | {"Problem"} == set(errors.__all__)


def test_the_status_in_the_drawing_is_the_status_of_the_class() -> None:
    for name, status, code in re.findall(r"── (\w+) +(\d{3})  (\w+)", errors.__doc__ or ""):
        error = getattr(errors, name)
        assert (error.status, error.code) == (int(status), code)


def test_the_codes_that_scripts_match_are_all_there() -> None:
    assert {each.code for each in TREE if issubclass(each, TheirsError)} >= CODES


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_an_error_without_words_says_what_its_docstring_says(kind: type[WatchbillError]) -> None:
    assert str(kind()) == " ".join((kind.__doc__ or "").split())
    assert str(kind("the disk is gone; buy one")) == "the disk is gone; buy one"


def test_a_problem_reads_as_file_line_key_what_and_what_to_do() -> None:
    assert str(Problem("a.toml", 7, "server.port", "must be a number", "write port = 8470")) == (
        "a.toml:7: server.port: must be a number; write port = 8470"
    )
    assert str(Problem("a.toml", None, "server.port", "is odd")) == "a.toml: server.port: is odd"
    assert str(Problem("a.toml", 7, "", "is odd")) == "a.toml:7: is odd"


def test_a_config_error_says_one_line_for_each_problem_and_keeps_them_for_programs() -> None:
    problems = [Problem("a.toml", 1, "a", "x"), Problem("a.toml", 2, "b", "y")]
    error = ConfigError(problems=problems)
    assert str(error) == "a.toml:1: a: x\na.toml:2: b: y"
    assert error.problems == tuple(problems)
