"""The host daemon: the one ledger of an agent's device, and how the agent asks it.

An agent is a client of a daemon on its own machine: the one that `up` runs on its root, else a private one that the
agent starts and ends. Memory for tasks is a loan, a model is loaded and evicted through /wb/v1 like by hand, and tasks
ask models at the agent's own door. So chat, models and tasks of one card share one ledger.

`HostMemory` keeps the last known state of the device and never lets the agent wait for it. A daemon that does not
answer means a device without memory to lend: nothing is claimed that needs it until the daemon is back. Loans that a
daemon lost in a restart are asked for again.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from urllib.parse import quote

from watchbill.catalog import PLANS_LANE
from watchbill.engines.base import Endpoint, endpoint_of
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed
from watchbill.errors import NotReachable, OursError
from watchbill.fleet import limits
from watchbill.fleet.agent.memory import BUDGET_SHARE, DeviceState
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.claiming import Health
from watchbill.limits import SAID_CHARS_MAX
from watchbill.processes.attached import Bound, spawn_bound
from watchbill.processes.device_lock import HostLock, LockHeld, locks_folder
from watchbill.quoting import quoted
from watchbill.root import Root
from watchbill.runtime import limits as runtime_limits

__all__ = ["HostMemory", "PrivateDaemon", "find_host"]

_LOG = Part.AGENT.logger
_MIB = 2**20
_JSON = {"Content-Type": "application/json"}


# ------------------------------------------------------------------ which daemon


def find_host(root: Root) -> str | None:
    """The address of the daemon that runs on this root; None where none does."""
    record = root.read_daemon()
    return record.url if record is not None and record.url and record.is_alive() else None


class PrivateDaemon:
    """A daemon of the agent's own, for a machine on which none runs."""

    def __init__(self, root: Root, config: Path | None, devices: tuple[str, ...], *, has_model: bool) -> None:
        """It has the agent's devices and no other cards: the next agent of this machine needs those for its own.
        Without a config and a model no model is fetched; the machine may have no network."""
        self._root, self._config = root, config
        self._devices, self._has_model = devices, has_model
        self._process: Bound | None = None

    async def start(self) -> str:
        """Starts it and returns its address. Raises OursError when it does not come up in time."""
        self._root.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._root.path / "private-daemon.log"
        chosen = ["--config", str(self._config)] if self._config is not None else []
        argv = [
            sys.executable,
            "-m",
            "watchbill",
            "up",
            "--port",
            "0",
            "--root",
            str(self._root.path),
            "--no-fleet",  # the config may name agents and a coordinator, which are started by hand as this one is
            "--cards",
            ",".join(self._devices) or "ram",
            *([] if self._has_model else ["--no-fetch"]),
            *chosen,
        ]
        self._process = spawn_bound(argv, log)
        deadline = time.monotonic() + limits.HOST_START_MS_MAX / 1000
        while time.monotonic() < deadline:
            if (url := find_host(self._root)) is not None:
                return url
            if self._process.poll() is not None:
                raise OursError(
                    f"the private daemon of this agent does not start: {_last_line_of(log)}; its log is {log}"
                )
            await asyncio.sleep(limits.HOST_LOOK_MS / 1000)
        raise OursError(f"the private daemon of this agent is not ready in time; its log is {log}")

    async def stop(self) -> None:
        """Ends it, and what it started with it. Waits until it is gone, within a bound."""
        if self._process is None:
            return
        self._process.terminate()
        deadline = time.monotonic() + limits.HOST_STOP_MS_MAX / 1000
        while self._process.poll() is None:
            if time.monotonic() >= deadline:
                _LOG.error("the private daemon %s does not end", self._process.pid)
                break
            await asyncio.sleep(limits.HOST_LOOK_MS / 1000)
        self._process = None


def _last_line_of(log: Path) -> str:
    """What a process said last, for people."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        return quoted(lines[-1].removeprefix("watchbill: "), SAID_CHARS_MAX) if lines else "it said nothing"
    return "it said nothing"


# ------------------------------------------------------------------ the device


@dataclass(slots=True)
class _Lent:
    """What is lent for one task: of a pair of cards the same amount on each, because it may be used on either."""

    ids: tuple[str, ...]  # of the loans, one per card
    vram_mb: int
    peak_mb: int = 0
    user: int = 0  # the first process of the task


class HostMemory:
    """One device of the host daemon, as the agent's `Memory`."""

    def __init__(
        self,
        url: str,
        devices: tuple[str, ...],
        agent: str,
        *,
        model: str = "",
        port: int = 0,
        llm_slots: int = 1,
        key: str = "",
    ) -> None:
        self._endpoint: Endpoint = endpoint_of(url)
        self._devices, self._agent, self._model = devices, agent, model
        self._port, self._llm_slots = port, llm_slots
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = Upstream()
        self._lent: dict[str, _Lent] = {}
        self._door_url = ""
        self._task: asyncio.Task[None] | None = None
        self.state = DeviceState()

    async def open(self) -> None:
        """Opens the agent's door and takes the first look.

        Raises NotReachable when the daemon does not answer, and OursError for a device that it does not have.
        """
        self._refuse_unknown((await self._ask("GET", "/wb/v1/status")).mapping("devices"))
        await self.look()
        self._task = asyncio.create_task(self._look_often(), name="host")

    def _refuse_unknown(self, known: Mapping[str, object]) -> None:
        missing = [name for name in self._devices if name not in known]
        if missing:
            raise OursError(
                f"this machine has no device {missing[0]}; it has {', '.join(known) or 'none'}",
                hint="name one of them with --device, or leave it out",
            )

    async def _open_door(self) -> None:
        door = await self._ask(
            "POST",
            "/wb/v1/doors",
            {
                "name": self._agent,
                "port": self._port,
                "lane": PLANS_LANE.name,
                **({"model": self._model} if self._model else {}),
            },
        )
        self._door_url = f"http://{self._endpoint.host}:{door.whole('port')}"

    async def close(self) -> None:
        """Gives every loan back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for loan in list(self._lent):
            await self.give_back(loan)
        await self._client.close()

    # ------------------------------------------------------------ loans

    async def borrow(self, loan: str, vram_mb: int) -> bool:
        """Ask for memory; False where there is none now, or the daemon does not answer."""
        if not self._devices:
            return False
        ids: list[str] = []
        asked = {
            "memory": vram_mb * _MIB, "for": loan[: runtime_limits.CLAIM_REASON_CHARS_MAX], "pid": os.getpid(),
        }  # fmt: skip
        for device in self._devices:
            try:
                lent = await self._ask(
                    "POST", "/wb/v1/loans", asked | {"device": device}, limits.HOST_LOAN_MS_MAX
                )
            except (NotReachable, OursError) as error:
                _LOG.info("no memory for %s: %s", loan, error)
                await self._return(ids)
                return False
            ids.append(lent.text("id"))
        self._lent[loan] = _Lent(tuple(ids), vram_mb)
        return True

    async def _return(self, ids: Iterable[str]) -> int:
        """Give loans back; the answer is the highest peak of them in MiB."""
        peak_mb = 0
        for each in ids:
            try:
                ended = await self._ask("DELETE", f"/wb/v1/loans/{each}")
                peak_mb = max(peak_mb, _whole_mb(ended.whole("peak")))
            except (NotReachable, OursError) as error:
                _LOG.warning("a loan was not given back: %s; it ends with this agent", error)
        return peak_mb

    async def used_by(self, loan: str, pid: int) -> None:
        """Tell which process tree uses a loan: its peak is measured."""
        lent = self._lent.get(loan)
        if lent is None:
            return
        lent.user = pid
        try:
            for each in lent.ids:
                await self._ask("POST", f"/wb/v1/loans/{each}/renew", {"user": pid})
        except (NotReachable, OursError) as error:
            _LOG.info("the memory of %s is not measured: %s", loan, error)

    def peak_mb(self, loan: str) -> int:
        """The most that a running task was seen to use, in MiB; 0 where that is unknown."""
        lent = self._lent.get(loan)
        return 0 if lent is None else lent.peak_mb

    async def give_back(self, loan: str) -> int:
        """Return memory; the answer is the peak that was seen in MiB, 0 where that is unknown."""
        lent = self._lent.pop(loan, None)
        if lent is None:
            return 0
        return max(lent.peak_mb, await self._return(lent.ids))

    # ------------------------------------------------------------ models

    async def load(self, model: str) -> None:
        """Brings a model into memory: one load per host at a time. Raises OursError with the reason."""
        async with _HostTurn():
            await self._ask(
                "POST", f"/wb/v1/models/{quote(model, safe='')}/load", {}, limits.HOST_LOAD_MS_MAX
            )
        await self.look()

    async def unload(self, model: str) -> None:
        """Takes a model out of memory. Raises OursError with the reason."""
        await self._ask("POST", f"/wb/v1/models/{quote(model, safe='')}/evict", {}, limits.HOST_LOAD_MS_MAX)
        await self.look()

    # ------------------------------------------------------------ the state

    async def _look_often(self) -> None:
        while True:
            await asyncio.sleep(limits.AGENT_INTERNAL_MS / 1000)
            try:
                await self.look()
                await self._note_use()
            except (NotReachable, OursError) as error:
                _LOG.warning("the host daemon does not answer: %s", error)
                self.miss()

    def miss(self) -> None:
        """The daemon does not answer: nothing is claimed that needs it until the next look."""
        self.state = replace(self.state, is_open=False, hot=())

    async def look(self) -> None:
        """Takes the state of the device over. Raises NotReachable and OursError."""
        # Doors close with their daemon. A daemon that was restarted since the last look answers this one, and has no
        # door: its agent failed every question at once, for good.
        await self._open_door()
        self.state = _state(self, await self._ask("GET", "/wb/v1/status"))

    async def _note_use(self) -> None:
        """Notes how much of each loan is used; one that the daemon has lost is asked for again."""
        if not self._lent:
            return
        known = (await self._ask("GET", "/wb/v1/loans")).fields("loans")
        for loan, lent in list(self._lent.items()):
            there = [each for each in lent.ids if each in known.all()]
            peaks = [_whole_mb(known.fields(each).whole("peak")) for each in there]
            lent.peak_mb = max([lent.peak_mb, *peaks])
            if len(there) < len(lent.ids):
                await self._return(there)
                await self._borrow_again(loan, lent)

    async def _borrow_again(self, loan: str, lent: _Lent) -> None:
        del self._lent[loan]
        if await self.borrow(loan, lent.vram_mb):
            self._lent[loan].peak_mb = lent.peak_mb
            if lent.user:
                await self.used_by(loan, lent.user)
        else:
            self._lent[loan] = lent

    @property
    def about(self) -> tuple[tuple[str, ...], str, str, int]:
        """Its devices, its model, its door and its llm slots."""
        return self._devices, self._model, self._door_url, self._llm_slots

    # ------------------------------------------------------------ the wire

    async def _ask(
        self, method: str, path: str, body: object = None, timeout_ms: int = limits.HOST_ANSWER_MS_MAX
    ) -> Fields:
        content = b"" if body is None else json.dumps(body).encode()
        asked = Outgoing(self._endpoint, method, path, content, self._headers | (_JSON if content else {}))
        try:
            reply = await self._client.fetch(asked, timeout_ms=timeout_ms)
        except UpstreamFailed as error:
            raise NotReachable(f"{self._endpoint.url}: {error}") from error
        fields = Fields(_object(reply.body))
        if reply.status >= 400:
            raise OursError(fields.fields("error").text("message") or f"it answered {reply.status}")
        return fields


def _state(memory: HostMemory, status: Fields) -> DeviceState:
    devices, named, door, slots = memory.about
    models = status.fields("models")
    own = next((name for name in models.all() if named in _spelled(models, [name])), named)
    # An agent without a device has a model alone: it is constrained where the model's devices are, and lends nothing.
    looked_at = devices or tuple(models.fields(own).mapping("devices"))
    views = [status.fields("devices").fields(name) for name in looked_at]
    cards = [view.fields("card") for view in views]
    here = [
        name
        for name in models.all()
        if name == own or any(device in models.fields(name).mapping("devices") for device in devices)
    ]
    # A card that cannot be read serves on what it has, and takes nothing more. It does not count as hot either: the
    # coordinator would have its model unloaded, as on a card that is too hot.
    is_read = all(view.fields("constraint").text("trouble") != "unread" for view in views)
    hot = [name for name in here if is_read and models.fields(name).text("state") in ("ready", "draining")]
    troubles = tuple(trouble for view in views if (trouble := _trouble(view)))
    budget = min((view.whole("budget") + view.whole("lent") for view in views), default=0)
    total = min((card.whole("total") for card in cards), default=0) or budget
    return DeviceState(
        devices=devices,
        cards=tuple(
            card.text("uuid") or name
            for name, card in zip(looked_at, cards, strict=True)
            if name in devices and name.startswith("gpu")
        ),
        budget_mb=int(min(budget, BUDGET_SHARE * total)) // _MIB if devices else 0,
        health=Health.CONSTRAINED if troubles else Health.HEALTHY,
        constraints=troubles,
        is_open=is_read and all(view.whole("read_ms_ago") <= limits.HOST_READING_MS_MAX for view in views),
        own_model=own,
        hot=_spelled(models, hot),
        models=_spelled(models, sorted(here, key=lambda name: name != own)),
        model_url=door,
        llm_slots=slots if here else 0,
        load_ms={
            spelling: models.fields(name).whole("load_ms")
            for name in here
            if models.fields(name).all().get("load_is_guess") is False
            for spelling in _spelled(models, [name])
        },
        readings=_readings(devices, views, cards) if devices else {},
    )


def _trouble(view: Fields) -> str:
    """Why a device takes no tasks; empty where it does."""
    return view.text("constrained") or ("it is lent to a person" if view.all().get("maintenance") else "")


def _whole_mb(size: int) -> int:
    """Bytes in MiB, and never less than they are."""
    return -(-size // _MIB)


def _spelled(models: Fields, names: Iterable[str]) -> tuple[str, ...]:
    """Models with every name that a task may call them."""
    return tuple(spelling for name in names for spelling in (name, *models.fields(name).texts("aliases")))


def _readings(devices: tuple[str, ...], views: list[Fields], cards: list[Fields]) -> dict[str, object]:
    """The keys of FLEET-06 that a card fills: of a pair, the sums of memory and the worst of the rest."""
    total = sum(card.whole("total") for card in cards)
    free = sum(view.whole("available") for view in views)
    used, index = max(0, total - free), devices[0].removeprefix("gpu:")
    reasons = tuple(dict.fromkeys(reason for card in cards for reason in card.texts("throttled")))
    return {
        "gpu_id": int(index) if index.isdigit() else None,
        "temperature_c": _worst(cards, "temperature_c"),
        "power_draw_w": _worst(cards, "power_w"),
        "vram_used_mb": used // _MIB,
        "vram_total_mb": total // _MIB,
        "vram_percent": round(100 * used / total) if total else 0,
        "gpu_util_percent": _worst(cards, "utilisation_percent"),
        "clock_mhz": _worst(cards, "clock_mhz"),
        "throttle_status": ", ".join(reasons) or "None",
    }


def _worst(cards: list[Fields], key: str) -> float | None:
    figures = (card.all().get(key) for card in cards)
    return max((figure for figure in figures if isinstance(figure, int | float)), default=None)


def _object(body: bytes) -> dict[str, object]:
    try:
        found = cast("object", json.loads(body))
    except ValueError:
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


class _HostTurn:
    """One load per host at a time, also between daemons: a lock of this host, waited for within a bound."""

    def __init__(self) -> None:
        self._lock = HostLock(locks_folder() / "watchbill-load.lock")

    async def __aenter__(self) -> None:
        deadline = time.monotonic() + limits.HOST_LOAD_MS_MAX / 1000
        while True:
            try:
                self._lock.take("a load")
                return
            except LockHeld as held:
                if time.monotonic() >= deadline:
                    raise OursError(f"another load of this host does not end: {held.holder}") from None
                await asyncio.sleep(limits.HOST_LOOK_MS / 1000)

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
