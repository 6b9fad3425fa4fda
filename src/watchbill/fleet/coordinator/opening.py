"""Opening: from a submitted plan to the entries that freeze it, and from a manifest to those of a fan-out.

A plan is read and checked once more when its batch is opened (PLAN-03), and from then on only the journal counts: its
author may go on writing. The same holds for a manifest and its items (PLAN-04). A batch that is resumed reads its plan
again: it may have been corrected.
"""

import errno
import fnmatch
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.coordinator.declared_files import gone_files
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.requests import Reopening
from watchbill.fleet.folder.work import Work
from watchbill.fleet.state.entries import (
    Entry,
    Expand,
    Gone,
    Items,
    Names,
    Open,
    Reopen,
    Spec,
    Tasks,
    in_parts,
    size_of_spec,
    size_of_text,
)
from watchbill.fleet.state.learned import learned_vram
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.shared_paths import manifest_path
from watchbill.plans import limits as plans_limits
from watchbill.plans.batch import BelowRoot, ExecutePlan, decoded_inputs, encoded_inputs, settle_inputs
from watchbill.plans.check import Plan, check, files_of
from watchbill.plans.expand import expand, items_at, text_of
from watchbill.plans.findings import shown
from watchbill.plans.graph import nodes_of
from watchbill.plans.named_files import Made, paths_in_folder, paths_named
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.task import Executor, Task, TaskClass, Text, VramPolicy
from watchbill.suggest import did_you_mean

__all__ = ["Manifest", "expansion", "opening", "read_manifest", "reopening"]

#: What a script task takes of a GPU where neither the plan nor a measurement says it (FLEET-02).
_SCRIPT_VRAM_MB = 1024
_PATTERN = re.compile(r"[*?]")
#: What says that a word of a command names no file that could be read.
_NO_SUCH_FILE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
)


# ------------------------------------------------------------------ plans


def opening(disk: Disk, order: ExecutePlan) -> list[Entry]:
    """The entries that open a batch. Raises OursError for a plan that cannot be run; the text says why."""
    plan = _checked(disk, order.plan)
    inputs = _inputs(plan, order.inputs)
    return [*_parts(disk, order.plan, plan, inputs), Open(order.plan, inputs, order.priority, _goal(plan))]


def reopening(disk: Disk, ledger: Ledger, request: Reopening) -> list[Entry]:
    """The entries that reopen a batch. Raises OursError for a request that cannot be met; the text says why."""
    # A request behind one that makes a fan-out anew may name a task that is there again when its turn comes.
    unknown = [task for task in request.tasks if task not in ledger and not ledger.is_to_come(task)]
    if unknown:
        hint = did_you_mean(unknown[0], list(ledger.tasks()))
        raise OursError(f"{ledger.batch} has no task {shown(unknown[0])}", hint=hint)
    if not request.reads_plan:
        return [Reopen(request.id, request.tasks, ledger.inputs, ledger.priority, ledger.goal)]
    plan = _checked(disk, ledger.plan)
    given = {**decoded_inputs(dict(ledger.inputs)), **request.inputs}
    known = {each.name for each in plan.inputs}
    inputs = _inputs(
        plan, {name: value for name, value in given.items() if name in known or name in request.inputs}
    )
    reopen = Reopen(request.id, request.tasks, inputs, ledger.priority, _goal(plan))
    gone = in_parts(gone_files(disk, ledger), lambda each: sum(map(size_of_text, each)))
    return [*_parts(disk, ledger.plan, plan, inputs), *(Gone(dict(part)) for part in gone), reopen]


def _goal(plan: Plan) -> str:
    return plan.goal[: plans_limits.PLAN_GOAL_CHARS_MAX]


def _parts(disk: Disk, name: str, plan: Plan, inputs: Mapping[str, object]) -> list[Entry]:
    learns = any(_learns(task) for task in plan.tasks)
    learned = learned_vram(disk, name) if learns else {}
    digests = _Digests(disk, name, plan, inputs)
    return [Tasks(part) for part in in_parts(specs_of(plan, digests, learned), size_of_spec)]


class _Digests:
    """The digests of a plan's files, each read once."""

    def __init__(self, disk: Disk, name: str, plan: Plan, inputs: Mapping[str, object]) -> None:
        self._disk = disk
        self._folder = f"plans/{name}"
        self._inputs = inputs
        self._known: dict[str, str] = {}
        self._bytes_left = plans_limits.PLAN_NAMED_BYTES_MAX
        #: What lies in the plan's folder itself; a plan without any file beside it has nothing to look for.
        self._names = {each for each in disk.names(self._folder) if each not in ("history", "plan.md")}
        self._made = Made(plan.tasks, self._value_of) if self._names else None

    def of(self, task: Task) -> dict[str, object]:
        """The files that a task names, each with its sha256; "" for one that is not there or too large."""
        found: dict[str, object] = {path: self._digest(path) for _, path in files_of(task)}
        if self._made is not None:
            paths = [each for path in paths_named(task, self._value_of) for each in self._files(path)]
            for path in paths[: plans_limits.PLAN_NAMED_FILES_MAX]:
                if path not in found and path not in self._made and (digest := self._named(path)):
                    found[path] = digest
        return found

    def of_manifest(self, task: Task) -> str:
        """The sha256 of the file of a foreach which the author wrote; "" for any other."""
        if self._made is None or task.foreach is None:
            return ""
        paths = paths_in_folder(task.foreach.file, self._value_of)
        return next((self._named(path) for path in paths if path not in self._made), "")

    def _value_of(self, place: Placeholder) -> str | None:
        if place.name == "PLAN_PATH":
            return "."
        value = self._inputs.get(place.name)
        return value if isinstance(value, str) and not place.is_item else None

    def _files(self, path: str) -> Iterator[str]:
        """The files that a path or a pattern in its last part may mean, as far as a look at the folders tells."""
        first, _, rest = path.partition("/")
        folder, _, name = path.rpartition("/")
        if not _PATTERN.search(path):
            if first in self._names or first.startswith("."):
                yield path
        elif not _PATTERN.search(folder) and (first in self._names or not rest):
            matching = (each for each in self._names_in(folder) if fnmatch.fnmatchcase(each, name))
            for each in itertools.islice(matching, plans_limits.PLAN_NAMED_FILES_MAX):
                yield f"{folder}/{each}" if folder else each

    def _names_in(self, folder: str) -> list[str]:
        return self._disk.names(f"{self._folder}/{folder}" if folder else self._folder)

    def _digest(self, path: str) -> str:
        """That of a file which the plan names as its own."""
        if path not in self._known:
            places.refuse_outside(path)
            self._known[path] = self._read(path, plans_limits.PLAN_SCRIPT_BYTES_MAX)
        return self._known[path]

    def _named(self, path: str) -> str:
        """That of a file which a word may mean: within bounds, as it may be any data."""
        if path not in self._known:
            bytes_max = min(plans_limits.PLAN_NAMED_FILE_BYTES_MAX, self._bytes_left)
            self._known[path] = self._read(path, bytes_max)
        return self._known[path]

    def _read(self, path: str, bytes_max: int) -> str:
        try:
            content = self._disk.read(f"{self._folder}/{path}", bytes_max)
        except NotAFile:
            return ""
        except OSError as error:
            if error.errno not in _NO_SUCH_FILE:
                raise
            return ""
        self._bytes_left = max(0, self._bytes_left - len(content))
        return hashlib.sha256(content).hexdigest()


def _checked(disk: Disk, name: str) -> Plan:
    path = f"plans/{name}/plan.md"
    try:
        text = disk.read(path, plans_limits.PLAN_FILE_BYTES_MAX).decode()
    except FileNotFoundError:
        raise OursError(f"{path} is not there", hint="put the plan into the shared folder") from None
    except (NotAFile, UnicodeDecodeError) as error:
        raise OursError(f"{path} cannot be read: {error}") from None
    checked = check(text)
    if not checked.is_right:
        raise OursError("\n".join(f"{path}:{each.line}: {each.text}" for each in checked.findings.errors))
    return checked.plan


def _inputs(plan: Plan, given: Mapping[str, str | BelowRoot]) -> dict[str, object]:
    """The value of every input, defaults included; what lies in the shared folder stays relative to it."""
    texts = {name: value.path if isinstance(value, BelowRoot) else value for name, value in given.items()}
    return {**settle_inputs(plan, texts), **encoded_inputs(given)}


def specs_of(plan: Plan, digests: _Digests, learned: Mapping[str, int]) -> Iterator[Spec]:
    """The tasks of a checked plan as a journal has them."""
    for task, node in zip(plan.tasks, nodes_of(plan.tasks), strict=True):
        yield Spec(
            node, task.task_class, task.foreach, task.line, task.priority, _vram_mb(task, learned), task.retries + 1,
            task.executor is Executor.BRAIN, _text(task.model), _work(task),
            digests.of(task), digests.of_manifest(task),
        )  # fmt: skip


def _learns(task: Task) -> bool:
    """Whether a measured peak counts: where the plan says so, and where it names no estimate (FLEET-10)."""
    is_open = task.vram_policy is VramPolicy.DEFAULT and not task.vram_mb
    return task.task_class is TaskClass.SCRIPT and (is_open or task.vram_policy is VramPolicy.INFER)


def _vram_mb(task: Task, learned: Mapping[str, int]) -> int:
    if task.task_class is not TaskClass.SCRIPT:
        return 0
    estimate = task.vram_mb or _SCRIPT_VRAM_MB
    return learned.get(task.name, estimate) if _learns(task) else estimate


def _text(text: Text | None) -> str:
    return "" if text is None else text.text


def _work(task: Task) -> Work:
    """What the agent is told."""
    return Work(
        task.type, task.task_class, _text(task.command), _text(task.prompt), _text(task.system), _text(task.schema),
        _text(task.model), _text(task.output), _text(task.evaluate), task.timeout_ms or 0,
        tuple(each.text for each in task.requires),
        # The output is there when the answer is accepted, and not before.
        tuple(each.text for each in task.produces if task.output is None or each.text != task.output.text),
        {name: value.text for name, value in task.env}, task.soft_stop, task.sandbox, task.needs_pair,
        task.tokens_max,
    )  # fmt: skip


# ------------------------------------------------------------------ manifests


@dataclass(frozen=True, slots=True)
class Manifest:
    """The items of a foreach as they were at one moment."""

    items: list[object]
    sha256: str


def read_manifest(disk: Disk, ledger: Ledger, template: str) -> Manifest:
    """Read the items of a template. Raises OursError for a file or a path that is not there."""
    place = ledger.spec(template).place
    assert place is not None, f"{template} is no template"
    path = manifest_path(ledger, place.file)
    try:
        content = disk.read(path, plans_limits.PLAN_MANIFEST_BYTES_MAX)
    except FileNotFoundError:
        raise OursError(f"{path} is not there; a task that this one depends on has to write it") from None
    except PermissionError:
        raise OursError(f"{path} cannot be read by the user of the coordinator: permission denied") from None
    except NotAFile as error:
        raise OursError(f"{path} cannot be read: {error}") from None
    return Manifest(items_at(content, place._replace(file=path)), hashlib.sha256(content).hexdigest())


def expansion(ledger: Ledger, template: str, manifest: Manifest) -> list[Entry]:
    """The entries by which a template, and those that follow it item by item, get their tasks."""
    spelled = [_spelled(number, item) for number, item in enumerate(manifest.items, start=1)]
    entries: list[Entry] = [Items(part) for part in in_parts(spelled, size_of_text)]
    taken = _Taken(ledger)
    group = ledger.group(template)
    for spec in group:
        task = Task(spec.node.name, spec.line, batch_size=spec.node.batch_size)
        names = [each.name for each in expand(task, manifest.items, taken)]
        taken.names.update(names)
        entries += [Names(task.name, part) for part in in_parts(names, size_of_text)]
    return [*entries, Expand(tuple(spec.node.name for spec in group), manifest.sha256)]


def _spelled(number: int, item: object) -> str:
    """An item as JSON, as the manifest spells it. Raises OursError for one that no line of a journal holds."""
    text = text_of([item])[1:-1]
    if size_of_text(text) > limits.JOURNAL_PART_BYTES_MAX:
        raise OursError(
            f"item {number} has more than {limits.JOURNAL_PART_BYTES_MAX:,} bytes",
            hint="put its content into a file and name the file",
        )
    return text


class _Taken:
    """The names that a new task may not have."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.names: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.names or name in self._ledger)
