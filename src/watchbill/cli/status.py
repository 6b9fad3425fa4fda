"""The listings `status`, `models` and `requests`: the API's JSON as tables and bars.

Owns how a device, a model, a lane and a request are shown. Only reads; every field may be missing, because a daemon may
be older or newer than the command line that asks it. Imports nothing of the command-line framework: `quick` shows these
listings without it.
"""

import time
from collections.abc import Mapping
from typing import cast

from watchbill.cli.client import parse
from watchbill.cli.limits import CLI_ALERTS_SHOWN
from watchbill.cli.session import Session
from watchbill.cli.terminal import Column, Part, Terminal, plain
from watchbill.root import Root
from watchbill.units import format_bytes, format_millis

__all__ = [
    "Fields",
    "draw_alert",
    "draw_catalog",
    "draw_device",
    "draw_models",
    "draw_requests",
    "draw_status",
    "fields",
    "figure",
    "how_to_begin",
    "lane_row",
    "model_row",
    "request_row",
    "rows_of",
    "show_models",
    "show_requests",
    "show_status",
]

#: One object of the API.
Fields = Mapping[str, object]

_BAR_CELLS = 44
_LEGEND_WIDTH = 80

#: How a state is marked: sign, styles.
_STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "ready": ("●", ("green",)),
    "planned": ("◍", ("yellow",)),
    "loading": ("◐", ("yellow",)),
    "draining": ("◌", ("magenta",)),
    "stopping": ("◌", ("magenta",)),
    "asleep": ("◔", ("cyan",)),
    "absent": ("○", ("dim",)),
    "failed": ("✗", ("red",)),
    "quarantined": ("⊘", ("red",)),
}


def fields(value: object) -> Fields:
    """The value as an object's fields; none when it is no object."""
    return cast("Fields", value) if isinstance(value, dict) else {}


def rows_of(value: object, key: str) -> list[Fields]:
    """The objects of a listing, which may be a bare list or the list under `key`."""
    found = fields(value).get(key, value)
    return [fields(each) for each in cast("list[object]", found)] if isinstance(found, list) else []


def figure(value: object) -> int:
    """A number of the API; a size per device counts as its sum, a missing one as 0."""
    if isinstance(value, dict):
        return sum(figure(each) for each in cast("dict[str, object]", value).values())
    return int(value) if isinstance(value, int | float) else 0


def show_status(session: Session, *, json: bool) -> None:
    """Devices, models and lanes."""
    content = session.client.get("/wb/v1/status")
    if json:
        session.terminal.show_json(content)
        return
    lines = draw_status(fields(parse(content)), session.client.url, session.root, session.terminal)
    session.terminal.show(*lines)


def show_models(session: Session, *, json: bool) -> None:
    """The models that can be asked for."""
    content = session.client.get("/v1/models")
    if json:
        session.terminal.show_json(content)
        return
    models = fields(fields(session.client.get_json("/wb/v1/status")).get("models"))
    listed = rows_of(parse(content), "data")
    session.terminal.show(*draw_catalog(listed, models, session.root, session.terminal))


def show_requests(session: Session, *, json: bool) -> None:
    """Every open request."""
    content = session.client.get("/wb/v1/requests")
    if json:
        session.terminal.show_json(content)
        return
    session.terminal.show(*draw_requests(rows_of(parse(content), "requests"), session.terminal))


def draw_status(status: Fields, address: str, root: Root, terminal: Terminal) -> list[str]:
    """Devices, models and lanes."""
    devices, models, lanes = (fields(status.get(part)) for part in ("devices", "models", "lanes"))
    lines = [_headline(status, models, lanes, address, terminal)]
    if doubt := status.get("policy_doubt"):
        policy = f"policy: {plain(status.get('policy'))}, for now turns because {plain(doubt)}"
        lines.append(terminal.mark(policy, "yellow"))
    claimed = fields(status.get("maintenance"))
    loans = {id: fields(loan) for id, loan in fields(status.get("loans")).items()}
    for name, device in devices.items():
        lines += ["", *draw_device(plain(name), fields(device), terminal)]
        lines += _draw_troubles(fields(device), fields(claimed.get(name)), terminal)
        for id, loan in loans.items():
            lines += _draw_loan(id, loan, terminal) if loan.get("device") == name else []
    if unused := fields(status.get("unused_cards")):
        told = f"{plain(unused.get('cards'))} is not used: {plain(unused.get('why'))}; mend it with:"
        lines += ["", *(terminal.mark(line, "yellow") for line in terminal.wrapped(told, 0))]
        lines.append(f"  {plain(unused.get('mend'))}")  # whole, on one line: it is there to be pasted
    lines += ["", *draw_models(models, root, terminal), "", *_draw_lanes(lanes, terminal)]
    if tiers := fields(status.get("tiers")):
        lines += ["", *_draw_tiers(tiers, terminal)]
    if programs := fields(status.get("programs")):
        lines += ["", *_draw_programs(programs, terminal)]
    if spools := fields(status.get("spools")):
        lines += ["", *_draw_spools(spools, terminal)]
    if told := _tell_batches(fields(status.get("batches"))):
        lines += ["", terminal.mark(told, "yellow") if fields(status.get("batches")).get("paused") else told]
    if turns := _draw_turns(status):
        lines += ["", *turns]
    if alerts := rows_of(status.get("alerts"), "alerts"):
        lines += ["", *_draw_alerts(alerts, terminal)]
    return lines


def _draw_turns(status: Fields) -> list[str]:
    """When rotation and ingestion windows come next."""
    rotation, lines = fields(status.get("rotation")), list[str]()
    if interval := figure(rotation.get("interval_ms")):
        told = f"rotation: every {format_millis(interval)}"
        if running := rotation.get("running"):
            told += f", {plain(running)} has its turn now"
        if (model := rotation.get("next_model")) and rotation.get("next_ms") is not None:
            told += f"; next: {plain(model)} in {format_millis(figure(rotation.get('next_ms')))}"
        lines.append(told)
    for name, epoch in fields(status.get("epochs")).items():
        window = fields(epoch)
        if window.get("open"):
            lines.append(f"epoch {plain(name)}: open for {format_millis(figure(window.get('ends_ms')))}")
        elif window.get("next_ms") is not None:
            lines.append(f"epoch {plain(name)}: opens in {format_millis(figure(window.get('next_ms')))}")
    return lines


def _draw_tiers(tiers: Fields, terminal: Terminal) -> list[str]:
    """One line per tier, and one below it for a reason."""
    columns = [
        Column("TIER"), Column("KIND", spare=1), Column("STATE"), Column("RUNNING", right=True, spare=3),
        Column("QUEUED", right=True, spare=2), Column("TODAY", right=True), Column("DAILY", right=True, spare=4),
    ]  # fmt: skip
    rows = [_tier_row(plain(name), fields(tier)) for name, tier in tiers.items()]
    head, *drawn = terminal.table(columns, rows)
    lines = [terminal.mark(head, "bold")]
    for line, tier in zip(drawn, tiers.values(), strict=True):
        lines.append(line)
        if reason := plain(fields(tier).get("barred") or fields(tier).get("reason") or ""):
            lines += [terminal.mark(each, "dim") for each in terminal.wrapped(reason, 4)]
    return lines


#: Of a tier with several models in several states the first of these is shown.
_TIER_STATES = ("ready", "draining", "loading", "planned", "stopping", "quarantined", "failed")


def _tier_row(name: str, tier: Fields) -> list[str]:
    states = {str(state) for state in fields(tier.get("models")).values()}
    state = next((each for each in _TIER_STATES if each in states), "absent")
    if not tier.get("enabled"):
        state = "off"
    elif tier.get("closed"):
        state = "closed"
    daily = tier.get("daily")
    spent = tier.get("spent_today")
    return [
        name,
        plain(tier.get("tier") or ""),
        state,
        str(figure(tier.get("in_flight"))),
        str(figure(tier.get("queued"))),
        f"{spent:.4f}" if isinstance(spent, int | float) else "-",
        f"{daily:g}" if isinstance(daily, int | float) else "-",
    ]


def _draw_alerts(alerts: list[Fields], terminal: Terminal) -> list[str]:
    """The newest alerts, with the time of the day."""
    lines = [terminal.mark("recent alerts", "bold")]
    for alert in alerts[:CLI_ALERTS_SHOWN]:
        lines += draw_alert(alert, terminal)
    return lines


def draw_alert(alert: Fields, terminal: Terminal) -> list[str]:
    """An alert, with the time of the day."""
    at = alert.get("t")
    clock = time.strftime("%H:%M:%S", time.localtime(at)) if isinstance(at, int | float) else "?"
    text = f"{clock}  {plain(alert.get('kind') or '')}: {plain(alert.get('text') or '')}"
    return [terminal.mark(each, "yellow") for each in terminal.wrapped(text, 2)]


def how_to_begin(root: Root) -> str:
    """What to do without any model."""
    fetch, begin = root.command("pull", "qwen2.5:0.5b"), root.command("config", "init")
    return f"no models; fetch one with: {fetch}, or name one in watchbill.toml ({begin} writes one to start from)"


def draw_models(models: Fields, root: Root, terminal: Terminal) -> list[str]:
    """One line per model, and one below it for a reason."""
    if not models:
        return [how_to_begin(root)]
    columns = [
        Column("MODEL"), Column("STATE"), Column("MEMORY", right=True), Column("MEASURED", right=True, spare=2),
        Column("RUNNING", right=True, spare=1), Column("QUEUED", right=True), Column("LOADS", right=True, spare=3),
        Column("EVICTED", right=True, spare=4),
    ]  # fmt: skip
    rows = [model_row(plain(name), fields(model)) for name, model in models.items()]
    head, *drawn = terminal.table(columns, rows)
    lines = [terminal.mark(head, "bold")]
    for line, model in zip(drawn, models.values(), strict=True):
        lines.append(_coloured(line, fields(model), terminal))
        for told in _told_of(fields(model)):
            lines += [terminal.mark(each, "dim") for each in terminal.wrapped(told, 4)]
    return lines


def _told_of(model: Fields) -> list[str]:
    """Who else has to do with a model, and a reason."""
    peer, site, reason = (plain(model.get(part) or "") for part in ("leased", "site", "reason"))
    tier = plain(model.get("tier") or "")
    where = f"served by {site}" if tier == "peer" else f"served by the {tier} tier {site}"
    return [*([f"leased: {peer}"] if peer else []), *([where] if site else []), *([reason] if reason else [])]


def draw_catalog(listed: list[Fields], models: Fields, root: Root, terminal: Terminal) -> list[str]:
    """One line per model that can be asked for, with the names it answers to."""
    if not listed:
        return [how_to_begin(root)]
    columns = [
        Column("MODEL"), Column("STATE"), Column("MEMORY", right=True), Column("CONTEXT", right=True),
        Column("ALSO CALLED"),
    ]  # fmt: skip
    states = [fields(models.get(str(each.get("id")))) for each in listed]
    rows = [_catalog_row(each, model) for each, model in zip(listed, states, strict=True)]
    head, *drawn = terminal.table(columns, rows)
    coloured = [_coloured(line, model, terminal) for line, model in zip(drawn, states, strict=True)]
    return [terminal.mark(head, "bold"), *coloured]


def draw_requests(requests: list[Fields], terminal: Terminal) -> list[str]:
    """One line per open request."""
    if not requests:
        return ["no open requests"]
    columns = [
        Column("REQUEST"), Column("MODEL"), Column("LANE", spare=2), Column("STATE"),
        Column("PLACE", right=True, spare=1), Column("WAITED", right=True, spare=3), Column("STARTS IN", right=True),
    ]  # fmt: skip
    rows = [request_row(request) for request in requests]
    head, *drawn = terminal.table(columns, rows)
    lines = [terminal.mark(head, "bold")]
    for line, request in zip(drawn, requests, strict=True):
        lines.append(line)
        if reason := plain(request.get("reason") or ""):
            lines += [terminal.mark(each, "dim") for each in terminal.wrapped(reason, 4)]
    return lines


def _headline(status: Fields, models: Fields, lanes: Fields, address: str, terminal: Terminal) -> str:
    loaded = sum(1 for model in models.values() if fields(model).get("state") == "ready")
    queued = sum(figure(fields(lane).get("queued")) for lane in lanes.values())
    version = plain(status.get("version") or "")
    told = f"{loaded} of {len(models)} models ready, {queued} requests waiting"
    name = f"watchbill {version}".strip()
    line = f"{terminal.mark(name, 'bold')} at {address}:"
    if terminal.width is not None and len(f"{name} at {address}: {told}") > terminal.width:
        return "\n".join([line, *terminal.wrapped(told, 8)])
    return f"{line} {told}"


def draw_device(name: str, device: Fields, terminal: Terminal) -> list[str]:
    """A device's memory as a bar, and the bar's legend."""
    capacity, reserve = figure(device.get("capacity")), figure(device.get("reserve"))
    loading, stopping = figure(device.get("loading")), figure(device.get("stopping"))
    used, lent = figure(device.get("used")) + figure(device.get("asleep")), figure(device.get("lent"))
    budget = figure(device.get("budget")) or capacity - reserve - lent
    parts = [
        Part(used, "█", "green"), Part(loading, "▓", "yellow"), Part(stopping, "▒", "magenta"),
        Part(lent, "▚", "cyan"), Part(max(budget - used - loading - stopping, 0), "·", "dim"),
        Part(max(capacity - budget - lent, 0), "░", "blue"),
    ]  # fmt: skip
    told = f"{format_bytes(used + loading + stopping)} of {format_bytes(budget)}"
    planned = figure(device.get("planned"))
    promised = f"{format_bytes(planned)} promised to models that load next"
    room = _BAR_CELLS if terminal.width is None else terminal.width - len(f"{name.ljust(7)}   {told}")
    return [
        f"{terminal.mark(name.ljust(7), 'bold')} {terminal.bar(parts, max(8, min(_BAR_CELLS, room)))}  {told}",
        *_legend(parts, figure(device.get("available")), terminal),
        *(terminal.wrapped(promised, 8) if planned else []),
    ]


def _draw_loan(id: str, loan: Fields, terminal: Terminal) -> list[str]:
    """One loan: how much of it is used, what it is for, and who holds it."""
    used, memory = format_bytes(figure(loan.get("used"))), format_bytes(figure(loan.get("memory")))
    pid = loan.get("pid")
    holder = f", process {figure(pid)}" if pid is not None else ""
    told = f"{memory} lent, {used} of it used" if loan.get("granted") else f"{memory} promised"
    told += f": {plain(loan.get('why') or '')}{holder} ({plain(id)})"
    return [terminal.mark(line, "yellow") for line in terminal.wrapped(told, 8)]


def _draw_troubles(device: Fields, claim: Fields, terminal: Terminal) -> list[str]:
    """Why nothing is loaded there now."""
    told: list[str] = []
    if claim:
        told.append(f"in maintenance: {plain(claim.get('why') or '')}")
    if limit := device.get("constrained"):
        told.append(f"nothing new is loaded: {plain(limit)}")
    return [terminal.mark(line, "yellow") for text in told for line in terminal.wrapped(text, 8)]


def _legend(parts: list[Part], available: int, terminal: Terminal) -> list[str]:
    names = ("used", "loading", "stopping", "lent", "free", "reserve")
    told = [
        (f"{part.cell} {name} {format_bytes(part.amount)}", part)
        for name, part in zip(names, parts, strict=True)
        if part.amount or name in {"used", "free"}
    ]
    lines, width = list[str](), 0
    for text, part in told:
        shown = terminal.mark(part.cell, part.style) + text[1:]
        if lines and width + 2 + len(text) <= min(terminal.width or _LEGEND_WIDTH, _LEGEND_WIDTH):
            lines[-1] += f"  {shown}"
            width += 2 + len(text)
        else:
            lines.append(f"        {shown}")
            width = 8 + len(text)
    last = f"{format_bytes(available)} available on the machine"
    if width + 2 + len(last) <= min(terminal.width or _LEGEND_WIDTH, _LEGEND_WIDTH):
        return [*lines[:-1], f"{lines[-1]}  {last}"]
    return [*lines, f"        {last}"]


def model_row(name: str, model: Fields) -> list[str]:
    """A model in the columns of a table."""
    state = str(model.get("state") or "?")
    sign = _STATES.get(state, ("?", ()))[0]
    predicted, measured = figure(model.get("memory")), figure(model.get("measured"))
    counts = [str(figure(model.get(key))) for key in ("in_flight", "queued", "loads", "evictions")]
    return [
        name, f"{sign} {plain(state)}", format_bytes(predicted) if predicted else "?",
        format_bytes(measured) if measured else "-", *counts,
    ]  # fmt: skip


def _catalog_row(listed: Fields, model: Fields) -> list[str]:
    name, state, memory, *_ = model_row(plain(listed.get("id") or "?"), model)
    context = figure(fields(listed.get("meta")).get("n_ctx"))
    aliases = listed.get("aliases")
    called = (
        ", ".join(plain(alias) for alias in cast("list[object]", aliases))
        if isinstance(aliases, list)
        else ""
    )
    return [name, state, memory, str(context) if context else "-", called or "-"]


def _coloured(line: str, model: Fields, terminal: Terminal) -> str:
    """The row with its state in colour. The state follows the name, so it is the first match from the sign on."""
    state = str(model.get("state") or "?")
    sign, styles = _STATES.get(state, ("?", ()))
    before, found, after = line.partition(f"{sign} {plain(state)}")
    return before + terminal.mark(found, *styles) + after


def _draw_lanes(lanes: Fields, terminal: Terminal) -> list[str]:
    columns = [Column("LANE"), *(Column(title, right=True) for title in ("QUEUED", "RUNNING", "OLDEST WAIT"))]
    rows = [lane_row(plain(name), fields(lane)) for name, lane in lanes.items()]
    head, *drawn = terminal.table(columns, rows)
    return [terminal.mark(head, "bold"), *drawn]


def lane_row(name: str, lane: Fields) -> list[str]:
    """A lane in the columns of a table."""
    oldest = figure(lane.get("oldest_wait_ms"))
    counts = [str(figure(lane.get(key))) for key in ("queued", "running")]
    return [name, *counts, format_millis(oldest) if oldest else "-"]


def _draw_programs(programs: Fields, terminal: Terminal) -> list[str]:
    """The programs beside the daemon: coordinator and agents."""
    rows, ends = list[list[str]](), list[str]()
    for name, each in programs.items():
        told = fields(each)
        pid, end = told.get("pid"), plain(told.get("last_end") or "")
        state = "down" if pid is None else f"pid {figure(pid)}"
        rows.append([plain(name), state, str(figure(told.get("starts")))])
        ends.append("" if pid is not None else end)
    head, *drawn = terminal.table([Column("PROGRAM"), Column("STATE"), Column("STARTS", right=True)], rows)
    lines = [terminal.mark(head, "bold")]
    for line, end in zip(drawn, ends, strict=True):
        lines += [line, *(terminal.mark(each, "yellow") for each in terminal.wrapped(end, 4) if end)]
    return lines


def _tell_batches(batches: Fields) -> str:
    """One line while there is any work; nothing otherwise."""
    if not figure(batches.get("open")):
        return ""
    waiting, running = figure(batches.get("waiting")), figure(batches.get("running"))
    told = f"batches: {figure(batches.get('open'))} open, {waiting} lines wait, {running} are asked"
    paused = batches.get("paused")
    return f"{told}; paused: {plain(paused).replace('_', ' ')}" if paused else told


def _draw_spools(spools: Fields, terminal: Terminal) -> list[str]:
    """One line per spool, and one below it for problems of the disk or of an event."""
    titles = ("WAITING", "LEASED", "POISON", "DRAINED", "CAPTURED")
    spare = {"LEASED": 1, "DRAINED": 2, "CAPTURED": 3}
    keys = ("waiting", "leased", "poison", "appended", "capture_stored")
    columns = [Column("SPOOL"), *(Column(title, right=True, spare=spare.get(title, 0)) for title in titles)]
    rows = [
        [plain(name), *(str(figure(fields(each).get(key))) for key in keys)] for name, each in spools.items()
    ]
    head, *drawn = terminal.table(columns, rows)
    lines = [terminal.mark(head, "bold")]
    for line, each in zip(drawn, map(fields, spools.values()), strict=True):
        lines.append(terminal.mark(line, "red") if figure(each.get("poison")) else line)
        if complaint := plain(each.get("complaint") or ""):
            lines += [terminal.mark(text, "yellow") for text in terminal.wrapped(complaint, 4)]
        if dropped := figure(each.get("capture_dropped")):
            lines.append(terminal.mark(f"    {dropped} captured requests were dropped", "yellow"))
    return lines


def request_row(request: Fields) -> list[str]:
    """A request in the columns of a table."""
    waited, position = request.get("waited_ms"), request.get("position")
    forecast = request.get("starts_in_ms")
    return [
        *(plain(request.get(key) or "-") for key in ("id", "model", "lane", "state")),
        str(figure(position)) if position is not None else "-",
        format_millis(figure(waited)) if waited is not None else "-",
        format_millis(figure(forecast)) if forecast is not None else "-",
    ]
