"""llama-swap's addresses of logs, over a real socket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from support.eventually import PATIENCE_S, eventually
from support.open_gateway import HELLO, OpenGateway, open_gateway
from watchbill.catalog import ApiKey, Server
from watchbill.gateway.dialects.llama_swap_logs import FollowedLogs
from watchbill.gateway.limits import LOG_FOLLOWED_LINE_BYTES_MAX, LOG_HISTORY_BYTES_MAX
from watchbill.processes import engine_log

ADMIN, CALLER = "a" * 16, "c" * 16
KEYS = Server(keys=(ApiKey("op", ADMIN, admin=True), ApiKey("me", CALLER)))


def log_of(opened: OpenGateway, model: str) -> Path:
    path = engine_log(opened.gateway.driver.root, model)
    path.parent.mkdir(exist_ok=True)
    return path


async def until(answer: httpx.Response, text: str) -> AsyncIterator[str]:
    """The lines up to the one with this text."""
    async for line in answer.aiter_lines():
        yield line
        if text in line:
            return


async def test_logs_are_the_ends_of_all_logs_as_plain_text() -> None:
    """Issue 19: `curl http://host/logs`, the journal and the log of every engine."""
    async with open_gateway(HELLO) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        log_of(opened, "a").write_text("eval time = 3 ms\n\x1b[31mred\n")
        log_of(opened, "b/with:slash").write_text("of b\n")
        answer = await client.get("/logs")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert {"eval time = 3 ms", "of b"} <= set(answer.text.splitlines())
        assert "\x1b" not in answer.text
        page = await client.get("/logs", headers={"Accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (302, "/")


@pytest.mark.parametrize(
    ("which", "lines"),
    [
        ("", {"of a", "of b", "more of a", "more of b"}),
        ("/upstream", {"of a", "of b", "more of a", "more of b"}),
        ("/a", {"of a", "more of a"}),
        ("/alias/of-a", {"of a", "more of a"}),
        ("/b/with:slash", {"of b", "more of b"}),
        ("/a?no-history", {"more of a"}),
    ],
)
async def test_a_stream_tells_the_end_and_then_each_new_line(which: str, lines: set[str]) -> None:
    """Issue 19: `curl -N http://host/logs/stream/NAME`."""
    async with open_gateway(HELLO) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        log_of(opened, "a").write_text("of a\n")
        log_of(opened, "b/with:slash").write_text("of b\n")
        async with client.stream("GET", f"/logs/stream{which}") as answer, asyncio.timeout(PATIENCE_S):
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            with log_of(opened, "a").open("a") as file:
                file.write("more of a\n")
            with log_of(opened, "b/with:slash").open("a") as file:
                file.write("more of b\n")
            seen = set[str]()
            async for line in answer.aiter_lines():
                seen |= {line} if " a" in line or " b" in line else set()
                if seen >= lines:
                    break
            assert seen == lines


async def test_the_proxys_log_is_the_journal() -> None:
    async with open_gateway(HELLO) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        await opened.ask(
            "/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
        )
        async with client.stream("GET", "/logs/stream/proxy") as answer, asyncio.timeout(PATIENCE_S):
            told = [line async for line in until(answer, "| loaded | a |")]
            assert "| load | a |" in "\n".join(told)


async def test_logs_are_for_operators() -> None:
    """P8's neighbour: logs may hold what callers wrote."""
    async with open_gateway(HELLO, server=KEYS) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        for path in ("/logs", "/logs/stream", "/logs/stream/a"):
            assert (await client.get(path)).status_code == 401
            refused = await client.get(path, headers={"Authorization": f"Bearer {CALLER}"})
            assert refused.status_code == 403
        key = {"Authorization": f"Bearer {ADMIN}"}
        assert (await client.get("/logs", headers=key)).status_code == 200
        assert (await client.get("/logs/stream/nonesuch", headers=key)).status_code == 404


async def test_a_listener_that_leaves_is_forgotten() -> None:
    """P3: a stream without an end holds a place only while it is read."""
    async with open_gateway(HELLO) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        async with client.stream("GET", "/logs/stream"):
            await eventually(lambda: opened.gateway.listeners == 1)
        await eventually(lambda: opened.gateway.listeners == 0)


def test_lines_of_two_logs_do_not_mix_and_a_rotated_log_goes_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    followed = FollowedLogs(lambda: [first, second])
    assert followed.begin() == b""
    first.write_bytes(b"one\nha")
    second.write_bytes(b"two\n")
    assert followed.read() == b"one\ntwo\n"
    first.rename(tmp_path / "first.log.1")
    assert followed.read() == b""
    first.write_bytes(b"lf\nnew\n")
    assert followed.read() == b"half\nnew\n"
    first.write_bytes(b"x" * 2 * LOG_FOLLOWED_LINE_BYTES_MAX)
    assert followed.read().endswith(b"x\n"), "a line without an end is not collected for ever"


def test_the_end_of_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(LOG_HISTORY_BYTES_MAX)))
    told = FollowedLogs(lambda: [path]).begin()
    assert LOG_HISTORY_BYTES_MAX // 2 < len(told) <= LOG_HISTORY_BYTES_MAX
    assert told.startswith(b"line ") and told.endswith(b"line %d\n" % (LOG_HISTORY_BYTES_MAX - 1))
