"""Which tasks of a plan no agent could run: said when the plan is submitted. From the heartbeats alone.

A task that no agent could run that ever joined the folder is an error. One that only agents could run which are gone is
a note: they may come back. Where no agent ever joined, nothing is known.
"""

from collections.abc import Iterator, Mapping, Sequence

from watchbill.cli.terminal import Terminal, plain
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import heartbeats
from watchbill.fleet.matching.abilities import Ability, Lack, Need, ability_of, lack_of, offered
from watchbill.fleet.permissions.ruling import load_book
from watchbill.plans.check import Plan
from watchbill.plans.findings import Findings, shown
from watchbill.plans.placeholders import fill, places_in
from watchbill.plans.task import Executor, Sandbox, Task, TaskClass, TaskType

__all__ = ["Agents"]


class Agents:
    """The agents that a plan may be run by."""

    def __init__(
        self, known: Sequence[Ability], living: Sequence[Ability], least: Sandbox = Sandbox.NONE
    ) -> None:
        """`least` is the sandbox that the rules of the folder give to every task."""
        self._known, self._living, self._least = known, living, least

    @classmethod
    def joined(cls, disk: FolderDisk) -> "Agents":
        """Every agent that ever joined a shared folder."""
        found = heartbeats(disk)
        return cls(
            [ability_of(name, beat) for name, beat in found.items()],
            [ability_of(name, beat) for name, beat in found.items() if beat.may_live],
            load_book(disk.root, "").sandbox.level,
        )

    def refuse_what_none_could_run(self, plan: Plan, inputs: Mapping[str, str], findings: Findings) -> None:
        """Add an error for each task that no agent could ever run."""
        for task, need in self._needs(plan, inputs):
            lack = lack_of(need, self._known)
            if lack is not None:
                text, key, hint = _WORDS[lack]
                says = text.format(task=shown(task.name), **_figures(need))
                findings.wrong(task.line_of(key), f"{says}; there is: {offered(self._known) or 'none'}", hint)

    def tell_what_waits(self, plan: Plan, inputs: Mapping[str, str], terminal: Terminal) -> None:
        """Note the tasks that no living agent could run."""
        waiting = [
            task.name for task, need in self._needs(plan, inputs) if lack_of(need, self._living) is not None
        ]
        if waiting:
            more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            terminal.note(plain(f"{waiting[0]}{more} must wait: no living agent can run it"))

    def _needs(self, plan: Plan, inputs: Mapping[str, str]) -> Iterator[tuple[Task, Need]]:
        """The tasks about which something is known."""
        has_workers = any(each.agent != places.BRAIN for each in self._known)
        has_brain = any(each.agent == places.BRAIN for each in self._known)
        for task in plan.tasks:
            if task.evaluate is not None and has_brain:
                yield task, Need(TaskClass.LLM, for_brain=True)
            need = _need(task, inputs, self._least)
            if need is not None and (has_brain if need.for_brain else has_workers):
                yield task, need


def _need(task: Task, inputs: Mapping[str, str], least: Sandbox) -> Need | None:
    """What a task needs; None where only its item says which model it asks for."""
    model = task.model.text if task.model is not None else ""
    if any(place.name not in inputs for _, place in places_in(model)):
        return None
    words = (
        task.command.text.split() if task.command is not None and task.task_class is TaskClass.META else []
    )
    has_process = task.type is TaskType.SHELL and task.task_class is not TaskClass.META
    return Need(
        task.task_class, task.vram_mb or 0, fill(model, lambda place: inputs[place.name]),
        task.executor is Executor.BRAIN, task.needs_pair, words[1] if len(words) > 1 else "",
        max(task.sandbox, least, key=lambda each: each.strength) if has_process else Sandbox.NONE,
    )  # fmt: skip


def _figures(need: Need) -> dict[str, str]:
    return {
        "mb": f"{need.vram_mb:,}",
        "model": shown(need.model),
        "agent": need.agent,
        "sandbox": need.sandbox.value,
    }


#: What is said of a lack, the key whose line it is said of, and what to do.
_WORDS: dict[Lack, tuple[str, str, str]] = {
    Lack.AGENT: ("{task} is for the agent {agent}, which never joined", "command", "name one that has joined"),
    Lack.SLOT: ("{task} is of class cpu, and no agent takes such tasks", "task_class",
               "start an agent with --cpu-slots 1"),
    Lack.CARD: ("{task} is of class script, and no agent has a device", "task_class",
                "start an agent with --device gpu:0"),
    Lack.PAIR: ("{task} needs a pair of GPUs, and no agent has one", "llm_placement",
                "start an agent with --device gpu:0,gpu:1"),
    Lack.MEMORY: ("{task} needs {mb} MB of GPU memory, and no agent has as much", "vram_estimate_mb",
                  "lower vram_estimate_mb, or start an agent with a larger card"),
    Lack.MODEL: ("{task} asks a model, names none, and no agent that runs it has one of its own", "type",
                 "write model: NAME, or start an agent with --device and --model; for decide and evaluate write model "
                 "into [coordinator]"),
    Lack.OTHER_MODEL: ("{task} asks for the model {model}, and no agent serves it", "model",
                       "name a model that one serves"),
    Lack.SANDBOX: ("{task} demands the sandbox {sandbox}, and no agent that could run it can make that", "sandbox",
                   "install bubblewrap where an agent runs, and start that agent again; or demand less"),
}  # fmt: skip
