"""The document: from the lines of a `plan.md` to title, goal, inputs and tasks, each with its line number (PLAN-01).

One pass over the lines, no regular expression that looks twice at the same place, no model. It reads what people
write: byte order mark, any line ends, comments, fenced blocks, bold or plain keys, nested lists, values in back-ticks
over several lines. It gives every value back as it stands; what a value means is for `fields`.

    # title
    ## Inputs          1. `NAME` (text), or - **NAME**: text          -> inputs
    ## Tasks           ### name, then - **key**: value                -> tasks
    ## anything else   prose, whatever headings it has                -> nothing
"""

import re
import textwrap
from dataclasses import dataclass, field

from watchbill.plans import limits
from watchbill.plans.findings import Findings, shown
from watchbill.plans.inputs import LIST_SIGN, Input, inputs_of
from watchbill.plans.keys import find_key

__all__ = ["Block", "Document", "Entry", "TaskText", "read_document"]

_FENCE = re.compile(r"`{3,}|~{3,}")
#: A box to tick is no part of what follows.
_BOX = re.compile(r"\[[ xX]\]\s+")
_BULLET = re.compile(rf"(\s*)(?:{LIST_SIGN})\s+(?:{_BOX.pattern})?(.*)$")
#: `key: value`, where the key may be bold, in italics or in back-ticks, with the colon inside or outside.
_FIELD = re.compile(
    r"([*_`]{0,3})([A-Za-z][\w -]{0,39}?)[*_`]{0,3}\s{0,3}:(?!//)[*_`]{0,3}(?:\s+|(?=\S)|$)(.*)$"
)
#: A key that lost its colon: `- **command** python x.py`.
_NO_COLON = re.compile(r"(?:([*`]{1,2})(\w{1,40})\1|([A-Za-z]{1,20}_\w{1,30}))\s+\S")
#: How YAML announces a value of several lines.
_BLOCK_SCALAR = re.compile(r"([|>])[-+]?\d?[-+]?")
_TASK_PREFIX = re.compile(r"(?:(?:task|step|phase|stage)\s*\d*\s*:|\d+[.)](?=\s))\s*", re.IGNORECASE)
_COMMENT_IN_HEADING = re.compile(r"\s*\([^()]*\)$")
_NUMBERING = re.compile(r"\d+[.)]\s+")

_SECTIONS = {
    "goal": "goal", "objective": "goal", "inputs": "inputs", "input": "inputs", "tasks": "tasks", "task": "tasks",
    "workflow": "workflow",
}  # fmt: skip


@dataclass(slots=True)
class Block:
    """A fenced block: its first line of content, the word behind the fence, and what it holds."""

    line: int
    language: str
    text: str


@dataclass(slots=True)
class Entry:
    """One key of a task with its value as it stands."""

    key: str
    line: int
    text: str
    indent: int = 0
    items: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])  # nested bullets: line, text
    block: Block | None = None


@dataclass(slots=True)
class TaskText:
    """One task as it stands in the document."""

    name: str
    line: int
    in_workflow: bool = False
    heading: str = ""  # the whole of it
    entries: list[Entry] = field(default_factory=list[Entry])
    blocks: list[Block] = field(default_factory=list[Block])  # fenced blocks that follow no key


@dataclass(slots=True)
class Document:
    """Everything that a plan.md says."""

    title: str = ""
    goal: str = ""
    inputs: list[Input] = field(default_factory=list[Input])
    tasks: list[TaskText] = field(default_factory=list[TaskText])


def read_document(text: str, findings: Findings) -> Document:
    """Reads a plan. What is wrong with its form goes to the findings; the rest is read all the same."""
    reader = _Reader(text, findings)
    reader.read()
    return reader.finished()


class _Reader:
    """The lines and the place in them."""

    def __init__(self, text: str, findings: Findings) -> None:
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self._lines = text.split("\n")
        self._at = 0  # index of the line that is read; its number is one more
        self._findings = findings
        self._document = Document()
        self._section = ""
        self._sections: dict[str, int] = {}  # with the line of the first heading
        self._task: TaskText | None = None
        self._entry: Entry | None = None
        self._after_blank = False
        self._inputs: list[tuple[int, str]] = []
        self._goal: list[str] = []

    def read(self) -> None:
        """Goes through the lines once."""
        lines, total = self._lines, len(self._lines)
        while self._at < total:
            line = lines[self._at]
            start = line.lstrip()
            if not start:
                self._after_blank = True
            elif start[0] == "#" and (level := _level_of(start)) and len(line) - len(start) < 4:
                self._heading(level, _title_of(start, level))
            elif start.startswith("<!--"):
                self._comment()
            elif start[0] in "`~" and (fence := _FENCE.match(start)) and "`" not in start[fence.end() :]:
                self._fence(fence[0], start[fence.end() :].strip(), len(line) - len(start))
            else:
                self._content(line)
            self._at += 1

    def finished(self) -> Document:
        """The document, once all lines are read."""
        document = self._document
        document.goal = "\n".join(self._goal).strip()
        document.inputs = inputs_of(self._inputs, self._findings)
        if "tasks" in self._sections:
            # A Workflow beside the Tasks is an overview, unless its headings are tasks themselves.
            document.tasks = [task for task in document.tasks if task.entries or not task.in_workflow]
        if not document.tasks:
            self._miss_tasks()
        return document

    def _miss_tasks(self) -> None:
        line = self._sections.get("tasks") or self._sections.get("workflow")
        if line is None:
            hint = "write a section ## Tasks with one ### heading per task"
            self._findings.wrong(1, "there are no tasks", hint)
        else:
            hint = "write one ### NAME for each task, and - **command**: with what is run below it"
            self._findings.wrong(line, "there are no tasks: this section has no ### headings", hint)

    # ------------------------------------------------------------ headings

    def _heading(self, level: int, title: str) -> None:
        self._entry = None
        if level == 1:
            self._document.title = self._document.title or title
        elif level == 2:
            self._task, self._section = None, _section_of(title)
            self._sections.setdefault(self._section, self._at + 1)
        elif level == 3 and self._section in ("tasks", "workflow"):
            self._task = self._new_task(title)
        # Deeper headings divide the prose of a task, nothing else.

    def _new_task(self, title: str) -> TaskText:
        name = title
        while (bare := _COMMENT_IN_HEADING.sub("", name)) != name:
            name = bare
        name = name.strip("*_`: \t")
        name = name[box.end() :] if (box := _BOX.match(name)) else name
        name = _TASK_PREFIX.sub("", name, count=1).strip("*`: \t")
        task = TaskText(name or title, self._at + 1, self._section == "workflow", title)
        if len(self._document.tasks) < limits.PLAN_TASKS_MAX:
            self._document.tasks.append(task)
        elif len(self._document.tasks) == limits.PLAN_TASKS_MAX:
            self._findings.wrong(
                task.line,
                f"the plan has more than {limits.PLAN_TASKS_MAX:,} tasks",
                "use foreach, or several plans",
            )
            self._at = len(self._lines)  # nothing that follows would be read as part of the right task
        return task

    # ------------------------------------------------------------ comments and fences

    def _comment(self) -> None:
        """Passes over a comment."""
        first = self._at
        while self._at < len(self._lines) and "-->" not in self._lines[self._at]:
            self._at += 1
        if self._at == len(self._lines):
            self._findings.wrong(first + 1, "this comment is not closed", "end it with -->")

    def _fence(self, mark: str, language: str, indent: int) -> None:
        """Reads a fenced block to its end; in a task it is the value of a key, or the command."""
        first = self._at
        content: list[str] = []
        self._at += 1
        while self._at < len(self._lines) and not _closes(self._lines[self._at], mark):
            line = self._lines[self._at]
            margin = min(indent, len(line) - len(line.lstrip()))
            content.append(line[margin:])
            self._at += 1
        if self._at == len(self._lines):
            self._findings.wrong(first + 1, "this fenced block is not closed", f"end it with a line {mark}")
        if self._task is not None:
            self._take_block(Block(first + 2, language.split(" ", maxsplit=1)[0].lower(), "\n".join(content)))

    def _take_block(self, block: Block) -> None:
        entry = self._entry
        if entry is not None and not entry.text and not entry.items and entry.block is None:
            entry.block = block
        elif self._task is not None:
            self._task.blocks.append(block)

    # ------------------------------------------------------------ content

    def _content(self, line: str) -> None:
        if self._task is not None:
            self._task_line(line, self._task)
        elif self._section == "inputs":
            self._inputs.append((self._at + 1, line))
        elif self._section == "goal":
            self._goal_line(line)
        self._after_blank = False

    def _goal_line(self, line: str) -> None:
        bullet = _BULLET.match(line)
        found = _FIELD.match(bullet[2]) if bullet else None
        if found is not None and found[2].strip().lower() == "type":
            kind = shown(found[3].strip(" `*"))
            self._findings.wrong(
                self._at + 1,
                f"this is a goal-driven plan (type: {kind}), which Watchbill does not run",
                "describe the goal in prose, and write the work as tasks with foreach below ## Tasks",
            )
        self._goal.append(line)

    def _task_line(self, line: str, task: TaskText) -> None:
        bullet = _BULLET.match(line)
        if bullet is None:
            self._plain_line(line, task)
            return
        indent, text = len(bullet[1].expandtabs(4)), bullet[2]
        entry = self._entry
        if entry is not None and indent > entry.indent + 1:
            entry.items.append((self._at + 1, text))
            return
        found = _FIELD.match(text)
        if found is not None:
            self._open_entry(found, indent, task)
            return
        self._entry = None
        self._look_for_lost_colon(text)

    def _plain_line(self, line: str, task: TaskText) -> None:
        """A line without a bullet: a key all the same, the rest of a value, or prose."""
        is_indented = line[:1] == "\t" or line[:2] == "  "
        if is_indented and self._entry is not None and not self._after_blank:
            self._continue_entry(line.strip())
            return
        found = _FIELD.match(line.strip())
        if found is not None and (found[1][:2] in ("**", "__") or find_key(found[2]) is not None):
            self._open_entry(found, len(line) - len(line.lstrip()), task)
            return
        if not is_indented:
            self._entry = None
            self._look_for_lost_colon(line)

    def _open_entry(self, found: re.Match[str], indent: int, task: TaskText) -> None:
        line, value = self._at + 1, found[3].strip()
        if scalar := _BLOCK_SCALAR.fullmatch(value):
            block = self._indented_block(indent, folds=scalar[1] == ">")
            self._entry = Entry(found[2], line, "", indent, block=block)
            task.entries.append(self._entry)
            return
        self._entry = Entry(found[2], line, self._whole_code(value), indent)
        task.entries.append(self._entry)

    def _indented_block(self, indent: int, *, folds: bool) -> Block:
        """Reads a value as YAML writes it, `key: |` and then lines that are indented further; `>` folds them."""
        first = self._at
        content: list[str] = []
        while self._at + 1 < len(self._lines):
            line = self._lines[self._at + 1].expandtabs(4)
            if line.strip() and len(line) - len(line.lstrip()) <= indent:
                break
            content.append(line)
            self._at += 1
        text = textwrap.dedent("\n".join(content)).strip("\n")
        if not text.strip():
            self._findings.wrong(
                first + 1,
                "no indented lines follow this value",
                "indent them, or write them as a fenced block",
            )
        leading = next((number for number, line in enumerate(content) if line.strip()), 0)
        return Block(first + 2 + leading, "", _folded(text) if folds else text)

    def _continue_entry(self, text: str) -> None:
        """Markdown wraps lines with a blank; a backslash at the end is the shell's own way."""
        entry = self._entry
        if entry is None:
            return
        if entry.items:
            line, before = entry.items[-1]
            entry.items[-1] = (line, f"{before} {text}")
        else:
            entry.text += ("\n" if entry.text.endswith("\\") else " " if entry.text else "") + text

    def _whole_code(self, value: str) -> str:
        """A value in back-ticks may go on over several lines."""
        if not value.startswith("`"):
            return value
        mark = value[: len(value) - len(value.lstrip("`"))]
        parts, first, latest = [value], self._at, value[len(mark) :]
        while not _ends_code(latest, mark):
            latest = self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""
            if not latest.strip() or latest.startswith("#") or len(parts) == limits.PLAN_VALUE_LINES_MAX:
                self._at = first
                self._findings.wrong(
                    first + 1, f"the {mark} at the start of this value is not closed", f"add {mark}"
                )
                return value
            parts.append(latest.rstrip())
            self._at += 1
        return "\n".join(parts)

    def _look_for_lost_colon(self, text: str) -> None:
        lost = _NO_COLON.match(text)
        if lost is not None and find_key(lost[2] or lost[3]) is not None:
            word = lost[2] or lost[3]
            self._findings.wrong(
                self._at + 1, f"{shown(word)} has no colon", f"write - **{shown(word)}**: and then the value"
            )


def _folded(text: str) -> str:
    """Lines joined with blanks; an empty one is a new line."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text).replace("\n\n", "\n")


def _level_of(start: str) -> int:
    """The level of a heading, or 0. `#!/bin/sh` is none. `###name` is one: Markdown wants a blank there, but a task
    must not get lost over it."""
    level = len(start) - len(start.lstrip("#"))
    if level > 6 or (level == 1 and start[1:2] not in ("", " ", "\t")):
        return 0
    return level


def _title_of(start: str, level: int) -> str:
    """The words of a heading; what is longer than any name is cut."""
    title = start[level : level + limits.PLAN_TITLE_CHARS_MAX].strip()
    bare = title.rstrip("#")
    return bare.rstrip() if bare[-1:] in ("", " ", "\t") else title


def _section_of(title: str) -> str:
    word = _COMMENT_IN_HEADING.sub("", title.lstrip("# ").strip("*_`: \t"))
    return _SECTIONS.get(_NUMBERING.sub("", word.strip("*_`: \t"), count=1).lower(), "")


def _closes(line: str, mark: str) -> bool:
    text = line.strip()
    return len(text) >= len(mark) and text[0] == mark[0] and not text.strip(mark[0])


def _ends_code(text: str, mark: str) -> bool:
    """Whether a run of exactly these back-ticks stands in the text."""
    at = text.find(mark)
    while at >= 0:
        end = at + len(mark)
        if text[end : end + 1] != "`" and (at == 0 or text[at - 1] != "`"):
            return True
        while end < len(text) and text[end] == "`":
            end += 1
        at = text.find(mark, end)
    return False
