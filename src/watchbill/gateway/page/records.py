"""Records over HTTP: lines of the journal, the ends of engines' logs, and the poisoned events of spools.

Everything here is on the disk and is read in a thread. Logs and events may hold what callers wrote, so they are for
operators; the journal is for every key, as its stream is.
"""

import asyncio
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from watchbill.catalog import SpoolRules
from watchbill.errors import NotFound, RequestError, TheirsError
from watchbill.gateway.answers import json_response
from watchbill.gateway.http.messages import Response
from watchbill.gateway.limits import LOG_SHOWN_LINES_MAX, SPOOL_EVENT_SHOWN_BYTES_MAX, SPOOL_LISTED_MAX
from watchbill.gateway.native import read_object
from watchbill.gateway.page.live import RESIDENCY
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.limits import JOURNAL_TEXT_CHARS_MAX
from watchbill.processes import Log, engine_log
from watchbill.quoting import quoted
from watchbill.runtime.history import Wanted, find_lines
from watchbill.runtime.limits import JOURNAL_FOUND_MAX, JOURNAL_SEARCHED_HOURS_MAX
from watchbill.runtime.spools import open_spool
from watchbill.spool import Entry, LeaseLost, SpoolBroken, SpoolFull, SpoolLayout, State
from watchbill.spool.by_hand import ByHand, by_hand
from watchbill.spool.names import stem_of

__all__ = ["RecordsApi", "SpoolsApi"]


class RecordsApi:
    """Serves /wb/v1/journal and the logs of models."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._searching = asyncio.Lock()  # one at a time: each reads up to 64 MiB

    async def journal(self, context: RequestContext) -> Response:
        """GET /wb/v1/journal?text=&about=&hours=&lines=: the newest lines first."""
        query, driver = context.request.query, self._services.driver
        about, text = query.get("about", ""), query.get("text", "")
        if about not in ("", "residency"):
            raise RequestError("about can only be residency; leave it out for all lines")
        if len(text) > JOURNAL_TEXT_CHARS_MAX:
            raise RequestError(f"text has more than {JOURNAL_TEXT_CHARS_MAX} characters")
        wanted = Wanted(
            round(_figure(query, "lines", 200, JOURNAL_FOUND_MAX)),
            _figure(query, "hours", 24, JOURNAL_SEARCHED_HOURS_MAX),
            text,
            RESIDENCY if about else (),
        )
        async with self._searching:
            found = await asyncio.to_thread(find_lines, driver.root / driver.catalog.journal.events, wanted)
        return json_response({"lines": found.lines, "whole": found.is_whole}, context.lines())

    async def log(self, context: RequestContext) -> Response:
        """GET /wb/v1/models/{name}/log?lines=: the last lines of its engine's log."""
        driver = self._services.driver
        name = driver.catalog.model_called(context.request.match["name"]).name
        lines = round(_figure(context.request.query, "lines", 200, LOG_SHOWN_LINES_MAX))
        tail = await asyncio.to_thread(Log(engine_log(driver.root, name), 0).read_tail, lines)
        return json_response({"model": name, "lines": tail}, context.lines())


class SpoolsApi:
    """Serves /wb/v1/spools: poisoned events, and their way back into the queue."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def poison(self, context: RequestContext) -> Response:
        """GET /wb/v1/spools/{name}/poison: the oldest poisoned events, with the reason and the beginning of each."""
        rules, root = self._rules(context), self._services.driver.root
        rows, total = await asyncio.to_thread(_poisoned, rules, root)
        return json_response({"events": rows, "total": total}, context.lines())

    async def requeue(self, context: RequestContext) -> Response:
        """POST /wb/v1/spools/{name}/requeue with {"event"?}: one poisoned event, or all of them."""
        asked = await read_object(context, self._services)
        event = asked.get("event")
        if event is not None and not isinstance(event, str):
            raise RequestError("event must be the name of one; leave it out to requeue all")
        rules, root = self._rules(context), self._services.driver.root
        moved = await asyncio.to_thread(_requeue, rules, root, event)
        said = f"{moved} event{'' if moved == 1 else 's'} of {rules.name} went back into the queue"
        return json_response({"message": said, "moved": moved}, context.lines())

    def _rules(self, context: RequestContext) -> SpoolRules:
        name = context.request.match["name"]
        rules = self._services.driver.catalog.spools.get(name)
        if rules is None:
            raise NotFound(f"the config has no spool {quoted(name)}")
        return rules


def _poisoned(rules: SpoolRules, root: Path) -> tuple[list[dict[str, object]], int]:
    with _opened(rules, root) as spool:
        found, total = spool.by_age(State.POISON, limit=SPOOL_LISTED_MAX)
        return [_event(spool, entry) for entry in found], total


def _event(spool: ByHand, entry: Entry) -> dict[str, object]:
    try:
        content = spool.show(entry)[:SPOOL_EVENT_SHOWN_BYTES_MAX].decode("utf-8", "replace")
    except SpoolLayout as error:
        content = str(error)
    said = entry.reason.get("reason")
    return {
        "event": entry.name,
        "events": entry.events,
        "attempt": entry.attempt,
        "bytes": entry.size_bytes,
        "age_ms": entry.age_ms,
        "reason": said if isinstance(said, str) else None,
        "content": content,
    }


def _requeue(rules: SpoolRules, root: Path, event: str | None) -> int:
    """Moves one, or all; returns how many. What another moved meanwhile is passed over where all are meant."""
    with _opened(rules, root) as spool:
        if event is not None:
            return _requeue_one(spool, event)
        moved = 0
        for entry in list(spool.entries(State.POISON)):
            try:
                spool.requeue(entry)
                moved += 1
            except (LeaseLost, SpoolLayout):
                continue
        return moved


def _requeue_one(spool: ByHand, event: str) -> int:
    stem = stem_of(event)
    found = [each for each in spool.beginning(stem, State.POISON) if stem_of(each.name) == stem]
    try:
        for entry in found:
            spool.requeue(entry)
    except (LeaseLost, SpoolLayout) as error:
        raise NotFound(str(error)) from error
    if not found:
        raise NotFound(f"no event {quoted(event)} is poisoned")
    return len(found)


@contextmanager
def _opened(rules: SpoolRules, root: Path) -> Generator[ByHand]:
    """The spool, for a person. Raises TheirsError where it cannot be used now."""
    try:
        with closing(open_spool(rules, root)) as spool:
            yield by_hand(spool)
    except (SpoolBroken, SpoolFull, SpoolLayout) as error:
        raise TheirsError(f"the spool {rules.name} cannot be used now: {error}") from error


def _figure(query: dict[str, str], name: str, default: float, most: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        figure = float(text)
    except ValueError:
        figure = 0.0
    if not 0 < figure <= most:
        raise RequestError(f"{name} must be a number above 0, at most {most:g}")
    return figure
