"""The coordinator on a real folder, driven turn by turn with a clock from outside: plans, fan-outs, fairness, time."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchbill import limits
from watchbill.fleet import limits as fleet_limits
from watchbill.fleet.coordinator import loop
from watchbill.fleet.coordinator.active import ActiveBatches
from watchbill.fleet.coordinator.acts import Acts
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, Watcher, write_heartbeat
from watchbill.fleet.folder.record import read_whole
from watchbill.fleet.folder.requests import Reopening, ask_to_cancel, ask_to_reopen
from watchbill.fleet.folder.results import End, Result, ResultLog
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.state import epochs
from watchbill.fleet.state.approving import Answer, Verdict, answer, questions_of
from watchbill.fleet.state.entries import Epoch, Reopen, encode_entry
from watchbill.fleet.state.epochs import Office, Superseded
from watchbill.fleet.state.journal import Journal, read_past
from watchbill.fleet.state.ledger import Ledger
from watchbill.plans.batch import ExecutePlan

DAY_MS = 86_400_000


class Rig:
    """A shared folder, one coordinator at a time, and one agent whose worker is the test."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        places.make_root(root)
        self.root = root
        self.disk = FolderDisk(root)
        self.board = Board(self.disk)
        self.board.join("cpu-1")
        self.log = ResultLog(self.disk, "cpu-1")
        self.seq = 0
        self.brain = self.new_brain(0)

    def new_brain(
        self, now_ms: int, produces_ms: int = fleet_limits.PRODUCES_MS_MAX, boot: str = "manager"
    ) -> Coordinator:
        brain = Coordinator(
            self.disk, Watcher(boot), Pulse(boot, 1, 1, 0), wall_ms=lambda: 1_767_225_600_000,
            produces_ms=produces_ms,
        )  # fmt: skip
        brain.start(now_ms)
        return brain

    def submit(self, batch: str, plan: str, tasks: str) -> None:
        folder = self.root / "plans" / plan
        folder.mkdir(exist_ok=True)
        (folder / "plan.md").write_text(f"# Plan\n## Tasks\n{tasks}")
        (self.root / places.INBOX / f"{batch}.json").write_bytes(ExecutePlan(batch, plan, {}).encode())

    def beat(self) -> None:
        self.seq += 1
        (self.root / "gpus/cpu_1").mkdir(exist_ok=True)
        write_heartbeat(self.disk, "cpu-1", Heartbeat(Pulse("rig", 1, 1, self.seq)))

    def claim(self, count: int = 1_000) -> Iterator[tuple[str, Slip]]:
        for name in self.board.offered()[:count]:
            assert self.board.claim("cpu-1", name)
            slip = self.board.read("cpu-1", name)
            assert slip is not None
            yield name, slip

    def report(self, name: str, end: End = End.DONE) -> None:
        self.log.commit([Result(name, "cpu-1", self.log.life, end, 0 if end is End.DONE else 1)])

    def journal(self, batch: str, plan: str = "p") -> list[dict[str, object]]:
        files = sorted((self.root / places.batch_folder(plan, batch)).glob("journal.*.jsonl"))
        lines = [line for file in files for line in file.read_text().split("\n") if line]
        return [json.loads(line.partition(" ")[2]) for line in lines]

    def counted(self, batch: str) -> list[dict[str, object]]:
        """What counts for the next coordinator."""
        return [encode_entry(entry) for entry in read_past(self.disk, "p", batch, 10**9).entries]

    def kinds(self, batch: str, kind: str) -> list[dict[str, object]]:
        return [entry for entry in self.journal(batch) if entry["e"] == kind]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


FAN_OUT = """### scan
- **command**: `true`
### each
- **command**: `echo {ITEM.n}`
- **foreach**: {BATCH_PATH}/manifest.json:items
- **depends_on**: scan
### sum
- **command**: `true`
- **depends_on**: each
"""


FOLLOWED = """### scan
- **command**: `true`
### mid
- **command**: `true`
- **depends_on**: scan
- **retries**: 0
### each
- **command**: `echo {ITEM.n}`
- **foreach**: {BATCH_PATH}/manifest.json:items
- **depends_on**: scan
### then
- **command**: `echo {ITEM.n}`
- **foreach**: {BATCH_PATH}/manifest.json:items
- **depends_on**: each_{ITEM.id}, mid
### x
- **command**: `true`
"""
AFTER_SKIPPED = """### scan
- **command**: `true`
- **retries**: 0
### mid
- **command**: `true`
- **depends_on**: scan
### each
- **command**: `true`
- **foreach**: items.json
- **depends_on**: mid
- **needs**: done
"""


def test_a_fan_out_is_frozen_and_survives_a_new_coordinator(rig: Rig) -> None:
    """PLAN-04, PLAN-05, R17: the items are those of the moment, and are not expanded twice."""
    rig.submit("b1", "p", FAN_OUT)
    rig.brain.turn(0)
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    [(name, slip)] = rig.claim()
    assert slip.task == "scan"
    manifest.write_text('{"items": [{"id": "x", "n": 1.10}, {"n": 2}]}')
    rig.report(name)
    rig.brain.turn(1)
    manifest.write_text('{"items": []}')
    rig.brain = rig.new_brain(2)
    claimed = list(rig.claim())
    assert [(slip.task, slip.items) for _, slip in claimed] == [
        ("each_x", ('{"id":"x","n":1.10}',)),
        ("each_2", ('{"n":2}',)),
    ]
    for name, _ in claimed:
        rig.report(name)
    rig.brain.turn(3)
    [(name, slip)] = rig.claim()
    rig.report(name)
    rig.brain.turn(4)
    assert slip.task == "sum"
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["complete"]
    assert os.listdir(rig.root / places.ACTIVE) == []
    assert len(os.listdir(rig.root / "tasks/complete/2026-01-01")) == 4


def test_the_next_task_is_offered_before_the_last_slip_is_put_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-02: an agent waits for the offer, and nobody for the folder of complete tasks. A slip that failed leaves
    the board first: two of one task are never offered together."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n### b\n- **command**: `true`\n- **depends_on**: a\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    seen: list[tuple[str, list[str]]] = []
    real = Board.put_away

    def put_away(board: Board, slip: str, folder: str, *, holder: str = "") -> bool:
        seen.append((slip, rig.board.offered()))
        return real(board, slip, folder, holder=holder)

    monkeypatch.setattr(Board, "put_away", put_away)
    rig.report(name)
    rig.brain.turn(1)
    [(after, slip)] = rig.claim()
    assert slip.task == "b" and seen == [(name, [after])]
    rig.report(after, End.LOST)
    rig.brain.turn(2)
    assert seen[1:] == [(after, [])]
    assert len(rig.board.offered()) == 1


def test_the_slip_of_an_accepted_attempt_is_complete_although_its_agent_died_in_that_moment(rig: Rig) -> None:
    """FLEET-09: whoever looks for the slip of a complete task finds it there, and not among those that are over."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n### b\n- **command**: `true`\n")
    rig.beat()
    rig.brain.turn(0)
    (first, _), (second, _) = rig.claim()
    for now_ms in range(10_000, 90_000, 10_000):
        rig.brain.turn(now_ms)
    rig.report(first)  # in the turn in which the agent counts as dead
    rig.brain.turn(91_000)
    assert [entry["task"] for entry in rig.kinds("b1", "revoke")] == ["b"]
    assert os.listdir(rig.root / "tasks/complete/2026-01-01") == [first]
    assert os.listdir(rig.root / places.EXPIRED) == [second]


def test_the_slip_of_an_accepted_attempt_is_complete_although_the_next_life_reports_it_lost(rig: Rig) -> None:
    """FLEET-09: an agent that died behind its report knows nothing of it; both lines are heard together."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.report(name)
    ResultLog(rig.disk, "cpu-1").commit([Result(name, "cpu-1", rig.log.life + 1, End.LOST, 0)])
    rig.brain.turn(1)
    assert [entry["task"] for entry in rig.kinds("b1", "accept")] == ["a"]
    assert os.listdir(rig.root / "tasks/complete/2026-01-01") == [name]
    assert os.listdir(rig.root / places.EXPIRED) == []


def test_an_answer_that_nobody_could_evaluate_is_accepted_and_said_to_have_no_score(rig: Rig) -> None:
    """FLEET-08: in the journal, in the summary and in what `plan status` reads."""
    rig.submit("b1", "p", "### a\n- **prompt**: Go.\n- **evaluate**: short\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    answer = rig.root / places.batch_folder("p", "b1") / "tasks/a/a1/stdout"
    answer.parent.mkdir(parents=True)
    answer.write_text("said")
    rig.report(name)
    rig.brain.turn(1)
    rig.brain.turn(1 + fleet_limits.EVALUATION_MS_MAX)
    [accepted] = rig.kinds("b1", "accept")
    assert accepted["is_unscored"] is True
    folder = rig.root / places.batch_folder("p", "b1")
    assert json.loads((folder / "RUN_SUMMARY.json").read_text())["unscored"] == ["a"]
    assert "## Accepted without a score\n\n- a" in (folder / "RUN_SUMMARY.md").read_text()


class _Asked:
    """A batch of one task whose answer is scored, and the questions about it that lie in the queue."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.submit("b1", "p", "### a\n- **prompt**: Go.\n- **evaluate**: short\n")
        rig.board.join(places.BRAIN)
        self.log = ResultLog(rig.disk, places.BRAIN)
        rig.brain.turn(0)
        [(name, _)] = rig.claim()
        answer = rig.root / places.batch_folder("p", "b1") / "tasks/a/a1/stdout"
        answer.parent.mkdir(parents=True)
        answer.write_text("said")
        rig.report(name)
        rig.brain.turn(1)

    def claim(self) -> str:
        [name] = self.rig.board.offered()
        assert ".evaluation" in name and self.rig.board.claim(places.BRAIN, name)
        return name

    def report(self, name: str, end: End, answer: str = "") -> None:
        self.log.commit([Result(name, places.BRAIN, self.log.life, end, 0, answer=answer)])


def test_a_score_that_is_lost_with_its_agent_is_asked_for_again(rig: Rig) -> None:
    """FLEET-08, FLEET-09: the answer was accepted without a score, or waited ten minutes for one."""
    asked = _Asked(rig)
    (rig.root / places.heartbeat_path(places.BRAIN)).parent.mkdir()
    write_heartbeat(rig.disk, places.BRAIN, Heartbeat(Pulse("manager", 10**9, 1, 1)))
    asked.claim()
    rig.brain.turn(2_000)  # the kernel says that it is dead
    for now_ms, end in ((3_000, End.LOST), (4_000, End.SOFT_STOP), (5_000, End.LOST), (6_000, End.LOST)):
        asked.report(asked.claim(), end)
        rig.brain.turn(now_ms)
    assert rig.kinds("b1", "accept") == []
    asked.report(asked.claim(), End.DONE, '{"score": 4, "reason": "clear"}')
    rig.brain.turn(7_000)
    [accepted] = rig.kinds("b1", "accept")
    assert accepted["is_unscored"] is False
    assert os.listdir(rig.root / places.QUEUE) == rig.board.held_by(places.BRAIN) == []


def test_an_answer_that_waits_for_its_score_is_not_offered_again_by_a_successor(rig: Rig) -> None:
    """FLEET-08, FLEET-09: its slip was gone with a second report, so it ran once more under the same token, and the
    score of the first answer let the second pass."""
    asked = _Asked(rig)
    [name] = rig.board.held_by("cpu-1")
    rig.log = ResultLog(rig.disk, "cpu-1")
    rig.report(name, End.LOST)  # the next life of the agent finds the slip in its hands
    rig.brain.turn(2)
    rig.brain.close()
    rig.brain = rig.new_brain(3)
    rig.brain.turn(4)
    assert [each for each in rig.board.offered() if ".evaluation" not in each] == []
    [question] = [each for each in rig.board.offered() if ".evaluation-2-" in each]
    asked.report(question, End.DONE, '{"score": 4}')
    rig.brain.turn(5)
    [accepted] = rig.kinds("b1", "accept")
    assert (accepted["attempt"], accepted["is_unscored"]) == (1, False)


def test_an_answer_outlives_its_agent_while_it_waits_for_its_score(rig: Rig) -> None:
    """FLEET-08, FLEET-09: it was thrown away and counted as a loss, and after five such losses a person was asked."""
    asked = _Asked(rig)
    (rig.root / places.heartbeat_path("cpu-1")).parent.mkdir(exist_ok=True)
    write_heartbeat(rig.disk, "cpu-1", Heartbeat(Pulse("manager", 10**9, 1, 1)))
    rig.brain.turn(2_000)  # the kernel says that it is dead
    assert rig.kinds("b1", "revoke") == []
    asked.report(asked.claim(), End.DONE, '{"score": 4, "reason": "clear"}')
    rig.brain.turn(3_000)
    assert [entry["attempt"] for entry in rig.kinds("b1", "accept")] == [1]
    assert rig.board.held_by("cpu-1") == []


def test_a_result_outlives_its_agent_while_its_files_are_not_to_be_seen(rig: Rig) -> None:
    """FLEET-09: a network mount shows a file late, and the task that had made it ran again."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n- **produces**: {BATCH_PATH}/made\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.report(name)
    rig.brain.turn(1)
    rig.log = ResultLog(rig.disk, "cpu-1")
    rig.report(name, End.LOST)
    rig.brain.turn(2)
    (rig.root / places.batch_folder("p", "b1") / "made").touch()
    rig.brain.turn(3)
    assert [entry["attempt"] for entry in rig.kinds("b1", "accept")] == [1]
    assert rig.kinds("b1", "lost") == []


def test_a_result_that_was_reported_is_not_offered_again_where_its_slip_is_gone(rig: Rig) -> None:
    """FLEET-09: a power cut takes names from folders that are never synced; a task that had ended ran again."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.brain.close()
    rig.report(name)
    (rig.root / places.processing_folder("cpu-1") / name).unlink()
    rig.brain = rig.new_brain(1)
    assert rig.board.offered() == []
    rig.brain.turn(2)
    assert [entry["attempt"] for entry in rig.kinds("b1", "accept")] == [1]


@pytest.mark.parametrize(("score", "end"), [(1, "fail"), (4, "accept")])
def test_a_score_without_a_reason_counts(rig: Rig, score: int, end: str) -> None:
    """FLEET-08: a poor answer was accepted without a score, because the model had given no reason for it."""
    asked = _Asked(rig)
    question = asked.claim()
    slip = rig.board.read(places.BRAIN, question)
    assert slip is not None and json.loads(slip.work.schema)["required"] == ["score"]
    asked.report(question, End.DONE, json.dumps({"score": score}))
    rig.brain.turn(2)
    [entry] = rig.kinds("b1", end)
    assert entry.get("tail", "scored 1 of 5") == "scored 1 of 5"


def test_an_answer_is_accepted_without_a_score_when_three_questions_have_failed(rig: Rig) -> None:
    """FLEET-08: a model that cannot score must not hold answers for ten minutes."""
    asked = _Asked(rig)
    for number in range(fleet_limits.EVALUATIONS_MAX):
        assert rig.kinds("b1", "accept") == []
        asked.report(asked.claim(), End.FAILED)
        rig.brain.turn(10 + number)
    [accepted] = rig.kinds("b1", "accept")
    assert accepted["is_unscored"] is True


def test_the_time_of_a_failed_attempt_is_in_the_summary(rig: Rig) -> None:
    """PLAN-07."""
    rig.submit("b1", "p", "### a\n- **command**: `false`\n- **retries**: 0\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.log.commit([Result(name, "cpu-1", rig.log.life, End.FAILED, 1, ms=1_500)])
    rig.brain.turn(1)
    [failed] = json.loads((rig.root / places.batch_folder("p", "b1") / "RUN_SUMMARY.json").read_text())[
        "failures"
    ]
    assert failed["run_ms"] == 1_500


def test_the_log_names_outcomes_as_the_journal_does(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "watchbill.coordinator")
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.report(name)
    rig.brain.turn(1)
    lines = [line for line in caplog.messages if line.startswith(("action=accept", "action=ended"))]
    assert lines[-1] == "action=ended batch=b1 outcome=complete"
    assert not [line for line in lines if "Outcome." in line or "End." in line]


def test_a_batch_has_a_summary_after_two_seconds(rig: Rig) -> None:
    """PLAN-06: the first one came after half a minute."""
    rig.submit("b1", "p", FAN_OUT)
    rig.brain.turn(0)
    rig.brain.turn(2_000)
    summary = json.loads((rig.root / places.batch_folder("p", "b1") / "RUN_SUMMARY.json").read_text())
    assert summary["outcome"] == "running"


def test_a_manifest_that_never_comes_fails_the_task_with_its_line(rig: Rig) -> None:
    """PLAN-04."""
    rig.submit("b1", "p", FAN_OUT)
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.report(name)
    for now_ms in (1, 1_001, 2_001):
        rig.brain.turn(now_ms)
    [failed] = rig.kinds("b1", "fail")
    assert str(failed["tail"]).startswith("plan.md:5: ") and "is not there" in str(failed["tail"])
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["partial"]


def test_a_bad_plan_is_refused_with_its_line_and_nothing_is_queued(rig: Rig) -> None:
    """PLAN-03: the coordinator checks again."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n- **depends_on**: nobody\n")
    rig.brain.turn(0)
    said = json.loads((rig.root / places.REFUSED / "b1.json").read_text())
    assert said["error"].startswith("plans/p/plan.md:5: ")
    assert rig.board.offered() == [] and os.listdir(rig.root / places.INBOX) == []
    assert not (rig.root / places.batch_folder("p", "b1")).exists()


def test_ten_tasks_end_before_ten_thousand_that_came_first(rig: Rig) -> None:
    """PLAN-07: batches share the agents in turn."""
    manifest = rig.root / "plans/big/items.json"
    fan_out = "### each\n- **command**: `true`\n- **foreach**: items.json:items\n"
    rig.submit("big", "big", fan_out)
    manifest.write_text(json.dumps({"items": [0] * 10_000}))
    rig.brain.turn(0)
    rig.submit("small", "p", "".join(f"### t{number}\n- **command**: `true`\n" for number in range(10)))
    accepted: list[str] = []
    now_ms = 0
    while accepted.count("small") < 10:
        now_ms += 1
        assert now_ms < 50
        for name, slip in rig.claim(4):
            rig.report(name)
            accepted.append(slip.batch)
        rig.brain.turn(now_ms)
        assert len(rig.board.offered()) <= fleet_limits.RELEASE_MIN
    assert accepted.count("big") < 60


def test_a_failed_task_comes_again_after_its_time_and_one_of_another_boot_counts_from_its_start(
    rig: Rig,
) -> None:
    """FLEET-08, R16: no wall clock is in it, so a clock that is set by a day changes nothing."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.report(name, End.FAILED)
    assert rig.brain.turn(1_000).next_at_ms == 11_000
    rig.brain.turn(10_999)
    assert rig.board.offered() == []
    rig.brain = rig.new_brain(5 * DAY_MS, boot="another")
    rig.brain.turn(5 * DAY_MS + 9_999)
    assert rig.board.offered() == []
    rig.brain.turn(5 * DAY_MS + 10_000)
    [(name, slip)] = rig.claim()
    assert slip.attempt == 2
    rig.report(name, End.FAILED)
    rig.brain.turn(5 * DAY_MS + 10_001)
    rig.brain.turn(5 * DAY_MS + 70_001)
    [(name, slip)] = rig.claim()
    rig.report(name, End.FAILED)
    rig.brain.turn(5 * DAY_MS + 70_002)
    assert slip.attempt == 3
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["failed"]
    assert os.listdir(rig.root / places.FAILED) == [name]


def test_a_takeover_does_not_begin_the_wait_of_a_failed_task_anew(rig: Rig) -> None:
    """FLEET-08: the third attempt came after 300 s of quiet only, and a coordinator that came and went more often than
    that kept it away for good. The clock of a boot is one, whichever process reads it; another boot's is not asked."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    rig.report(name, End.FAILED)
    rig.brain.turn(1_000)
    for now_ms in (4_000, 8_000, 10_999):  # of the same boot: 10 s from the failure on
        rig.brain = rig.new_brain(now_ms)
        assert rig.brain.turn(now_ms).next_at_ms == 11_000
    for now_ms in (700_000, 705_000, 709_999):  # of another one: from when it was first seen
        rig.brain = rig.new_brain(now_ms, boot="another")
        assert rig.brain.turn(now_ms).next_at_ms == 710_000
    rig.brain = rig.new_brain(500, boot="third")
    assert rig.brain.turn(500).next_at_ms == 10_500
    rig.brain = rig.new_brain(11_000)
    rig.brain.turn(11_000)
    [(_, slip)] = rig.claim()
    assert slip.attempt == 2


def test_a_silent_agent_loses_its_task_once_and_its_late_result_is_refused(rig: Rig) -> None:
    """R13, FLEET-08: attempt 2 is accepted, attempt 1 is not, whenever it comes."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    rig.beat()
    [(first, _)] = rig.claim()
    rig.brain.turn(1_000)
    rig.brain.turn(90_999)
    assert rig.board.held_by("cpu-1") == [first]
    rig.brain.turn(91_999)
    rig.beat()
    assert rig.board.held_by("cpu-1") == []
    [(second, slip)] = rig.claim()
    assert slip.attempt == 2
    rig.report(first)
    rig.brain.turn(92_999)
    assert rig.kinds("b1", "accept") == []
    rig.report(second)
    rig.brain.turn(93_999)
    assert [entry["attempt"] for entry in rig.kinds("b1", "accept")] == [2]


def test_an_empty_slip_is_issued_anew_under_the_next_token(rig: Rig) -> None:
    """After a power cut the name is there and the content is not."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [name] = rig.board.offered()
    (rig.root / places.QUEUE / name).write_bytes(b"")
    rig.brain = rig.new_brain(1)
    rig.brain.turn(2)
    [(_, slip)] = rig.claim()
    assert slip.attempt == 2
    assert os.listdir(rig.root / places.EXPIRED) == [name]


def test_a_cancelled_batch_leaves_the_board(rig: Rig) -> None:
    """PLAN-07."""
    command = "- **command**: `true`\n"
    rig.submit("b1", "p", f"### a\n{command}### b\n{command}### c\n{command}- **depends_on**: a\n")
    rig.brain.turn(0)
    list(rig.claim(1))
    (rig.root / places.INBOX / "b1.cancel").touch()
    rig.brain.turn(1)
    assert rig.board.offered() == rig.board.held_by("cpu-1") == []
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["failed"]
    assert os.listdir(rig.root / places.INBOX) == []


def test_a_cancel_is_obeyed_once_whoever_dies_before_it_is_removed(rig: Rig) -> None:
    """PLAN-07, FLEET-09: the batch was cancelled, the coordinator died, and the batch that was resumed since was
    cancelled again by the same file."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    ask_to_cancel(rig.disk, "b1")
    cancel = rig.root / places.INBOX / "b1.cancel"
    content = cancel.read_bytes()
    rig.brain.turn(1)
    assert [entry["e"] for entry in rig.journal("b1")][-1] == "ended"
    rig.brain.close()
    cancel.write_bytes(content)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", reads_plan=True))
    rig.brain = rig.new_brain(2)
    rig.brain.turn(3)
    [(name, _)] = rig.claim()
    rig.report(name)
    rig.brain.turn(4)
    assert rig.kinds("b1", "ended")[-1]["outcome"] == "complete"
    assert len(rig.kinds("b1", "cancel")) == 1 and os.listdir(rig.root / places.INBOX) == []
    ask_to_reopen(rig.disk, Reopening("r2", "b1", "p", ("a",)))
    ask_to_cancel(rig.disk, "b1")  # another one
    rig.brain.turn(5)
    assert len(rig.kinds("b1", "cancel")) == 2


def test_a_coordinator_that_was_superseded_ends_before_it_touches_the_board(rig: Rig) -> None:
    """R13."""
    old = rig.brain
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain = rig.new_brain(1)
    with pytest.raises(Superseded):
        old.turn(2)
    assert rig.board.offered() == []
    rig.brain.turn(3)
    assert len(rig.board.offered()) == 1


def test_a_journal_that_makes_no_sense_stops_its_own_batch_only(rig: Rig) -> None:
    for batch in ("b1", "b2"):
        rig.submit(batch, "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    broken = FolderDisk(rig.root).create_log(places.journal_path("p", "b1", 2))
    broken.append([b'{"e":"epoch","epoch":2,"after":{}}', b'{"e":"of another version"}'])
    (rig.root / places.EPOCHS / "2").touch()
    rig.brain = rig.new_brain(1)
    rig.brain.turn(2)
    assert list(rig.brain.left_alone) == ["b1"]
    assert [slip.batch for _, slip in rig.claim()] == ["b2"]


def test_a_second_coordinator_waits_for_one_of_another_machine_and_not_for_a_dead_one_of_this_boot(
    rig: Rig,
) -> None:
    """R15: pid, start time and boot tell a process; a machine that cannot be asked is watched for 90 s."""
    here = Office(rig.disk, Watcher("manager", lambda pid, started: False))
    assert here.occupant(0) is None
    living = Office(rig.disk, Watcher("manager", lambda pid, started: True)).occupant(0)
    assert living is not None and living.pulse.pid == 1
    elsewhere = Office(rig.disk, Watcher("another"))
    assert elsewhere.occupant(0) is not None
    assert elsewhere.occupant(89_999) is not None
    rig.brain.turn(fleet_limits.COORDINATOR_BEAT_MS)
    assert elsewhere.occupant(90_000) is not None
    assert elsewhere.occupant(180_000) is None


class LateDisk(FolderDisk):
    """The folder on a mount that shows late which numbers of coordinators others have taken."""

    is_late = False

    def names(self, folder: str) -> list[str]:
        return ["1"] if self.is_late and folder == places.EPOCHS else super().names(folder)


def test_what_a_superseded_coordinator_does_before_its_mount_shows_its_successor_counts(rig: Rig) -> None:
    """R17, FLEET-09: it ended a batch, and removed it from the active ones; the successor on another machine had read
    its journal before that. The batch was neither active nor over from then on, and `plan status` said that it runs."""
    late = LateDisk(rig.root)

    def brain(boot: str, now_ms: int, disk: FolderDisk) -> Coordinator:
        found = Coordinator(
            disk, Watcher(boot), Pulse(boot, 1, 1, 0), wall_ms=lambda: 1_767_225_600_000, hides_ms=60_000
        )
        found.start(now_ms)
        return found

    rig.brain.close()
    os.remove(rig.root / places.EPOCHS / "1")
    first = brain("a", 0, late)
    rig.submit("b1", "p", "### t\n- **command**: `true`\n")
    first.turn(1)
    [(name, _)] = rig.claim()
    rig.report(name)
    second = brain("b", 2, rig.disk)
    late.is_late = True
    first.turn(3)
    assert os.listdir(rig.root / places.ACTIVE) == []
    late.is_late = False
    with pytest.raises(Superseded):
        first.turn(4)
    assert second.turn(60_001).next_at_ms == 60_002
    assert second.turn(60_002).batches == 0
    assert [entry["outcome"] for entry in rig.counted("b1") if entry["e"] == "ended"] == ["complete"]


def test_a_coordinator_that_knows_its_predecessor_to_be_dead_does_not_wait(rig: Rig) -> None:
    """FLEET-09: one on the same machine goes on at once, on a network mount too."""
    rig.submit("b1", "p", "### t\n- **command**: `true`\n")
    rig.brain.turn(0)
    again = Coordinator(
        rig.disk, Watcher("manager"), Pulse("manager", 2, 2, 0), wall_ms=lambda: 0, hides_ms=60_000
    )
    again.start(1)
    assert again.turn(2).batches == 1


def test_a_wait_for_another_coordinator_that_was_cut_short_is_begun_anew(rig: Rig) -> None:
    """FLEET-09: the one that waited knew nothing of what its predecessor did, and its successor knows no more."""
    rig.submit("b1", "p", "### t\n- **command**: `true`\n")
    rig.brain.turn(0)
    for pid in (1, 2):
        brain = Coordinator(rig.disk, Watcher("b"), Pulse("b", pid, 2, 0), wall_ms=lambda: 0, hides_ms=60_000)
        brain.start(1)
        assert brain.turn(60_000).batches == 0
    assert brain.turn(60_001).batches == 1


def test_coordinators_that_come_and_go_run_no_finished_task_again(rig: Rig) -> None:
    """R17: finished tasks are not run again."""
    manifest = rig.root / "plans/big/items.json"
    rig.submit("big", "big", "### each\n- **command**: `true`\n- **foreach**: items.json:items\n")
    manifest.write_text(json.dumps({"items": [0] * 500}))
    rig.brain.turn(0)
    done: set[str] = set()
    for now_ms in range(1, 100):
        if now_ms % 3 == 0:
            rig.brain = rig.new_brain(now_ms)
        for name, slip in rig.claim():
            assert slip.task not in done
            done.add(slip.task)
            rig.report(name)
        rig.brain.turn(now_ms)
        if len(done) == 500:
            break
    assert len(done) == 500
    assert [entry["outcome"] for entry in rig.journal("big", "big") if entry["e"] == "ended"] == ["complete"]


def test_a_group_of_entries_that_a_power_cut_tore_anywhere_is_finished_by_the_next_coordinator(
    tmp_path: Path,
) -> None:
    """FLEET-09: lines of one append may be there in part; what is missing is decided again."""
    whole = Rig(tmp_path / "whole")
    whole.submit("b1", "p", "### a\n- **command**: `true`\n")
    whole.brain.turn(0)
    [(name, _)] = whole.claim()
    whole.report(name)
    whole.brain.turn(1)
    lines = (whole.root / places.journal_path("p", "b1", 1)).read_bytes().rstrip(b"\n").split(b"\n")
    assert len(lines) == 6  # epoch, tasks, open, issue, accept, ended
    for kept in range(len(lines)):
        torn = Rig(tmp_path / str(kept))
        torn.submit("b1", "p", "### a\n- **command**: `true`\n")
        folder = torn.root / places.batch_folder("p", "b1")
        folder.mkdir(parents=True)
        (folder / "journal.1.jsonl").write_bytes(b"\n".join([*lines[:kept], lines[kept][:-3]]))
        torn.brain = torn.new_brain(0)
        for now_ms in range(4):
            torn.brain.turn(now_ms)
            for name, _ in torn.claim():
                torn.report(name)
        assert [entry["e"] for entry in torn.counted("b1") if entry["e"] in ("accept", "ended")] == [
            "accept",
            "ended",
        ], kept


@pytest.mark.parametrize("produces_ms", [fleet_limits.PRODUCES_MS_MAX, fleet_limits.PRODUCES_NETWORK_MS_MAX])
def test_a_file_that_a_task_produced_may_show_late_and_one_that_never_does_fails_it(
    rig: Rig, produces_ms: int
) -> None:
    """PLAN-02: the coordinator looks itself, and caches of a network mount may hide the file for a while."""
    rig.brain = rig.new_brain(0, produces_ms)
    task = "- **command**: `true`\n- **produces**: {BATCH_PATH}/NAME.*\n- **retries**: 0\n"
    rig.submit("b1", "p", "".join(f"### {name}\n{task.replace('NAME', name)}" for name in ("late", "never")))
    rig.brain.turn(0)
    for name, _ in list(rig.claim()):
        rig.report(name)
    rig.brain.turn(1)
    assert rig.kinds("b1", "accept") == [] == rig.kinds("b1", "fail")
    (rig.root / places.batch_folder("p", "b1") / "late.txt").touch()
    rig.brain.turn(produces_ms)
    assert [entry["task"] for entry in rig.kinds("b1", "accept")] == ["late"]
    assert rig.kinds("b1", "fail") == []
    rig.brain.turn(produces_ms + 1)
    [failed] = rig.kinds("b1", "fail")
    assert (failed["task"], failed["end"]) == ("never", "missing_output")
    assert "never.* is not there" in str(failed["tail"])


def test_a_task_without_progress_is_aborted_then_killed_then_left_to_a_person(rig: Rig) -> None:
    """FLEET-07: the ladder; a file that is obeyed ends it, and a constrained device does not count."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [(name, _)] = rig.claim()
    folder = rig.root / places.SIGNALS
    seen: dict[int, list[str]] = {}
    for now_ms in range(
        0, limits.STUCK_AFTER_MS + 3 * fleet_limits.STUCK_STEP_MS, fleet_limits.STUCK_LOOK_MS
    ):
        rig.beat()
        rig.brain.turn(now_ms)
        if sorted(os.listdir(folder)) not in seen.values():
            seen[now_ms] = sorted(os.listdir(folder))
    times = list(seen)
    assert list(seen.values()) == [[], ["cpu-1.abort.a"], ["cpu-1.abort.a", "cpu-1.kill.a"]]
    assert limits.STUCK_AFTER_MS <= times[1] <= limits.STUCK_AFTER_MS + 3 * fleet_limits.STUCK_LOOK_MS
    assert times[2] - times[1] == fleet_limits.STUCK_STEP_MS
    assert [entry["cause"] for entry in rig.kinds("b1", "hold")] == ["stuck"]
    assert os.listdir(rig.root / places.MANUAL) == [name]


def test_files_among_the_signals_that_nobody_obeys_are_told_of_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """FLEET-07, FLEET-11."""
    for name in ("hello.txt", "cpu-1.frob", "cpu-9.stop", "cpu-1.hold"):
        (rig.root / places.SIGNALS / name).touch()
    for now_ms in range(0, 5 * fleet_limits.STUCK_LOOK_MS, fleet_limits.STUCK_LOOK_MS // 2):
        rig.beat()
        rig.brain.turn(now_ms)
    told = [record.getMessage() for record in caplog.records if "action=signal" in record.getMessage()]
    assert sorted(told) == [
        "action=signal file='cpu-1.frob' why=no signal is called so",
        "action=signal file='cpu-9.stop' why=no agent of this name lives",
        "action=signal file='hello.txt' why=no signal is called so",
    ]


def test_a_cancel_that_arrives_with_its_plan_is_obeyed(rig: Rig) -> None:
    """PLAN-07: the inbox is read in an order in which nothing is lost; a batch that nobody wants is not opened."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    ask_to_cancel(rig.disk, "b1")
    for now_ms in (0, 1):
        rig.brain.turn(now_ms)
    assert rig.journal("b1") == [] and rig.board.offered() == []
    assert "cancelled before" in (rig.root / places.REFUSED / "b1.json").read_text()
    assert os.listdir(rig.root / places.INBOX) == [] == os.listdir(rig.root / places.ACTIVE)


def test_a_retry_in_a_running_batch_leaves_the_running_tasks_their_tokens(rig: Rig) -> None:
    """PLAN-07: also across a coordinator that dies at once, and each task is accepted once."""
    fan_out = "### each\n- **command**: `true`\n- **foreach**: items.json\n- **retries**: 0\n"
    rig.submit("b1", "p", f"{fan_out}### sum\n- **command**: `true`\n- **depends_on**: each\n")
    (rig.root / "plans/p/items.json").write_text('["x", "y", "z"]')
    rig.brain.turn(0)
    claimed = {slip.task: name for name, slip in rig.claim()}
    rig.report(claimed["each_1"])
    rig.report(claimed["each_2"], End.FAILED)
    rig.brain.turn(1)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("each_2",)))
    rig.brain.turn(2)
    rig.brain = rig.new_brain(3)
    [(again, slip)] = rig.claim()
    assert (slip.task, slip.attempt) == ("each_2", 2)
    rig.report(claimed["each_3"])
    rig.report(again)
    rig.brain.turn(4)
    [(last, slip)] = rig.claim()
    rig.report(last)
    rig.brain.turn(5)
    counted = [entry for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert sorted((str(entry["task"]), entry["attempt"]) for entry in counted) == [
        ("each_1", 1), ("each_2", 2), ("each_3", 1), ("sum", 1),
    ]  # fmt: skip
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["complete"]


def test_a_coordinator_that_dies_before_it_takes_back_the_slips_of_a_former_fan_out_has_a_successor(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-09: those tasks are not there any more when the successor meets their slips, in the queue and in hands."""
    rig.submit("b1", "p", FAN_OUT)
    rig.brain.turn(0)
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.write_text('{"items": [{"id": "x", "n": 1}, {"id": "y", "n": 2}]}')
    [(scan, _)] = rig.claim()
    rig.report(scan)
    rig.brain.turn(1)
    [(held, _)] = rig.claim(1)
    [queued] = rig.board.offered()
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan",)))
    with monkeypatch.context() as dying:
        dying.setattr(Acts, "carry_out", _die)
        with pytest.raises(OSError, match="killed"):
            rig.brain.turn(2)
    rig.brain = rig.new_brain(3)
    assert sorted(os.listdir(rig.root / places.EXPIRED)) == sorted([held, queued])
    for now_ms in range(4, 9):
        rig.brain.turn(now_ms)
        for name, _ in rig.claim():
            rig.report(name)
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["complete"]


class _StopsAtTheEnd(FolderDisk):
    """The disk of a coordinator that is stopped when it is about to say that a batch is no longer active."""

    def remove(self, path: str) -> None:
        if path.startswith(places.ACTIVE):
            self.meanwhile()
        super().remove(path)

    def meanwhile(self) -> None:
        """What others do before it goes on."""


def test_a_coordinator_that_is_stopped_while_it_closes_a_batch_hides_no_later_round_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-09, R13: a successor reopens the batch, the first one goes on and removes what says that it is active, and
    the successor dies. The next one still knows of the batch."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.disk = _StopsAtTheEnd(rig.root)
    first = rig.new_brain(0)
    first.turn(0)
    [(slip, _)] = rig.claim()
    rig.report(slip)

    def reopen() -> None:
        monkeypatch.undo()
        ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("a",)))
        rig.new_brain(1).turn(1)

    monkeypatch.setattr(rig.disk, "meanwhile", reopen)
    with pytest.raises(Superseded):
        first.turn(1)
    rig.brain = rig.new_brain(3)
    _work_on(rig, 3)
    assert [entry["attempt"] for entry in rig.counted("b1") if entry["e"] == "accept"] == [1, 2]
    assert rig.counted("b1")[-1]["outcome"] == "complete"
    assert os.listdir(rig.root / places.ACTIVE) == []


@pytest.mark.parametrize("round_is_over", [True, False])
def test_a_retry_goes_on_with_a_batch_that_has_fewer_items_than_before(rig: Rig, round_is_over: bool) -> None:
    """PLAN-07: what was there two rounds ago, and is not any more, is nobody's business; no coordinator dies of it."""
    rig.submit("b1", "p", f"{FAN_OUT}### x\n- **command**: `true`\n")
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"items": [{"n": 1}, {"n": 2}]}')
    _work_on(rig, 0)
    manifest.write_text('{"items": [{"n": 1}]}')
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan",)))
    rig.brain = rig.new_brain(100)
    if round_is_over:
        _work_on(rig, 100)
        rig.brain = rig.new_brain(200)
    ask_to_reopen(rig.disk, Reopening("r2", "b1", "p", ("x",)))
    _work_on(rig, 200)
    counted = [entry["task"] for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert (counted.count("scan"), counted.count("x"), counted.count("each_2")) == (2, 2, 1)
    assert rig.counted("b1")[-1]["outcome"] == "complete"


def test_two_retries_one_after_the_other_keep_what_is_complete_and_unchanged(rig: Rig) -> None:
    """PLAN-07: the second one comes before the first has made the items anew; only what changed runs."""
    rig.submit("b1", "p", f"{FAN_OUT}### x\n- **command**: `true`\n")
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"items": [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]}')
    _work_on(rig, 0)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan", "each_c")))
    rig.brain = rig.new_brain(100)
    rig.brain.turn(100)
    ask_to_reopen(rig.disk, Reopening("r2", "b1", "p", ("x",)))
    rig.brain.turn(101)
    manifest.write_text('{"items": [{"id": "a", "n": 1}, {"id": "b", "n": 20}, {"id": "c", "n": 3}]}')
    _work_on(rig, 102)
    counted = [entry["task"] for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert {task: counted.count(f"each_{task}") for task in "abc"} == {"a": 1, "b": 2, "c": 2}
    assert rig.counted("b1")[-1]["outcome"] == "complete"


def test_a_retry_keeps_the_items_of_a_batch_in_which_the_fan_out_that_follows_them_was_skipped(
    rig: Rig,
) -> None:
    """PLAN-05, PLAN-07: what failed stays failed, what follows it is skipped, and the batch goes on and ends."""
    rig.submit("b1", "p", FOLLOWED)
    _make_two_items(rig)
    _work_on(rig, 0, failing="mid")
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("x",)))
    _work_on(rig, 100)
    assert not os.listdir(rig.root / places.REFUSED)
    counted = [entry["task"] for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert sorted(map(str, counted)) == ["each_a", "each_b", "scan", "x", "x"]
    assert rig.counted("b1")[-1]["outcome"] == "partial"


def test_an_answer_reaches_a_task_whose_fan_out_runs_although_another_task_was_skipped(rig: Rig) -> None:
    """PLAN-05, FLEET-04: the batch had ended; the answer reopens it, and what was skipped is skipped again."""
    rig.submit("b1", "p", AFTER_SKIPPED)
    (rig.root / "plans/p/items.json").write_text('["x", "y"]')
    for now_ms in range(6):
        rig.brain.turn(now_ms)
        for name, slip in rig.claim():
            ends = {"scan": End.FAILED, "each_2": End.NEEDS_APPROVAL}
            rig.report(name, ends.get(slip.task, End.DONE))
    assert rig.kinds("b1", "ended")
    rig.brain = rig.new_brain(10)
    [asked] = questions_of(_ledger(rig))
    answer(rig.disk, Answer("r1", "b1", "p", Verdict.APPROVE, {asked.task: asked.digest}, "me"))
    _work_on(rig, 11)
    accepted = [entry["task"] for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert sorted(map(str, accepted)) == ["each_1", "each_2"]


def test_requests_about_many_batches_that_have_ended_are_all_obeyed(rig: Rig) -> None:
    """PLAN-07: more than one turn reads, of batches that this coordinator has closed and that others have."""
    batches = [f"b{number}" for number in range(fleet_limits.INBOX_PER_TURN_MAX + 4)]
    for number, batch in enumerate(batches):
        rig.submit(batch, "p", "### a\n- **command**: `true`\n")
        if number == 1:
            _work_on(rig, 0)
            rig.brain = rig.new_brain(10)
    _work_on(rig, 10)
    for round_begins_ms in (100, 200, 300):
        if round_begins_ms == 300:
            rig.brain = rig.new_brain(299)
        for batch in batches:
            ask_to_reopen(rig.disk, Reopening(f"r{round_begins_ms}", batch, "p", ("a",)))
        _work_on(rig, round_begins_ms)
    assert os.listdir(rig.root / places.REFUSED) == os.listdir(rig.root / places.ACTIVE) == []
    for batch in batches:
        assert [entry["attempt"] for entry in rig.counted(batch) if entry["e"] == "accept"] == [1, 2, 3, 4]
        assert rig.counted(batch)[-1]["outcome"] == "complete"


def test_requests_about_other_batches_and_tasks_leave_all_others_as_they_are(rig: Rig) -> None:
    """PLAN-07, FLEET-07: what shows no progress is aborted in its time, and what is put off comes in its time."""
    rig.submit("b0", "p", "### a\n- **command**: `true`\n")
    _work_on(rig, 0)
    tasks = ("stuck", "fails", "done")
    rig.submit("b1", "p", "".join(f"### {task}\n- **command**: `true`\n" for task in tasks))
    rig.brain.turn(10)
    slips = {slip.task: name for name, slip in rig.claim()}
    rig.report(slips["fails"], End.FAILED)
    rig.report(slips["done"])
    tried: list[int] = []
    for now_ms in range(20, limits.STUCK_AFTER_MS + 20_000, 10_000):
        rig.beat()
        if now_ms % 30_000 == 20:
            ask_to_reopen(rig.disk, Reopening(f"r{now_ms}", "b0", "p", ("a",)))
            ask_to_reopen(rig.disk, Reopening(f"r{now_ms}", "b1", "p", ("done",)))
        rig.brain.turn(now_ms)
        for name, slip in rig.claim():
            rig.report(name, End.FAILED if slip.task == "fails" else End.DONE)
            tried += [now_ms] * (slip.task == "fails")
        rig.brain.turn(now_ms + 1)
    assert [now_ms // 1_000 for now_ms in tried] == [10, 80]
    assert os.listdir(rig.root / places.SIGNALS) == ["cpu-1.abort.stuck"]
    assert len([entry for entry in rig.counted("b0") if entry["e"] == "accept"]) > 40


def test_a_cancel_behind_a_retry_of_a_batch_that_has_ended_is_obeyed_behind_it(rig: Rig) -> None:
    """PLAN-07: the cancel is not taken for one of a batch that has ended."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    _work_on(rig, 0)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("a",)))
    ask_to_cancel(rig.disk, "b1")
    rig.brain.turn(100)
    assert [entry["e"] for entry in rig.counted("b1")][-2:] == ["cancel", "ended"]
    assert os.listdir(rig.root / places.INBOX) == os.listdir(rig.root / places.ACTIVE) == []


@pytest.mark.parametrize("has_closed_it", [True, False])
def test_a_batch_that_a_superseded_coordinator_reopened_is_offered_by_the_one_that_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, has_closed_it: bool
) -> None:
    """FLEET-09, R13: it wrote its decisions, and did not act. The other one is asked for the batch when it runs."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    _work_on(rig, 0)
    first = rig.brain if has_closed_it else rig.new_brain(10)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("a",)))
    asked = next((rig.root / places.INBOX).iterdir())
    kept = asked.read_bytes()
    write = ActiveBatches.write

    def is_superseded_behind_its_writing(active: ActiveBatches) -> int:
        written = write(active)
        monkeypatch.undo()
        asked.unlink()  # it comes when the successor has looked already
        rig.brain = rig.new_brain(11)
        return written

    monkeypatch.setattr(ActiveBatches, "write", is_superseded_behind_its_writing)
    with pytest.raises(Superseded):
        first.turn(10)
    asked.write_bytes(kept)
    _work_on(rig, 20)
    assert [entry["attempt"] for entry in rig.counted("b1") if entry["e"] == "accept"] == [1, 2]
    assert os.listdir(rig.root / places.INBOX) == os.listdir(rig.root / places.ACTIVE) == []


def test_what_a_superseded_coordinator_writes_behind_the_successors_look_does_not_count(rig: Rig) -> None:
    """FLEET-09, R13: it goes on with its own journal, of which the successor has believed the beginning."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    _work_on(rig, 0)
    first = rig.brain
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("a",)))
    rig.brain = rig.new_brain(10)
    _work_on(rig, 10)
    before = rig.counted("b1")
    path = places.journal_path("p", "b1", first.epoch)
    own_end = read_whole(rig.disk, path)[1]
    journal = Journal(rig.disk, "p", "b1", Epoch(first.epoch, {}), own_end=own_end)
    journal.commit([Reopen("r2", ("a",), {}, 3)])
    assert read_whole(rig.disk, path)[1] > own_end
    assert rig.counted("b1") == before
    assert [entry["attempt"] for entry in before if entry["e"] == "accept"] == [1, 2]
    with pytest.raises(Superseded):
        first.turn(20)


@pytest.mark.parametrize("drawing", ["draw", "draw_last"])
def test_a_coordinator_that_hangs_while_it_draws_leaves_no_old_summary_over_a_new_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, drawing: str
) -> None:
    """PLAN-06, FLEET-09: its successor runs the batch to another end meanwhile."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n- **retries**: 0\n### b\n- **command**: `true`\n")
    first = rig.brain
    first.turn(0)
    slips = {slip.task: name for name, slip in rig.claim()}
    rig.report(slips["a"], End.FAILED)
    draws = getattr(loop, drawing)

    def hangs(disk: FolderDisk, ledger: Ledger, wall_ms: int, *more: str) -> None:
        monkeypatch.undo()
        if drawing == "draw":
            rig.report(slips["b"])
        rig.brain = rig.new_brain(40_000)
        _work_on(rig, 40_000)
        ask_to_reopen(disk, Reopening("r1", "b1", "p", ("a",)))
        _work_on(rig, 40_100)
        draws(disk, ledger, wall_ms, *more)

    if drawing == "draw_last":
        rig.report(slips["b"])
    monkeypatch.setattr(loop, drawing, hangs)
    turns = (first.turn(now_ms) for now_ms in (10, 35_000, 35_001))
    with pytest.raises(Superseded):
        list(turns)
    folder = rig.root / places.batch_folder("p", "b1")
    assert json.loads((folder / "RUN_SUMMARY.json").read_text())["outcome"] == "complete"
    assert "complete" in (folder / "RUN_SUMMARY.md").read_text().splitlines()[0]
    assert not (rig.root / places.escalation_path("b1")).exists()
    assert not (rig.root / places.waiting_path("b1")).exists()


def test_a_batch_that_is_reopened_often_has_one_journal_for_each_coordinator(rig: Rig) -> None:
    """PLAN-07, FLEET-09: a thousand retries made a thousand files, and each one read and synced all of them."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    _work_on(rig, 0)
    for number in range(1, 31):
        if number == 16:
            rig.brain = rig.new_brain(number * 100)
        ask_to_reopen(rig.disk, Reopening(f"r{number}", "b1", "p", ("a",)))
        _work_on(rig, number * 100)
    assert len(os.listdir(rig.root / places.EPOCHS)) == 2
    assert len(list((rig.root / places.batch_folder("p", "b1")).glob("journal.*"))) == 2
    accepted = [entry["attempt"] for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert accepted == list(range(1, 32))


def test_of_the_numbers_of_coordinators_only_the_newest_are_kept(rig: Rig) -> None:
    """FLEET-09: each turn lists them, and nothing removed one."""
    kept = fleet_limits.EPOCHS_KEPT
    taken = [epochs.take_epoch(rig.disk) for _ in range(kept + 20)]
    assert taken == list(range(2, kept + 22))
    assert sorted(map(int, os.listdir(rig.root / places.EPOCHS))) == taken[-kept:]
    assert epochs.is_taken(rig.disk, 1)
    assert not epochs.is_taken(rig.disk, taken[-1] + 1)


def test_a_number_that_was_taken_and_removed_is_taken_by_nobody_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-09, R13: a coordinator that hung in its start creates it, and looks once more."""
    take, others = FolderDisk.take, fleet_limits.EPOCHS_KEPT + 5

    def hangs(disk: FolderDisk, path: str) -> None:
        monkeypatch.undo()
        for _ in range(others):
            epochs.take_epoch(disk)
        take(disk, path)

    monkeypatch.setattr(FolderDisk, "take", hangs)
    assert epochs.take_epoch(rig.disk) == others + 2


def test_a_batch_that_is_reopened_is_shown_before_its_former_fan_out_is_taken_back(rig: Rig) -> None:
    """FLEET-09: a coordinator may die with only the first of these lines on the disk, and people look meanwhile."""
    rig.submit("b1", "p", FAN_OUT)
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"items": [{"id": "x", "n": 1}]}')
    rig.brain.turn(0)
    [(scan, _)] = rig.claim()
    rig.report(scan)
    rig.brain.turn(1)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan",)))
    rig.brain.turn(2)
    ledger = Ledger("b1")
    for entry in read_past(rig.disk, "p", "b1", 10**9).entries:
        ledger.apply(entry)
        if isinstance(entry, Reopen):
            assert [report.name for report in ledger.reports()] == ["scan", "each", "sum"]
    assert ledger.requests == {"r1"}


def test_a_fault_in_what_follows_the_decisions_is_of_the_batch_that_it_is_about(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-09: the pictures of one batch cannot be drawn; the other one, looked at after it, is not set aside."""
    for batch in ("b1", "b2"):
        rig.submit(batch, "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    [first, _] = rig.claim()
    rig.report(first[0])
    monkeypatch.setattr(loop, "draw_last", _fault)
    with pytest.raises(KeyError, match="ghost"):
        rig.brain.turn(1)
    assert (first[1].batch, rig.brain.at) == ("b1", "b1")


def test_a_cancel_of_a_batch_that_is_set_aside_is_refused_with_the_reason(rig: Rig) -> None:
    """PLAN-07, FLEET-09: it cannot be obeyed, and whoever asked must not believe that it was."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(0)
    rig.brain.close()
    rig.brain = Coordinator(
        rig.disk, Watcher("manager"), Pulse("manager", 1, 1, 0), wall_ms=lambda: 0, set_aside={"b1": "it failed"}
    )  # fmt: skip
    rig.brain.start(1)
    ask_to_cancel(rig.disk, "b1")
    rig.brain.turn(2)
    assert "it failed" in (rig.root / places.REFUSED / "b1.cancel").read_text()
    assert os.listdir(rig.root / places.INBOX) == []


class DiskWithAPrivateFolder(FolderDisk):
    """One in which another user keeps tasks/processing/private to himself."""

    def names(self, folder: str) -> list[str]:
        if folder == places.processing_folder("private"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return super().names(folder)


@pytest.mark.parametrize("has_joined", [True, False])
def test_a_private_folder_of_slips_stops_nobody_when_its_agent_has_been_silent_for_long(
    rig: Rig, has_joined: bool
) -> None:
    """FLEET-09: after 90 s its slips were looked for, and each coordinator failed; that of one which has joined was
    looked into at the start, with the same end."""
    (rig.root / places.processing_folder("private")).mkdir()
    if has_joined:
        (rig.root / "gpus" / "private").mkdir()
        write_heartbeat(rig.disk, "private", Heartbeat(Pulse("rig", 2, 1, 1)))
    rig.disk = DiskWithAPrivateFolder(rig.root)
    rig.brain.close()
    rig.brain = rig.new_brain(0)
    for now_ms in range(0, 200_000, 5_000):
        rig.beat()
        rig.brain.turn(now_ms)
    rig.submit("b1", "p", "### a\n- **command**: `true`\n")
    rig.brain.turn(200_000)
    ((name, _),) = rig.claim()
    rig.report(name)
    rig.brain.turn(200_010)
    assert rig.kinds("b1", "accept")


def test_retries_are_attempts_after_failed_ones_and_a_denied_task_is_no_failure_of_an_agent(rig: Rig) -> None:
    """PLAN-06: the summary counted each approval, loss and reopening as a retry, and a denied task as work of the agent
    that had asked."""
    rig.submit("b1", "p", "### a\n- **command**: `true`\n### b\n- **command**: `true`\n")
    folder = rig.root / places.batch_folder("p", "b1")
    plans = {"a": [End.NEEDS_APPROVAL, End.LOST, End.FAILED, End.DONE, End.DONE], "b": [End.NEEDS_APPROVAL]}

    def work(now_ms: int) -> None:
        rig.brain.turn(now_ms)
        for name, slip in rig.claim():
            rig.report(name, plans[slip.task].pop(0))
        rig.brain.turn(now_ms + 1)

    work(0)
    for asked in questions_of(_ledger(rig)):
        verdict = Verdict.APPROVE if asked.task == "a" else Verdict.DENY
        answer(rig.disk, Answer(asked.task, "b1", "p", verdict, {asked.task: asked.digest}, "me"))
    for now_ms in (10, 20, 11_030, 11_040):
        work(now_ms)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("a",)))
    for now_ms in (12_000, 12_010):
        work(now_ms)
    assert not plans["a"]
    told = json.loads((folder / "RUN_SUMMARY.json").read_text())
    assert (told["outcome"], told["retries"]) == ("partial", 1)
    assert told["agents"]["cpu-1"]["failed"] == 0
    assert [each["agent"] for each in told["failures"]] == [""]


def test_a_retry_behind_one_that_makes_its_fan_out_anew_is_obeyed(rig: Rig) -> None:
    """PLAN-07: `plan retry` had said that the task will run; the coordinator refused it as one that the batch does not
    have, in a file that nobody looks at."""
    rig.submit("b1", "p", FAN_OUT)
    _make_two_items(rig)
    _work_on(rig, 0)
    for request, task in (("r1", "scan"), ("r2", "each_b"), ("r3", "each_a"), ("r4", "each_b")):
        ask_to_reopen(rig.disk, Reopening(request, "b1", "p", (task,)))
    _work_on(rig, 100)
    assert rig.disk.names(places.REFUSED) == []
    assert rig.counted("b1")[-1]["outcome"] == "complete"
    issued = [entry["task"] for entry in rig.counted("b1") if entry["e"] == "issue"]
    assert [issued.count(task) for task in ("scan", "each_a", "each_b")] == [2, 2, 2]


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
def test_an_approval_beside_a_retry_that_makes_the_fan_out_anew_counts(rig: Rig, is_first: bool) -> None:
    """PLAN-07, FLEET-10: the retry took the fan-out back, and the approval was refused although it had been taken."""
    rig.submit("b1", "p", FAN_OUT)
    _make_two_items(rig)
    _work_on(rig, 0, asking="each_b")
    [asked] = questions_of(_ledger(rig))
    approval = Answer("1" if is_first else "3", "b1", "p", Verdict.APPROVE, {asked.task: asked.digest}, "me")
    answer(rig.disk, approval)
    ask_to_reopen(rig.disk, Reopening("2", "b1", "p", ("scan",)))
    approved: list[str] = []
    for now_ms in range(10, 16):
        rig.brain.turn(now_ms)
        for name, slip in rig.claim():
            approved += [slip.approved] if slip.task == "each_b" else []
            rig.report(name)
    assert rig.disk.names(places.REFUSED) == []
    assert approved == [asked.digest]
    assert rig.counted("b1")[-1]["outcome"] == "complete"


def test_a_task_that_waits_for_a_person_still_does_after_two_retries_of_others(rig: Rig) -> None:
    """PLAN-07: the second one comes before the first has made the items anew; nobody has let the task run again."""
    rig.submit("b1", "p", f"{FAN_OUT}### x\n- **command**: `true`\n")
    _make_two_items(rig)
    _work_on(rig, 0, asking="each_b")
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan",)))
    rig.brain.turn(100)
    ask_to_reopen(rig.disk, Reopening("r2", "b1", "p", ("x",)))
    _work_on(rig, 101)
    assert [entry["task"] for entry in rig.counted("b1") if entry["e"] == "issue"].count("each_b") == 1


def test_a_retry_takes_back_a_fan_out_of_which_most_tasks_wait_for_their_turn(rig: Rig) -> None:
    """PLAN-07: they are not there any more when their turn has come, and the coordinator goes on."""
    rig.submit("b1", "p", FAN_OUT)
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"items": [{"n": number} for number in range(40)]}))
    rig.brain.turn(0)
    [(scan, _)] = rig.claim()
    rig.report(scan)
    rig.brain.turn(1)
    assert 0 < len(rig.board.offered()) < 40
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan",)))
    for now_ms in range(2, 12):
        rig.brain.turn(now_ms)
        for name, _ in rig.claim():
            rig.report(name)
    assert rig.counted("b1")[-1]["outcome"] == "complete"


def _ledger(rig: Rig) -> Ledger:
    """What the journal of the batch comes to."""
    ledger = Ledger("b1")
    for entry in read_past(rig.disk, "p", "b1", 10**9).entries:
        ledger.apply(entry)
    return ledger


def _make_two_items(rig: Rig) -> None:
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"items": [{"id": "a", "n": 1}, {"id": "b", "n": 2}]}')


def _work_on(rig: Rig, now_ms: int, *, failing: str = "", asking: str = "") -> None:
    """Turns in which all that is offered is done, but for one task that fails, and one that asks for an approval."""
    ends = {failing: End.FAILED, asking: End.NEEDS_APPROVAL}
    for moment in range(now_ms, now_ms + 6):
        rig.brain.turn(moment)
        for name, slip in rig.claim():
            rig.report(name, ends.get(slip.task, End.DONE))


def _fault(*_args: object) -> None:
    raise KeyError("ghost")


def _die(_acts: Acts) -> None:
    raise OSError("killed")


@pytest.mark.parametrize("dies", [False, True])
def test_a_retry_takes_the_tokens_of_tasks_back_that_depend_on_what_runs_again(rig: Rig, dies: bool) -> None:
    """PLAN-07, FLEET-09: a task and a whole fan-out of which some tasks are in an agent's hands. What they report from
    the round before does not count, no agent is blamed, and the batch ends."""
    rig.submit("b1", "p", f"{FAN_OUT}### after\n- **command**: `true`\n- **depends_on**: scan\n")
    rig.brain.turn(0)
    manifest = rig.root / places.batch_folder("p", "b1") / "manifest.json"
    manifest.write_text('{"items": [{"id": "x", "n": 1}, {"id": "y", "n": 2}]}')
    [(scan, _)] = rig.claim()
    rig.report(scan)
    rig.brain.turn(1)
    before = {slip.task: name for name, slip in rig.claim()}
    assert sorted(before) == ["after", "each_x", "each_y"]
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("scan",)))
    rig.brain.turn(2)
    assert rig.board.held_by("cpu-1") == []
    if dies:
        rig.brain = rig.new_brain(3)
    for name in before.values():
        rig.report(name)
    for now_ms in (4, 5, 6, 7):
        rig.brain.turn(now_ms)
        for name, _ in rig.claim():
            rig.report(name)
    rig.brain.turn(8)
    counted = [entry for entry in rig.counted("b1") if entry["e"] == "accept"]
    assert sorted((str(entry["task"]), entry["attempt"]) for entry in counted) == [
        ("after", 2), ("each_x", 2), ("each_y", 2), ("scan", 1), ("scan", 2), ("sum", 1),
    ]  # fmt: skip
    assert {entry["cause"] for entry in rig.kinds("b1", "revoke")} == {"reopened"}
    assert [entry["outcome"] for entry in rig.kinds("b1", "ended")] == ["complete"]
