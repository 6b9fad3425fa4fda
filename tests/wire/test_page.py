"""The page's own addresses: its files, the stream that it shows, and the records that it looks up."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, MIB, OpenGateway, open_gateway
from watchbill.catalog import ApiKey, FleetRules, Lane, Model, Server, SpoolRules
from watchbill.core.messages import JournalEvent, Note
from watchbill.gateway.limits import (
    LIVE_BUSY_EVERY_MS,
    LIVE_LINES_MAX,
    LIVE_MESSAGES_WAITING_MAX,
    LIVE_REQUESTS_MAX,
    LIVE_SHARE_MAX,
)
from watchbill.gateway.page.files import ASSETS
from watchbill.gateway.page.live import LiveApi
from watchbill.journal import json_line
from watchbill.runtime.history import Wanted, find_lines
from watchbill.runtime.ticket import Submission
from watchbill.spool import Spool, State, entries, poison_named
from watchbill.units import Bytes, Millis

KEYS = Server(keys=(ApiKey("user", "k" * 20), ApiKey("admin", "a" * 20, admin=True)))
SPOOLS = replace(CATALOG, spools={"notes": SpoolRules("notes", "spool", MappingProxyType({}), drain=False)})
PATIENT = replace(CATALOG, lanes={"default": Lane("default", queue_max=5_000, max_wait_ms=Millis(10**9))})


class Watcher:
    """Follows the stream as the page does."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.tables: dict[str, dict[str, Any]] = {}
        self.journal: list[dict[str, Any]] = []
        self.missed = 0
        self.wholes = 0

    async def next(self) -> dict[str, Any]:
        """Takes the next message over."""
        async with asyncio.timeout(20):
            while not (line := await self._reader.readline()).startswith(b"data: "):
                assert line
        message = json.loads(line[6:])
        if message.get("whole"):
            self.tables, self.wholes = {}, self.wholes + 1
        for section, rows in message["set"].items():
            self.tables.setdefault(section, {}).update(rows)
        for section, names in message.get("gone", {}).items():
            for name in names:
                del self.tables[section][name]
        self.journal += message.get("journal", [])
        self.missed += message.get("missed", 0)
        return message

    async def until(self, happened: Any) -> None:
        async with asyncio.timeout(20):
            while not happened(self):
                await self.next()


async def watch(opened: OpenGateway, key: str = "") -> Watcher:
    reader, writer = await opened.connect()
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"GET /wb/v1/live HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head and b"text/event-stream" in head, head
    return Watcher(reader)


@pytest.fixture
async def opened() -> AsyncIterator[OpenGateway]:
    async with open_gateway() as found:
        yield found


# ------------------------------------------------------------------ files


async def test_a_browser_gets_the_page_and_a_program_ollamas_words(opened: OpenGateway) -> None:
    """api.md: apps look for the words `Ollama is running` at /; people see the page."""
    page = await opened.ask("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html") and b"Watchbill" in page.body
    assert (await opened.ask("/", headers={"Accept": "*/*"})).body == b"Ollama is running"


async def test_the_policy_of_the_page_allows_nothing_but_its_own_files(opened: OpenGateway) -> None:
    """No inline script or style, no other host, no frame around it, and texts never become markup."""
    for path in ("/", "/page/main.js", "/page/style.css"):
        headers = (await opened.ask(path, headers={"Accept": "text/html"})).headers
        policy = dict(
            part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[f"{name}-src"] for name in ("script", "style", "connect")} == {"'self'"}
        assert policy["img-src"] == "'self' blob:"
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_is_small_and_asks_nobody_else() -> None:
    """Under 250 KB in all, air-gapped: no address of another host, no markup made of texts, no inline style."""
    files = {file.name: file.read_text() for file in ASSETS.iterdir()}
    assert sum(len(text.encode()) for text in files.values()) < 250_000
    for name, text in files.items():
        found = re.findall(
            r"(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}", re.sub(r"http://www\.w3\.org/2000/svg", "", text)
        )
        assert not found, (name, found)
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert name != "index.html" or not re.search(r"\sstyle=|\son\w+=|<script>(?!</)|<style", text)


async def test_a_file_that_the_browser_has_is_not_sent_again(opened: OpenGateway) -> None:
    first = await opened.ask("/page/main.js")
    again = await opened.ask("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    for name in ("..%2ffiles.py", "nothing.js", "%2e%2e"):
        assert (await opened.ask(f"/page/{name}")).status == 404


# ------------------------------------------------------------------ the stream


async def test_whoever_watches_sees_a_change_within_a_second(opened: OpenGateway) -> None:
    """The first message is everything; then only what changed comes."""
    seen = await watch(opened)
    first = await seen.next()
    assert first["whole"] and first["admin"] and seen.tables["models"]["a"]["state"] == "absent"
    assert set(seen.tables["devices"]) == {"ram"} and "default" in seen.tables["lanes"]
    asked = asyncio.create_task(opened.ask("/wb/v1/models/a/load", {}))
    await seen.until(lambda each: each.tables["models"]["a"]["state"] == "ready")
    assert "b/with:slash" not in (await seen.next())["set"].get("models", {})
    await seen.until(lambda each: [line["event"] for line in each.journal].count("loaded") == 1)
    assert (await asked).status == 200


async def test_a_request_that_waits_is_one_row_and_goes_when_it_is_over(opened: OpenGateway) -> None:
    """LANE-08: its place and its forecast; a row does not change by waiting."""
    opened.engine.gate.clear()
    seen = await watch(opened)
    await seen.next()
    ticket = opened.driver.submit(Submission("a"))
    await seen.until(lambda each: ticket.id in each.tables.get("requests", {}))
    row = seen.tables["requests"][ticket.id]
    assert (row["state"], row["position"], row["lane"]) == ("waiting", 0, "default")
    arrived = row["arrived_at"]
    for _ in range(3):
        await seen.next()
    assert seen.tables["requests"][ticket.id]["arrived_at"] == arrived
    ticket.close()
    await seen.until(lambda each: ticket.id not in each.tables["requests"])


async def test_a_picture_is_bounded_however_many_wait_and_however_much_happens() -> None:
    """1,000 waiting requests are 100 rows; 5,000 lines of the journal are 100, those of residency among them."""
    async with open_gateway(catalog=PATIENT) as opened:
        opened.engine.gate.clear()
        tickets = [opened.driver.submit(Submission("a")) for _ in range(1_000)]
        seen = await watch(opened)
        await seen.next()
        assert len(seen.tables["requests"]) == LIVE_REQUESTS_MAX
        assert seen.tables["facts"]["daemon"]["open"] == 1_000
        for number in range(900):
            event = JournalEvent.EVICT if number == 3 else JournalEvent.REFUSE
            opened.driver.actions[Note](Note(event, f"line {number}", "a"))
        await seen.until(lambda each: each.journal)
        reasons = [line["reason"] for line in seen.journal]
        assert len(reasons) <= LIVE_LINES_MAX and "line 3" in reasons and "line 899" in reasons
        assert seen.missed >= 900 - LIVE_LINES_MAX
        for ticket in tickets:
            ticket.close()


async def test_where_much_changes_a_picture_comes_less_often_and_within_a_second() -> None:
    """Issue 19: a browser without a graphics card has work with a long message; a short one comes twice a second."""
    async with open_gateway(catalog=PATIENT) as opened:
        opened.engine.gate.clear()
        seen = await watch(opened)
        await seen.next()
        calm = [(await seen.next())["now"] for _ in range(3)]
        tickets = [opened.driver.submit(Submission("a")) for _ in range(200)]
        await seen.until(lambda each: each.tables["facts"]["daemon"]["open"] == 200)
        busy = []
        for _ in range(3):
            for line in range(200):
                opened.driver.actions[Note](Note(JournalEvent.REFUSE, f"line {line} " + "x" * 200, "a"))
            busy.append((await seen.next())["now"])
        assert min(b - a for a, b in pairwise(calm)) < LIVE_BUSY_EVERY_MS
        assert LIVE_BUSY_EVERY_MS < 1_000 and min(b - a for a, b in pairwise(busy)) >= LIVE_BUSY_EVERY_MS - 5
        for ticket in tickets:
            ticket.close()


async def test_the_pace_of_pictures_goes_by_the_time_of_a_core_and_not_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue 19: engines that use every core made the page stand still for seconds: the wait for a core counted."""
    sections, away_s = LiveApi._sections, 0.3

    def slowly(self: LiveApi, picture: Any) -> Any:
        time.sleep(away_s)  # as if another program had the core
        return sections(self, picture)

    monkeypatch.setattr(LiveApi, "_sections", slowly)
    async with open_gateway() as opened:
        seen = await watch(opened)
        times = [(await seen.next())["now"] for _ in range(4)]
        assert min(b - a for a, b in pairwise(times)) < 1_000 * away_s / LIVE_SHARE_MAX / 2


async def test_one_who_does_not_read_gets_a_whole_picture_again(opened: OpenGateway) -> None:
    """A page on a screen that slept holds no memory of the daemon: what it missed is dropped."""
    seen = await watch(opened)
    await seen.next()
    (reader,) = opened.gateway._live._readers
    for _ in range(LIVE_MESSAGES_WAITING_MAX + 1):
        reader.give(b'{"now":0,"set":{}}')
    assert not reader.is_current
    await seen.until(lambda each: each.wholes == 2)
    assert seen.tables["models"]["a"]["state"] == "absent"


async def test_nothing_is_made_while_nobody_watches(opened: OpenGateway) -> None:
    seen = await watch(opened)
    await seen.next()
    maker = opened.gateway._live._maker
    assert maker is not None and opened.gateway.listeners == 1
    opened.writers[-1].transport.abort()
    await eventually(maker.done)
    assert not opened.gateway.listeners


async def test_a_key_without_admin_rights_watches_and_is_told_so() -> None:
    """Read-only without an admin key where keys are set: the page offers nothing, and the daemon refuses it."""
    async with open_gateway(server=KEYS) as opened:
        assert (await opened.ask("/wb/v1/live")).status == 401
        assert (await opened.ask("/", headers={"Accept": "text/html"})).status == 200
        assert not (await (await watch(opened, "k" * 20)).next())["admin"]
        assert (await (await watch(opened, "a" * 20)).next())["admin"]
        user = {"Authorization": f"Bearer {'k' * 20}"}
        assert (await opened.ask("/wb/v1/models/a/log", headers=user)).status == 403
        assert (await opened.ask("/wb/v1/journal", headers=user)).status == 200


# ------------------------------------------------------------------ records


async def test_the_journal_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """The last day survives: lines of an earlier daemon are there, and where the next one began is marked."""
    for _ in range(2):
        async with open_gateway(root=tmp_path) as opened:
            await opened.ask("/wb/v1/models/a/load", {})
            await asyncio.to_thread(opened.driver._parts.journal.flush, 10)
            found = (await opened.ask("/wb/v1/journal?about=residency")).json
    events = [line["event"] for line in found["lines"]]
    assert events.count("start") == 2 and events.count("loaded") == 2 and events.index("loaded") == 0
    assert found["whole"] is True


def write_journal(path: Path, count: int, began: datetime, **fields: object) -> None:
    line = {
        "event": "load",
        "model": None,
        "device": None,
        "reason": "",
        "ms": None,
        "bytes": None,
        "request": None,
    }
    with path.open("ab") as file:
        for number in range(count):
            stamp = (
                (began + timedelta(seconds=number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            )
            file.write(json_line({"t": stamp, **line, "reason": f"number {number}", **fields}))


def test_a_search_goes_back_through_rotated_files_and_stops_at_its_bounds(tmp_path: Path) -> None:
    now = datetime(2026, 11, 17, 12, tzinfo=UTC)
    journal = tmp_path / "events.jsonl"
    write_journal(tmp_path / "events.jsonl.1", 3_000, now - timedelta(hours=20), model="old")
    write_journal(journal, 3_000, now - timedelta(hours=2), model="Ünder<script>")
    with journal.open("ab") as file:
        file.write(b'{"t":"2026-11-17T1')  # a power cut
    everything = find_lines(journal, Wanted(10_000, 24), now)
    assert len(everything.lines) == 6_000 and everything.is_whole
    assert [line["reason"] for line in everything.lines[:2]] == ["number 2999", "number 2998"]
    assert len(find_lines(journal, Wanted(10_000, 3), now).lines) == 3_000
    assert not find_lines(journal, Wanted(10, 24), now).is_whole
    for text in ("ünDER<Script>", "number 299", "OLD"):
        found = find_lines(journal, Wanted(10_000, 24, text), now).lines
        assert found and all(text.lower() in str(line).lower() for line in found)
    assert not find_lines(journal, Wanted(10, 24, '"event"'), now).lines  # values, not names
    assert not find_lines(tmp_path / "none", Wanted(10, 24), now).lines


@pytest.mark.parametrize(
    "query", ["lines=0", "lines=99999", "hours=nan", "hours=-1", "about=all", f"text={'x' * 501}"]
)
async def test_a_search_that_makes_no_sense_is_refused(opened: OpenGateway, query: str) -> None:
    assert (await opened.ask(f"/wb/v1/journal?{query}")).status == 400


async def test_the_end_of_an_engines_log_is_shown(tmp_path: Path) -> None:
    async with open_gateway(root=tmp_path) as opened:
        assert (await opened.ask("/wb/v1/models/a/log")).json == {"model": "a", "lines": []}
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "a.log").write_text("".join(f"line {n} <b>\x1b[31m\n" for n in range(300)))
        shown = (await opened.ask("/wb/v1/models/alias/of-a/log?lines=2")).json
        assert shown["lines"] == ["line 298 <b>\x1b[31m", "line 299 <b>\x1b[31m"]
        assert (await opened.ask("/wb/v1/models/nobody/log")).status == 404


async def test_poisoned_events_are_shown_and_go_back(tmp_path: Path) -> None:
    """SPOOL-03: each with its reason and content; one by one, or all."""
    async with open_gateway(root=tmp_path, catalog=SPOOLS) as opened:
        with Spool(tmp_path / "spool") as spool:
            for number in range(3):
                spool.enqueue({"n": number, "text": "<img src=x>"})
            for entry in list(entries(spool, State.QUEUE)):
                poison_named(spool, entry, "cannot be read")
        shown = (await opened.ask("/wb/v1/spools/notes/poison")).json
        assert shown["total"] == 3 and {event["reason"] for event in shown["events"]} == {"cannot be read"}
        assert json.loads(shown["events"][0]["content"])["text"] == "<img src=x>"
        one = {"event": shown["events"][0]["event"]}
        assert (await opened.ask("/wb/v1/spools/notes/requeue", one)).json["moved"] == 1
        assert (await opened.ask("/wb/v1/spools/notes/requeue", one)).status == 404
        assert (await opened.ask("/wb/v1/spools/notes/requeue", {"event": "../../x"})).status == 404
        assert (await opened.ask("/wb/v1/spools/notes/requeue", {})).json["moved"] == 2
        assert (await opened.ask("/wb/v1/spools/notes/poison")).json["total"] == 0
        assert (await opened.ask("/wb/v1/spools/none/poison")).status == 404


async def test_plans_are_there_where_the_config_has_a_fleet(tmp_path: Path) -> None:
    """FLEET-12: from the shared folder alone; without one the page has no such view."""
    async with open_gateway() as opened:
        assert (await opened.ask("/wb/v1/plans")).status == 404
        assert not (await (await watch(opened)).next())["set"]["facts"]["daemon"]["plans"]
    async with open_gateway(catalog=replace(CATALOG, fleet=FleetRules(str(tmp_path)))) as opened:
        told = (await opened.ask("/wb/v1/plans")).json
        assert told["batches"] == [] and told["agents"] == {} and told["coordinator"]["is_dead"] is True
        assert (await (await watch(opened)).next())["set"]["facts"]["daemon"]["plans"]


async def test_a_pinned_model_is_loaded_and_stays_until_it_is_unpinned() -> None:
    """RES-02 by hand: what the config would be refused for is refused here, and a reload keeps the pin."""
    large = {"ram": Bytes(2**29)}
    models = {
        "a": replace(CATALOG.models["a"], idle_ms=Millis(50)),
        **{
            name: Model(name, "peer", memory=large, group=group) for name, group in (("x", None), ("y", None))
        },
        **{name: Model(name, "peer", memory=MIB, group="one") for name in ("g1", "g2")},
    }
    async with open_gateway(catalog=replace(CATALOG, models=models)) as opened:

        def state(name: str) -> tuple[str, bool]:
            row = opened.driver.status()["models"][name]
            return row["state"], row["pinned"]

        async def pin(name: str, pinned: bool = True) -> int:
            return (await opened.ask(f"/wb/v1/models/{name}/pin", {"pinned": pinned})).status

        assert await pin("a") == 200
        await eventually(lambda: state("a") == ("ready", True))
        await opened.driver.reload(replace(CATALOG, models=models))
        assert state("a") == ("ready", True) and opened.driver.catalog.models["a"].permanent
        assert (await opened.ask("/wb/v1/models/a/evict", {})).status == 400  # permanent: only by force
        assert [await pin("x"), await pin("y")] == [200, 400]
        assert [await pin("g1"), await pin("g2")] == [200, 400]
        assert await pin("nobody") == 404
        assert await pin("a", False) == 200
        await eventually(lambda: state("a") == ("absent", False))
