"""Work: one task, from the slip to the command line or the question, and from its end to the result.

The agent, not the coordinator, puts in the paths: every machine may mount the shared folder elsewhere. Values reach
bash as arguments and are never text of the script (`plans.command`). The task's own bash enters the plan's folder, so
that a folder that hangs stops the task and not the guard that started it.

Everything here reads and writes the shared folder, or other folders that a task names, and belongs on the agent's file
thread. `prepare` and `conclude` may be repeated.
"""

import errno
import functools
import glob
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import cast

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile, make_folder, open_folder, put_file, read_regular
from watchbill.fleet import limits
from watchbill.fleet.agent.questions import Question, decision
from watchbill.fleet.folder import places
from watchbill.fleet.folder.results import End, Result, end_of
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.logs import Part
from watchbill.fleet.permissions.rules import FILE, Action, Network, RuleBook, SandboxRules
from watchbill.fleet.permissions.ruling import Line, Ruling, Why, decide, load_book
from watchbill.fleet.state.approving import digest_of
from watchbill.names import file_stem
from watchbill.plans import limits as plans_limits
from watchbill.plans.bash_parse import parse_only
from watchbill.plans.bash_reader import parse_command
from watchbill.plans.command import Command, argv_of, argv_of_batch
from watchbill.plans.expand import item_of, values_of
from watchbill.plans.placeholders import Placeholder, fill, places_in
from watchbill.plans.syntax import BashSyntax, Mistake
from watchbill.plans.task import MetaCommand, Sandbox, TaskClass, TaskType
from watchbill.processes.crew import Cause, Ended, Job, Output
from watchbill.processes.sandbox import Cage, in_bubblewrap, in_landlock
from watchbill.quoting import quoted
from watchbill.units import format_bytes

__all__ = [
    "ON_GPU", "Fate", "Finished", "NotForUs", "NotNow", "Prepared", "Setting", "conclude", "hide_so_far", "prepare",
    "show_so_far", "touched",
]  # fmt: skip

ValueOf = Callable[[Placeholder], str]

#: Runs before the script, in its first line. When memory runs out, the kernel kills a task before the agent. Exit code
#: 126: this machine lacks the folder, another one may have it.
_PREFIX = '{ echo 500 > /proc/self/oom_score_adj; } 2> /dev/null; cd -- "$1" || exit 126; shift; '
#: Where the script stands among bash's arguments, and the first value behind it.
_SCRIPT_AT, _VALUES_AT = 4, 6
#: With these bash ends when it cannot parse its script, and many programs when something is wrong.
_SYNTAX_CODES = (1, 2)
_OUT_OF_MEMORY = re.compile(
    rb"CUDA[^\n]{0,80}out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|CUBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|failed to allocate CUDA",
    re.IGNORECASE,
)
#: A machine that cannot start one more process now: nobody is to blame.
_EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
#: What says that there is no such file, and nothing about the folder as a whole.
_NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG})
_PATTERN = re.compile(r"[*?[]")
_EXECUTOR, _WORKER = Part.EXECUTOR.logger, Part.WORKER.logger
#: The classes that use the device.
ON_GPU = (TaskClass.SCRIPT, TaskClass.LLM)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where tasks run: this machine's path of the shared folder, and what the agent has."""

    root: Path
    agent: str
    outputs: Path  # private: long outputs and result files until they are reported
    cards: tuple[str, ...] = ()
    model: str = ""
    models: tuple[str, ...] = ()  # that its device can serve
    model_url: str = ""
    sandboxes: frozenset[Sandbox] = frozenset()  # that this machine can make
    #: The rules by plan, as they were when they were first needed: a setting is made for one round of claims.
    books: dict[str, RuleBook] = field(default_factory=dict[str, RuleBook], compare=False)


class NotNow(OursError):
    """A task cannot be run now or here; a later attempt, or one on another agent, may succeed."""


class CannotCage(OursError):
    """This agent cannot make the sandbox that a task needs; another one may."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claimed slip, ready to be started."""

    name: str
    slip: Slip
    task_class: TaskClass
    job: Job  # without a command line for a question and for an order
    question: Question | None = None  # for a model
    order: MetaCommand | None = None  # for the agent itself
    produces: tuple[str, ...] = ()
    keeps_folder: bool = False  # the task knows its folder, so its outputs go there in any case
    own_files: tuple[str, ...] = ()  # what only this task is expected to touch while it runs
    own_folder: Path | None = None


class Fate(Enum):
    """What the agent did to a task."""

    NONE = "none"
    ABORTED = "aborted"  # told to by a signal file
    GIVEN_UP = "given_up"  # the agent leaves: again, and nobody is to blame


@dataclass(frozen=True, slots=True)
class Finished:
    """A task of which no process is left, and that is not reported yet."""

    prepared: Prepared
    ended: Ended
    fate: Fate = Fate.NONE
    peak_vram_mb: int = 0


# ------------------------------------------------------------------ before


class NotForUs(OursError):
    """The name of a slip promised what its body does not hold: another agent can run the task."""


def prepare(setting: Setting, name: str, slip: Slip) -> Prepared | Ruling:
    """What an agent does for a task, or why it may not be run. Raises OSError, and OursError for a task that cannot be
    run, with the reason: NotNow where another attempt may, NotForUs where the task belongs to another agent."""
    if not slip.batch:
        return _ordered(name, slip)
    return _Preparation(setting, name, slip).prepare()


def _ordered(name: str, slip: Slip) -> Prepared:
    """An order of the coordinator itself: it has neither a plan nor a folder."""
    job = Job(file_stem(name), (), {})
    return Prepared(name, slip, TaskClass.META, job, None, _order_of(slip))


def _order_of(slip: Slip) -> MetaCommand:
    words = slip.work.command.split()
    try:
        return MetaCommand(words[0] if words else "")
    except ValueError:
        raise OursError(f"{quoted(' '.join(words))} is no command of class meta") from None


class _Preparation:
    """One slip on its way to a command line."""

    def __init__(self, setting: Setting, name: str, slip: Slip) -> None:
        self._setting, self._name, self._slip = setting, name, slip
        self._work = slip.work
        self._job = file_stem(name)
        self._plan_path, self._batch_path = _paths_of(setting.root, slip.plan, slip.batch)
        self._asks_for_folder = self._is_caged = False
        self._book = RuleBook()

    def prepare(self) -> Prepared | Ruling:
        self._refuse_unknown_words()
        rows, task_class = self._rows(), self._work.task_class
        self._refuse_leading_out(rows)
        order = _order_of(self._slip) if task_class is TaskClass.META else None
        question = self._question(rows[-1]) if order is None else None
        command: list[str] = []
        if order is None and question is None:
            command = self._command(rows)
            forbidden = self._forbidden(rows)
            if forbidden is not None:
                return forbidden
            command = self._caged(self._limited(command))
        rules = self._book.sandbox
        job = Job(
            self._job, tuple(command), self._environment(rows[-1]), self._timeout_ms(),
            memory_bytes_max=rules.memory_bytes, processes_max=rules.processes,
        )  # fmt: skip
        requires = self._patterns(self._work.requires, rows)
        produces = self._patterns(self._work.produces, rows)
        missing = next((each for each in requires if not _is_there(each, self._plan_path)), None)
        if missing is not None:
            raise NotNow(f"requires {missing}, which is not there")
        has_folder = self._asks_for_folder or len(self._slip.items) > 1
        if has_folder:
            make_folder(self._task_path)
        # The answer of a model is a file of the attempt: the coordinator publishes it from there.
        keeps_folder = self._asks_for_folder or question is not None
        return Prepared(
            self._name, self._slip, task_class, job, question, order, produces, keeps_folder,
            (_result_path(self._setting, job.id), *self._own_products(rows)), self._task_path if has_folder else None,
        )  # fmt: skip

    @property
    def _task_path(self) -> Path:
        return _attempt_folder(self._setting.root, self._slip)

    def _refuse_unknown_words(self) -> None:
        """Raise NotNow for a word of a later version: an agent of that version may run the task."""
        unknown = self._work.unknown
        if unknown is not None:
            raise NotNow(
                f"the slip names the {unknown.key} {quoted(unknown.word)}, which this version does not know"
            )

    def _question(self, value_of: ValueOf) -> Question | None:
        """What the task asks a model; None for a command."""
        kind = self._work.type
        if kind is TaskType.SHELL:
            return None
        work, model = self._work, self._model(value_of)
        if model and model not in self._setting.models:
            raise NotForUs(f"it asks for the model {model}, which this agent does not serve")
        prompt, system, schema = (
            self._text(key, text, value_of)
            for key, text in (("prompt", work.prompt), ("system", work.system), ("schema", work.schema))
        )
        if remark := self._work.remark:
            prompt += f"\n\nAn earlier answer to this was not good enough: {remark}"
        if kind is TaskType.DECIDE:
            return decision(model, prompt, system, schema)
        return Question(model, prompt, system, schema, kind)

    def _model(self, value_of: ValueOf) -> str:
        return fill(self._work.model, value_of)

    def _text(self, key: str, text: str, value_of: ValueOf) -> str:
        """A text of the task, or of the file that it names. Placeholders in a file of the plan are filled in; a file
        whose own name has placeholders was made by a task, and is taken as it is."""
        if not text.startswith("file:"):
            return fill(text, value_of)
        named = text.removeprefix("file:").strip()
        bare = named.removeprefix("{PLAN_PATH}/")
        path = self._plan_path / fill(bare, value_of)
        try:
            content = read_regular(os.fspath(path), bytes_max=plans_limits.PLAN_PROMPT_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError, NotAFile, ValueError) as error:
            raise NotNow(f"the {key} cannot be read from {path}: {error}") from None
        found = content.decode("utf-8", "replace")
        return found if "{" in bare else fill(found, value_of)

    def _timeout_ms(self) -> int | None:
        return self._work.timeout_ms or None

    def _rows(self) -> list[ValueOf]:
        """What placeholders mean, for each item; one row for a task without items."""
        try:
            items = [item_of(text) for text in self._slip.items]
        except ValueError as error:
            raise OursError(f"an item of the slip cannot be read: {error}") from None
        return [values_of(item, self._value) for item in items] or [self._value]

    def _value(self, place: Placeholder) -> str:
        """A built-in or an input, with the paths of this machine."""
        match place.name:
            case "BATCH_ID":
                return self._slip.batch
            case "BATCH_PATH":
                return str(self._batch_path)
            case "PLAN_PATH":
                return str(self._plan_path)
            case "ROOT":
                return str(self._setting.root)
            case "TASK_PATH":
                self._asks_for_folder = True
                return str(self._task_path)
            case _:
                return self._input(place)

    def _input(self, place: Placeholder) -> str:
        value = self._slip.inputs.get(place.name)
        if isinstance(value, str):
            return value
        below = Fields(self._slip.inputs).fields(place.name).text("below_root")
        if not below:
            raise OursError(f"{place} has no value here")
        return str(places.from_shared(PurePosixPath(self._setting.root), below))

    def _command(self, rows: list[ValueOf]) -> list[str]:
        command = _parsed(self._work.command)
        if command.refusals:
            raise OursError(command.refusals[0].text, hint=command.refusals[0].hint)
        if len(self._slip.items) > 1:
            done = self._items_done()
            note = self._task_path / f"items_from_{done}"
            argv = argv_of_batch(command, rows[done:], str(note))
        else:
            argv = argv_of(command, rows[0])
        argv[_SCRIPT_AT] = _PREFIX + argv[_SCRIPT_AT]
        argv[0] = _path_of(argv[0])
        return [*argv[:_VALUES_AT], str(self._plan_path), *argv[_VALUES_AT:]]

    def _forbidden(self, rows: list[ValueOf]) -> Ruling | None:
        """The first ruling that does not allow the command, with the values of an item."""
        book = self._book = self._rules()
        text, paths = self._work.command, (str(self._plan_path), str(self._batch_path))
        lines = (Line(text, value_of, self._work.env, *paths) for value_of in rows)
        rulings = [decide(line, book) for line in lines]
        is_approved = self._is_approved()
        for ruling in rulings:
            if ruling.action is not Action.ALLOW and not (is_approved and ruling.yields_to_a_person):
                level = logging.WARNING if ruling.why is Why.BROKEN else logging.INFO
                _EXECUTOR.log(level, "%s of %s: %s", self._slip.task, self._slip.batch, ruling)
                return ruling
        for ruling in rulings:
            _EXECUTOR.debug("%s of %s: %s", self._slip.task, self._slip.batch, ruling)
        return None

    def _rules(self) -> RuleBook:
        books, plan = self._setting.books, self._slip.plan
        if plan not in books:
            books[plan] = load_book(self._setting.root, plan)
        return books[plan]

    def _is_approved(self) -> bool:
        slip = self._slip
        return bool(slip.approved) and slip.approved == digest_of(
            slip.batch, slip.task, slip.work, slip.inputs, slip.items
        )

    def _limited(self, command: list[str]) -> list[str]:
        """The command with the kernel's bound of what each of its processes may allocate, where its memory is limited.

        The guard adds up what the whole task really uses, twice a second. This ends what takes more between two looks.
        """
        memory_bytes = self._book.sandbox.memory_bytes
        if not memory_bytes:
            return command
        kib = memory_bytes * limits.TASK_DATA_FACTOR // 1024
        script = f"ulimit -d {kib} 2> /dev/null; {command[_SCRIPT_AT]}"
        return [*command[:_SCRIPT_AT], script, *command[_SCRIPT_AT + 1 :]]

    def _caged(self, command: list[str]) -> list[str]:
        """The command in the sandbox that the task or the rules demand."""
        setting, rules = self._setting, self._book.sandbox
        level = max(rules.level, self._work.sandbox, key=lambda each: each.strength)
        if level is Sandbox.NONE and rules.net is Network.ALL:
            return command
        if (
            not {Sandbox.STRICT, max(level, Sandbox.LIGHT, key=lambda each: each.strength)}
            & setting.sandboxes
        ):
            raise CannotCage(
                f"the task needs the sandbox {level.value}, which {setting.agent} cannot make",
                hint="install bubblewrap there, or let another agent run it",
            )
        cage = self._cage(rules)
        is_light = level is not Sandbox.STRICT and Sandbox.LIGHT in setting.sandboxes
        return in_landlock(cage, command) if is_light else in_bubblewrap(cage, command)

    def _cage(self, rules: SandboxRules) -> Cage:
        """What the task may write to: its batch, its result, a folder for passing files, and what the rules name."""
        result = Path(_result_path(self._setting, self._job))
        passing = Path(_passing_folder(self._setting, self._job))
        result.touch(mode=0o600)
        passing.mkdir(mode=0o700, exist_ok=True)
        self._is_caged = True
        named = [Path(fill(path.removesuffix("/**"), self._value)) for path in rules.write]
        missing = next((path for path in named if not path.exists()), None)
        if missing is not None:
            raise NotNow(f"[sandbox] write in {FILE} names {missing}, which is not on this machine")
        return Cage(
            (self._batch_path, result, passing, *named), (self._setting.root,),
            tuple(self._batch_path.glob("journal.*.jsonl")), rules.net is Network.ALL,
            self._work.task_class in ON_GPU,
        )  # fmt: skip

    def _items_done(self) -> int:
        """How many items earlier attempts have done. An attempt notes behind how many it began: one that was presumed
        dead and goes on beside a later one is not counted twice."""
        done = 0
        for attempt in range(1, self._slip.attempt):
            for note in self._task_path.with_name(f"a{attempt}").glob("items_from_*"):
                began = note.name.removeprefix("items_from_")
                if began.isdigit() and note.is_file():
                    done = max(done, int(began) + note.read_bytes().count(b"\n"))
        return min(done, len(self._slip.items))

    def _environment(self, value_of: ValueOf) -> dict[str, str]:
        setting, slip = self._setting, self._slip
        on_gpu = self._work.task_class in ON_GPU
        own = {
            "CUDA_VISIBLE_DEVICES": ",".join(setting.cards) if on_gpu else "",
            "WATCHBILL_TASK": f"{setting.root}/{places.processing_folder(setting.agent)}/{self._name}",
            "WATCHBILL_RESULT": _result_path(setting, self._job),
            "WATCHBILL_ATTEMPT": str(slip.attempt),
            "WATCHBILL_AGENT": setting.agent,
            "BATCH_ID": slip.batch,
            "BATCH_PATH": str(self._batch_path),
            "PLAN_PATH": str(self._plan_path),
        }
        if setting.model_url:
            model = self._model(value_of) or setting.model
            own |= {"WATCHBILL_MODEL": model, "WATCHBILL_MODEL_URL": setting.model_url}
        if self._is_caged:
            own["TMPDIR"] = _passing_folder(setting, self._job)
        return own | {key: _variable(key, fill(text, value_of)) for key, text in self._work.env.items()}

    def _patterns(self, texts: tuple[str, ...], rows: list[ValueOf]) -> tuple[str, ...]:
        """The paths of `requires` or `produces` for all items; what comes from a value is no pattern."""
        filled = (fill(text, _escaping(value_of)) for value_of in rows for text in texts)
        return tuple(dict.fromkeys(filled))

    def _refuse_leading_out(self, rows: list[ValueOf]) -> None:
        """Raise OursError when a value of an item leads out of the folder that the plan names in front of it, and for
        an output outside of the shared folder: before a model is asked for what could not be stored."""
        output = self._work.output
        for key, text in (("output", output), *(("produces", each) for each in self._work.produces)):
            behind = [place for at, place in places_in(text) if place.is_item and at > 0]
            for place, value_of in itertools.product(behind, rows):
                if ".." in PurePosixPath(value := value_of(place)).parts:
                    why = f"{place} is {quoted(value)}, which leads out of that folder"
                    raise OursError(f"{key} is {text}, and {why}")
        for value_of in rows if output.startswith(("{", "/")) else ():
            target = PurePosixPath(fill(output, value_of))
            if target.is_absolute():
                places.to_shared(PurePosixPath(self._setting.root), target)

    def _own_products(self, rows: list[ValueOf]) -> Iterator[str]:
        """The paths in `produces` that are no patterns: what matches a pattern may come from other tasks."""
        texts = [text for text in self._work.produces if not _PATTERN.search(text)]
        filled = (fill(text, value_of) for value_of in rows for text in texts)
        return (str(self._plan_path / path) for path in itertools.islice(filled, limits.HEADWAY_FILES_MAX))


@functools.lru_cache(maxsize=limits.BATCH_PATHS_KEPT)
def _paths_of(root: Path, plan: str, batch: str) -> tuple[Path, Path]:
    """The folder of a plan and that of a batch on this machine. All tasks of a batch have the same ones."""
    return root / "plans" / plan, root / places.batch_folder(plan, batch)


@functools.lru_cache(maxsize=limits.COMMANDS_PARSED_MAX)
def _parsed(text: str) -> Command:
    """A command as bash reads it. All tasks of a fan-out have the same text."""
    return parse_command(text)


@functools.lru_cache(maxsize=1)
def _path_of(shell: str) -> str:
    """Where the shell is. A bare name is looked for in every folder of PATH, for each task and by bash once more."""
    return shutil.which(shell) or shell


def _escaping(value_of: ValueOf) -> ValueOf:
    return lambda place: glob.escape(value_of(place))


def _variable(name: str, value: str) -> str:
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise OursError(f"the value of the variable {name} is not valid Unicode") from None
    if "\0" in value:
        raise OursError(f"the value of the variable {name} holds a NUL character; remove it")
    return value


def _is_there(pattern: str, folder: Path) -> bool:
    """Whether a path that may be a pattern names anything; one that is relative lies in the plan's folder."""
    whole = os.path.join(glob.escape(str(folder)), pattern)
    try:
        return next(glob.iglob(whole, recursive=True, include_hidden=True), None) is not None
    except ValueError:  # no name of a file: a NUL character, half of a surrogate pair
        return False


# ------------------------------------------------------------------ meanwhile


def touched(prepared: Prepared) -> int:
    """When a task's own files were last changed, by the clock of whoever changed them; 0 while there are none.

    Raises OSError when the shared folder fails.
    """
    folder = prepared.own_folder
    inside = () if folder is None else _some_files(folder)
    return max(map(_changed_at, (*prepared.own_files, *inside)), default=0)


def show_so_far(root: Path, prepared: Prepared, text: str) -> None:
    """Show the end of the output of a task that still runs. Raises OSError."""
    if not prepared.slip.batch:
        return
    folder = _attempt_folder(root, prepared.slip)
    make_folder(folder)
    with open_folder(folder) as opened:
        put_file(
            places.SO_FAR, f".{places.SO_FAR}.new", text.encode("utf-8", "replace"), dir_fd=opened, sync=False
        )


def hide_so_far(root: Path, prepared: Prepared) -> None:
    """Remove what was shown of a task that has ended. Raises OSError."""
    (_attempt_folder(root, prepared.slip) / places.SO_FAR).unlink(missing_ok=True)


def _attempt_folder(root: Path, slip: Slip) -> Path:
    _, batch = _paths_of(root, slip.plan, slip.batch)
    return batch / "tasks" / file_stem(slip.task) / f"a{slip.attempt}"


def _some_files(folder: Path) -> list[str]:
    """A folder and files in it, so many that a large folder on a network mount does not delay the heartbeat."""
    try:
        with os.scandir(folder) as entries:
            return [
                str(folder),
                *(entry.path for entry in itertools.islice(entries, limits.HEADWAY_FILES_MAX)),
            ]
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE:
            raise
        return []


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except ValueError:  # no name of a file: a NUL character, half of a surrogate pair
        return 0
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE:
            raise
        return 0


# ------------------------------------------------------------------ after


def conclude(
    setting: Setting, finished: Finished, life: int, *, keeps_files: bool = True, note: str = ""
) -> Result:
    """The result of a task, with its files where they are needed. Raises OSError: then it may be repeated."""
    prepared, ended = finished.prepared, finished.ended
    end, own_note = _end(finished, setting)
    if end is End.UNPARSABLE:
        ended = _without_our_line(ended)
    tail = _tail(ended, own_note, note)
    rc = ended.code if ended.cause is not Cause.NOT_STARTED else None
    whole = _answer(setting, prepared, ended)
    answer = json.dumps(whole, separators=(",", ":")) if whole is not None else ""
    is_long = ended.out.total + ended.err.total > limits.RESULT_TAIL_CHARS_MAX
    is_answer_long = len(answer) > limits.TASK_ANSWER_BYTES_MAX
    has_said = ended.out.total + ended.err.total > 0
    # A result is what the task was run for: it is kept with the batch, however short it is (FLEET-10).
    is_of_interest = is_long or bool(answer) or (end is not End.DONE and has_said)
    # An order of the coordinator belongs to no batch, and has no folder.
    if keeps_files and prepared.slip.batch and (prepared.keeps_folder or is_of_interest):
        _keep_files(setting, prepared, ended, answer)
    _clear(setting, prepared, ended)
    return Result(
        prepared.name, setting.agent, life, end, rc, ended.ms, finished.peak_vram_mb, tail, ended.cpu_ms,
        "" if is_answer_long else answer, -(-ended.rss_bytes // 2**20),
    )  # fmt: skip


def _end(finished: Finished, setting: Setting) -> tuple[End, str]:
    """How an attempt ended, and what there is to say about it beside its output."""
    ended, fate = finished.ended, finished.fate
    match ended.cause:
        case Cause.GUARD_LOST:
            return End.LOST, "the process that guards the tasks was killed"
        case Cause.LEASE:
            return End.LOST, "the agent could not reach the shared folder"
        case Cause.NOT_STARTED:
            return _not_started(ended.error)
        case Cause.TIMEOUT:
            return End.TIMEOUT, f"it took longer than {finished.prepared.job.timeout_ms} ms"
        case Cause.MEMORY:
            most = format_bytes(finished.prepared.job.memory_bytes_max)
            return End.FAILED, f"it was killed: [sandbox] memory of {FILE} lets a task have {most}"
        case Cause.PROCESSES:
            most = finished.prepared.job.processes_max
            return End.FAILED, f"it was killed: [sandbox] processes of {FILE} lets a task have {most}"
        case Cause.STOPPED | Cause.KILLED:
            if fate is Fate.ABORTED:
                return End.ABORTED, "it was aborted by a signal"
            return End.SOFT_STOP, "the agent was stopped"
        case Cause.EXIT:
            return _exited(finished, setting)


def _not_started(error: OSError | None) -> tuple[End, str]:
    number = None if error is None else error.errno
    why = "it could not be started" + (f": {os.strerror(number)}" if number else "")
    if number in _EXHAUSTED:
        return End.LOST, why
    return (End.NOT_RUNNABLE if number in (errno.ENOENT, errno.EACCES) else End.FAILED), why


def _exited(finished: Finished, setting: Setting) -> tuple[End, str]:
    code, prepared = finished.ended.code, finished.prepared
    if code is None or code < 0:
        end, note = End.FAILED, f"it was killed by signal {-(code or 0)}"
    else:
        end, note = end_of(code), ""
    if end is End.DONE:
        folder = setting.root / "plans" / prepared.slip.plan
        missing = next((each for each in prepared.produces if not _is_there(each, folder)), None)
        if missing is not None:
            return End.MISSING_OUTPUT, f"it did not produce {missing}"
    if end is End.FAILED and code in _SYNTAX_CODES and (mistake := _mistake_in(prepared)) is not None:
        return End.UNPARSABLE, f"bash cannot parse the command: line {mistake.line}: {mistake.text}"
    if end is End.FAILED and _is_out_of_memory(finished):
        return End.OUT_OF_MEMORY, note
    return end, note


def _mistake_in(prepared: Prepared) -> Mistake | None:
    """What bash cannot parse in the command of a task; None where it can, or where that is not known."""
    text = prepared.slip.work.command
    found = (
        BashSyntax(parse_only, plans_limits.TASK_SYNTAX_MS_MAX).look_at(_parsed(text))
        if prepared.job.argv
        else None
    )
    return found if isinstance(found, Mistake) else None


def _without_our_line(ended: Ended) -> Ended:
    """What a task said without the line in which bash repeats the first line of the script: it begins with ours."""
    own = _PREFIX.rstrip().encode()
    lines = [line for line in ended.err.tail.splitlines(keepends=True) if own not in line]
    tail = b"".join(lines)
    left_out = len(ended.err.tail) - len(tail)
    return replace(ended, err=replace(ended.err, tail=tail, total=ended.err.total - left_out))


def _is_out_of_memory(finished: Finished) -> bool:
    if finished.prepared.task_class not in ON_GPU:
        return False
    estimate_mb = finished.prepared.slip.vram_mb
    return bool(_OUT_OF_MEMORY.search(finished.ended.err.tail)) or 0 < estimate_mb <= finished.peak_vram_mb


def _tail(ended: Ended, *notes: str) -> str:
    """The end of what a task said, errors last, and the agent's own words behind them."""
    texts = [ended.out.tail.decode("utf-8", "replace"), ended.err.tail.decode("utf-8", "replace"), *notes]
    return "\n".join(text.rstrip("\n") for text in texts if text)[-limits.RESULT_TAIL_CHARS_MAX :]


def _answer(setting: Setting, prepared: Prepared, ended: Ended) -> dict[str, object] | None:
    """What a task gives as its result: its result.json, else the last line of its output if that is a JSON object."""
    path = _result_path(setting, prepared.job.id)
    try:
        said = read_regular(path, bytes_max=limits.TASK_RESULT_BYTES_MAX)
    except (FileNotFoundError, NotAFile, PermissionError):  # whatever the task has put there
        said = b""
    if not said.strip():  # a task in a sandbox finds the file there, and empty
        said = ended.out.tail.rstrip(b"\n").rpartition(b"\n")[2]
    if not said.lstrip().startswith(b"{"):
        return None
    try:
        found = cast("object", json.loads(said))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _result_path(setting: Setting, job: str) -> str:
    return f"{setting.outputs}/{job}.result.json"


def _passing_folder(setting: Setting, job: str) -> str:
    """Where a task in a sandbox puts files that only it needs, while it runs."""
    return f"{setting.outputs}/{job}.tmp"


def _keep_files(setting: Setting, prepared: Prepared, ended: Ended, answer: str) -> None:
    """Put what a task said where people look for it: tasks/TASK/aN of the batch."""
    folder = _attempt_folder(setting.root, prepared.slip)
    make_folder(folder)
    contents: Mapping[str, bytes] = {
        "stdout": _whole(ended.out), "stderr": _whole(ended.err), "result.json": answer.encode(),
        places.QUESTION: _asked(prepared.question, setting),
    }  # fmt: skip
    with open_folder(folder) as opened:
        for name, content in contents.items():
            # The coordinator looks for an answer, also for one without a character. It publishes what it finds, so the
            # answer is on stable storage before its report is: a power cut left an empty file under this name.
            is_answer = prepared.question is not None and name == "stdout"
            if content or is_answer:
                put_file(name, f".{name}.new", content, dir_fd=opened, sync=is_answer)


def _asked(question: Question | None, setting: Setting) -> bytes:
    """What a model was asked, as the coordinator's training samples have it."""
    if question is None:
        return b""
    asked = {
        "type": question.type.value, "model": question.model or setting.model, "system": question.system,
        "prompt": question.prompt, "schema": question.schema,
    }  # fmt: skip
    return json.dumps(asked).encode()


def _whole(output: Output) -> bytes:
    """All of an output that was kept: its beginning, and its end where the middle is left out."""
    if output.file is None:
        return output.tail
    try:
        begin = output.file.read_bytes()
    except FileNotFoundError:  # the private disk took none of it
        begin = b""
    left_out = output.total - len(begin) - len(output.tail)
    if left_out <= 0:
        return begin + output.tail[len(output.tail) - (output.total - len(begin)) :]
    return begin + f"\n[{left_out:,} bytes left out]\n".encode() + output.tail


def _clear(setting: Setting, prepared: Prepared, ended: Ended) -> None:
    """Remove the private files of a task that is concluded."""
    own = (_result_path(setting, prepared.job.id), _passing_folder(setting, prepared.job.id))
    for path in (ended.out.file, ended.err.file, *own):
        if path is not None:
            _remove(path)


def _remove(path: str | Path) -> None:
    """Remove whatever a task has put there. What cannot be removed must not keep its result back, and goes when the
    next guard starts: a folder in place of a result once stopped an agent for good."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        _WORKER.warning("a file of a task that has ended cannot be removed: %s", error)
