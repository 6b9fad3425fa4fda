"""The keys of a task: names, other spellings, kinds, words and what each means.

The table below is the reference: the reader, the messages and docs/plans.md are drawn from it.
"""

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

__all__ = ["ELSEWHERE", "KEYS", "Key", "Kind", "find_key", "normal", "table_of_keys"]


class Kind(Enum):
    """How the value of a key is read."""

    WORD = "word"  # one of a closed list
    TEXT = "text"  # taken as it stands: a command, a prompt
    NAME = "name"  # one name, placeholders allowed
    PATH = "path"  # one path, placeholders allowed
    PATHS = "paths"  # a list of paths, placeholders and globs allowed
    TASKS = "tasks"  # a list of task names
    NUMBER = "number"
    SIZE = "size in MB"
    DURATION = "duration"
    SWITCH = "yes or no"
    VARIABLES = "variables"  # NAME=value
    PROSE = "prose"  # for people only


class Key(NamedTuple):
    """One key of a task."""

    name: str
    kind: Kind
    meaning: str
    default: str = ""
    words: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


KEYS: tuple[Key, ...] = (
    Key("type", Kind.WORD, "What the task is: a command, a text from a model, JSON from a model, or a decision of the "
        "coordinator's model.", "`shell`; `generate` with a prompt", ("shell", "generate", "parse", "decide")),
    Key("command", Kind.TEXT, "The bash command of a `shell` task, in back-ticks, plain, or as a fenced block. Its "
        "working folder is the plan's.", aliases=("run", "cmd")),
    Key("prompt", Kind.TEXT, "The prompt of a `generate`, `parse` or `decide` task, or `file:PATH` in the plan's "
        "folder."),
    Key("system", Kind.TEXT, "The system prompt, or `file:PATH`.", aliases=("system_prompt",)),
    Key("model", Kind.NAME, "The model that is asked.", "the agent's model", aliases=("llm_model", "llm")),
    Key("schema", Kind.TEXT, "The JSON Schema that a `parse` answer must match, inline or `file:PATH`."),
    Key("depends_on", Kind.TASKS, "The tasks that must be complete first. `NAME_{ITEM.id}` waits for the same item of "
        "another `foreach` task.", "none", aliases=("depends", "dependencies", "dependson", "after")),
    Key("needs", Kind.WORD, "`done`: the task also runs when some of its dependencies failed or were skipped.",
        "`complete`", ("complete", "done")),
    Key("continue_on_failures", Kind.SWITCH, "The same as `needs: done`.", "no", aliases=("continue_on_failure",)),
    Key("foreach", Kind.PATH, "`FILE.json:path.to.array`: one task per item of the array; also `FILE.jsonl`, `.csv`, "
        "`.tsv` and `.txt`, one per row.", aliases=("for_each",)),
    Key("batch_size", Kind.NUMBER, "Items per expanded task; the command is run once per item.", "1"),
    Key("executor", Kind.WORD, "An agent (`worker`) or the coordinator (`brain`) runs the task.", "`worker`",
        ("worker", "brain")),
    Key("task_class", Kind.WORD, "What the task needs: `cpu` no GPU, `script` a GPU, `llm` a model, `meta` the agent "
        "itself (`load_llm`, `unload_llm`, alone or with the name of an agent). `brain` means `executor: brain`.",
        "inferred from the command",
        ("cpu", "script", "llm", "meta", "brain"), ("class",)),
    Key("vram_estimate_mb", Kind.SIZE, "GPU memory that a `script` task needs.", "1024",
        aliases=("vram_estimate", "vram_mb", "vram")),
    Key("vram_policy", Kind.WORD, "`infer`: the measured peak replaces the estimate; `fixed`: the estimate counts; "
        "`default`: the peak where there is no estimate.",
        "`default`", ("default", "infer", "fixed")),
    Key("requires", Kind.PATHS, "Files that must be there before the start; globs allowed.", "none",
        aliases=("require",)),
    Key("produces", Kind.PATHS, "Files that must be there after success.", "none", aliases=("produce", "outputs")),
    Key("output", Kind.PATH, "The file that the answer of a model is written to.", aliases=("output_file",)),
    Key("evaluate", Kind.TEXT, "What a good answer of a `generate` or `parse` task is. The coordinator's model scores "
        "the answer; below 3 of 5 the task is tried again, and told why."),
    Key("max_tokens", Kind.NUMBER, "The longest answer of a model. A text ends there; a JSON object that is cut off "
        "there is a failure.", "8192, and a longer answer is a failure",
        aliases=("max_output_tokens", "max_completion_tokens", "num_predict")),
    Key("timeout", Kind.DURATION, "The longest time that an attempt may take, as `30m` or a number of seconds.",
        "none"),
    Key("retries", Kind.NUMBER, "How often a failed task is tried again.", "2", aliases=("max_retries",)),
    Key("priority", Kind.WORD, "1 to 5, or `urgent` (1), `high` (2), `normal` (3), `low` (4).", "the batch's",
        ("urgent", "high", "normal", "low", "1", "2", "3", "4", "5")),
    Key("soft_stop", Kind.SWITCH, "The command stops at a safe point on SIGTERM, exits with 75 and is run again "
        "later.", "no"),
    Key("sandbox", Kind.WORD, "The least sandbox that the task demands.", "`none`", ("none", "light", "strict")),
    Key("env", Kind.VARIABLES, "Environment variables, as `A=1, B=2`.", "none", aliases=("environment",)),
    Key("llm_placement", Kind.WORD, "`split_gpu`: only an agent with a pair of GPUs takes the task.", "`single_gpu`",
        ("single_gpu", "split_gpu")),
    Key("llm_min_tier", Kind.PROSE, "Noted, not acted on."),
    Key("id", Kind.NAME, "The name of the task, where its heading cannot be one.", "the heading"),
    Key("description", Kind.PROSE, "For people.", aliases=("note", "notes", "purpose")),
)  # fmt: skip

#: Keys of other tools, and what to write here.
ELSEWHERE = {
    "shell": "write - **command**:", "script": "write - **command**: with the program and the script",
    "bash": "write - **command**:", "entrypoint": "write - **command**:",
    "input": "write - **requires**: for files, or list a value under ## Inputs",
    "inputs": "write - **requires**: for files, or list a value under ## Inputs",
    "threads": "remove it: an agent runs as many tasks at a time as it has slots (--cpu-slots)",
    "cores": "remove it: an agent runs as many tasks at a time as it has slots (--cpu-slots)",
    "resources": "write - **vram_estimate_mb**: for GPU memory; [sandbox] memory in permissions.toml bounds the rest",
    "log": "remove it: watchbill plan logs shows what a task wrote",
    "wildcards": "write - **foreach**: FILE, and {ITEM.field} in the command",
    "matrix": "write - **foreach**: FILE, and {ITEM.field} in the command",
    "with_items": "write - **foreach**: FILE, and {ITEM} in the command",
    "params": "list values under ## Inputs, and write {NAME} in the command",
    "conda": "write source PATH/bin/activate && in front of the command", "if": "put the condition into the command",
    "when": "put the condition into the command",
}  # fmt: skip

_BY_SPELLING = {spelling: key for key in KEYS for spelling in (key.name, *key.aliases)}


@lru_cache(maxsize=1024)
def normal(word: str) -> str:
    """A key as people write it, in the form of the table: `Depends on` is `depends_on`."""
    return "_".join(word.strip().lower().replace("-", " ").replace("_", " ").split())


def find_key(word: str) -> Key | None:
    """The key that this word means, by its name or another spelling."""
    return _BY_SPELLING.get(word) or _BY_SPELLING.get(normal(word))


def table_of_keys() -> str:
    """The reference of all keys as a Markdown table."""
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key in KEYS:
        value = ", ".join(f"`{word}`" for word in key.words) if key.words else key.kind.value
        names = f"`{key.name}`" + "".join(f", `{alias}`" for alias in key.aliases)
        rows.append(f"| {names} | {value} | {key.default} | {key.meaning} |")
    return "\n".join(rows)
