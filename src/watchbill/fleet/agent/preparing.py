"""Preparing: the command line, or the question to a model, that a claimed slip becomes, or why it may not run.

The agent, not the coordinator, puts in the paths: every machine may mount the shared folder elsewhere. Values reach
bash as arguments and are never text of the script (`plans.command`). The task's own bash enters the plan's folder, so
that a folder that hangs stops the task and not the guard that started it.

Reads and writes the shared folder, and belongs on the agent's file thread. `prepare` may be repeated.
"""

import functools
import glob
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile, make_folder, read_regular
from watchbill.fleet import limits
from watchbill.fleet.agent.questions import Question, decision
from watchbill.fleet.agent.work import (
    ON_GPU,
    Prepared,
    Setting,
    attempt_folder,
    is_there,
    passing_folder,
    paths_of,
    result_path,
)
from watchbill.fleet.folder import places
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.logs import Part
from watchbill.fleet.permissions.rules import FILE, Action, Network, RuleBook, SandboxRules
from watchbill.fleet.permissions.ruling import Line, Ruling, Why, decide, load_book
from watchbill.fleet.state.approving import digest_of
from watchbill.names import file_stem
from watchbill.plans import limits as plans_limits
from watchbill.plans.bash_reader import parse_command
from watchbill.plans.command import Command, argv_of, argv_of_batch
from watchbill.plans.expand import item_of, values_of
from watchbill.plans.placeholders import Placeholder, fill, places_in
from watchbill.plans.task import MetaCommand, Sandbox, TaskClass, TaskType
from watchbill.processes.crew import Job
from watchbill.processes.sandbox import Cage, in_bubblewrap, in_landlock
from watchbill.quoting import quoted

__all__ = ["PREFIX", "CannotCage", "NotForUs", "NotNow", "parsed_command", "prepare"]

ValueOf = Callable[[Placeholder], str]

#: Runs before the script, in its first line. When memory runs out, the kernel kills a task before the agent. Exit code
#: 126: this machine lacks the folder, another one may have it.
PREFIX = '{ echo 500 > /proc/self/oom_score_adj; } 2> /dev/null; cd -- "$1" || exit 126; shift; '
#: Where the script stands among bash's arguments, and the first value behind it.
_SCRIPT_AT, _VALUES_AT = 4, 6
_PATTERN = re.compile(r"[*?[]")
_EXECUTOR = Part.EXECUTOR.logger


class NotNow(OursError):
    """A task cannot be run now or here; a later attempt, or one on another agent, may succeed."""


class CannotCage(OursError):
    """This agent cannot make the sandbox that a task needs; another one may."""


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
        self._plan_path, self._batch_path = paths_of(setting.root, slip.plan, slip.batch)
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
        missing = next((each for each in requires if not is_there(each, self._plan_path)), None)
        if missing is not None:
            raise NotNow(f"requires {missing}, which is not there")
        has_folder = self._asks_for_folder or len(self._slip.items) > 1
        if has_folder:
            make_folder(self._task_path)
        # The answer of a model is a file of the attempt: the coordinator publishes it from there.
        keeps_folder = self._asks_for_folder or question is not None
        return Prepared(
            self._name, self._slip, task_class, job, question, order, produces, keeps_folder,
            (result_path(self._setting, job.id), *self._own_products(rows)), self._task_path if has_folder else None,
        )  # fmt: skip

    @property
    def _task_path(self) -> Path:
        return attempt_folder(self._setting.root, self._slip)

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
            return decision(model, prompt, system, schema, work.tokens_max)
        return Question(model, prompt, system, schema, kind, work.tokens_max, work.is_private)

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
        command = parsed_command(self._work.command)
        if command.refusals:
            raise OursError(command.refusals[0].text, hint=command.refusals[0].hint)
        if len(self._slip.items) > 1:
            done = self._items_done()
            note = self._task_path / f"items_from_{done}"
            argv = argv_of_batch(command, rows[done:], str(note))
        else:
            argv = argv_of(command, rows[0])
        argv[_SCRIPT_AT] = PREFIX + argv[_SCRIPT_AT]
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
        result = Path(result_path(self._setting, self._job))
        passing = Path(passing_folder(self._setting, self._job))
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
        """How many items earlier attempts at this work have done. An attempt notes behind how many it began: one that
        was presumed dead and goes on beside a later one is not counted twice."""
        done = 0
        for attempt in range(max(1, self._slip.since), self._slip.attempt):
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
            "WATCHBILL_RESULT": result_path(setting, self._job),
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
            own["TMPDIR"] = passing_folder(setting, self._job)
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


@functools.lru_cache(maxsize=limits.COMMANDS_PARSED_MAX)
def parsed_command(text: str) -> Command:
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
