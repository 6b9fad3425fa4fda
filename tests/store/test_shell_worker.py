"""Workers that are shell scripts: `spool dequeue`, `done`, `release`, `poison`, `renew`."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from watchbill.cli import run
from watchbill.spool import Spool, State, entries, stats
from watchbill.spool.shell_lease import dequeue
from watchbill.spool.term import Term, holds, term_for, term_of

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Spool(tmp_path / "spool", durability="none") as spool:
        for number in range(3):
            spool.enqueue({"id": f"{number}"})
    return tmp_path / "spool"


@pytest.fixture
def cli(path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*words: str) -> tuple[int, str, str]:
        code = run(["spool", *words, "--spool", str(path)])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err.strip()

    return call


def recovered(path: Path) -> int:
    with Spool(path) as spool:
        return spool.recover().returned


def test_a_shell_worker_leases_works_and_finishes(cli: Cli, path: Path) -> None:
    """SPOOL-03: the path is printed, the lease outlives the command and a start of another worker, `done` is
    durable and final."""
    code, leased, _ = cli("dequeue", "--for", "1h")
    assert (code, json.loads(Path(leased).read_text())) == (0, {"id": "0"})
    assert recovered(path) == 0
    # By name it is an operator who asks: its holder is alive.
    assert cli("release", os.path.basename(leased))[0] == 1
    code, name, _ = cli("done", leased)
    assert (code, name) == (0, os.path.basename(leased))
    assert not Path(leased).parent.exists()
    code, _, said = cli("done", leased)
    assert (code, "is not leased any more" in said) == (1, True)
    told = json.loads(cli("dequeue", "--json")[1])
    assert (told["attempt"], told["events"], Path(told["path"]).exists()) == (1, 1, True)
    with Spool(path) as spool:
        assert (stats(spool).queue, stats(spool).in_flight, stats(spool).done) == (1, 1, 1)


def test_nothing_to_lease_is_an_exit_code(cli: Cli) -> None:
    """SPOOL-03: 1 and no path, so that `while path=$(... dequeue)` ends; wrong use is 2."""
    for _ in range(3):
        assert cli("dequeue")[0] == 0
    assert cli("dequeue", "--wait", "10ms")[:2] == (1, "")
    assert cli("dequeue", "--json")[:2] == (1, '{"path": null}')
    assert cli("dequeue", "--for", "1h", "--pid", "1")[0] == 2
    assert cli("dequeue", "--pid", "4194305")[0] == 2


def test_a_lease_ends_with_its_process(cli: Cli, path: Path) -> None:
    """SPOOL-03, SPOOL-05, R15: alive, the event is not taken; dead, it comes back with one try used up."""
    with subprocess.Popen(["sleep", "600"]) as worker:
        code, leased, _ = cli("dequeue", "--pid", str(worker.pid))
        assert (code, recovered(path)) == (0, 0)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert recovered(path) == 1
    assert cli("done", leased)[0] == 1
    again = cli("dequeue")[1]
    assert os.path.basename(again) == os.path.basename(leased).replace("~1", "~2")
    term = term_of(os.getpid())
    assert term is not None and not term.is_over
    reused = Term(term.host, term.boot, term.pid, "1")
    elsewhere = Term("another-host", term.boot, term.pid, "1")
    assert (reused.is_over, elsewhere.is_over) == (True, False)


def test_a_lease_ends_with_its_time_and_can_be_renewed(cli: Cli, path: Path) -> None:
    """SPOOL-03, SPOOL-05: over, the event goes back to the queue, after its last attempt to poison."""
    leased = cli("dequeue", "--for", "0s")[1]
    assert cli("renew", leased, "--for", "1h")[:2] == (0, leased)
    assert (holds(Path(leased).parent), recovered(path)) == (True, 0)
    assert cli("renew", leased, "--for", "0s")[0] == 0
    assert recovered(path) == 1
    assert cli("renew", leased)[0] == 1
    for _ in range(2):
        assert os.path.basename(cli("dequeue", "--for", "0s")[1]).startswith(os.path.basename(leased)[:36])
        recovered(path)
    with Spool(path) as spool:
        (bad,) = entries(spool, State.POISON)
    assert bad.name.startswith(os.path.basename(leased)[:36])


def test_a_clock_that_is_set_ends_no_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-03, R16: on one boot a time is told by a clock that nobody sets."""
    with Spool(path) as spool:
        leased = dequeue(spool, term_for(3600))
    assert leased is not None
    day_ns, now_ns = 86_400 * 10**9, time.time_ns()
    for step in (day_ns, -day_ns):
        monkeypatch.setattr(time, "time_ns", lambda step=step: now_ns + step)
        assert holds(leased[0].parent)


def test_a_failed_try_is_put_back_and_the_last_one_is_poison(cli: Cli, path: Path) -> None:
    """SPOOL-03, SPOOL-06, R9: `release` puts back, `release --failed` counts, `poison` gives up at once."""
    for attempt in (1, 2):
        leased = cli("dequeue")[1]
        assert leased.endswith(f"~{attempt}.jsonl")
        assert cli("release", leased, "--failed", "no network")[0] == 0
    assert cli("release", cli("dequeue")[1], "--failed", "no network")[0] == 0
    leased = cli("dequeue")[1]
    assert json.loads(Path(leased).read_text()) == {"id": "1"}
    assert cli("release", leased)[0] == 0
    assert cli("release", leased)[0] == 1
    leased = cli("dequeue")[1]
    assert cli("poison", leased, "--reason", "never")[0] == 0
    with Spool(path) as spool:
        reasons = {entry.reason["reason"] for entry in entries(spool, State.POISON)}
        assert reasons == {"retries exhausted: no network", "never"}
        spool.recover()
        assert [each.name for each in spool.layout.folder(State.IN_FLIGHT).iterdir()] == []


def test_a_plain_release_uses_up_no_try(cli: Cli, path: Path) -> None:
    """SPOOL-03, SPOOL-05: only a failure and a death count, so one death after many releases is the first try."""
    for _ in range(5):
        leased = cli("dequeue")[1]
        assert leased.endswith("~1.jsonl")
        assert cli("release", leased)[0] == 0
    assert cli("release", cli("dequeue")[1], "--failed", "no network")[0] == 0
    leased = cli("dequeue")[1]
    assert leased.endswith("~2.jsonl") and cli("release", leased)[0] == 0
    assert cli("dequeue", "--for", "0s")[1].endswith("~2.jsonl")
    assert recovered(path) == 1
    cli("dequeue", "--for", "0s")
    assert recovered(path) == 0
    with Spool(path) as spool:
        (bad,) = entries(spool, State.POISON)
    assert str(bad.reason["reason"]).endswith("in try 3 of 3")


def test_a_release_keeps_the_tries_of_what_a_foreign_worker_leased(cli: Cli, path: Path) -> None:
    """SPOOL-03, SPOOL-05: a foreign rename counts no try, so there is none to take back."""
    assert cli("release", cli("dequeue")[1], "--failed", "no network")[0] == 0
    (name,) = (file.name for file in (path / "queue").iterdir() if "~1" in file.name)
    (path / "queue" / name).rename(path / "queue-in-flight" / name)
    assert cli("release", name, "--force")[0] == 0
    assert (path / "queue" / name).exists()


def test_an_event_that_is_not_leased_says_where_it_is(cli: Cli, path: Path) -> None:
    """SPOOL-03: never leased, finished, given up, another's, or no event at all: each is named as what it is."""
    waiting = next(each for each in sorted((path / "queue").iterdir()) if each.name.endswith(".jsonl"))
    code, _, said = cli("done", str(waiting))
    assert (code, said.endswith(f"is not leased: {waiting.name} waits in the queue")) == (1, True), said
    leased = cli("dequeue", "--for", "1h")[1]
    for verb in ("done", "renew"):
        code, _, said = cli(verb, os.path.basename(leased))
        assert (code, said.endswith("is leased under another path")) == (1, True), said
    assert cli("done", leased)[0] == 0
    code, _, said = cli("done", leased)
    assert (code, said.endswith("is finished")) == (1, True), said
    given_up = cli("dequeue", "--for", "1h")[1]
    assert cli("poison", given_up)[0] == 0
    code, _, said = cli("renew", given_up)
    assert (code, said.endswith("was given up")) == (1, True), said
    for stranger in ("/etc/passwd", "../x~1.jsonl", str(path / "queue-in-flight")):
        code, _, said = cli("done", stranger)
        assert (code, "has no such event; name a path that `spool dequeue` printed" in said) == (1, True), (
            said
        )


def test_a_lease_is_settled_by_whichever_link_leads_to_it(cli: Cli, path: Path, tmp_path: Path) -> None:
    """SPOOL-03: the worker may know the spool's folder by another name."""
    (tmp_path / "link").symlink_to(path)
    leased = Path(cli("dequeue", "--for", "1h")[1])
    assert cli("done", str(tmp_path / "link" / leased.relative_to(path)))[0] == 0


def test_what_cannot_be_leased_is_said_also_to_quiet_workers(cli: Cli, path: Path) -> None:
    """SPOOL-03, SPOOL-06: a file that is no event is given up, and that is said with --quiet, too."""
    (path / "queue" / "foreign.jsonl").write_text("no event")
    told = [cli("dequeue", "--for", "1h", "--quiet") for _ in range(5)]
    assert [bool(leased) for _, leased, _ in told] == [code == 0 for code, _, _ in told]
    assert [code for code, _, _ in told] == [0, 0, 0, 1, 1]
    said = "".join(each for _, _, each in told)
    assert said.startswith("watchbill: gave up 1 that cannot be read; see: ")
    assert said.count("gave up") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_events_that_this_user_may_not_lease_are_said_also_to_quiet_workers(cli: Cli, path: Path) -> None:
    """SPOOL-03: they wait, and this worker can never have them."""
    for each in (path / "queue").iterdir():
        if each.name.endswith(".jsonl"):
            each.chmod(0)
    code, leased, said = cli("dequeue", "--quiet")
    assert (code, leased) == (1, "")
    assert "cannot be leased by this user" in said and "permission denied" in said.lower()
    assert json.loads(cli("dequeue", "--json")[1]) == {"path": None, "barred": 3}
