"""Background tasks, carried out against an engine of raw sockets: what the core hears of each."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from support.peer import Asked, Talk, chat_events, peer_listening, sse
from watchbill.catalog import ROTATION_LANE, BackgroundTask
from watchbill.core.messages import CutKind, Ended, Event, Left, Request, TaskEnded
from watchbill.engines.base import Endpoint
from watchbill.runtime import tasks as tasks_module
from watchbill.runtime.tasks import Tasks
from watchbill.runtime.ticket import Start, Submission, Ticket

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@dataclass
class Driver:
    """Grants every wish at once, and writes down what it is told."""

    endpoint: Endpoint
    events: list[Event] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)

    def feed(self, event: Event, /) -> None:
        self.events.append(event)

    def ended(self, ticket: Ticket, event: Event, outcome: str, /, *, served: bool) -> None:
        self.events.append(event)

    def submit(self, submission: Submission) -> Ticket:
        request = Request(
            "r1", submission.model, ROTATION_LANE.name, ROTATION_LANE.work_class, 0, 1_000, 60_000
        )
        ticket = Ticket(request, self, "r1", submission.model)
        ticket.begin(Start(submission.model, self.endpoint, 1, 0, 0), 0)
        self.tickets.append(ticket)
        return ticket


async def carry_out(task: BackgroundTask, endpoint: Endpoint, root: Path) -> tuple[TaskEnded, list[Event]]:
    """Runs one task to its end."""
    driver = Driver(endpoint)
    ended: asyncio.Future[TaskEnded] = asyncio.get_running_loop().create_future()
    tasks = Tasks(root, driver.submit, ended.set_result)
    try:
        tasks.run("A", task, lambda: 0)
        async with asyncio.timeout(10):
            return await ended, driver.events
    finally:
        await tasks.close()


def says(answer: bytes) -> Talk:
    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    return talk


ASK = BackgroundTask("Look around.")


async def test_an_answer_is_kept_and_says_nothing_about_answers(tmp_path: Path) -> None:
    """RES-16: how long a task takes is no measure for others."""
    async with peer_listening(says(HEAD + sse(*chat_events("All is well"), "[DONE]"))) as peer:
        told, events = await carry_out(ASK, peer.endpoint, tmp_path)
    assert told.ok and "11 characters" in told.text
    assert events == [Ended("r1", None)]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        b"",
        HEAD + sse({"error": {"message": "out of memory", "code": 500}}),
        HEAD + b"data: {no json}\n\n",
        HEAD + sse(*chat_events("All is")[:-1]),
    ],
    ids=["500", "hangs up", "an error in the stream", "garbage", "half an answer"],
)
async def test_an_engine_that_fails_a_task_has_failed_an_answer(tmp_path: Path, answer: bytes) -> None:
    """RES-16, RES-20: at night nobody else asks it; the watchdog hears of it all the same."""
    async with peer_listening(says(answer)) as peer:
        told, events = await carry_out(ASK, peer.endpoint, tmp_path)
    assert not told.ok and told.text != "it was interrupted"
    assert [(each.id, each.ok) for each in events if isinstance(each, Ended)] == [("r1", False)]


async def test_a_task_that_times_out_says_so_of_its_engine(tmp_path: Path) -> None:
    """RES-16, RES-20: a silent engine is one that failed, and its slot is free when it has let go."""
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hangs(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        asked.set_result(None)
        await asyncio.Event().wait()

    async with peer_listening(hangs) as peer:
        driver = Driver(peer.endpoint)
        ended: asyncio.Future[TaskEnded] = asyncio.get_running_loop().create_future()
        tasks = Tasks(tmp_path, driver.submit, ended.set_result)
        try:
            tasks.run("A", ASK, lambda: 0)
            async with asyncio.timeout(10):
                await asked
                driver.tickets[0].cut_off(CutKind.RUN_TIMEOUT)
                assert not (await ended).ok
                await peer.until(lambda peer: peer.left == 1)
        finally:
            await tasks.close()
    over = driver.events[0]
    assert isinstance(over, Ended) and over.ok is False and over.parting is not None
    assert (over.parting.has_spoken, over.parting.lingers_as) == (False, "r1/1")


async def test_a_command_that_fails_is_not_the_models_fault(tmp_path: Path) -> None:
    """RES-16: the rotation hears of it, the watchdog does not."""
    told, events = await carry_out(BackgroundTask(None, "false"), Endpoint("127.0.0.1", 1), tmp_path)
    assert not told.ok and events == [Left("r1")]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (Endpoint("127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (Endpoint("far.example", 443, "/llm", tls=True), "https://far.example:443/llm"),
        (Endpoint("::1", 8080), "http://[::1]:8080"),
    ],
)
async def test_a_command_is_told_where_the_model_answers(
    tmp_path: Path, endpoint: Endpoint, url: str
) -> None:
    """RES-16: an address that can be used as it is."""
    told, _ = await carry_out(
        BackgroundTask(None, f"sh -c 'echo -n $WATCHBILL_MODEL_URL > {tmp_path}/url'"), endpoint, tmp_path
    )
    assert told.ok and (tmp_path / "url").read_text() == url


async def test_a_prompt_goes_to_the_path_of_the_engines_address_once(tmp_path: Path) -> None:
    """RES-16: `url = "http://host/llm"` is asked at /llm/v1/..., as by every other caller."""
    async with peer_listening(says(HEAD + sse(*chat_events("All is well"), "[DONE]"))) as peer:
        told, _ = await carry_out(ASK, replace(peer.endpoint, path_prefix="/llm"), tmp_path)
    assert told.ok and [asked.path for asked in peer.asked] == ["/llm/v1/chat/completions"]


async def test_an_answer_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-16: however many tokens were asked for, an engine may send more."""
    monkeypatch.setattr(tasks_module, "TASK_ANSWER_CHARS_MAX", 8)
    async with peer_listening(says(HEAD + sse(*chat_events("one two three four"), "[DONE]"))) as peer:
        told, _ = await carry_out(ASK, peer.endpoint, tmp_path)
    assert not told.ok and "more than 8 characters" in told.text
