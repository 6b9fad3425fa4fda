"""Judging: what becomes of a task when one of its attempts has ended.

    files    a task that succeeded must show what it promised to produce; a network mount may show it late
    score    an answer that its plan wants evaluated is scored by the coordinator's model first
    verdict  `policy` makes an entry of the result; the slip goes where the entry says
    output   the answer of an accepted attempt becomes the file that its plan names (`publication`)

Holds what waits for its files or its score. A successor that knows nothing of these hears the results again.
"""

import glob
from dataclasses import dataclass, replace

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.coordinator.active import ActiveBatches
from watchbill.fleet.coordinator.acts import Acts
from watchbill.fleet.coordinator.evaluation import Evaluations, Judged, Scored, is_evaluated
from watchbill.fleet.coordinator.holding import Holding
from watchbill.fleet.coordinator.publication import answer_path, make_draft, publication_of, publish
from watchbill.fleet.coordinator.samples import has_sample, keep_sample
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.matching.abilities import need_of
from watchbill.fleet.matching.policy import Crowd, judge
from watchbill.fleet.state.entries import Accept, Fail, Hold, Lost
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.shared_paths import patterns_of

__all__ = ["Judging"]


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A task that succeeded, and whose files are not to be seen yet."""

    result: Result
    until_ms: int


class Judging:
    """The results of one epoch."""

    def __init__(
        self,
        disk: Disk,
        board: Board,
        active: ActiveBatches,
        acts: Acts,
        holding: Holding,
        *,
        produces_ms: int,
    ) -> None:
        """`produces_ms`: how long a file may stay invisible here that its task has produced."""
        self._disk = disk
        self._board = board
        self._active = active
        self._acts = acts
        self._holding = holding
        self._evaluations = Evaluations()
        self._unseen: list[_Unseen] = []
        self._accepted: list[Result] = []  # whose slips are not put away yet
        self._produces_ms = produces_ms

    def hear(self, result: Result, crowd: Crowd, now_ms: int) -> bool:
        """Judge a result, now or when its files or its score are there; False where its token does not count."""
        heard = self._evaluations.hear(result)
        if heard is not None:
            self._acts.put_away(result.name, places.EXPIRED, result.agent)
            if isinstance(heard, Scored):
                self._judge_scored(heard, crowd, now_ms)
            else:
                self._ask_again(heard, crowd, now_ms)
            return True
        offer = self._active.offer_of(result.name)
        if offer is None:
            return False
        if self.is_waiting(result.name):
            # A second report under this token: of the agent's next life, which has found the slip in its hands, or of
            # another slip, as after a power cut. The first one counts.
            self._acts.put_away(result.name, places.EXPIRED, result.agent)
            return True
        if result.end is End.DONE and self._missing(*offer):
            self._unseen.append(_Unseen(result, now_ms + self._produces_ms))
        else:
            self._evaluate_or_judge(*offer, result, crowd, now_ms)
        return True

    def is_waiting(self, name: str) -> bool:
        """Whether the result under this token is here and waits for its files or its score."""
        return self._evaluations.is_under_way(name) or any(each.result.name == name for each in self._unseen)

    def lose(self, name: str, crowd: Crowd, now_ms: int) -> None:
        """Have an answer scored by another question where this slip was one, and its agent died with it."""
        judged = self._evaluations.lose(name)
        if judged is not None:
            self._ask_again(judged, crowd, now_ms)

    def look_again(self, crowd: Crowd, now_ms: int) -> None:
        """Judge what waited for its files: caches of a network mount may show them late."""
        unseen, self._unseen = self._unseen, []
        for each in unseen:
            offer = self._active.offer_of(each.result.name)
            if offer is None:
                self._acts.put_away(each.result.name, places.EXPIRED, each.result.agent)
                continue
            missing = self._missing(*offer)
            if not missing:
                self._evaluate_or_judge(*offer, each.result, crowd, now_ms)
            elif now_ms < each.until_ms:
                self._unseen.append(each)
            else:
                tail = f"{missing} is not there, and the task promises to produce it"
                failed = replace(each.result, end=End.MISSING_OUTPUT, tail=tail)
                self._judge(*offer, failed, crowd, now_ms)

    def accept_unscored(self, crowd: Crowd, now_ms: int) -> None:
        """Judge the answers whose score did not come in time as if none had been wanted."""
        for name, result in self._evaluations.overdue(now_ms).items():
            self._acts.recall([name])
            self._judge_scored(Scored(result, has_score=False), crowd, now_ms)

    def put_away_accepted(self) -> None:
        """Plan to put the slips of accepted attempts away: behind the offers, for which agents wait."""
        accepted, self._accepted = self._accepted, []
        for result in accepted:
            self._acts.put_away(result.name, self._acts.complete_folder(), result.agent)

    def publish_answer(self, ledger: Ledger, task: str) -> None:
        """Plan that the answer of an accepted attempt becomes the file that its plan names, if it names one."""
        publication = publication_of(ledger, task)
        if publication is not None:
            self._acts.later(lambda: publish(self._disk, publication))

    def _missing(self, ledger: Ledger, task: str) -> str:
        """A file that the task promised to produce and that is not to be seen; "" where all are there."""
        work = ledger.spec(task).work
        awaited = list(patterns_of(ledger, task, work.produces))
        if work.output or work.evaluate:
            awaited.append(glob.escape(answer_path(ledger, task)))
        return next((path for path in awaited if not self._disk.has(path)), "")

    def _evaluate_or_judge(
        self, ledger: Ledger, task: str, result: Result, crowd: Crowd, now_ms: int
    ) -> None:
        """Have an answer scored first, where the plan wants that and there is a model for it."""
        if result.end is not End.DONE or not is_evaluated(ledger, task) or not crowd.has_judge:
            self._judge(ledger, task, result, crowd, now_ms)
        else:
            self._ask(ledger, task, Judged(result, now_ms + limits.EVALUATION_MS_MAX))

    def _ask_again(self, judged: Judged, crowd: Crowd, now_ms: int) -> None:
        offer = self._active.offer_of(judged.result.name)
        if offer is None:
            return
        if crowd.has_judge:
            self._ask(*offer, judged)
        else:
            self._judge(*offer, judged.result, crowd, now_ms)

    def _ask(self, ledger: Ledger, task: str, judged: Judged) -> None:
        """Put the question about an answer to the coordinator's model."""
        try:
            answer = self._disk.read(answer_path(ledger, task), limits.ANSWER_CHARS_MAX * 4)
        except NotAFile:
            answer = b""  # something else than a file lies there: a low score
        asked = self._evaluations.examine(ledger, task, judged, answer, epoch=self._active.epoch)
        self._acts.later(lambda: self._disk.put(asked.path, asked.prompt))
        self._acts.later(lambda: self._board.publish(asked.name, asked.slip))

    def _judge_scored(self, scored: Scored, crowd: Crowd, now_ms: int) -> None:
        offer = self._active.offer_of(scored.result.name)
        if offer is not None:
            self._judge(*offer, scored.result, crowd, now_ms, has_score=scored.has_score)

    def _judge(
        self, ledger: Ledger, task: str, result: Result, crowd: Crowd, now_ms: int, *, has_score: bool = False
    ) -> None:
        if result.end is End.DONE:
            result = self._prepared_for_publication(ledger, task, result)
        entry = judge(task, ledger.state(task), ledger.spec(task), result, crowd, need=need_of(ledger, task))
        if isinstance(entry, Accept):
            entry = replace(entry, is_unscored=is_evaluated(ledger, task) and not has_score)
            self.publish_answer(ledger, task)
        self._active.decide(ledger.batch, entry, now_ms)
        if isinstance(entry, Accept) and has_sample(ledger, task):
            self._acts.later(lambda: keep_sample(self._disk, ledger, task, result.agent))
        if isinstance(entry, Accept):
            self._accepted.append(result)
        else:
            self._acts.put_away(result.name, _folder_after(entry), result.agent)
        self._holding.hear(ledger, task, result)

    def _prepared_for_publication(self, ledger: Ledger, task: str, result: Result) -> Result:
        """The result, or that of a failed attempt where its answer cannot be written to `output`."""
        try:
            publication = publication_of(ledger, task)
            if publication is not None:
                make_draft(self._disk, publication)
        except OursError as error:
            return replace(result, end=End.MISSING_OUTPUT, tail=str(error))
        return result


def _folder_after(entry: Fail | Lost | Hold) -> str:
    """Where the slip of an attempt goes that was not accepted."""
    if isinstance(entry, Hold):
        return places.MANUAL
    return places.FAILED if isinstance(entry, Fail) and entry.is_final else places.EXPIRED
