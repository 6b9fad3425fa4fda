"""What `watch` shows: the daemon's state as one screen of lines. Does no I/O.

Above: memory of each device. In the middle one of five panes, of which models and requests have a selected row. Below:
the newest alert, and what the keys do. Every field may be missing, as for the other listings.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from watchbill.cli.explain import draw_event
from watchbill.cli.keyboard import cut
from watchbill.cli.status import (
    Fields,
    draw_alert,
    draw_device,
    fields,
    figure,
    lane_row,
    model_row,
    request_row,
    rows_of,
)
from watchbill.cli.terminal import Column, Terminal, plain

__all__ = ["HELP", "Pane", "Picture", "View", "draw_screen"]

_STALE_S = 5.0
_JOURNAL_BELOW = 3
#: From this height on the journal's last lines stand below the other panes.
_TALL = 24

HELP = (
    "Keys",
    "  1 to 5, Tab      models, requests, lanes, alerts, journal",
    "  arrows, j k      choose a row; Page Up, Page Down, Home, End",
    "  Enter or x       explain the model or request: what it waits for, and why",
    "  l                load the model",
    "  e                evict the model: its requests end first",
    "  p                pin the model, or unpin it: a pinned one stays in memory",
    "  c                cancel the request",
    "  q                leave",
)


#: The order of models by their state; those of other states follow.
_RANKS = {
    state: rank
    for rank, state in enumerate(("ready", "loading", "draining", "stopping", "planned", "asleep"))
}


class Pane(StrEnum):
    """What the middle of the screen shows."""

    MODELS = "models"
    REQUESTS = "requests"
    LANES = "lanes"
    ALERTS = "alerts"
    JOURNAL = "journal"


@dataclass(frozen=True, slots=True)
class Picture:
    """The daemon at one moment."""

    status: Fields = field(default_factory=dict[str, object])
    requests: tuple[Fields, ...] = ()
    journal: tuple[Fields, ...] = ()  # the newest first
    at: float = 0.0  # monotonic; 0: nothing was seen yet
    failure: str = ""  # why nothing newer is there

    @property
    def models(self) -> dict[str, Fields]:
        """Models by name: those in memory, or on their way, before others. Each group in the config's order."""
        found = {name: fields(model) for name, model in fields(self.status.get("models")).items()}
        return dict(
            sorted(found.items(), key=lambda each: _RANKS.get(str(each[1].get("state")), len(_RANKS)))
        )

    def rows(self, pane: Pane) -> list[str]:
        """The names of a pane's rows that can be chosen."""
        if pane is Pane.MODELS:
            return list(self.models)
        return [str(each.get("id")) for each in self.requests] if pane is Pane.REQUESTS else []


@dataclass(slots=True)
class View:
    """What the person chose."""

    pane: Pane = Pane.MODELS
    chosen: dict[Pane, str] = field(default_factory=dict[Pane, str])  # row by its name: rows come and go
    message: str = ""
    page: Sequence[str] = ()  # a text over the pane: an explanation, or the keys
    top: int = 0  # first line of that text, of the alerts or of the journal
    question: str = ""  # what y would do

    def place(self, picture: Picture) -> int:
        """Where the chosen row is now; the first one where it is gone."""
        rows = picture.rows(self.pane)
        return rows.index(self.chosen[self.pane]) if self.chosen.get(self.pane) in rows else 0

    def name(self, picture: Picture) -> str | None:
        """The chosen row; None where there is none."""
        rows = picture.rows(self.pane)
        return rows[self.place(picture)] if rows else None


def draw_screen(picture: Picture, view: View, address: str, terminal: Terminal, height: int) -> list[str]:
    """Exactly `height` lines, each within the terminal's width."""
    width = terminal.width or 80
    above = [_headline(picture, address, terminal), *_devices(picture, terminal, height // 3), ""]
    below = _below(picture, view, terminal, height)
    room = max(1, height - len(above) - len(below) - 1)
    body = [*view.page][view.top :] if view.page else _pane(picture, view, terminal, room)
    tabs = _tabs(picture, view, terminal)
    shown = [*above, tabs, *body[:room], *[""] * (room - len(body)), *below]
    return [cut(line, width) for line in shown[:height]]


def _headline(picture: Picture, address: str, terminal: Terminal) -> str:
    models, lanes = fields(picture.status.get("models")), fields(picture.status.get("lanes"))
    ready = sum(fields(model).get("state") == "ready" for model in models.values())
    waiting = sum(figure(fields(lane).get("queued")) for lane in lanes.values())
    told = f"{terminal.mark('watchbill', 'bold')}  {ready} of {len(models)} models ready, {waiting} waiting"
    if picture.failure and time.monotonic() - picture.at > _STALE_S:
        return f"{terminal.mark('watchbill', 'bold')}  {terminal.mark(plain(picture.failure), 'red')}"
    return f"{told}  {terminal.mark(address, 'dim')}"


def _devices(picture: Picture, terminal: Terminal, lines_max: int) -> list[str]:
    """The bar of each device; with its legend while there is room."""
    drawn = [
        draw_device(plain(name), fields(device), terminal)
        for name, device in fields(picture.status.get("devices")).items()
    ]
    if sum(map(len, drawn)) > lines_max:
        drawn = [lines[:1] for lines in drawn]
    return [line for lines in drawn for line in lines][: max(1, lines_max)]


def _tabs(picture: Picture, view: View, terminal: Terminal) -> str:
    counts: Mapping[Pane, int] = {
        Pane.MODELS: len(picture.rows(Pane.MODELS)), Pane.REQUESTS: len(picture.requests),
        Pane.LANES: len(fields(picture.status.get("lanes"))), Pane.ALERTS: len(_alerts(picture)),
        Pane.JOURNAL: len(picture.journal),
    }  # fmt: skip
    return "  ".join(
        terminal.mark(text, "reverse") if pane is view.pane else text
        for number, pane in enumerate(Pane, start=1)
        for text in [f" {number} {pane.value} {counts[pane]} "]
    )


def _below(picture: Picture, view: View, terminal: Terminal, height: int) -> list[str]:
    lines: list[str] = []
    if height >= _TALL and view.pane is not Pane.JOURNAL and not view.page:
        lines += ["", *(draw_event(each, terminal) for each in reversed(picture.journal[:_JOURNAL_BELOW]))]
    if (alerts := _alerts(picture)) and view.pane is not Pane.ALERTS:
        lines.append(terminal.mark("".join(draw_alert(alerts[0], terminal)[:1]).strip(), "yellow"))
    said = view.question or view.message
    lines.append(terminal.mark(plain(said), "bold") if said else "")
    keys = "y yes  any other key no" if view.question else _keys(view)
    return [*lines, terminal.mark(keys, "dim")]


def _keys(view: View) -> str:
    if view.page:
        return "arrows scroll  Esc back  q leave"
    own = {Pane.MODELS: "l load  e evict  p pin  x explain  ", Pane.REQUESTS: "c cancel  x explain  "}
    return f"{own.get(view.pane, '')}Tab next  ? keys  q leave"


def _alerts(picture: Picture) -> list[Fields]:
    return rows_of(picture.status.get("alerts"), "alerts")


def _pane(picture: Picture, view: View, terminal: Terminal, room: int) -> list[str]:
    if view.pane is Pane.MODELS:
        return _models(picture, view, terminal, room)
    if view.pane is Pane.REQUESTS:
        return _requests(picture, view, terminal, room)
    if view.pane is Pane.LANES:
        return _lanes(picture, terminal)
    if view.pane is Pane.ALERTS:
        return [line for each in _alerts(picture)[view.top :] for line in draw_alert(each, terminal)] or [
            "no alerts"
        ]
    return [draw_event(each, terminal) for each in picture.journal[view.top :]] or ["the journal is empty"]


def _models(picture: Picture, view: View, terminal: Terminal, room: int) -> list[str]:
    columns = [
        Column("MODEL"), Column("STATE"), Column("MEMORY", right=True), Column("MEASURED", right=True, spare=3),
        Column("RUNNING", right=True, spare=1), Column("QUEUED", right=True), Column("LOADS", right=True, spare=4),
        Column("EVICTED", right=True, spare=5), Column("", spare=2),
    ]  # fmt: skip
    models = picture.models
    rows = [[*model_row(plain(name), each), _stays(each)] for name, each in models.items()]
    reasons = [plain(each.get("reason") or "") for each in models.values()]
    return _chosen_in(terminal.table(columns, rows), reasons, view.place(picture), terminal, room)


def _stays(model: Fields) -> str:
    return "pinned" if model.get("pinned") else "permanent" if model.get("permanent") else ""


def _requests(picture: Picture, view: View, terminal: Terminal, room: int) -> list[str]:
    if not picture.requests:
        return ["no open requests"]
    columns = [
        Column("REQUEST"), Column("MODEL"), Column("LANE", spare=2), Column("STATE"),
        Column("PLACE", right=True, spare=1), Column("WAITED", right=True, spare=3), Column("STARTS IN", right=True),
    ]  # fmt: skip
    reasons = [plain(each.get("reason") or "") for each in picture.requests]
    drawn = terminal.table(columns, [request_row(each) for each in picture.requests])
    return _chosen_in(drawn, reasons, view.place(picture), terminal, room)


def _chosen_in(table: list[str], reasons: list[str], place: int, terminal: Terminal, room: int) -> list[str]:
    """The table with the chosen row marked, its reason below it, and as much around it as there is room for."""
    head, *rows = table
    if not rows:
        return [head]
    reason = terminal.wrapped(reasons[place], 4) if reasons[place] else []
    shown = max(1, room - 1 - len(reason))
    first = max(0, min(place - shown // 2, len(rows) - shown))
    lines = [terminal.mark(head, "bold")]
    for at, row in list(enumerate(rows))[first : first + shown]:
        lines.append(terminal.mark(f"{row} ", "reverse") if at == place else row)
        lines += [terminal.mark(line, "dim") for line in reason] if at == place else []
    return lines


def _lanes(picture: Picture, terminal: Terminal) -> list[str]:
    titles = ("QUEUED", "RUNNING", "OLDEST WAIT")
    columns = [Column("LANE"), *(Column(title, right=True) for title in titles)]
    lanes = fields(picture.status.get("lanes"))
    head, *rows = terminal.table(
        columns, [lane_row(plain(name), fields(lane)) for name, lane in lanes.items()]
    )
    return [terminal.mark(head, "bold"), *rows]
