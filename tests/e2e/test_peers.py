"""Two daemons as peers, each killed in the middle of a leased answer, with clocks that are minutes and hours apart."""

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from e2e.place import Daemon, Place, scripted
from support.eventually import wait_until

PROGRAM = str(Path(__file__).with_name("programs") / "own_clock.py")
SHORT = {"lease_ms": 3_000, "renew_ms": 500, "quiet_ms": 1_000, "silence_ms": 2_000}
#: The home's clock on the wall is seven minutes late, and it was started an hour after the rig.
RIG, HOME = {"wall_s": 420, "monotonic_s": 3_600, **SHORT}, {"wall_s": 0, "monotonic_s": 0, **SHORT}
TEXT = "One two three four. Five six seven eight. Nine ten eleven twelve. Thirteen fourteen fifteen sixteen."
TOKENS = 48
KEY = "what-home-shows-at-the-rig"
ASKED = {"messages": [{"role": "user", "content": "Tell me."}], "model": "big", "max_tokens": TOKENS}


class Machine(Place):
    """A machine with a clock of its own, always at the same port."""

    def __init__(self, folder: Path, clock: dict[str, int]) -> None:
        folder.mkdir()
        super().__init__(folder)
        self._clock, self.port = clock, 0

    def start(self) -> Daemon:
        words = (sys.executable, PROGRAM, json.dumps(self._clock), "up", "--port", str(self.port))
        daemon = self.begin(command=words)
        daemon.wait_ready()
        self.port = daemon.port
        return daemon


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    rig, home = Machine(tmp_path / "rig", RIG), Machine(tmp_path / "home", HOME)
    yield rig, home
    for machine in (home, rig):
        machine.close()


def kill(daemon: Daemon) -> None:
    daemon.signal(signal.SIGKILL)
    daemon.wait()


def leases(daemon: Daemon) -> dict[str, Any]:
    return daemon.status()["leases"]


def is_answering(daemon: Daemon) -> bool:
    """Whether an answer under a lease has begun."""
    listed = json.loads(daemon.ask("/wb/v1/requests")[2])["requests"]
    return any(
        each["class"] == "leased" and each.get("tokens", each["state"] == "running") for each in listed
    )


def has_leased(daemon: Daemon) -> bool:
    """Whether a request under a lease is there."""
    listed = json.loads(daemon.ask("/wb/v1/requests")[2])["requests"]
    return any(each["class"] == "leased" for each in listed)


def answer(daemon: Daemon) -> str:
    status, headers, body = daemon.ask("/v1/chat/completions", ASKED, seconds=90)
    assert (status, headers["x-watchbill-tier"]) == (200, "peer"), body
    return json.loads(body)["choices"][0]["message"]["content"]


def lend(machines: tuple[Machine, Machine], script: str) -> tuple[Daemon, Daemon]:
    """The lender of a model with this script, and the daemon that borrows it."""
    rig, home = machines
    rig.config.write_text(
        scripted("big", f"touch = false, {script}") + f'[peers.home]\ntheir_key = "{KEY}"\n'
    )
    lender = rig.start()
    peer = f'[peers.rig]\nurl = "{lender.url}"\nkey = "{KEY}"\nmodels = ["big"]\n'
    home.config.write_text(scripted("small", "") + peer)
    return lender, home.start()


def test_two_daemons_whose_clocks_are_apart_outlive_a_kill_of_either(
    machines: tuple[Machine, Machine],
) -> None:
    """RES-23, R36: a lease lasts by each side's own clock. The lender is killed in the middle of an answer, comes back,
    and the answer is continued; the asking side is killed, its lease is swept, and it is served again."""
    rig, home = machines
    lender, asking = lend(machines, f'service = "2s", tokens = {TOKENS}, text = "{TEXT}"')
    with ThreadPoolExecutor(2) as callers:
        straight = answer(asking)
        assert len(straight.split()) == TOKENS
        # The lender is killed.
        going = callers.submit(answer, asking)
        wait_until(partial(is_answering, lender))
        kill(lender)
        lender = rig.start()
        assert going.result(90).split() == straight.split(), "no word twice, none lost"
        wait_until(lambda: len(leases(lender)) == 1)
        # The asking side is killed.
        going = callers.submit(answer, asking)
        wait_until(partial(is_answering, lender))
        kill(asking)
        with pytest.raises((ConnectionError, HTTPException)):  # its caller's connection is gone
            going.result(90)
        wait_until(lambda: not leases(lender))
        assert not has_leased(lender)
        asking = home.start()
        assert answer(asking) == straight
    ends = [event["reason"] for event in rig.events("lease_end")]
    assert ends, "the sweep is in the journal"
    for daemon in (asking, lender):
        assert daemon.stop() == 0


def test_a_request_that_waits_at_a_lender_outlives_its_orderly_ends(
    machines: tuple[Machine, Machine],
) -> None:
    """RES-23, P1: its model was still loading there, two times. An orderly end is no failure of the request: it waits
    for the next lease, as it does after a kill."""
    rig, _ = machines
    lender, asking = lend(machines, f'load = "2s", tokens = {TOKENS}, text = "{TEXT}"')
    with ThreadPoolExecutor(1) as callers:
        going = callers.submit(answer, asking)
        for _ in range(2):
            wait_until(partial(has_leased, lender))
            assert lender.stop() == 0
            lender = rig.start()
        assert len(going.result(90).split()) == TOKENS
    for daemon in (asking, lender):
        assert daemon.stop() == 0


def test_answers_at_a_lender_that_is_stopped_for_long_are_continued(
    machines: tuple[Machine, Machine],
) -> None:
    """RES-23, P3: a lender that says nothing any more is away, like one that was killed. What ran there was cut with
    502 by the bound for a silent engine, before its lease was over, also what had not begun to answer."""
    lender, asking = lend(machines, f'service = "2s", tokens = {TOKENS}, text = "{TEXT}"')
    with ThreadPoolExecutor(3) as callers:
        straight = answer(asking)
        going = [callers.submit(answer, asking) for _ in range(2)]
        wait_until(partial(is_answering, lender))
        streamed = asking.stream("big", TOKENS)
        lender.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: asking.model("big")["state"] != "ready")
        finally:
            lender.signal(signal.SIGCONT)
        assert [each.result(90) for each in going] == [straight, straight]
        words = [
            json.loads(event)["choices"][0]["delta"].get("content", "")
            for event in streamed.rest()
            if event != "[DONE]"
        ]
        assert "".join(words).split() == straight.split()
    for daemon in (asking, lender):
        assert daemon.stop() == 0


def test_a_lender_that_was_stopped_gives_no_leases_to_peers_that_did_not_wait(
    machines: tuple[Machine, Machine],
) -> None:
    """RES-23: each question of a peer for a lease had its bound, and was read at the end of the stop. Leases that no
    peer had used up all that the peer may hold, and its next question was declined until they were swept."""
    lender, asking = lend(machines, 'text = "one"')
    key = {"Authorization": f"Bearer {KEY}"}
    lender.signal(signal.SIGSTOP)
    try:
        for _ in range(17):
            with pytest.raises(TimeoutError):
                lender.ask("/wb/v1/leases", {"model": "big"}, headers=key, seconds=0.05)
    finally:
        lender.signal(signal.SIGCONT)
    status, _, told = lender.ask("/wb/v1/leases", {"model": "big"}, headers=key)
    assert status == 200, told
    assert list(leases(lender)) == [json.loads(told)["id"]]
    for daemon in (asking, lender):
        assert daemon.stop() == 0


def test_an_answer_of_a_lender_finishes_while_the_asking_machine_shuts_down(
    machines: tuple[Machine, Machine],
) -> None:
    """RES-23, design 9: a TERM lets running answers finish, wherever they run. One that is not streamed was refused."""
    lender, asking = lend(machines, f'service = "2s", tokens = {TOKENS}, text = "{TEXT}"')
    with ThreadPoolExecutor(1) as callers:
        going = callers.submit(answer, asking)
        wait_until(partial(is_answering, lender))
        assert asking.stop() == 0
        assert len(going.result(30).split()) == TOKENS
    assert lender.stop() == 0
