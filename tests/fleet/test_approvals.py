"""Commands that wait for a person: who may let them run, what is remembered of it, and by whom (FLEET-10)."""

import json
import os
from typing import Any

import pytest

from support.eventually import wait_until
from support.fleet_rig import FleetRig
from watchbill import cli
from watchbill.cli import limits
from watchbill.cli.plan_asking import asked
from watchbill.cli.terminal import Terminal
from watchbill.files.host import boot_id, start_time
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Pulse
from watchbill.fleet.folder.requests import Reopening, ask_to_reopen
from watchbill.fleet.state.approving import Answer, Verdict, answer, question_of
from watchbill.fleet.state.epochs import announce
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.state.reading import Follower, find_batch, refusal_of

ASK = 'ask = ["touch *"]\n'


@pytest.fixture(autouse=True)
def coordinator_that_only_turns_for_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands do not wait for it to read their requests."""
    monkeypatch.setattr(limits, "CLI_ANSWER_S", 0)


def task(name: str, command: str, *keys: str) -> str:
    lines = "".join(f"- **{key}\n" for key in keys)
    return f"### {name}\n- **command**:\n  ```bash\n  {command}\n  ```\n{lines}"


def new_coordinator(rig: FleetRig) -> None:
    rig.brain.close()
    rig.brain = rig.new_brain()


def ledger(rig: FleetRig) -> Ledger:
    disk = FolderDisk(rig.root)
    return Follower(disk, find_batch(disk, "b1")).read()


def is_at(rig: FleetRig, name: str, phase: Phase) -> bool:
    rig.turn()
    found = ledger(rig)
    return name in found and found.phase(name) is phase


def run(rig: FleetRig, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert cli.run([*words, "--root", str(rig.root)]) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def waiting(rig: FleetRig, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return json.loads(run(rig, capsys, "plan", "approve", "--json"))["waiting"]


def asking(rig: FleetRig, *more: str) -> None:
    """A batch with a task that is asked about, and its agent."""
    (rig.root / "permissions.toml").write_text(ASK)
    rig.submit("b1", task("asks", "touch {BATCH_PATH}/ran") + "".join(more))
    rig.start("cpu-1")
    wait_until(lambda: is_at(rig, "asks", Phase.MANUAL))


AFTER = task("after", "echo after", "depends_on**: asks")


@pytest.mark.parametrize("more", [(), (AFTER,)], ids=["ended batch", "running batch"])
def test_an_approved_command_runs_once_and_the_journal_says_who_approved_it(
    rig: FleetRig, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """FLEET-10: also in a batch that has ended meanwhile because nothing else was left."""
    asking(rig, *more)
    if not more:
        wait_until(rig.turn)
    (waits,) = waiting(rig, capsys)
    assert (waits["batch"], waits["plan"], waits["task"], waits["why"]) == ("b1", "p", "asks", "approval")
    assert waits["command"] == "touch {BATCH_PATH}/ran" and 'ask "touch *"' in waits["question"]
    told = json.loads(run(rig, capsys, "plan", "approve", "asks", "--json"))
    assert (told["batch"], told["tasks"]) == ("b1", ["asks"]) and "@" in told["who"]
    wait_until(rig.turn, 60)
    assert (rig.batch_folder("b1") / "ran").exists()
    (approved,) = rig.entries("b1", "approve")
    assert (approved["task"], approved["who"]) == ("asks", told["who"]) and approved["at_ms"]
    [kept] = [json.loads(path.read_text()) for path in (rig.root / "brain" / "approvals").iterdir()]
    assert (kept["task"], kept["verdict"], kept["who"]) == ("asks", "approve", told["who"])
    assert kept["command"] and "needs approval" in kept["question"] and kept["digest"] == approved["digest"]
    assert rig.entries("b1", "ended")[-1]["outcome"] == "complete"
    assert list((rig.root / places.MANUAL).iterdir()) == [] and waiting(rig, capsys) == []


@pytest.mark.parametrize("more", [(), (AFTER,)], ids=["ended batch", "running batch"])
def test_a_command_that_a_person_denies_has_failed_and_its_dependents_are_skipped(
    rig: FleetRig, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """FLEET-10."""
    asking(rig, *more)
    if not more:
        wait_until(rig.turn)
    run(rig, capsys, "plan", "deny", "asks", "--reason", "not today")
    wait_until(lambda: is_at(rig, "asks", Phase.FAILED))
    wait_until(rig.turn)
    found = ledger(rig)
    assert found.state("asks").tail.endswith("not today") and "@" in found.state("asks").tail
    assert [found.phase(each) for each in ("after",) if more] == [Phase.SKIPPED][: len(more)]
    assert rig.entries("b1", "ended")[-1]["outcome"] == "failed" and waiting(rig, capsys) == []
    assert not (rig.batch_folder("b1") / "ran").exists()
    assert [each["reason"] for each in rig.entries("b1", "deny")] == ["not today"]


def test_questions_and_approvals_survive_new_coordinators_and_agents(
    rig: FleetRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLEET-09, FLEET-10: at each step everything is started anew."""
    asking(rig, AFTER)
    new_coordinator(rig)
    rig.agents[0].kill()
    assert [each["task"] for each in waiting(rig, capsys)] == ["asks"]
    run(rig, capsys, "plan", "approve", "asks")  # no coordinator reads it yet
    new_coordinator(rig)
    wait_until(lambda: rig.turn() or bool(rig.entries("b1", "approve")))
    new_coordinator(rig)
    rig.start("cpu-2")
    wait_until(rig.turn, 60)
    assert rig.entries("b1", "ended")[-1]["outcome"] == "complete"
    assert len(rig.entries("b1", "approve")) == 1


def test_an_approved_task_that_fails_is_not_asked_about_again(
    rig: FleetRig, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.root / "permissions.toml").write_text(ASK)
    rig.submit("b1", task("asks", "touch {BATCH_PATH}/no/such/folder", "retries**: 0"))
    rig.start("cpu-1")
    wait_until(lambda: is_at(rig, "asks", Phase.MANUAL))
    run(rig, capsys, "plan", "approve", "asks")
    wait_until(lambda: is_at(rig, "asks", Phase.FAILED))
    wait_until(rig.turn)
    run(rig, capsys, "plan", "retry", "asks")
    wait_until(lambda: len(rig.entries("b1", "fail")) == 2 or rig.turn() is None)
    assert len(rig.entries("b1", "hold")) == 1


def test_an_approval_is_about_one_command_and_never_beats_a_denial(
    rig: FleetRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLEET-10: rules that deny, and rules that cannot be read, are above a person's word."""
    asking(rig, AFTER)
    (rig.root / "permissions.toml").write_text('deny = ["touch *"]\n')
    run(rig, capsys, "plan", "approve", "asks")
    wait_until(lambda: is_at(rig, "asks", Phase.FAILED))
    assert ledger(rig).state("asks").end.value == "blocked"  # pyright: ignore[reportOptionalMemberAccess]
    assert not (rig.batch_folder("b1") / "ran").exists()


def test_an_approval_does_not_hold_for_a_corrected_plan(
    rig: FleetRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLEET-10: the person has read another command."""
    (rig.root / "permissions.toml").write_text(ASK)
    folder = rig.submit("b1", task("asks", "touch {BATCH_PATH}/ran; false", "retries**: 0"))
    rig.start("cpu-1")
    wait_until(lambda: is_at(rig, "asks", Phase.MANUAL))
    run(rig, capsys, "plan", "approve", "asks")
    wait_until(lambda: is_at(rig, "asks", Phase.FAILED))
    wait_until(rig.turn)
    plan = (folder / "plan.md").read_text()
    (folder / "plan.md").write_text(plan.replace("/ran; false", "/other"))
    run(rig, capsys, "plan", "resume", "b1")
    wait_until(lambda: is_at(rig, "asks", Phase.MANUAL))
    assert not (rig.batch_folder("b1") / "other").exists()


def test_all_waiting_tasks_of_a_fan_out_are_approved_by_its_name(
    rig: FleetRig, capsys: pytest.CaptureFixture[str]
) -> None:
    (rig.root / "permissions.toml").write_text(ASK)
    folder = rig.submit("b1", task("each", "touch {BATCH_PATH}/{ITEM}", "foreach**: items.json"))
    (folder / "items.json").write_text('["x", "y"]')
    rig.start("cpu-1")
    wait_until(rig.turn)
    assert [(each["task"], each["items"]) for each in waiting(rig, capsys)] == [
        ("each_1", ['"x"']), ("each_2", ['"y"']),
    ]  # fmt: skip
    run(rig, capsys, "plan", "approve", "each", "--batch", "b1")
    wait_until(lambda: rig.turn() and ledger(rig).outcome is not None and not waiting(rig, capsys), 60)
    assert {path.name for path in rig.batch_folder("b1").iterdir()} >= {"x", "y"}


@pytest.mark.parametrize("is_retried", [False, True], ids=["another approval", "a retry"])
def test_an_approval_counts_in_a_round_that_was_begun_for_another_task(
    rig: FleetRig, capsys: pytest.CaptureFixture[str], is_retried: bool
) -> None:
    """FLEET-10, PLAN-07: what was not asked for when the batch was reopened waits on, until a person lets it run."""
    other = task("other", "echo x" if is_retried else "touch {BATCH_PATH}/other")
    asking(rig, AFTER if is_retried else "", other)
    wait_until(lambda: is_at(rig, "other", Phase.COMPLETE if is_retried else Phase.MANUAL))
    rig.agents[0].end()
    run(rig, capsys, "plan", "retry" if is_retried else "approve", "other")
    wait_until(lambda: is_at(rig, "other", Phase.ISSUED))
    run(rig, capsys, "plan", "approve", "asks")
    wait_until(lambda: not rig.turn() and bool(rig.entries("b1", "approve")))
    new_coordinator(rig)
    rig.start("cpu-2")
    wait_until(rig.turn, 60)
    assert rig.entries("b1", "ended")[-1]["outcome"] == "complete"
    assert (rig.batch_folder("b1") / "ran").exists() and waiting(rig, capsys) == []


def test_what_does_not_wait_cannot_be_approved(rig: FleetRig, capsys: pytest.CaptureFixture[str]) -> None:
    asking(rig, task("fine", "echo x"))
    wait_until(lambda: is_at(rig, "fine", Phase.COMPLETE))
    assert "fine of b1 is complete" in run(rig, capsys, "plan", "approve", "fine", code=2)
    assert "no batch has a task nothing" in run(rig, capsys, "plan", "deny", "nothing", code=2)
    for words in (["plan", "approve"], ["approve"], ["approve", "list"], ["approve", "--batch", "b1"]):
        assert "asks of b1 (p)" in run(rig, capsys, *words)


def test_a_request_that_was_written_by_hand_for_something_else_is_refused(rig: FleetRig) -> None:
    """The digest is that of the question: one of another batch, or of an earlier command, counts for nothing."""
    asking(rig, AFTER)
    inbox = rig.root / places.INBOX
    good = {
        "type": "approve",
        "format": 1,
        "id": "r1",
        "batch": "b1",
        "plan": "p",
        "who": "x@y",
        "reason": "",
    }
    for number, tasks in enumerate(({"asks": "0" * 64}, {"other": "0" * 64}, {"after": "0" * 64}, {}, [])):
        (inbox / f"b1.r{number}.approve").write_text(json.dumps({**good, "id": f"r{number}", "tasks": tasks}))
    (inbox / "b1.r9.approve").write_text("{")
    wait_until(lambda: not rig.turn() and not list(inbox.iterdir()))
    assert len(list((rig.root / places.REFUSED).glob("*.approve"))) == 6
    assert ledger(rig).phase("asks") is Phase.MANUAL and rig.entries("b1", "approve") == []


def test_an_answer_behind_a_request_that_runs_the_task_again_counts_or_is_refused(
    rig: FleetRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """PLAN-07, FLEET-10: the commands said that the task will run, or not, and it asked again."""
    asking(rig, AFTER)
    ask_to_reopen(FolderDisk(rig.root), Reopening("1", "b1", "p", ("asks",)))
    told = run(rig, capsys, "plan", "deny", "asks", code=2)
    assert "asks of b1 is about to run again, as somebody asked before" in told
    run(rig, capsys, "plan", "approve", "asks")
    wait_until(lambda: is_at(rig, "asks", Phase.COMPLETE))
    assert len(rig.entries("b1", "hold")) == 1


def test_an_answer_that_came_too_late_is_refused(rig: FleetRig, capsys: pytest.CaptureFixture[str]) -> None:
    """FLEET-10: of two people who answer at the same time one is told that the other was first."""
    asking(rig, AFTER)
    disk = FolderDisk(rig.root)
    question = question_of(ledger(rig), "asks")
    for who, verdict in (("a", Verdict.DENY), ("b", Verdict.APPROVE), ("c", Verdict.DENY)):
        answer(disk, Answer(who, "b1", "p", verdict, {"asks": question.digest}, who))
    wait_until(lambda: is_at(rig, "asks", Phase.FAILED))
    assert "asks of b1 is failed, and waits for nobody any more" in refusal_of(disk, "b1.b.approve")
    assert refusal_of(disk, "b1.c.approve") == ""


class StaleListing(FolderDisk):
    """A network mount that still lists what another host has removed."""

    def names(self, folder: str) -> list[str]:
        return ["b1.1.reopen"] if folder == places.INBOX else super().names(folder)


def test_a_request_that_was_read_is_known_although_an_old_listing_has_it(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLEET-13: each command about a batch would wait for 6 s on such a mount, and say that nobody has read it."""
    monkeypatch.setattr(limits, "CLI_ANSWER_S", 0)
    announce(rig.disk, 1, "host", Pulse(boot_id(), os.getpid(), start_time(os.getpid()) or 0, 1))
    asked(rig.root, StaleListing(rig.root), Terminal(), "it goes on", request="b1.1.reopen")
    assert capsys.readouterr().err == "it goes on\n"
