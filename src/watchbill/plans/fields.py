"""Fields: from the keys of a task as they stand to a `Task` with every default filled in (PLAN-02).

Each value is read on its own; what is wrong between tasks is for `check`. An unknown key or word is an error that names
the nearest known one. A class that is not written is inferred from the command, and the inference is a note.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from typing import cast

from watchbill.errors import NameRefused, UnitError
from watchbill.limits import PLAIN_NAME_CHARS_MAX
from watchbill.names import check_plain_name
from watchbill.plans import limits
from watchbill.plans.answer_schema import fault_in
from watchbill.plans.document import Entry, TaskText
from watchbill.plans.findings import Findings, shown
from watchbill.plans.keys import ELSEWHERE, KEYS, Key, Kind, find_key, normal
from watchbill.plans.task import (
    PRIORITIES,
    Dependency,
    Executor,
    MetaCommand,
    Needs,
    Place,
    Sandbox,
    Task,
    TaskClass,
    TaskType,
    Text,
    VramPolicy,
)
from watchbill.suggest import did_you_mean
from watchbill.units import Millis, parse_millis

__all__ = ["name_of_title", "read_task"]

#: What people write for a class of tasks, and what they may mean.
_MEANT = {
    "gpu": "write script for a command that uses the card, or llm for one that asks a model",
    "cuda": "write script for a command that uses the card",
    "shell": "write cpu, or script for a command that uses the card",
    "python": "write cpu, or script for a program that uses the card",
    "model": "write llm",
}
#: How a terminal announces a command.
_PROMPT = re.compile(r"\$ ")
_META_COMMANDS = tuple(each.value for each in MetaCommand)
_META_COMMAND = re.compile(rf"({'|'.join(_META_COMMANDS)})(\s+[A-Za-z0-9][A-Za-z0-9-]*)?")

#: A command that is one quoted word.
_ALL_IN_QUOTES = re.compile(r"""\"((?:[^\"\\]|\\.)*)\"|'([^']*)'""", re.DOTALL)
#: `{a,b}` of a shell, also cut at the comma as lists are; a placeholder has no comma.
_ALTERNATIVES = re.compile(r"(?<!\\)\{(?:[^{}]*,|[^{}]*$)")
#: In foreach: a list or an object of JSON, and the signs of a pattern.
_ITEMS_THEMSELVES = re.compile(r"\[|\{\s*[\"'}]")
_PATTERN = re.compile(r"[*?]")
_NOTHING = frozenset({"", "none", "[]", "-", "n/a", "null", "nothing", "{}"})
_YES, _NO = frozenset({"yes", "true", "on", "1"}), frozenset({"no", "false", "off", "0"})
_REMARK = re.compile(r"\s*\([^()]*\)$")
_TIMES = "write for example 90s, 30m or 2h, or a number of seconds"
_NAMES = f"use letters from a to z, digits and . _ -, at most {PLAIN_NAME_CHARS_MAX}"
#: A title in words: letters of any language, digits, blanks and a few signs.
_READABLE = re.compile(rf"[\w .,&+'-]{{1,{PLAIN_NAME_CHARS_MAX}}}")
_WHOLE = re.compile(r"\d{1,12}")
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(mb|mib|gb|gib|)", re.IGNORECASE)
_SPELLED_TIME = re.compile(
    r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|sec(?:ond)?s?|s|min(?:ute)?s?|m|hours?|hrs?|h|days?|d)(?![a-z])",
    re.IGNORECASE,
)
_PER_ITEM = re.compile(r"(.+?)_\{ITEM(?:\.([A-Za-z0-9_.-]+))?\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,99})\s*[=:]\s*(.*)", re.DOTALL)
_QUOTED_COMMA = re.compile(r"""=\s*("[^"]*,[^"]*"|'[^']*,[^']*')""")
_OUTSIDE_QUOTES = re.compile(r"""(?:[^,"']|"[^"]*"|'[^']*')+""")
_SHELLS = frozenset({"", "bash", "sh", "shell", "console", "zsh"})
#: Words of a command that point at a GPU or at a model; anything else needs neither.
_GPU_WORDS = re.compile(
    r"cuda|whisper|torchrun|nvidia|--gpu\b|hwaccel|\bvllm\b|accelerate launch", re.IGNORECASE
)
#: Programs whose arguments are looked for or shown: a word in them says nothing about what the command uses.
_SHOWS_WORDS = re.compile(
    r"(?:^|[;&|(\n])\s*(?:e?grep|fgrep|rg|ag|echo|printf|sed|awk|wc|cat|ls|find|logger|test|\[)\s"
    r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^;&|()'\"\n])*"
)
_MODEL_WORDS = re.compile(r"WATCHBILL_MODEL|OPENAI_BASE_URL|\bollama (?:run|generate)\b")


def read_task(text: TaskText, findings: Findings) -> Task:
    """Reads one task. Where something is wrong with a value, its default stands in, and the findings say so."""
    return _Fields(text, findings).task()


class _Fields:
    """The keys of one task while they are read."""

    def __init__(self, text: TaskText, findings: Findings) -> None:
        self._text = text
        self._findings = findings
        self._entries: dict[str, Entry] = {}
        for entry in text.entries:
            self._sort_in(entry)
        self._take_loose_block()

    def task(self) -> Task:
        """The task with all its values."""
        type_, command, prompt = self._kind()
        executor, task_class, inferred = self._class(type_, command)
        return Task(
            name=self._name(),
            line=self._text.line,
            type=type_,
            executor=executor,
            task_class=task_class,
            inferred=inferred,
            command=command,
            prompt=prompt,
            system=self._code("system", limits.PLAN_PROMPT_BYTES_MAX),
            schema=self._schema(),
            model=self._single("model"),
            output=self._single("output"),
            evaluate=self._evaluate(type_),
            tokens_max=self._tokens_max(type_),
            depends_on=self._dependencies(),
            needs=self._needs(),
            foreach=self._foreach(),
            batch_size=self._number("batch_size", 1, 1, limits.PLAN_BATCH_SIZE_MAX),
            vram_mb=self._vram(),
            vram_policy=VramPolicy(self._word("vram_policy", "default")),
            requires=self._paths("requires"),
            produces=self._paths("produces"),
            timeout_ms=self._timeout(),
            retries=self._number("retries", 2, 0, limits.PLAN_RETRIES_MAX),
            priority=self._priority(),
            soft_stop=self._switch("soft_stop"),
            sandbox=Sandbox(self._word("sandbox", "none")),
            env=self._variables(),
            needs_pair=self._word("llm_placement", "single_gpu") == "split_gpu",
            titles=(self._text.heading, self._text.name),
            lines={key: entry.line for key, entry in self._entries.items()},
        )

    # ------------------------------------------------------------ keys

    def _sort_in(self, entry: Entry) -> None:
        key = find_key(entry.key)
        if key is None:
            self._wrong(
                entry.line,
                f"{shown(entry.key.strip())} is not a key of a task",
                lambda: (
                    ELSEWHERE.get(normal(entry.key))
                    or did_you_mean(entry.key.strip(), [each.name for each in KEYS])
                ),
            )
        elif key.name in self._entries:
            before = self._entries[key.name].line
            self._wrong(entry.line, f"{key.name} is written twice", f"it is also on line {before}: keep one")
        else:
            self._entries[key.name] = entry
            if key.kind is Kind.PROSE and key.name != "description":
                self._findings.note(entry.line, f"{key.name} is noted, not acted on")

    def _take_loose_block(self) -> None:
        """A fenced block below the keys is the command of a task that has none."""
        written = self._entries.get("command") or self._entries.get("prompt")
        if written is not None:
            for block in self._text.blocks if written.key.lower() not in ("prompt",) else ():
                if block.language in _SHELLS:
                    says = f"the fenced block is not run: {shown(self._text.name)} has a command on line {written.line}"
                    self._findings.note(block.line - 1, says)
            return
        shells = [block for block in self._text.blocks if block.language in _SHELLS]
        if len(shells) > 1:
            self._wrong(
                shells[1].line - 1,
                f"the task {shown(self._text.name)} has two fenced blocks and no command",
                "write - **command**: above the one that is run",
            )
        elif shells:
            self._entries["command"] = Entry("command", shells[0].line - 1, "", block=shells[0])

    def _name(self) -> str:
        given = self._plain("id")
        if given is not None:
            return self._given_name(given)
        name = self._text.name
        try:
            return check_plain_name(name, "the name of a task")
        except NameRefused:
            better = name_of_title(name)
            if better and _READABLE.fullmatch(name):
                self._findings.note(self._text.line, f"the task {shown(name)} is called {better}")
                return better
            hint = self._better_name(name) or f"{_NAMES}; or add - **id**: NAME below the heading"
            self._wrong(self._text.line, f"{shown(name)} cannot be the name of a task", hint)
            return name

    def _given_name(self, name: str) -> str:
        try:
            return check_plain_name(name, "the name of a task")
        except NameRefused:
            self._wrong(self._line("id"), f"{shown(name)} cannot be the name of a task", _NAMES)
            return name

    def _better_name(self, name: str) -> str:
        bare = re.sub(r"[_-]?\{ITEM[^}]*\}", "", name)
        if bare != name:
            return f"write ### {shown(bare)}: the items of a foreach get their ids by themselves"
        plain = name_of_title(name)
        return f"write ### {plain}" if plain else ""

    # ------------------------------------------------------------ what the task is

    def _kind(self) -> tuple[TaskType, Text | None, Text | None]:
        command = self._unquoted(self._without_prompts(self._code("command", limits.PLAN_COMMAND_BYTES_MAX)))
        prompt = self._code("prompt", limits.PLAN_PROMPT_BYTES_MAX)
        default = "generate" if prompt is not None and command is None else "shell"
        type_ = TaskType(self._word("type", default))
        name = shown(self._text.name)
        if command is not None and prompt is not None:
            self._wrong(
                prompt.line,
                f"the task {name} has a command and a prompt",
                "keep one, or make two tasks of it",
            )
        elif type_ is TaskType.SHELL and command is None:
            hint = "add - **command**: with what is run"
            if self._text.blocks:
                word = shown(self._text.blocks[0].language)
                hint = (
                    f"its fenced block is {word}, and commands are bash: put it into a file of scripts/ and run that, "
                    f"as in - **command**: `{word} scripts/FILE`"
                )
            if self._text.entries and prompt is not None:
                hint = "a task with a prompt is of type generate, parse or decide"
            self._wrong(self._text.line, f"the task {name} has no command", hint)
        elif type_ is not TaskType.SHELL and prompt is None:
            self._wrong(
                self._line("type"),
                f"the task {name} of type {type_.value} has no prompt",
                "add - **prompt**: with what the model is asked, or file:PATH",
            )
        return type_, command, prompt

    def _without_prompts(self, command: Text | None) -> Text | None:
        """The commands of what was copied from a terminal: `$ ` begins each, the other lines are what they said."""
        if command is None or not _PROMPT.match(command.text.lstrip("\n")):
            return command
        lines = command.text.split("\n")
        says = (
            f"{shown(self._text.name)}: lines that begin with $ are run, without it; other lines are left out"
        )
        self._findings.note(command.line, says)
        return Text(command.line, "\n".join(line[2:] if _PROMPT.match(line) else "" for line in lines))

    def _unquoted(self, command: Text | None) -> Text | None:
        """A command without the quotes around the whole of it: bash would look for a program with this name."""
        match = None if command is None else _ALL_IN_QUOTES.fullmatch(command.text.strip())
        if command is None or match is None:
            return command
        inner = match[2] if match[2] is not None else re.sub(r'\\(["\\$`])', r"\1", match[1])
        program, blank, _ = inner.strip().partition(" ")
        if not blank:
            return command
        if "/" in program:
            self._wrong(
                command.line,
                f"the whole command of {shown(self._text.name)} is in quotes: bash takes it for the path of a program",
                "remove the quotes, or put only the path into them",
            )
            return command
        self._findings.note(
            command.line, f"the quotes around the whole command of {shown(self._text.name)} are left out"
        )
        return Text(command.line, inner)

    def _class(self, type_: TaskType, command: Text | None) -> tuple[Executor, TaskClass, str]:
        """Who runs it, its class and, where that is not written, why it has this one."""
        executor = Executor(self._word("executor", "worker"))
        word = self._word("task_class", "")
        if word == "brain" or type_ is TaskType.DECIDE:
            executor = Executor.BRAIN
        if word in ("", "brain"):
            task_class, why = self._inferred(executor, type_, command)
            why = "" if word == "brain" else why
        else:
            task_class, why = TaskClass(word), ""
        if task_class is TaskClass.META and command is not None:
            self._check_order(command)
        return executor, task_class, why

    def _evaluate(self, type_: TaskType) -> Text | None:
        wanted = self._code("evaluate", limits.PLAN_PROMPT_BYTES_MAX)
        if wanted is not None and type_ not in (TaskType.GENERATE, TaskType.PARSE):
            hint = "remove it, or ask a model with a prompt"
            self._wrong(wanted.line, f"a task of type {type_.value} has no answer that is evaluated", hint)
        return wanted

    def _tokens_max(self, type_: TaskType) -> int:
        if type_ is TaskType.SHELL and "max_tokens" in self._entries:
            hint = "remove it, or ask a model with a prompt"
            self._wrong(self._line("max_tokens"), "a task of type shell has no answer of a model", hint)
        return self._number("max_tokens", 0, 1, limits.PLAN_ANSWER_TOKENS_MAX)

    def _check_order(self, command: Text) -> None:
        """A task of class meta is an order to an agent, and no program."""
        if not _META_COMMAND.fullmatch(command.text.strip()):
            self._wrong(
                command.line,
                f"{shown(command.text)} is not a command of class meta",
                f"write {' or '.join(_META_COMMANDS)}, alone or with the name of an agent, or another task_class",
            )

    def _inferred(self, executor: Executor, type_: TaskType, command: Text | None) -> tuple[TaskClass, str]:
        """A class, and why; "" where there is nothing to say about it."""
        text = command.text if command is not None else ""
        used = _without_words_for_people(text)
        if type_ is not TaskType.SHELL:
            return TaskClass.LLM, ""
        if text.partition(" ")[0] in _META_COMMANDS:
            return TaskClass.META, f"{shown(text)} is done by the agent itself"
        if executor is Executor.BRAIN:
            return TaskClass.CPU, ""
        if match := _MODEL_WORDS.search(used):
            return TaskClass.LLM, f"its command names {match[0]}"
        if "vram_estimate_mb" in self._entries:
            return TaskClass.SCRIPT, "it says how much GPU memory it needs"
        if match := _GPU_WORDS.search(used):
            return TaskClass.SCRIPT, f"its command names {match[0]}"
        return TaskClass.CPU, "neither a GPU nor a model is named in the command"

    # ------------------------------------------------------------ values of one kind each

    def _line(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.line if entry is not None else self._text.line

    def _wrong(self, line: int, text: str, hint: str | Callable[[], str] = "") -> None:
        self._findings.wrong(line, text, hint)

    def _plain(self, key: str) -> str | None:
        """A value of one word or line, without back-ticks and a remark in parentheses; None when it is not written."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        text = entry.block.text if entry.block is not None else entry.text
        text = _clean(text)
        return None if text.lower() in _NOTHING else text

    def _word(self, key: str, default: str) -> str:
        text = self._plain(key)
        if text is None:
            return default
        words = _table(key).words
        word = text.lower().replace("-", "_")
        if word in words:
            return word
        article = "an" if key[0] in "aeiou" else "a"
        self._wrong(
            self._line(key),
            f"{shown(text)} is not {article} {key}",
            lambda: _MEANT.get(word) or did_you_mean(text.lower(), list(words)),
        )
        return default

    def _number(self, key: str, default: int, least: int, most: int) -> int:
        text = self._plain(key)
        if text is None:
            return default
        if _WHOLE.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        self._wrong(
            self._line(key), f"{key} cannot be {shown(text)}", f"write a whole number from {least} to {most}"
        )
        return default

    def _switch(self, key: str) -> bool:
        text = self._plain(key)
        if text is None or text.lower() in _NO:
            return False
        if text.lower() not in _YES:
            self._wrong(self._line(key), f"{key} cannot be {shown(text)}", "write yes or no")
        return text.lower() in _YES

    def _priority(self) -> int | None:
        word = self._word("priority", "")
        return PRIORITIES.get(word) or (int(word) if word else None)

    def _needs(self) -> Needs:
        if self._switch("continue_on_failures"):
            return Needs.DONE
        return Needs(self._word("needs", "complete"))

    def _vram(self) -> int | None:
        text = self._plain("vram_estimate_mb")
        if text is None:
            return None
        match = _SIZE.fullmatch(text)
        size = float(match[1]) * (1024 if match[2].lower().startswith("g") else 1) if match is not None else 0
        if not 1 <= size <= limits.PLAN_VRAM_MB_MAX:
            self._wrong(
                self._line("vram_estimate_mb"),
                f"vram_estimate_mb cannot be {shown(text)}",
                f"write MB as a whole number from 1 to {limits.PLAN_VRAM_MB_MAX}, or for example 2GB",
            )
            return None
        return round(size)

    def _timeout(self) -> Millis | None:
        text = self._plain("timeout")
        if text is None:
            return None
        try:
            if _WHOLE.fullmatch(text):
                return parse_millis(int(text))
            return parse_millis(_SPELLED_TIME.sub(_short_time, text).replace(" ", ""))
        except UnitError as error:
            self._wrong(self._line("timeout"), f"timeout cannot be {shown(text)}", error.hint or _TIMES)
            return None

    # ------------------------------------------------------------ texts

    def _code(self, key: str, bytes_max: int) -> Text | None:
        """A text that is taken exactly as it stands: a fenced block, a value in back-ticks, or the rest of the line."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.block is not None:
            found = Text(entry.block.line, entry.block.text)
        elif entry.text or not entry.items:
            found = Text(entry.line, self._unticked(entry, key))
        else:
            self._wrong(entry.line, f"{key} cannot be a list", "write it as a fenced block")
            return None
        if not found.text.strip():
            self._wrong(
                entry.line, f"{key} is empty", "write it behind the colon, or as a fenced block below"
            )
            return None
        if "\0" in found.text:
            self._wrong(found.line, f"{key} holds a NUL character", "remove it")
            return None
        if len(found.text.encode("utf-8", "surrogatepass")) > bytes_max:
            self._wrong(
                found.line,
                f"{key} is longer than {bytes_max:,} bytes",
                "put it into a file of the plan folder",
            )
            return None
        return found

    def _unticked(self, entry: Entry, key: str) -> str:
        text, rest = _code_span(entry.text)
        if rest and not _REMARK.fullmatch(" " + rest):
            self._wrong(
                entry.line,
                f"{key} goes on behind its back-ticks",
                "put the whole of it into one pair of back-ticks, or write it as a fenced block",
            )
        return text

    def _schema(self) -> Text | None:
        schema = self._code("schema", limits.PLAN_PROMPT_BYTES_MAX)
        if schema is None or not schema.text.lstrip().startswith("{"):
            return schema
        try:
            wrong = fault_in(json.loads(schema.text))
        except (ValueError, RecursionError) as error:
            line = schema.line + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
            self._wrong(line, "schema is not valid JSON", shown(str(error)))
        else:
            if wrong:
                self._wrong(schema.line, f"schema is no JSON Schema: {shown(wrong)}", "correct it")
        return schema

    def _single(self, key: str) -> Text | None:
        """One name or path."""
        text = self._plain(key)
        return None if text is None else Text(self._line(key), text)

    def _foreach(self) -> Place | None:
        text = self._plain("foreach")
        if text is None:
            return None
        if _ITEMS_THEMSELVES.match(text):
            self._wrong(
                self._line("foreach"), "foreach takes a file, not the items themselves",
                "write them into items.json in the plan's folder, and - **foreach**: items.json",
            )  # fmt: skip
            return Place(text, ())
        if _PATTERN.search(text):
            self._wrong(
                self._line("foreach"), f"foreach takes a JSON file, and {shown(text)} is a pattern",
                "let a task write the names into {BATCH_PATH}/items.json, and name it in depends_on",
            )  # fmt: skip
            return Place(text, ())
        file, colon, path = text.rpartition(":")
        parts = tuple(path.strip().split(".")) if path.strip() else ()
        if not colon:
            return Place(text, ())
        if not file.strip() or not all(parts):
            self._wrong(
                self._line("foreach"), f"foreach cannot be {shown(text)}", "write FILE.json:path.to.array"
            )
            return None
        return Place(file.strip(), parts)

    # ------------------------------------------------------------ lists

    def _list(self, key: str) -> list[Text]:
        """A comma list, a JSON list, nested bullets, or `none`."""
        entry = self._entries.get(key)
        if entry is None:
            return []
        listed = [Text(line, text) for line, text in entry.items]
        written = entry.block.text if entry.block is not None else entry.text
        first = entry.block.line if entry.block is not None else entry.line
        for number, line in enumerate(written.split("\n")):
            listed += [Text(first + number, part) for part in _parts(line)]
        cleaned = [Text(line, _clean(text)) for line, text in listed]
        if len(cleaned) > limits.PLAN_LIST_LEN_MAX:
            self._wrong(
                entry.line,
                f"{key} lists more than {limits.PLAN_LIST_LEN_MAX:,}",
                "list fewer, or use foreach",
            )
            return []
        return [each for each in cleaned if each.text.lower() not in _NOTHING]

    def _paths(self, key: str) -> tuple[Text, ...]:
        found = tuple(self._list(key))
        for line, text in found:
            if text.startswith(("~", "$")):
                self._wrong(
                    line,
                    f"{shown(text)} in {key} is no path: only a shell knows what it stands for",
                    "write it in full, or below {PLAN_PATH}",
                )
            elif _ALTERNATIVES.search(text):
                self._wrong(
                    line,
                    f"{shown(text)} in {key}: only a shell reads several names from one pair of braces",
                    "write each path in full, with commas between them",
                )
        return found

    def _dependencies(self) -> tuple[Dependency, ...]:
        found: dict[tuple[str, bool], Dependency] = {}
        for line, text in self._list("depends_on"):
            if "{ITEM" not in text:
                found.setdefault((text, False), Dependency(text, line))
                continue
            match = _PER_ITEM.fullmatch(text)
            if match is None or match[2] not in (None, "id"):
                self._wrong(
                    line,
                    f"{shown(text)} names no task",
                    "write NAME_{ITEM.id} for the same item of the foreach task NAME",
                )
                continue
            found.setdefault((match[1], True), Dependency(match[1], line, per_item=True))
        return tuple(found.values())

    def _variables(self) -> tuple[tuple[str, Text], ...]:
        entry = self._entries.get("env")
        if entry is None:
            return ()
        found = dict(self._json_variables(entry))
        if not found:
            for line, text in self._assignments(entry):
                match = _VARIABLE.fullmatch(text)
                if match is None:
                    self._wrong(line, f"{shown(text)} is not a variable", "write NAME=value")
                else:
                    found[match[1]] = Text(line, match[2].strip("`\"'"))
        return tuple(found.items())

    def _assignments(self, entry: Entry) -> list[Text]:
        """The list, where commas inside quotes divide nothing."""
        text = entry.text.strip("` ")
        if entry.block is not None or entry.items or not _QUOTED_COMMA.search(text):
            return self._list("env")
        return [Text(entry.line, part.strip()) for part in _OUTSIDE_QUOTES.findall(text) if part.strip()]

    def _json_variables(self, entry: Entry) -> list[tuple[str, Text]]:
        text = entry.block.text if entry.block is not None else entry.text.strip("`")
        try:
            value = json.loads(text) if text.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            return []
        if not isinstance(value, dict):
            return []
        pairs = cast("dict[str, object]", value)
        return [
            (name, Text(entry.line, each if isinstance(each, str) else json.dumps(each)))
            for name, each in pairs.items()
        ]


def _without_words_for_people(text: str) -> str:
    """A command without the parts that only search in texts or show some."""
    return _SHOWS_WORDS.sub(" ", text)


def _table(key: str) -> Key:
    found = find_key(key)
    assert found is not None
    return found


def _short_time(match: re.Match[str]) -> str:
    unit = match[2].lower()
    return match[1] + (unit if unit in ("ms", "s", "m", "h", "d") else unit[0])


def _code_span(text: str) -> tuple[str, str]:
    """What stands between the back-ticks that the text begins with, and what follows them."""
    mark = text[: len(text) - len(text.lstrip("`"))]
    if not mark:
        return text, ""
    end = re.search(rf"(?<!`){mark}(?!`)", text[len(mark) :])
    if end is None:
        return text, ""
    inside, rest = text[len(mark) : len(mark) + end.start()], text[len(mark) + end.end() :]
    if len(mark) > 1 and inside[:1] == inside[-1:] == " ":
        inside = inside[1:-1]  # `` a`b `` as Markdown has it
    return inside, rest.strip()


def _parts(text: str) -> list[str]:
    """The parts of a list in one line: a JSON list, else what stands between commas."""
    bare = text.strip().strip("`") if "`," not in text else text.strip()
    if bare.startswith("["):
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            bare = bare.strip("[]")
        else:
            parts = cast("list[object]", value) if isinstance(value, list) else []
            return [part if isinstance(part, str) else json.dumps(part) for part in parts]
    return bare.split(",")


def name_of_title(title: str) -> str:
    """A title as the name of a task, "Prüfe Kapitel" as prufe_kapitel; empty where nothing is left of it."""
    letters = unicodedata.normalize("NFKD", title.lower())
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    name = re.sub(r"[^a-z0-9._-]+", "_", bare).strip("._-")[:PLAIN_NAME_CHARS_MAX]
    return "" if ".." in name else name


def _clean(text: str) -> str:
    """One value without back-ticks, quotes, bold marks and a remark in parentheses. A glob keeps its stars."""
    text = text.strip()
    if len(text) <= limits.PLAN_TITLE_CHARS_MAX:
        text = _REMARK.sub("", text)
    if len(text) > 4 and text.startswith("**") and text.endswith("**"):
        text = text[2:-2]
    return text.strip("`\"' \t")
