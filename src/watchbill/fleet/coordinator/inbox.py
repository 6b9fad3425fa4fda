"""The inbox: plans that were submitted, and requests about batches, each obeyed once or put aside with the reason.

    BATCH.json         run this plan (`opening`)                             then moved to brain/active/
    BATCH.ID.reopen    go on with a batch (`requests`)                       then removed
    BATCH.ID.approve   a person's answer about waiting tasks (`approving`)   then removed
    BATCH.cancel       stop a batch (`requests`)                             then removed

Any program may write a file here. One that makes no sense goes to brain/refused/. A batch that has ended is taken up
again when a request is about it.
"""

from collections.abc import Iterator
from enum import Enum

from watchbill.errors import IllegalTransition, OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.coordinator.active import ActiveBatches, denied
from watchbill.fleet.coordinator.acts import Acts
from watchbill.fleet.coordinator.opening import opening, reopening
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, is_of_the_path
from watchbill.fleet.folder.requests import Reopening, cancel_request
from watchbill.fleet.folder.values import encode
from watchbill.fleet.logs import Part
from watchbill.fleet.state.approving import Answer, entries_of, question_of
from watchbill.fleet.state.entries import Cancel
from watchbill.fleet.state.journal import last_epoch
from watchbill.fleet.state.ledger import Ledger
from watchbill.plans.batch import ExecutePlan, decoded_inputs
from watchbill.quoting import quoted

__all__ = ["Inbox"]

_LOG = Part.COORDINATOR.logger


class _Kind(Enum):
    """What a file asks for, by the end of its name."""

    PLAN = "json"
    REOPEN = "reopen"
    APPROVE = "approve"
    CANCEL = "cancel"


_KINDS = {kind.value: kind for kind in _Kind}
#: The order in which the inbox is read: a request about a batch waits until the batch is open. Retries and answers are
#: obeyed as they were given: their names begin with the batch and the time.
_URGENCY = {_Kind.PLAN: 0, _Kind.REOPEN: 1, _Kind.APPROVE: 1, _Kind.CANCEL: 2}


class Inbox:
    """The inbox of one epoch."""

    def __init__(self, disk: Disk, active: ActiveBatches, acts: Acts) -> None:
        self._disk = disk
        self._active = active
        self._acts = acts
        self.active: dict[str, set[str]] = {}  # batches that have not ended -> the files that say so
        self._taken_up: list[Ledger] = []
        self._unlock_at_ms: int | None = None
        self._stuck: set[str] = set()  # what cannot be put aside: folders, and names that are too long

    # ------------------------------------------------------------ when the coordinator starts

    def batches(self) -> Iterator[ExecutePlan]:
        """The batches that files are about, whether active, submitted or to be reopened."""
        for folder in (places.ACTIVE, places.INBOX):
            for name in self._disk.names(folder):
                order = self._order(folder, name)
                if order is not None:
                    if folder == places.ACTIVE:
                        self._is_shown(order.batch, f"{folder}/{name}")
                    yield order

    def _order(self, folder: str, name: str) -> ExecutePlan | None:
        """The batch that a file is about; None where it says nothing sensible."""
        kind = _kind_of(name)
        try:
            content = self._disk.read(f"{folder}/{name}", limits.FLEET_FILE_BYTES_MAX * 4)
            if kind not in (_Kind.REOPEN, _Kind.APPROVE):
                return ExecutePlan.decode(content)
            request = (Reopening if kind is _Kind.REOPEN else Answer).decode(content)
            return ExecutePlan(request.batch, request.plan, {})
        except (FileNotFoundError, PermissionError, NotAFile, OursError):
            return None

    # ------------------------------------------------------------ in each turn

    def read(self, now_ms: int) -> bool:
        """Obey what lies here; True where more lies here than fits into one turn."""
        if self._unlock_at_ms is None:
            self._unlock_at_ms = now_ms + limits.LOCKED_AGAIN_MS
        elif now_ms >= self._unlock_at_ms:
            self._unlock_at_ms = now_ms + limits.LOCKED_AGAIN_MS
            for order in list(self._active.locked.values()):
                self._take_up_again(order, now_ms)
        listed = [name for name in self._disk.names(places.INBOX) if name not in self._stuck]
        files = sorted(
            (_URGENCY[kind], name, kind) for name in listed if (kind := _kind_of(name)) is not None
        )
        has_more = len(files) > limits.INBOX_PER_TURN_MAX
        for _, name, kind in files[: limits.INBOX_PER_TURN_MAX]:
            batch = name.removesuffix(f".{kind.value}")
            cancel = f"{batch}.{_Kind.CANCEL.value}"
            if kind is _Kind.PLAN and cancel in listed and batch not in self._active.batches:
                self._acts.later(
                    lambda name=name: self._refuse(
                        name, "it was cancelled before it was opened", is_cancelled=True
                    )
                )
                self._acts.remove(f"{places.INBOX}/{cancel}")
            elif kind is not _Kind.CANCEL:
                self._obey(name, kind, now_ms)
            elif f"{batch}.{_Kind.PLAN.value}" not in listed:
                self._cancel(batch, name, now_ms)
            else:  # its plan is opened in this turn, unless its journal cannot be read
                has_more = has_more or batch not in self._active.left_alone
        return has_more

    def _obey(self, name: str, kind: _Kind, now_ms: int) -> None:
        """Read a file and do what it says. One that makes no sense is put aside, with the reason."""
        self._active.at = ""
        try:
            content = self._disk.read(f"{places.INBOX}/{name}", limits.FLEET_FILE_BYTES_MAX * 4)
            if kind is _Kind.PLAN:
                self._open(name, ExecutePlan.decode(content), now_ms)
            elif kind is _Kind.REOPEN:
                self._reopen(name, Reopening.decode(content), now_ms)
            else:
                self._answer(name, Answer.decode(content), now_ms)
        except FileNotFoundError:
            return
        except IllegalTransition:
            raise  # a fault of our own, and perhaps half of it is applied
        except OSError as error:
            # Files are looked at before anything is decided, so one that another user keeps to himself changes nothing.
            if not is_of_the_path(error):
                raise
            self._refuse_later(name, denied(error))
        except (NotAFile, OursError, ValueError) as error:
            self._refuse_later(name, str(error))

    def _refuse_later(self, name: str, why: str) -> None:
        self._acts.later(lambda: self._refuse(name, why))

    def _refuse(self, name: str, why: str, *, is_cancelled: bool = False) -> None:
        """Put a plan that cannot be run, or is not wanted any more, aside with the reason."""
        _LOG.warning("action=refuse file=%s why=%s", quoted(name), why)
        told = {"error": why, **({"is_cancelled": True} if is_cancelled else {})}
        try:
            self._disk.put(f"{places.REFUSED}/{name}", encode(told) + b"\n", durable=True)
            self._disk.remove(f"{places.INBOX}/{name}")
        except OSError as error:
            if not is_of_the_path(error):
                raise
            self._stuck.add(name)
            _LOG.warning("action=ignore file=%s why=%s", quoted(f"{places.INBOX}/{name}"),
                         f"it cannot be put aside ({error.strerror}); remove it")  # fmt: skip

    # ------------------------------------------------------------ plans

    def _open(self, name: str, order: ExecutePlan, now_ms: int) -> None:
        """Open a submitted batch. One whose journal is there already was opened by a coordinator that died since."""
        if f"{order.batch}.json" != name:
            raise OursError(f"the file names the batch {order.batch}", hint="submit it again")
        if order.batch in self._active.locked:
            raise OursError(self._active.left_alone[order.batch])
        if order.batch in self._active.left_alone:
            return
        known = self._active.batches.get(order.batch)
        if known is None or not known.ledger.is_open:
            self._open_new(order, now_ms)
        path = places.active_path(order.batch)
        self._is_shown(order.batch, path)
        self._acts.move(f"{places.INBOX}/{name}", path)

    def _open_new(self, order: ExecutePlan, now_ms: int) -> None:
        self._active.at = order.batch
        entries = opening(self._disk, order)
        if order.batch not in self._active.batches:
            self._disk.make_folder(places.batch_folder(order.plan, order.batch))
            self._active.take_up(order, now_ms)
        if not self._active.batches[order.batch].ledger.is_open:
            for entry in entries:
                self._active.decide(order.batch, entry, now_ms)

    # ------------------------------------------------------------ requests about a batch

    def taken_up(self) -> list[Ledger]:
        """The batches that were taken up since it was asked last: the board may have to be mended for them."""
        found, self._taken_up = self._taken_up, []
        return found

    def _reopen(self, name: str, request: Reopening, now_ms: int) -> None:
        """Go on with a batch."""
        ledger = self._to_go_on(request.batch, request.plan, now_ms)
        if request.id not in ledger.requests:
            self._reopen_now(ledger, request, now_ms)
        self._show_active_later(ledger, name)

    def _to_go_on(self, batch: str, plan: str, now_ms: int) -> Ledger:
        """The batch that a request is about; one that has ended is taken up. Raises OursError where it cannot go on."""
        self._active.at = batch
        if batch not in self._active.batches:
            self._take_up_again(ExecutePlan(batch, plan, {}), now_ms)
        found = self._active.batches.get(batch)
        if found is None or not found.ledger.is_open:
            why = self._active.left_alone.get(batch, "no such batch was opened")
            raise OursError(f"{batch} cannot go on: {why}")
        return found.ledger

    def _take_up_again(self, order: ExecutePlan, now_ms: int) -> None:
        if not self.was_opened(order) or order.batch in self._active.set_aside:
            return
        self._active.take_up_or_leave(order, now_ms)
        if order.batch in self._active.batches:
            self._taken_up.append(self._active.batches[order.batch].ledger)

    def was_opened(self, order: ExecutePlan) -> bool:
        """Whether a batch has a journal. One that cannot be looked into is left alone."""
        try:
            return bool(last_epoch(self._disk, order.plan, order.batch))
        except OSError as error:
            if not is_of_the_path(error):
                raise
            self._active.lock_out(order, denied(error))
            return False

    def _reopen_now(self, ledger: Ledger, request: Reopening, now_ms: int) -> None:
        if request.reads_plan and ledger.outcome is None:
            raise OursError(
                f"{ledger.batch} still runs", hint=f"cancel it first: watchbill plan cancel {ledger.batch}"
            )
        before = list(ledger.by_token)
        for entry in reopening(self._disk, ledger, request):
            self._active.decide(ledger.batch, entry, now_ms)
        if recalled := [name for name in before if name not in ledger.by_token]:
            self._acts.recall(recalled)

    def _answer(self, name: str, given: Answer, now_ms: int) -> None:
        """Obey a person's answer about tasks that wait for one."""
        ledger = self._to_go_on(given.batch, given.plan, now_ms)
        lasts = [(task, ledger.state(task).last) for task in given.tasks if task in ledger]
        asked = [question_of(ledger, task) for task, _ in lasts]
        for entry in entries_of(ledger, given):
            self._active.decide(ledger.batch, entry, now_ms)
        for task, last in lasts:
            target = self._acts.folder_of(ledger.phase(task)) if task in ledger else places.EXPIRED
            self._acts.shelve(f"{places.MANUAL}/{last}", f"{target}/{last}")
        for question in asked:
            self._acts.keep_answer(question, given)
        if ledger.outcome is None:
            self._show_active_later(ledger, name)
        else:
            self._acts.remove(f"{places.INBOX}/{name}")

    def _show_active_later(self, ledger: Ledger, request: str) -> None:
        inputs = decoded_inputs(dict(ledger.inputs))
        order = ExecutePlan(ledger.batch, ledger.plan, inputs, ledger.priority)
        self._acts.later(lambda: self._show_active(order, request))

    def _show_active(self, order: ExecutePlan, request: str) -> None:
        path = places.active_path(order.batch, self._active.epoch)
        self._is_shown(order.batch, path)
        self._disk.put(path, order.encode(), durable=True)
        self._disk.remove(f"{places.INBOX}/{request}")

    def _is_shown(self, batch: str, path: str) -> None:
        self.active.setdefault(batch, set()).add(path)

    def show_ended(self, batch: str) -> None:
        """Remove what says that a batch is active: what this epoch knows of. A successor may have reopened it since."""
        for path in sorted(self.active.pop(batch, ())):
            try:
                self._disk.remove(path)
            except OSError as error:
                if not is_of_the_path(error):
                    raise
                _LOG.error("action=ignore file=%s why=%s", path, f"{batch} has ended and it stays ({error.strerror}); "
                           "remove it")  # fmt: skip

    def _cancel(self, batch: str, name: str, now_ms: int) -> None:
        self._active.at, found = batch, self._active.batches.get(batch)
        if found is None and (why := self._active.left_alone.get(batch)) is not None:
            self._acts.later(lambda: self._refuse(name, f"{batch} cannot be cancelled: {why}"))
            return
        request = cancel_request(self._disk, batch)
        if request is None:
            if name in self._disk.names(places.INBOX):
                self._refuse_later(name, "it is no file")
            return
        was_obeyed = found is not None and request and request in found.ledger.cancels
        if found is not None and not found.ledger.is_cancelled and not was_obeyed:
            recalled = list(found.ledger.by_token)
            self._active.decide(batch, Cancel(request), now_ms)
            self._acts.recall(recalled)
        self._acts.remove(f"{places.INBOX}/{name}")


def _kind_of(name: str) -> _Kind | None:
    return _KINDS.get(name.rpartition(".")[2])
