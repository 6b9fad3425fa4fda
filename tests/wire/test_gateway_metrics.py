"""What /metrics says has a source: each figure is fed by what happens, and labels are words of closed lists."""

from support.eventually import eventually
from support.open_gateway import open_gateway
from watchbill.core.messages import Cause, Loaded

CHAT = {"model": "a", "messages": []}


def figures(page: str) -> dict[str, float]:
    """Every sample of a page of metrics, by name and labels."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def test_a_model_that_leaves_is_counted_under_a_word_of_a_closed_list() -> None:
    """The label of an eviction is a cause, never the beginning of a sentence."""
    async with open_gateway() as opened:
        await opened.ask("/v1/chat/completions", CHAT)
        await opened.driver.evict("a")
        found = figures((await opened.ask("/metrics")).body.decode())
        evictions = {name for name in found if name.startswith("watchbill_evictions_total{")}
        assert evictions == {f'watchbill_evictions_total{{model="a",reason="{Cause.OPERATOR}"}}'}


async def test_the_first_token_of_streams_and_of_whole_answers_is_timed() -> None:
    """The histogram of first tokens has a source."""
    name = 'gen_ai_server_time_to_first_token_seconds_count{model="a"}'
    async with open_gateway() as opened:
        await opened.ask("/v1/chat/completions", CHAT)
        await opened.ask("/v1/chat/completions", {**CHAT, "stream": True})
        await opened.until_idle()
        assert figures(opened.driver.metrics.render().decode())[name] == 2


async def test_late_answers_of_engines_and_the_lag_of_the_loop_are_measured() -> None:
    """What the core counts as late, and how late timers fire, is on the page."""
    async with open_gateway() as opened:
        opened.driver.feed(Loaded("a", 999, {}))

        def found() -> dict[str, float]:
            return figures(opened.driver.metrics.render().decode())

        assert found()["watchbill_late_answers_dropped_total"] == 1
        await eventually(lambda: found()["watchbill_event_loop_lag_seconds_count"] > 0)
