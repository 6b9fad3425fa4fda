"""What watches must go on watching: looks at the machine, at protected processes, and the alerts about them."""

import asyncio
import base64
import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.peer import Asked, peer_listening
from watchbill.catalog import RAM, AlertRules, Catalog, Device
from watchbill.core.messages import Alert, AlertKind, Note, Observed
from watchbill.errors import TheirsError
from watchbill.probes import CardHealth, Probe, Reading
from watchbill.probes.patient import PatientProbe
from watchbill.probes.ram import RamProbe
from watchbill.runtime import protected as protected_module
from watchbill.runtime.alerts import Deliverer
from watchbill.runtime.claims import Claim, Claims
from watchbill.runtime.limits import PROBE_FAILURES_MAX
from watchbill.runtime.probe_loop import Memory, ProbeLoop
from watchbill.runtime.protected import Protected
from watchbill.units import Bytes, Millis

FULL = OSError(errno.EMFILE, "Too many open files")


class Steady(Probe):
    """A machine that never changes."""

    def read(self) -> Mapping[str, Reading]:
        return {RAM: Reading(Bytes(100), Bytes(50), Millis(0))}


class Used(Probe):
    """A card on which a process uses as much as it is told."""

    def __init__(self, pid: int) -> None:
        self.pid, self.bytes = pid, Bytes(0)

    def read(self) -> Mapping[str, Reading]:
        used = {self.pid: self.bytes}
        return {"gpu:0": Reading(Bytes(100), Bytes(50), Millis(0), used, CardHealth())}


class Granting:
    """Lends whatever is asked for."""

    async def claim(self, claim: Claim, /) -> str:
        return "lent"

    async def release(self, claim: Claim, why: str, /) -> str:
        return why


class Stalling(RamProbe):
    """Host memory whose stalls cannot be read now."""

    def stall_percent(self) -> float:
        raise FULL


class Sight:
    """What the probe loop sees of processes, or why it cannot."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.told: list[Observed] = []
        self.alerts: list[Alert] = []

    def memory(self, cards: object) -> Memory:
        if self.failure is not None:
            raise self.failure
        return {"A": (1, {RAM: 7})}

    async def asleep(self) -> Mapping[str, bool]:
        return {"A": True}

    def probe_loop(self, ram: RamProbe | None = None) -> ProbeLoop:
        catalog = Catalog({RAM: Device(RAM)}, {}, {}, {})
        return ProbeLoop(
            catalog, [PatientProbe(Steady())], self.memory, self.told.append,
            asleep=self.asleep, alert=self.alerts.append, ram=ram, clock=lambda: 1.0,
        )  # fmt: skip


async def test_a_look_without_sight_of_the_processes_still_tells_of_the_machine() -> None:
    """R25: without free descriptors memory is still watched; what was last seen stands, sleep is not guessed."""
    sight = Sight()
    probe_loop = sight.probe_loop()
    await probe_loop.look()
    sight.failure = FULL
    await probe_loop.look()
    before, after = sight.told
    assert before.models["A"].asleep is True
    assert after.devices == before.devices
    assert (after.models["A"].memory, after.models["A"].asleep) == ({RAM: 7}, None)


async def test_processes_that_stay_out_of_sight_are_an_alert() -> None:
    """R25: once, not at every look."""
    sight = Sight()
    sight.failure = FULL
    probe_loop = sight.probe_loop()
    for _ in range(2 * PROBE_FAILURES_MAX):
        await probe_loop.look()
    (alert,) = sight.alerts
    assert alert.kind == "probe" and "Too many open files" in alert.text


async def test_the_peak_of_a_loan_on_a_card_is_seen_between_two_looks_at_the_processes() -> None:
    """FLEET-10: a task may have come and gone before the processes are looked at again."""
    task = await asyncio.create_subprocess_exec("sleep", "60")
    claims, card, told = Claims(Granting(), lambda: 0), Used(task.pid), list[Observed]()
    loan, _ = await claims.borrow("gpu:0", 80, "a task", pid=task.pid)
    probe_loop = ProbeLoop(
        Catalog({"gpu:0": Device("gpu:0")}, {}, {}, {}), [PatientProbe(card)], lambda _: {}, told.append,
        borrowed=claims.measure, clock=lambda: 1.0,
    )  # fmt: skip
    card.bytes = Bytes(70)
    await probe_loop.look(processes=False)
    card.bytes = Bytes(0)
    await probe_loop.look()
    task.kill()
    await task.wait()
    assert (loan.peak, loan.used) == (70, 0)
    assert [dict(each.loans) for each in told] == [{loan.id: 70}, {loan.id: 0}]


async def test_stalls_that_cannot_be_read_are_none() -> None:
    """R25: the readings of memory itself go on."""
    sight = Sight()
    await sight.probe_loop(Stalling()).look()
    assert not sight.told[0].pressure


async def test_protected_processes_are_watched_on_after_a_look_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RES-05: a look that failed says nothing about anybody."""
    alerts: list[Alert] = []
    notes: list[Note] = []
    catalog = Catalog({RAM: Device(RAM, protect=("no-such-process",))}, {}, {}, {})
    watched = Protected(catalog, alerts.append, notes.append)

    def fail(name: str) -> list[int]:
        raise FULL

    with monkeypatch.context() as broken:
        broken.setattr(protected_module, "find_processes", fail)
        await watched.look()
    assert not alerts
    await watched.look()
    assert len(alerts) == 1


async def test_a_process_that_is_protected_anew_is_told_missing_anew() -> None:
    """RES-05: what was told before it was taken from the list does not count."""
    alerts: list[Alert] = []
    notes: list[Note] = []
    listed = Catalog({RAM: Device(RAM, protect=("no-such-process",))}, {}, {}, {})
    watched = Protected(listed, alerts.append, notes.append)
    await watched.look()
    watched.reconfigure(Catalog({RAM: Device(RAM)}, {}, {}, {}))
    watched.reconfigure(listed)
    await watched.look()
    assert len(alerts) == 2 and not notes


@pytest.mark.parametrize("command", ["false", "no-such-program", 'say "'])
async def test_an_alert_reaches_the_webhook_though_the_command_fails(tmp_path: Path, command: str) -> None:
    """RES-20: everywhere the config says; one way that fails does not close the other, and is still told."""

    async def talk(asked: Asked, writer: object) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")  # type: ignore[attr-defined]

    async with peer_listening(talk) as peer:
        rules = AlertRules(command=command, webhook=f"http://127.0.0.1:{peer.port}/hook")
        with pytest.raises(Exception):  # noqa: B017, PT011  whatever the command did wrong
            await Deliverer(tmp_path).deliver(rules, Alert(AlertKind.PROBE, "A text."))
        assert peer.asked[0].json["text"] == "A text."


async def test_a_webhook_may_have_a_login_and_a_query(tmp_path: Path) -> None:
    """RES-20: the address is used as the config writes it."""

    async def talk(asked: Asked, writer: object) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")  # type: ignore[attr-defined]

    async with peer_listening(talk) as peer:
        rules = AlertRules(webhook=f"http://me:p%40ss@127.0.0.1:{peer.port}/services/T0/v1?to=ops team")
        await Deliverer(tmp_path).deliver(rules, Alert(AlertKind.PROBE, "A text."))
    (asked,) = peer.asked
    assert asked.path == "/services/T0/v1?to=ops%20team"
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert asked.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "the webhook answered 500"),
        (b"no HTTP at all\r\n\r\n", "the webhook was not told: its answer cannot be read"),
    ],
)
async def test_a_webhook_that_did_not_take_an_alert_is_named(
    tmp_path: Path, answer: bytes, told: str
) -> None:
    """RES-20"""

    async def talk(asked: Asked, writer: object) -> None:
        writer.write(answer)  # type: ignore[attr-defined]

    async with peer_listening(talk) as peer:
        rules = AlertRules(webhook=f"http://127.0.0.1:{peer.port}/hook")
        with pytest.raises(TheirsError, match=told):
            await Deliverer(tmp_path).deliver(rules, Alert(AlertKind.PROBE, "A text."))
    with pytest.raises(TheirsError, match="nothing answers at its address"):
        await Deliverer(tmp_path).deliver(rules, Alert(AlertKind.PROBE, "A text."))
