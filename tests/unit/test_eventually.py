"""The tests' own waiting: it ends with the value, or fails with the last one."""

import asyncio
import threading

import pytest

from support.eventually import eventually, wait_until


async def test_a_wait_in_the_loop_returns_the_first_true_value_and_lets_others_work() -> None:
    found: list[str] = []
    asyncio.get_running_loop().call_later(0.03, found.append, "it")
    assert await eventually(lambda: found) == ["it"]


async def test_a_condition_may_be_a_coroutine_function() -> None:
    looks: list[int] = []

    async def third_look() -> int:
        await asyncio.sleep(0)
        looks.append(1)
        return len(looks) if len(looks) > 2 else 0

    assert await eventually(third_look) == 3


async def test_a_wait_in_the_loop_fails_with_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the last value was \[\]"):
        await eventually(list, 0.05)


async def test_a_condition_that_never_answers_is_given_up() -> None:
    with pytest.raises(AssertionError, match="the last value was None"):
        await eventually(asyncio.Event().wait, 0.05)


async def test_a_deadline_of_the_condition_itself_is_not_taken_for_the_waits() -> None:
    async def late() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await eventually(late)


def test_a_wait_in_a_thread_returns_the_first_true_value() -> None:
    found: list[str] = []
    threading.Timer(0.03, found.append, ["it"]).start()
    assert wait_until(lambda: found) == ["it"]


def test_a_wait_in_a_thread_fails_with_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the last value was \{\}"):
        wait_until(dict, 0.05)
