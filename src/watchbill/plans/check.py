"""The check: everything that is wrong with a plan before anything of it runs, each with its line (PLAN-03).

Reads the document and its fields, then looks at what no single value can be wrong about: names that are used twice,
dependencies that do not exist or run in a circle, placeholders that nothing fills, places in commands that cannot take
one, commands that bash cannot parse, scripts that are not there.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from watchbill.errors import NameRefused
from watchbill.names import inside
from watchbill.plans import limits
from watchbill.plans.bash_reader import parse_command
from watchbill.plans.command import Command
from watchbill.plans.document import read_document
from watchbill.plans.fields import read_task
from watchbill.plans.findings import Findings, shown
from watchbill.plans.foreach import ContentOf, InputValues, check_manifests
from watchbill.plans.inputs import BUILT_INS, Input
from watchbill.plans.placeholders import ITEM, Placeholder, places_in
from watchbill.plans.syntax import BashSyntax, Mistake, Unchecked
from watchbill.plans.task import Dependency, Task, TaskClass, Text
from watchbill.plans.wording import with_names
from watchbill.suggest import nearest

__all__ = ["Checked", "Plan", "check", "files_below", "read_plan"]

#: The coordinator's own last task.
SUMMARY_TASK = "batch_summary"

#: Whether a file of the plan folder is there, by its path in the folder.
Exists = Callable[[str], bool]

_SCRIPT = re.compile(r"(?<![\w./}~-])(\{PLAN_PATH\}/|\./)?(scripts/[\w./-]+)")
_IN_PLAN = re.compile(r"\{PLAN_PATH\}/((?!scripts/|history/)[\w./-]+\.(?:py|sh|bash|pl|rb|js|R))(?![\w.])")
#: Tasks that one note names.
_NAMED_MAX = 5
_DOUBLE_BRACES = re.compile(r"\{\{\s*([A-Za-z_][\w.]*)\s*\}\}")
_VARIABLE = re.compile(r"(?<!\\)\$([A-Za-z_]\w*)")
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=|\bfor\s+([A-Za-z_]\w*)")
#: Dependencies that name no task in particular.
_VAGUE = re.compile(
    r"(?:all|every|everything|each|any)?\s*(?:of)?\s*(?:the)?\s*(?:previous|above|before|others?|rest|tasks?|steps?|\s)*",
    re.IGNORECASE,
)
_CHANGES_FOLDER = re.compile(r"(?:^|[;&|(\n]\s*)(?:cd|pushd)\s")


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that was read: tasks in the order of the document, their commands, the inputs."""

    title: str
    goal: str
    inputs: tuple[Input, ...]
    tasks: tuple[Task, ...]
    commands: dict[str, Command]

    @property
    def used(self) -> set[str]:
        """The inputs that some task uses."""
        return {
            place.name for task in self.tasks for _, place in places_of(task, self.commands.get(task.name))
        }


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan and what was found in it. Only one without errors may be run."""

    plan: Plan
    findings: Findings

    @property
    def is_right(self) -> bool:
        """Whether the plan may be run."""
        return not self.findings.errors


def check(
    text: str,
    exists: Exists | None = None,
    syntax: BashSyntax | None = None,
    content_of: ContentOf | None = None,
    *,
    given: Mapping[str, str] | None = None,
    root: PurePosixPath | None = None,
) -> Checked:
    """Reads and checks a plan. Without `exists` no file is looked for, without `syntax` bash is not asked, without
    `content_of` no manifest is read, without `given` it is not known which inputs will be set, without `root` not where
    the shared folder is."""
    findings = Findings()
    document = read_document(text, findings)
    tasks = with_names(tuple(read_task(each, findings) for each in document.tasks))
    named = _names(tasks, findings)
    tasks = tuple(named.values())  # of two with one name the first: each finding is about its own lines
    commands = {task.name: parse_command(task.command.text) for task in tasks if task.command is not None}
    plan = Plan(document.title, document.goal, tuple(document.inputs), tasks, commands)
    _dependencies(plan, named, findings)
    _circles(named, findings)
    _placeholders(plan, findings)
    _curly_quotes(plan, findings)
    _inferences(plan, findings)
    if syntax is not None:
        _syntax(plan, syntax, findings)
    if exists is not None:
        _files(plan, exists, findings)
    if content_of is not None:
        _defaults(plan, given or {}, findings)
        defaults = {each.name: each.default for each in plan.inputs if each.default is not None}
        is_final = given is not None
        inputs = InputValues({**defaults, **given} if is_final else {}, {} if is_final else defaults, root)
        check_manifests(
            plan.tasks,
            lambda task: places_of(task, plan.commands.get(task.name)),
            content_of,
            findings,
            inputs,
        )
    return Checked(plan, findings)


def read_plan(
    path: Path,
    syntax: BashSyntax | None = None,
    given: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> Checked:
    """Reads and checks the plan.md at this path; scripts are looked for beside it. Raises OSError.

    `given`: the inputs that are set, where that is known. `root`: the shared folder, where it is known."""
    with path.open("rb") as opened:
        content = opened.read(limits.PLAN_FILE_BYTES_MAX + 1)
    if len(content) > limits.PLAN_FILE_BYTES_MAX:
        return _unreadable(1, f"the plan is larger than {limits.PLAN_FILE_BYTES_MAX:,} bytes", "use foreach")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _unreadable(line, f"byte {content[error.start]:#04x} is not UTF-8", "save the file as UTF-8")
    shared = None if root is None else PurePosixPath(root.absolute())
    return check(
        text, files_below(path.parent), syntax, contents_below(path.parent), given=given, root=shared
    )


def files_below(folder: Path) -> Exists:
    """Tells whether a path names something below the folder. Paths that lead out of it are not looked at."""

    def exists(relative: str) -> bool:
        try:
            return inside(folder, relative).exists()
        except NameRefused:
            return False

    return exists


def contents_below(folder: Path) -> ContentOf:
    """Reads the beginning of files below the folder, of some bytes, and of those with an absolute path. It raises
    OSError; so do other paths that lead out."""

    def content_of(path: str, bytes_max: int) -> bytes:
        try:
            file = Path(path) if path.startswith("/") else inside(folder, path)
            with open(file, "rb", opener=_without_waiting) as opened:
                return opened.read(bytes_max)
        except NameRefused as error:
            raise FileNotFoundError(str(error)) from None

    return content_of


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, and a pipe without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _unreadable(line: int, text: str, hint: str) -> Checked:
    findings = Findings()
    findings.wrong(line, text, hint)
    return Checked(Plan("", "", (), (), {}), findings)


# ------------------------------------------------------------------ names and dependencies


def _names(tasks: Iterable[Task], findings: Findings) -> dict[str, Task]:
    named: dict[str, Task] = {}
    for task in tasks:
        first = named.setdefault(task.name, task)
        if first is not task:
            findings.wrong(
                task.line,
                f"there are two tasks {shown(task.name)}",
                f"the other is on line {first.line}: rename one",
            )
        if task.name == SUMMARY_TASK:
            findings.wrong(
                task.line,
                f"{SUMMARY_TASK} is the summary that every batch ends with",
                "give the task another name",
            )
    return named


def _dependencies(plan: Plan, named: dict[str, Task], findings: Findings) -> None:
    if sum(len(task.depends_on) for task in plan.tasks) > limits.PLAN_EDGES_MAX:
        findings.wrong(1, f"the plan has more than {limits.PLAN_EDGES_MAX:,} dependencies", "use foreach")
    for task in plan.tasks:
        for dependency in task.depends_on:
            target = named.get(dependency.name)
            if target is None:
                _unknown(dependency, task, named, findings)
            elif target is task:
                findings.wrong(
                    dependency.line, f"{shown(task.name)} depends on itself", "remove it from depends_on"
                )
            elif dependency.per_item:
                _item_by_item(dependency, task, target, findings)
        if task.batch_size > 1 and task.prompt is not None:
            findings.wrong(
                task.line_of("batch_size"),
                "batch_size is for commands, and this task asks a model",
                "remove batch_size: each item is a question of its own",
            )
        if task.batch_size > 1 and task.foreach is None:
            findings.wrong(
                task.line_of("batch_size"),
                "batch_size without foreach has no items",
                "add foreach, or remove batch_size",
            )


def _unknown(dependency: Dependency, task: Task, named: dict[str, Task], findings: Findings) -> None:
    name = dependency.name

    def hint() -> str:
        if " " in name and all(part in named for part in name.split()):
            return f"write commas between them: {', '.join(name.split())}"
        if _VAGUE.fullmatch(name) and (before := _before(task, named)):
            return f"name them: {before}"
        near = nearest(name, (each for each in named if each != task.name))
        return f"did you mean {shown(near)}?" if near else "name a task of this plan, or write none"

    findings.wrong(dependency.line, f"{shown(task.name)} depends on {shown(name)}, which is not a task", hint)


def _before(task: Task, named: dict[str, Task]) -> str:
    """The tasks that stand before another one, as `depends_on` takes them."""
    found = [name for name, each in named.items() if each.line < task.line]
    return ", ".join(found[:_NAMED_MAX]) + (", ..." if len(found) > _NAMED_MAX else "")


def _item_by_item(dependency: Dependency, task: Task, target: Task, findings: Findings) -> None:
    name = shown(f"{dependency.name}_{{ITEM.id}}")
    if task.foreach is None:
        findings.wrong(
            dependency.line,
            f"{name} means one item, and {shown(task.name)} has no foreach",
            f"write {shown(target.name)}",
        )
    elif target.foreach is None:
        findings.wrong(
            dependency.line,
            f"{name} means one item, and {shown(target.name)} has no foreach",
            f"write {shown(target.name)}",
        )
    elif target.foreach != task.foreach:
        findings.wrong(
            dependency.line,
            f"{name} means the same item, and {shown(target.name)} goes over {shown(str(target.foreach))}",
            f"write the same foreach in both tasks, or depend on all of it: {shown(target.name)}",
        )


def _circles(named: dict[str, Task], findings: Findings) -> None:
    """Takes away tasks that wait for nothing until only circles are left, and names them."""
    waits = {
        name: {each.name for each in task.depends_on if each.name in named and each.name != name}
        for name, task in named.items()
    }
    followers: dict[str, list[str]] = {}
    for name, others in waits.items():
        for other in others:
            followers.setdefault(other, []).append(name)
    _peel([name for name, others in waits.items() if not others], waits, followers)
    for _ in range(limits.PLAN_CIRCLES_MAX):
        if not waits:
            return
        circle = _one_circle(waits)
        first = min(circle, key=lambda name: named[name].line)
        at = circle.index(first)
        findings.wrong(
            named[first].line_of("depends_on"),
            f"tasks wait for each other in a circle: {_told([*circle[at:], *circle[:at], first])}",
            "remove one of these dependencies",
        )
        for name in circle:
            waits[name].clear()
        _peel(circle, waits, followers)


def _peel(free: list[str], waits: dict[str, set[str]], followers: dict[str, list[str]]) -> None:
    """Removes these tasks, and then every one that waits for no other any more."""
    while free:
        name = free.pop()
        if waits.pop(name, None) is None:
            continue
        for follower in followers.get(name, ()):
            left = waits.get(follower)
            if left is not None:
                left.discard(name)
                if not left:
                    free.append(follower)


def _one_circle(waits: dict[str, set[str]]) -> list[str]:
    """Follows dependencies until a task comes again: all that are left wait for another that is left."""
    path: dict[str, None] = {}
    name = next(iter(waits))
    while name not in path:
        path[name] = None
        name = min(waits[name])
    names = list(path)
    return names[names.index(name) :]


def _told(circle: list[str]) -> str:
    names = [shown(name) for name in circle]
    if len(names) > 12:
        names = [*names[:10], f"... {len(names) - 11} more ...", names[-1]]
    return " -> ".join(names)


# ------------------------------------------------------------------ placeholders


def places_of(task: Task, command: Command | None) -> Iterator[tuple[int, Placeholder]]:
    """Every placeholder of a task with its line."""
    if command is not None and task.command is not None:
        for offset, place in zip(command.offsets, command.parameters, strict=True):
            yield _line_at(task.command, offset), place
    for text in task.texts:
        for offset, place in places_in(text.text):
            yield _line_at(text, offset), place
    if task.foreach is not None:
        for _, place in places_in(task.foreach.file):
            yield task.line_of("foreach"), place


def _line_at(text: Text, offset: int) -> int:
    return text.line + text.text.count("\n", 0, offset)


def _placeholders(plan: Plan, findings: Findings) -> None:
    known = [*BUILT_INS, *(each.name for each in plan.inputs)]
    fillable = frozenset(known)
    for task in plan.tasks:
        command = plan.commands.get(task.name)
        if command is not None and task.command is not None:
            for refusal in command.refusals:
                findings.wrong(_line_at(task.command, refusal.offset), refusal.text, refusal.hint)
            for doubt in command.doubts:
                findings.note(_line_at(task.command, doubt.offset), doubt.text, doubt.hint)
            for offset, place in command.left_alone:
                if place.name in fillable:
                    says = f"{place} stands in a here-document with a quoted end word, where nothing is filled in"
                    hint = f"give it to the program as an argument; for the text itself write \\{place}"
                    findings.wrong(_line_at(task.command, offset), says, hint)
        if task.foreach is not None and any(place.is_item for _, place in places_in(task.foreach.file)):
            findings.wrong(
                task.line_of("foreach"),
                "{ITEM} cannot stand in the foreach that makes the items",
                "name the file",
            )
        _other_spellings(task, plan, fillable, findings)
        for line, place in places_of(task, command):
            if place.is_item and task.foreach is None:
                text = f"{place} has no item: the task {shown(task.name)} has no foreach"
                findings.wrong(line, text, "add - **foreach**: FILE.json:path.to.array")
            elif not place.is_item and (place.name not in fillable or place.fields):
                findings.wrong(line, f"nothing fills {place}", lambda place=place: _how_to_fill(place, known))


def _curly_quotes(plan: Plan, findings: Findings) -> None:
    """Words of commands that begin with a quote which a word processor made: bash takes it as text."""
    for task in plan.tasks:
        if task.command is not None and "<<" not in task.command.text:
            offset = _curly_quote_in(task.command.text)
            if offset is not None:
                says = (
                    f"{shown(task.name)} has a typographic quote, which quotes nothing: bash takes it as text"
                )
                findings.note(_line_at(task.command, offset), says, "write \" or ' for a quote")


def _curly_quote_in(text: str) -> int | None:
    """Where a word begins with one; None where none does outside of real quotes."""
    quote = ""
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "“”„‘’‚«" and (at == 0 or text[at - 1] in " \t\n=("):
            return at
    return None


def _defaults(plan: Plan, given: Mapping[str, str], findings: Findings) -> None:
    """Placeholders in the defaults that count: a value is never filled in. Not a matter of the coordinator, which is
    not told whether a value was given."""
    known = {*BUILT_INS, *(each.name for each in plan.inputs)}
    for each in plan.inputs:
        if each.default is None or each.name in given or each.name not in plan.used:
            continue
        for _, place in places_in(each.default):
            if place.name in known and not place.fields:
                says = (
                    f"nothing fills {place} in the default of {each.name}: a value is taken as it is written"
                )
                findings.wrong(each.line, says, _instead(place, each.name))


def _instead(place: Placeholder, name: str) -> str:
    if place.name == "PLAN_PATH":
        return "leave it out: a relative path is below the plan's folder"
    return f"write {place} in the tasks, before {{{name}}} or in its place"


def _other_spellings(task: Task, plan: Plan, fillable: frozenset[str], findings: Findings) -> None:
    """Placeholders that are written as in another language."""
    for text in (each for each in (task.command, task.prompt) if each is not None):
        for match in _DOUBLE_BRACES.finditer(text.text):
            if match[1].partition(".")[0] in {*fillable, ITEM}:
                says = f"{shown(match[0])} is no placeholder"
                findings.wrong(_line_at(text, match.start()), says, f"write {{{match[1]}}}")
    if task.command is not None:
        assigned = {name for found in _ASSIGNED.findall(task.command.text) for name in found}
        inputs = {each.name for each in plan.inputs} - {name for name, _ in task.env} - assigned
        for match in _VARIABLE.finditer(task.command.text):
            if match[1] in inputs:
                says = f"${match[1]} is a variable of the shell; the input of this name is written {{{match[1]}}}"
                findings.note(_line_at(task.command, match.start()), says)


def _how_to_fill(place: Placeholder, known: list[str]) -> str:
    if place.name.lower() == "item":
        return "write {ITEM} in capitals"
    if place.fields and place.name in known:
        return f"only {{ITEM}} has fields; write {{{place.name}}}"
    near = nearest(place.name, known)
    literal = f"for the text itself write \\{place}"
    return f"did you mean {{{near}}}?" if near else f"list `{place.name}` under ## Inputs; {literal}"


# ------------------------------------------------------------------ commands and classes


def _syntax(plan: Plan, syntax: BashSyntax, findings: Findings) -> None:
    """Ask bash about each command whose placeholders are right."""
    unchecked: dict[Unchecked, list[Task]] = {}
    for task in plan.tasks:
        command = plan.commands.get(task.name)
        if command is None or task.command is None or command.refusals or task.task_class is TaskClass.META:
            continue
        found = syntax.look_at(command)
        if isinstance(found, Mistake):
            line = task.command.line + found.line - 1
            findings.wrong(
                line, f"bash cannot parse the command of {shown(task.name)}: {found.text}", found.hint
            )
        elif found is not None:
            unchecked.setdefault(found, []).append(task)
    for why, tasks in unchecked.items():
        findings.note(tasks[0].line, f"the syntax of {_counted(tasks)} was not checked: {why.value}")


def _inferences(plan: Plan, findings: Findings) -> None:
    """Say which class was inferred for which tasks: one note for each reason."""
    grouped: dict[tuple[TaskClass, str], list[Task]] = {}
    for task in plan.tasks:
        if task.inferred:
            grouped.setdefault((task.task_class, task.inferred), []).append(task)
    for (task_class, why), tasks in grouped.items():
        has = "has" if len(tasks) == 1 else "have"
        is_ = "is" if len(tasks) == 1 else "are"
        findings.note(
            tasks[0].line,
            f"{_counted(tasks)} {has} no task_class and {is_} taken as {task_class.value}: {why}",
        )


def _counted(tasks: list[Task]) -> str:
    """The names of some tasks."""
    names = [shown(task.name) for task in tasks]
    if len(names) == 1:
        return f"the task {names[0]}"
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return f"the tasks {', '.join(names[:_NAMED_MAX])}{more}"


# ------------------------------------------------------------------ files


def _files(plan: Plan, exists: Exists, findings: Findings) -> None:
    made = {text.text.removeprefix("{PLAN_PATH}/") for task in plan.tasks for text in task.produces}
    looked: dict[str, bool] = {}
    for task in plan.tasks:
        for line, path in files_of(task):
            if path not in looked:
                looked[path] = path in made or exists(path)
            if not looked[path]:
                findings.wrong(
                    line, f"{shown(path)} is not in the plan's folder", "add the file, or correct its path"
                )


def files_of(task: Task) -> Iterator[tuple[int, str]]:
    """The files of the plan folder that a task names: scripts in its command, `file:` prompts and schemas."""
    command = task.command
    if command is not None:
        moves = _CHANGES_FOLDER.search(command.text) is not None
        for match in _SCRIPT.finditer(command.text):
            if not moves or match[1] == "{PLAN_PATH}/":
                yield _line_at(command, match.start()), match[2].rstrip(".")
        for match in _IN_PLAN.finditer(command.text):
            yield _line_at(command, match.start()), match[1]
    for text in (task.prompt, task.system, task.schema):
        if text is not None and text.text.startswith("file:"):
            path = text.text.removeprefix("file:").strip().removeprefix("{PLAN_PATH}/")
            if "{" not in path:
                yield text.line, path
