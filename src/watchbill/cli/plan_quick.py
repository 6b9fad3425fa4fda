"""`plan`, `approve`, `gpus` and `signal` without the command-line framework, for a machine that only submits plans.

Standard library only.

Recognises the commands below when they come with the options they have; anything else, `--help` and every mistake
included, goes through the framework. A test compares this table with the declarations in `plan`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["VERBS", "Kind", "mistake_in", "run_plan", "understand_plan", "usage_of"]


class Kind(NamedTuple):
    """How an option is read."""

    takes_value: bool = True
    read: Callable[[str], object] = str
    repeats: bool = False


_FLAG = Kind(takes_value=False)
_TEXT = Kind()
_PATH = Kind(read=Path)
_COMMON = {"--root": _PATH, "--quiet": _FLAG, "-q": _FLAG}
_JSON = {**_COMMON, "--json": _FLAG}
_SET = Kind(repeats=True)


@dataclass(frozen=True, slots=True)
class Verb:
    """A command: how many words it takes, and its options."""

    words: tuple[int, int]  # at least, at most
    options: Mapping[str, Kind]


VERBS = {
    "check": Verb((0, 1), {**_JSON, "--set": _SET}),
    "graph": Verb((0, 1), _COMMON),
    "submit": Verb(
        (1, 1), {**_JSON, "--set": _SET, "--inputs": _TEXT, "--priority": _TEXT, "--dry-run": _FLAG}
    ),
    "simulate": Verb((1, 1), {**_JSON, "--agents": _TEXT, "--items": _SET, "--set": _SET}),
    "status": Verb((0, 1), {**_JSON, "--follow": _FLAG, "-f": _FLAG}),
    "wait": Verb((1, 1), {**_COMMON, "--timeout": Kind(read=float)}),
    "list": Verb((0, 0), _JSON),
    "logs": Verb(
        (1, 1), {**_JSON, "--batch": _TEXT, "--attempt": Kind(read=int), "--follow": _FLAG, "-f": _FLAG}
    ),
    "cancel": Verb((1, 1), _COMMON),
    "retry": Verb((1, 1_000), {**_COMMON, "--batch": _TEXT}),
    "resume": Verb((1, 1), {**_JSON, "--explain": _FLAG, "--set": _SET}),
    "approve": Verb((0, 1_000), {**_JSON, "--batch": _TEXT}),
    "deny": Verb((1, 1_000), {**_JSON, "--batch": _TEXT, "--reason": _TEXT}),
}
#: A command of its own that is read the same way.
_GPUS = Verb((0, 0), {**_JSON, "--follow": _FLAG, "--bench": _FLAG, "--model": _TEXT})
_SIGNAL = Verb((2, 3), _COMMON)
_ALONE = {"gpus": _GPUS, "signal": _SIGNAL, "approve": VERBS["approve"]}


@dataclass(slots=True)
class Asked:
    """A command of `plan`, or `gpus`, that was understood."""

    verb: str
    words: list[str] = field(default_factory=list[str])
    options: dict[str, list[object]] = field(default_factory=dict[str, list[object]])

    def flag(self, *names: str) -> bool:
        return any(name in self.options for name in names)

    def one(self, name: str) -> object:
        return self.options[name][-1] if name in self.options else None


def understand_plan(arguments: Sequence[str]) -> Asked | None:
    """What is asked for, or None if the framework has to read the arguments."""
    read = _read(arguments)
    return read if isinstance(read, Asked) else None


def mistake_in(arguments: Sequence[str]) -> str:
    """What is wrong with the words of a command of this module, for a machine without the framework."""
    read = _read(arguments)
    return read if isinstance(read, str) else ""


def _read(arguments: Sequence[str]) -> Asked | str:
    """What is asked for, or what is wrong with it."""
    name, *rest = [*arguments, ""]
    if name in _ALONE:
        asked = _understood(_ALONE[name], name, arguments[1:])
        if name == "approve" and isinstance(asked, Asked) and asked.words == ["list"]:
            asked.words = []
        return asked
    if name != "plan" or rest[0] not in VERBS:
        return f"plan has no command {rest[0]!a}" if name == "plan" and rest[0] else "a command is missing"
    return _understood(VERBS[rest[0]], rest[0], arguments[2:])


def _understood(verb: Verb, name_of_verb: str, words: Sequence[str]) -> Asked | str:
    asked, rest = Asked(name_of_verb), list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            asked.words.append(word)
            continue
        name, has_value, value = word.partition("=")
        kind = verb.options.get(name)
        if kind is None:
            return f"there is no option {name!a}"
        if has_value and not kind.takes_value:
            return f"{name} takes no value"
        if kind.takes_value and not has_value:
            if not rest or rest[0].startswith("-"):
                return f"{name} needs a value"
            value = rest.pop(0)
        if not _take(asked, name, kind, value):
            return f"{name} cannot be {value!a}, or comes twice"
    least, most = verb.words
    if len(asked.words) < least:
        return f"{_WORDS[name_of_verb][len(asked.words)]} is missing"
    return asked if len(asked.words) <= most else f"there is no place for {asked.words[most]!a}"


def _take(asked: Asked, name: str, kind: Kind, value: str) -> bool:
    """Add an option; False for one that cannot be read, or that comes twice."""
    if (name in asked.options and not kind.repeats) or (kind.takes_value and not value):
        return False
    try:
        asked.options.setdefault(name, []).append(kind.read(value) if kind.takes_value else True)
    except ValueError:
        return False
    return True


def run_plan(asked: Asked) -> int:
    """Run it, and return its exit code."""
    root = asked.one("--root")
    return _RUN[asked.verb](asked, root if isinstance(root, Path) else None, asked.flag("--quiet", "-q"))


def _gpus(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.bench import bench_cards
    from watchbill.cli.cards import show_cards

    if asked.flag("--bench"):
        return bench_cards(root, model=_text(asked, "--model"), json=asked.flag("--json"), quiet=quiet)
    return show_cards(root, follow=asked.flag("--follow"), json=asked.flag("--json"), quiet=quiet)


def _signal(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.signalling import send_signal

    agent, order, task = [*asked.words, ""][:3]
    return send_signal(agent, order, task, root=root, quiet=quiet)


def usage_of(arguments: Sequence[str]) -> str:
    """The usage of a command of this module, for a machine without the framework; "" for another command."""
    words = [word for word in arguments if not word.startswith("-")]
    if not words:
        return f"Usage: watchbill COMMAND\n\nWithout further packages: {', '.join(('plan', 'status', *_ALONE))}\n"
    if words[:1] == ["plan"] and len(words) > 1 and words[1] in VERBS:
        return _usage(f"plan {words[1]}", VERBS[words[1]])
    if words[:1] == ["plan"]:
        return f"Usage: watchbill plan COMMAND\n\nCommands: {', '.join(VERBS)}\n"
    return _usage(words[0], _ALONE[words[0]]) if words[0] in _ALONE else ""


def _usage(command: str, verb: Verb) -> str:
    least, most = verb.words
    names = _WORDS.get(command.rsplit(maxsplit=1)[-1], ("WORD",))
    given = [f"{name}" if at < least else f"[{name}]" for at, name in enumerate(names)] if most else []
    options = [f"  {name}{' VALUE' if kind.takes_value else ''}" for name, kind in verb.options.items()]
    head = " ".join(["Usage: watchbill", command, *given, "[OPTIONS]"])
    return "\n".join([head, "", "Options:", *options, ""])


#: What the words of a command are.
_WORDS = {
    "check": ("PLAN",), "graph": ("PLAN",), "submit": ("PLAN",), "simulate": ("PLAN",), "status": ("BATCH",),
    "wait": ("BATCH",), "logs": ("TASK",), "cancel": ("BATCH",), "retry": ("TASK...",), "resume": ("BATCH",),
    "approve": ("TASK...",), "deny": ("TASK...",),
    "signal": ("AGENT", "stop|hold|resume|abort|kill", "TASK"),
}  # fmt: skip


def _text(asked: Asked, name: str) -> str | None:
    value = asked.one(name)
    return value if isinstance(value, str) else None


def _pairs(asked: Asked) -> list[str]:
    return [str(each) for each in asked.options.get("--set", [])]


def _check(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_checking import check_plan

    plan = [*asked.words, "."][0]
    return check_plan(plan, _pairs(asked), json=asked.flag("--json"), root=root, quiet=quiet)


def _graph(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_checking import draw_plan

    return draw_plan([*asked.words, "."][0], root=root, quiet=quiet)


def _submit(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_submitting import Submission, submit_plan

    submission = Submission(
        asked.words[0], _pairs(asked), _text(asked, "--inputs"), _text(asked, "--priority")
    )
    return submit_plan(
        submission, dry_run=asked.flag("--dry-run"), json=asked.flag("--json"), root=root, quiet=quiet
    )


def _simulate(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_simulating import Simulation, simulate_plan

    items = [str(each) for each in asked.options.get("--items", [])]
    simulation = Simulation(asked.words[0], _text(asked, "--agents"), items, _pairs(asked))
    return simulate_plan(simulation, json=asked.flag("--json"), root=root, quiet=quiet)


def _status(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import show_status

    batch = asked.words[0] if asked.words else None
    follows = asked.flag("--follow", "-f")
    return show_status(batch, follows=follows, json=asked.flag("--json"), root=root, quiet=quiet)


def _wait(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import wait_for_batch

    timeout = asked.one("--timeout")
    seconds = timeout if isinstance(timeout, float) else None
    return wait_for_batch(asked.words[0], timeout=seconds, root=root, quiet=quiet)


def _list(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import list_batches

    return list_batches(json=asked.flag("--json"), root=root, quiet=quiet)


def _logs(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import show_logs

    attempt = asked.one("--attempt")
    number = attempt if isinstance(attempt, int) else None
    return show_logs(
        asked.words[0], batch=_text(asked, "--batch"), attempt=number, root=root, quiet=quiet,
        follows=asked.flag("--follow", "-f"), json=asked.flag("--json"),
    )  # fmt: skip


def _cancel(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import cancel_batch

    return cancel_batch(asked.words[0], root=root, quiet=quiet)


def _retry(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import retry_tasks

    return retry_tasks(asked.words, batch=_text(asked, "--batch"), root=root, quiet=quiet)


def _resume(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_batches import resume_batch

    return resume_batch(
        asked.words[0], explain=asked.flag("--explain"), pairs=_pairs(asked), json=asked.flag("--json"), root=root,
        quiet=quiet,
    )  # fmt: skip


def _approve(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_approving import answer_questions, show_questions
    from watchbill.fleet.state.approving import Verdict

    batch, json = _text(asked, "--batch"), asked.flag("--json")
    if not asked.words:
        return show_questions(batch=batch, json=json, root=root, quiet=quiet)
    return answer_questions(asked.words, Verdict.APPROVE, batch=batch, json=json, root=root, quiet=quiet)


def _deny(asked: Asked, root: Path | None, quiet: bool) -> int:
    from watchbill.cli.plan_approving import answer_questions
    from watchbill.fleet.state.approving import Verdict

    return answer_questions(
        asked.words, Verdict.DENY, reason=_text(asked, "--reason") or "", batch=_text(asked, "--batch"),
        json=asked.flag("--json"), root=root, quiet=quiet,
    )  # fmt: skip


_RUN: dict[str, Callable[[Asked, Path | None, bool], int]] = {
    "check": _check, "graph": _graph, "submit": _submit, "simulate": _simulate, "status": _status, "wait": _wait,
    "list": _list, "logs": _logs, "cancel": _cancel, "retry": _retry, "resume": _resume, "approve": _approve,
    "deny": _deny, "gpus": _gpus, "signal": _signal,
}  # fmt: skip
