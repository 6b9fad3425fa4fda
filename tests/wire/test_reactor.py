"""The reactor does what its operator allowed, once, in order, and nothing else (RES-22)."""

import asyncio
import errno
import json
import os
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import eventually
from watchbill.catalog import Model
from watchbill.errors import ConfigError, NameRefused
from watchbill.names import check_unit_name
from watchbill.reactor import limits
from watchbill.reactor.intents import Mailbox
from watchbill.reactor.service import Reactor
from watchbill.reactor.systemctl import Systemctl
from wire.engine_contract import within
from wire.reactor_host import Host, host_in, reacting

ALLOWED = "watchbill-*.service"


class Driver:
    """One root, a reactor over it that works when it is told to, and its host."""

    def __init__(self, root: Path, host: Host) -> None:
        self.root, self.host = root, host
        self.intents, self.done = root / "reactor" / "intents", root / "reactor" / "done"
        self.reactor = Reactor(root, [ALLOWED, "exact.service"], Systemctl(str(host.systemctl)))

    def put(self, name: str = "a1", **changes: Any) -> Path:
        """Writes an intent as the daemon would; `changes` make it a bad one."""
        now = datetime.now(UTC)
        fields = {"id": name, "verb": "start", "unit": "watchbill-m.service", "model": "m", "reason": "a test",
                  "issued_at": now.isoformat(), "expires_at": (now + timedelta(seconds=20)).isoformat()}  # fmt: skip
        for key in ("issued_at", "expires_at"):
            if isinstance(changes.get(key), int):
                changes = {**changes, key: (now + timedelta(seconds=changes[key])).isoformat()}
        path = self.intents / f"{name}.json"
        path.write_text(
            json.dumps({key: value for key, value in (fields | changes).items() if value is not None})
        )
        return path

    async def work(self) -> None:
        self.reactor.take()
        await within(10, self.reactor.finish())

    def answer(self, name: str = "a1") -> dict[str, Any]:
        return json.loads((self.done / f"{name}.json").read_text())

    def log(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.root / "reactor" / "reactor.jsonl").read_text().splitlines()
        ]


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    (tmp_path / "root").mkdir()
    with host_in(tmp_path / "host") as host:
        host.define("watchbill-m.service", states=["active"])
        host.define("exact.service", states=["active"])
        driver = Driver(tmp_path / "root", host)
        yield driver
        driver.reactor.close()


# ------------------------------------------------------------------ what is done


async def test_an_allowed_intent_is_carried_out_and_answered(driver: Driver) -> None:
    """RES-22: systemctl gets a verb and a unit; the answer says what became of it; the intent is gone."""
    driver.put()
    await driver.work()
    assert driver.host.calls() == [["start", "--no-block", "--", "watchbill-m.service"]]
    assert (driver.answer()["ok"], driver.answer()["state"]) == (True, "active")
    assert list(driver.intents.iterdir()) == []
    assert stat.S_IMODE((driver.done / "a1.json").stat().st_mode) == 0o644
    assert driver.log()[-1]["event"] == "start" and driver.log()[-1]["ok"]


async def test_an_exact_name_is_allowed_as_well(driver: Driver) -> None:
    driver.put(unit="exact.service", verb="restart")
    await driver.work()
    assert driver.host.calls() == [["restart", "--no-block", "--", "exact.service"]]


async def test_the_intents_of_one_unit_are_done_in_order(driver: Driver) -> None:
    for name, verb in (("a1", "stop"), ("a2", "start"), ("a3", "stop")):
        driver.put(name, verb=verb)
    driver.host.define("watchbill-m.service", states=["inactive"])
    await driver.work()
    assert [words[0] for words in driver.host.calls()] == ["stop", "start", "stop"]


async def test_a_unit_that_takes_its_time_does_not_hold_up_another(driver: Driver) -> None:
    """A stop may last as long as the unit's own timeout."""
    driver.host.define("watchbill-m.service", stop_s=1.0)
    driver.put("a1", verb="stop")
    driver.put("a2", unit="exact.service")
    driver.reactor.take()
    await eventually((driver.done / "a2.json").exists)
    assert not (driver.done / "a1.json").exists()
    await within(5, driver.reactor.finish())
    assert driver.answer("a1")["ok"]


async def test_a_unit_that_is_still_activating_is_answered_within_the_bound(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 2: the daemon looks for itself after that."""
    monkeypatch.setattr(limits, "REACTOR_START_LOOK_MS", 150)
    driver.host.define("watchbill-m.service", states=["activating"])
    driver.put()
    await driver.work()
    assert (driver.answer()["ok"], driver.answer()["state"]) == (True, "activating")


async def test_a_stop_does_not_wait_for_a_start_that_lasts(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Race 7: whoever gave up must not wait until the unit is up."""
    monkeypatch.setattr(limits, "REACTOR_START_LOOK_MS", 60_000)
    driver.host.define("watchbill-m.service", states=["activating"])
    driver.put("a1")
    driver.put("a2", verb="stop")
    await driver.work()
    assert [words[0] for words in driver.host.calls()] == ["start", "stop"]


async def test_a_stopped_unit_is_down_whatever_systemctl_says(driver: Driver) -> None:
    """A unit that is not loaded cannot be stopped; it has no memory either."""
    driver.put(verb="stop", unit="watchbill-unknown.service")
    await driver.work()
    assert (driver.answer()["ok"], driver.answer()["state"]) == (True, "inactive")


async def test_a_systemctl_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with host_in(tmp_path / "host") as host:
        host.systemctl.unlink()
        driver = Driver(tmp_path / "root", host)
        driver.put()
        await driver.work()
        assert "cannot be run: No such file" in driver.answer()["text"]
        driver.reactor.close()


# ------------------------------------------------------------------ what is refused


#: Times are seconds from now, as it is when the intent is written.
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a unit off the list", {"unit": "sshd.service"}, "sshd.service is not allowed"),
    ("the reactor itself", {"unit": "watchbill-reactor.service"}, "not allowed"),
    ("a pattern", {"unit": "watchbill-*.service"}, "cannot be the name of a unit"),
    ("an option", {"unit": "--force.service"}, "cannot be the name of a unit"),
    ("two units", {"unit": "watchbill-a.service sshd.service"}, "cannot be the name of a unit"),
    ("another kind of unit", {"unit": "watchbill-a.timer"}, "cannot be the name of a unit"),
    ("a path", {"unit": "/etc/watchbill-a.service"}, "cannot be the name of a unit"),
    ("another verb", {"verb": "mask"}, "Invalid enum value"),
    ("another id", {"id": "zz"}, "its name is not its id"),
    ("a missing field", {"reason": None}, "missing required field"),
    ("an unknown field", {"allow": ["*"]}, "unknown field"),
    ("an expired one", {"issued_at": -60, "expires_at": -1}, "expired"),
    ("one from the future", {"issued_at": 60, "expires_at": 70}, "in the future"),
    ("one for too long", {"expires_at": 86_400}, "stale"),
    ("a stale one", {"issued_at": -86_400, "expires_at": 10}, "stale"),
    ("a time without a zone", {"issued_at": "2026-01-01T00:00:00"}, "no zone"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_what_is_not_allowed_is_refused_answered_and_journaled(
    driver: Driver, changes: dict[str, Any], why: str
) -> None:
    """RES-22: nothing reaches systemctl; the asker and the log learn why."""
    driver.put(**changes)
    await driver.work()
    assert driver.host.calls() == []
    assert list(driver.intents.iterdir()) == []
    assert driver.answer()["refused"] and why in driver.answer()["text"]
    assert driver.log()[-1]["event"] == "refused" and why in driver.log()[-1]["text"]


async def test_an_intent_comes_once(driver: Driver) -> None:
    """RES-22: a second one with the same id is refused, and the first answer stays."""
    driver.put()
    await driver.work()
    first = (driver.done / "a1.json").read_bytes()
    driver.put(verb="stop")
    await driver.work()
    assert len(driver.host.calls()) == 1
    assert (driver.done / "a1.json").read_bytes() == first
    assert "answered before" in driver.log()[-1]["text"]


async def test_an_intent_that_was_withdrawn_is_not_carried_out(driver: Driver) -> None:
    mailbox = Mailbox(driver.root)
    intent = mailbox.post("start", Model("m", "systemd"), "a test")
    assert mailbox.is_waiting(intent) and mailbox.withdraw(intent)
    await driver.work()
    assert driver.host.calls() == [] and not mailbox.withdraw(intent)


async def test_an_intent_that_is_withdrawn_while_it_is_read_is_not_carried_out(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one of the two removes it: the daemon knows that nothing will happen."""
    read = driver.reactor._folders.read

    def read_then_withdrawn(name: str) -> bytes:
        text = read(name)
        (driver.intents / name).unlink()
        return text

    monkeypatch.setattr(driver.reactor._folders, "read", read_then_withdrawn)
    driver.put()
    await driver.work()
    assert driver.host.calls() == [] and list(driver.done.iterdir()) == []


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "large", "broken", "empty", "deep"])
async def test_hostile_files_are_refused_without_harm(driver: Driver, kind: str, tmp_path: Path) -> None:
    """R50: refused, no hang, nothing outside touched, and told of once."""
    path = driver.intents / "evil.json"
    outside = tmp_path / "outside.json"
    outside.write_text(driver.put("evil").read_text())
    path.unlink()
    match kind:
        case "symlink":
            path.symlink_to(outside)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "large":
            path.write_text(outside.read_text() + " " * limits.INTENT_BYTES_MAX)
        case "broken":
            path.write_text("{")
        case "empty":
            path.write_text("")
        case _:
            path.write_text("[" * 4000)
    for _ in range(3):
        await driver.work()
    assert driver.host.calls() == []
    assert outside.exists()
    assert [line["event"] for line in driver.log()] == ["refused"]
    assert path.exists() == (kind == "folder")


@pytest.mark.parametrize("name", ["a b.json", "x.txt", "é.json", "-a.json", "a" * 200 + ".json"])
async def test_files_with_odd_names_are_refused(driver: Driver, name: str) -> None:
    """R49: no id, no answer."""
    (driver.intents / name).write_text(driver.put("x").read_text())
    (driver.intents / "x.json").unlink()
    await driver.work()
    assert driver.host.calls() == []
    assert list(driver.intents.iterdir()) == []
    assert driver.log()[-1]["event"] == "refused"


async def test_drafts_are_left_alone_until_they_are_old(driver: Driver) -> None:
    draft, answer = driver.intents / ".draft", driver.done / "old.json"
    for path in (draft, answer):
        path.write_text("x")
    await driver.work()
    driver.reactor._folders.clean()
    assert draft.exists() and answer.exists()
    for path in (draft, answer):
        os.utime(path, (0, 0))
    driver.reactor._folders.clean()
    assert not draft.exists() and not answer.exists()


async def test_a_folder_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    """The reactor may be root, and the folders are not its own."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "reactor").mkdir()
    (root / "reactor" / "done").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"cannot use .*reactor"):
        Reactor(root, [ALLOWED], Systemctl())
    assert list(elsewhere.iterdir()) == []


async def test_a_log_that_was_replaced_by_a_link_is_not_written_to(driver: Driver, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (driver.root / "reactor" / "reactor.jsonl").symlink_to(target)
    driver.put(unit="sshd.service")
    with pytest.raises(ConfigError, match="not a plain file of its own"):
        await driver.work()
    assert target.read_text() == "mine"


async def test_a_disk_that_is_full_does_not_end_the_reactor(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What can be done is done; who waits for the answer has a deadline of its own."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("watchbill.reactor.folders.os.write", full)
    driver.put()
    await driver.work()
    assert len(driver.host.calls()) == 1
    assert caplog.text.count("No space left on device") == 2  # for its log, and for its answer
    monkeypatch.undo()
    driver.put("a2")
    await driver.work()
    assert driver.answer("a2")["ok"]


def test_a_reactor_before_the_first_daemon_is_told_what_makes_its_folder(tmp_path: Path) -> None:
    """RES-22: on a new root it said only that there is no such folder, and asked whether the root is right."""
    with pytest.raises(
        ConfigError, match="new does not exist: the first `watchbill up` on this root makes it"
    ):
        Reactor(tmp_path / "new", [ALLOWED], Systemctl())


async def test_one_reactor_serves_a_root(driver: Driver) -> None:
    with pytest.raises(ConfigError, match="another reactor serves"):
        Reactor(driver.root, [ALLOWED], Systemctl())


async def test_a_flood_of_intents_for_one_unit_is_bounded(driver: Driver) -> None:
    """Every queue has a bound."""
    driver.host.define("watchbill-m.service", stop_s=0.3)
    for number in range(limits.REACTOR_UNIT_INTENTS_MAX + 3):
        driver.put(f"a{number:03}", verb="stop")
    driver.reactor.take()
    refused = [line for line in driver.log() if "wait for watchbill-m.service already" in line["text"]]
    assert len(refused) == 3
    for line in driver.reactor._lines.values():
        line.clear()  # enough was shown
    await within(5, driver.reactor.finish())


# ------------------------------------------------------------------ as a service


async def test_a_serving_reactor_is_woken_by_an_intent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for its clock: inotify tells."""
    monkeypatch.setattr(limits, "REACTOR_LOOK_MS", 60_000)
    (tmp_path / "root").mkdir()
    with host_in(tmp_path / "host") as host:
        host.define("watchbill-m.service", states=["active"])
        async with reacting(tmp_path / "root", host, ALLOWED):
            mailbox = Mailbox(tmp_path / "root")
            await asyncio.sleep(0.05)  # it looks once by itself; the intent comes later
            intent = mailbox.post("start", Model("m", "systemd"), "a test")
            await eventually(lambda: mailbox.answer(intent) is not None)


# ------------------------------------------------------------------ names


@given(st.text())
def test_a_unit_name_is_never_more_than_one_plain_word(text: str) -> None:
    """R49: no option, no pattern, no path, no escape, no space."""
    try:
        name = check_unit_name(text)
    except NameRefused:
        return
    assert name == text and name.isascii() and name.endswith(".service")
    assert not name.startswith(("-", ".", "@")) and not set(name) & set("*?[]/\\ \t\n%$;'\"")
