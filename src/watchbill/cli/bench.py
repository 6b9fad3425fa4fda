"""`gpus --bench`: load time, tokens per second and memory bandwidth of each card, with a real model on the real engine.

The daemon does the work, as it would for any caller: the model is loaded and evicted by the operator's commands, and
the questions wait in the lane `plans`, so chat stays ahead. Models that had to leave are loaded again at the end, also
after Ctrl-C; one that was not in memory before leaves again. Standard library only.
"""

import json as jsonlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from watchbill.cli.client import DaemonRefused, quoted
from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.limits import BENCH_ROUNDS, BENCH_TOKENS, CLI_LOAD_TIMEOUT_S
from watchbill.cli.session import Session, open_session
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.errors import NotReachable, OursError, TheirsError
from watchbill.files.host import host_name
from watchbill.fleet.folder import places
from watchbill.fleet.folder.benchmarks import Benchmark, keep_benchmark
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, heartbeats
from watchbill.fleet.folder.values import Fields, fields_of
from watchbill.interrupts import raise_again
from watchbill.suggest import did_you_mean
from watchbill.units import format_bytes, format_millis

__all__ = ["BENCH_COLUMNS", "bench_cards", "bench_row"]

_PROMPT = "Count from one to two hundred in words."
_IN_MEMORY = ("ready", "draining")
#: The lane of plans: behind chat.
_ANSWERS = "/lane/plans/v1/chat/completions"

BENCH_COLUMNS = (
    Column("card"), Column("model"), Column("load", right=True), Column("first token", right=True),
    Column("tokens/s", right=True), Column("memory", right=True), Column("measured"),
)  # fmt: skip


def bench_cards(root: Path | None, *, model: str | None, json: bool, quiet: bool) -> int:
    """`gpus --bench`. Exit code 1 where a card could not be measured."""
    raise_again()  # Ctrl-C has something to clean up from here on
    session = open_session(quiet=quiet)
    folder = find_fleet(root)
    disk = FolderDisk(folder) if (folder / places.MARKER).exists() else None
    agents = heartbeats(disk) if disk is not None else {}
    bench = _Bench(session, json=json)
    found: dict[str, Benchmark] = {}
    failed: dict[str, str] = {}
    with bench.restored():
        for devices, chosen in _choose(bench.status(), agents, model).items():
            card = "+".join(devices)
            bench.tell(f"{card}: measuring with {chosen}")
            try:
                measured = bench.measure(devices, chosen)
                name = keep_benchmark(disk, measured, agents) if disk is not None else card
                found[name] = measured
            except (TheirsError, OursError) as error:
                failed[card] = str(error)
    _show(session.terminal, found, failed, json=json)
    if disk is None:
        bench.tell(f"not kept: {folder} is no shared folder of a fleet")
    return 1 if failed else 0


def _choose(status: Fields, agents: Mapping[str, Heartbeat], named: str | None) -> dict[tuple[str, ...], str]:
    """A model for each card; without cards, for the memory of the machine. Raises OursError where there is none."""
    models = status.fields("models")
    devices = [name for name in status.fields("devices").all() if name.startswith("gpu")]
    devices = devices or list(status.fields("devices").all())
    usable = {
        name: tuple(models.fields(name).mapping("devices"))
        for name in models.all()
        if models.fields(name).text("state") not in ("failed", "quarantined")
        and models.fields(name).mapping("devices")
    }
    if named is not None and named not in usable:
        raise OursError(f"there is no model {named} to measure with", hint=did_you_mean(named, list(usable)))
    own = {beat.report.model for beat in agents.values()}
    found: dict[tuple[str, ...], str] = {}
    for device in devices:
        here = [name for name, its in usable.items() if device in its and named in (None, name)]
        # The model of the card's agent, else one that is in memory, else the smallest.
        here.sort(key=lambda name: (
            name not in own, models.fields(name).text("state") not in _IN_MEMORY, models.fields(name).whole("memory"),
        ))  # fmt: skip
        if here:
            found.setdefault(usable[here[0]], here[0])
    if not found:
        raise OursError("no card has a model that could be measured", hint="add one to the config")
    return found


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer, in figures."""

    first_ms: float
    tokens: int
    streamed_s: float  # from the first token to the last


class _Bench:
    """One run, against one daemon."""

    def __init__(self, session: Session, *, json: bool) -> None:
        self._session, self._json = session, json

    def tell(self, text: str) -> None:
        if not self._json:
            self._session.terminal.note(plain(text))

    def status(self) -> Fields:
        """What the daemon says about devices and models."""
        return fields_of(self._session.client.get("/wb/v1/status"))

    @contextmanager
    def restored(self) -> Generator[None]:
        """Brings the models back into memory that were there before, and sends the others away, in any case."""
        before = self._in_memory()
        try:
            yield
        finally:
            after = self._in_memory()
            for name in [
                *(each for each in after if each not in before),
                *(n for n in before if n not in after),
            ]:
                verb = "load" if name in before else "evict"
                try:
                    self._command(name, verb)
                except (TheirsError, NotReachable) as error:
                    self._session.terminal.note(
                        plain(f"{name} was not put back: {error}; watchbill {verb} {name}")
                    )

    def _in_memory(self) -> list[str]:
        models = self.status().fields("models")
        return [name for name in models.all() if models.fields(name).text("state") in _IN_MEMORY]

    def _command(self, model: str, verb: str) -> None:
        self._session.client.post(f"/wb/v1/models/{quoted(model)}/{verb}", timeout_s=CLI_LOAD_TIMEOUT_S)

    def measure(self, devices: tuple[str, ...], model: str) -> Benchmark:
        """Load a model and ask it. Raises TheirsError where the daemon or the engine does not."""
        load_ms = self._load_ms(model)
        answers = [self._ask(model) for _ in range(BENCH_ROUNDS)]
        rates = [each.tokens / each.streamed_s for each in answers if each.tokens > 0 and each.streamed_s > 0]
        if not rates:
            raise OursError(
                f"{model} answers with fewer than two tokens; measure with another one: --model NAME"
            )
        about = self.status().fields("models").fields(model)
        size = about.whole("measured") or about.whole("memory")
        rate = median(rates)
        return Benchmark(
            host_name(), devices, model, load_ms, round(median(each.first_ms for each in answers)), round(rate, 1),
            round(rate * size), size, datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip

    def _load_ms(self, model: str) -> int | None:
        """How long a load takes, room for it included; None for a model that cannot leave now."""
        if model in self._in_memory():
            try:
                self._command(model, "evict")
            except DaemonRefused as refused:
                self.tell(f"{model} stays in memory, its load is not measured: {refused}")
                return None
        began = time.monotonic()
        self._command(model, "load")
        return round((time.monotonic() - began) * 1000)

    def _ask(self, model: str) -> _Answer:
        body = {
            "model": model, "messages": [{"role": "user", "content": _PROMPT}], "max_tokens": BENCH_TOKENS,
            "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
        }  # fmt: skip
        began, times, tokens = time.monotonic(), list[float](), 0
        with self._session.client.stream("POST", _ANSWERS, body) as lines:
            for event in _events(lines):
                said = event.items("choices")
                if said and _has_text(said[0]):
                    times.append(time.monotonic())
                tokens = event.fields("usage").whole("completion_tokens") or tokens
        if not times:
            return _Answer(0.0, 0, 0.0)
        # The first token is the end of the prompt: what follows is the rate.
        return _Answer((times[0] - began) * 1000, (tokens or len(times)) - 1, times[-1] - times[0])


def _events(lines: Iterable[str]) -> Iterator[Fields]:
    for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event = fields_of(data.encode())
        if event.mapping("error"):
            raise OursError(event.fields("error").text("message") or "the answer broke off")
        yield event


def _has_text(choice: object) -> bool:
    delta = Fields(choice).fields("delta") if isinstance(choice, dict) else Fields({})  # pyright: ignore[reportUnknownArgumentType] - JSON
    return bool(delta.text("content") or delta.text("reasoning_content"))


# ------------------------------------------------------------------ what is shown


def _show(
    terminal: Terminal, found: Mapping[str, Benchmark], failed: Mapping[str, str], *, json: bool
) -> None:
    if json:
        told = {name: each.fields() for name, each in found.items()}
        terminal.show(jsonlib.dumps({"bench": told, "failed": dict(failed)}))
        return
    if found:
        terminal.show(*terminal.table(BENCH_COLUMNS, [bench_row(name, each) for name, each in found.items()]))
    for card, why in failed.items():
        terminal.show(plain(f"{card} was not measured: {why}"))


def bench_row(name: str, found: Benchmark) -> Sequence[str]:
    """A line of the table."""
    return [
        plain(name), plain(found.model), "" if found.load_ms is None else format_millis(found.load_ms),
        format_millis(found.first_token_ms), f"{found.tokens_per_s:g}", f"{format_bytes(found.read_bytes_per_s)}/s",
        plain(found.at[:10]),
    ]  # fmt: skip
