"""Forecasts: how long a plan would take on some agents, and what one more of them would buy.

A forecast plays the plan on a simulated rig with the times that its tasks took before. The items of a `foreach` are
those of the manifest where it is there already, else those of the newest batch, else as many as the caller says or a
guess.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.state.learned import Expected, History, Source
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.shared_paths import manifest_path
from watchbill.plans import limits
from watchbill.plans.batch import ExecutePlan, encoded_inputs
from watchbill.plans.check import Plan
from watchbill.plans.expand import items_at, text_of
from watchbill.plans.rows import spelled_as
from watchbill.plans.task import Place, Task, TaskClass
from watchbill.simulate.rig import Played, Rig, SimAgent

__all__ = ["Forecaster", "Items", "Known", "OneMore"]

#: How many items a foreach has of which nothing is known.
_GUESSED_ITEMS = 10


@dataclass(frozen=True, slots=True)
class Items:
    """The items of a foreach, each as JSON, and where they come from."""

    source: Source
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class OneMore:
    """The same plan with one more agent of a kind."""

    like: str
    played: Played


@dataclass(frozen=True, slots=True)
class Known:
    """Where items come from."""

    history: History
    disk: Disk  # the shared folder
    given: Mapping[str, int]  # task -> how many items it has, by the caller's word


class Forecaster:
    """A plan, what is known about its tasks, and the files it would find."""

    def __init__(self, plan: Plan, text: bytes, order: ExecutePlan, known: Known) -> None:
        """Raises OursError for a manifest that cannot be where the plan says."""
        self._text, self._order = text, order
        history = known.history
        self.expected = {task.name: history.expected(task.name, task.task_class) for task in plan.tasks}
        self._evaluation = history.expected("", TaskClass.LLM)
        self._manifests: dict[str, object] = {}
        self.items = self._find_items([task for task in plan.tasks if task.foreach is not None], known)

    def play(self, agents: Sequence[SimAgent]) -> Played:
        """The run of the plan on these agents. Raises OursError where they cannot run it."""
        rig = Rig(list(agents), _Runs(self.expected, self._evaluation))
        rig.put(f"plans/{self._order.plan}/plan.md", self._text)
        for path, manifest in self._manifests.items():
            rig.put(path, spelled_as(path, manifest).encode())
        return rig.play(self._order)

    def one_more(self, agents: Sequence[SimAgent], like: SimAgent) -> OneMore:
        """The run with one more agent like this one, on the same host."""
        return OneMore(like.name, self.play([*agents, replace(like, name=f"{like.name}-more", hot=())]))

    # ------------------------------------------------------------ items

    def _find_items(self, tasks: Sequence[Task], known: Known) -> dict[str, Items]:
        """The items of each foreach; tasks that read the same array have the same."""
        ledger = Ledger(self._order.batch)
        ledger.plan, ledger.inputs = self._order.plan, encoded_inputs(self._order.inputs)
        arrays: dict[Place, list[Task]] = {}
        for task in tasks:
            if task.foreach is not None:
                arrays.setdefault(task.foreach, []).append(task)
        found: dict[str, Items] = {}
        for place, readers in arrays.items():
            path = _path(ledger, place, readers[0])
            items = _items(place, path, readers, known)
            found |= {task.name: items for task in readers}
            values = [cast("object", json.loads(text)) for text in items.texts]
            self._manifests[path] = _grafted(self._manifests.get(path), place.path, values)
        return found


def _path(ledger: Ledger, place: Place, reader: Task) -> str:
    try:
        return manifest_path(ledger, place.file)
    except OursError as error:
        raise OursError(f"plan.md:{reader.line_of('foreach')}: {error}", hint=error.hint) from None


def _items(place: Place, path: str, readers: Sequence[Task], known: Known) -> Items:
    names = [task.name for task in readers]
    for name in names:
        if name in known.given:
            return Items(Source.LEARNED, _numbered(known.given[name]))
    if not readers[0].depends_on:
        try:
            content = known.disk.read(path, limits.PLAN_MANIFEST_BYTES_MAX)
            items = items_at(content, place._replace(file=path))
            return Items(Source.LEARNED, [text_of([each])[1:-1] for each in items])
        except (FileNotFoundError, NotADirectoryError, NotAFile):
            pass  # it may be made before the plan is submitted
    for name in names:
        if name in known.history.items:
            return Items(Source.LEARNED, known.history.items[name])
    return Items(Source.GUESS, _numbered(_GUESSED_ITEMS))


class _Runs:
    """How long the tasks take, run by run."""

    def __init__(self, expected: Mapping[str, Expected], evaluation: Expected) -> None:
        self._expected, self._evaluation = expected, evaluation
        self._numbers = dict.fromkeys(expected, 0)

    def __call__(self, template: str, items: int) -> int:
        if not template:
            return self._evaluation.run_ms(0, 1)
        number = self._numbers[template]
        self._numbers[template] += 1
        return self._expected[template].run_ms(number, items)


def _numbered(count: int) -> list[str]:
    return [json.dumps({"id": str(number)}) for number in range(1, count + 1)]


def _grafted(whole: object, path: Sequence[str], value: object) -> object:
    """A manifest with this value at its place, beside what other tasks read from it."""
    if not path:
        return value
    fields = dict(cast("dict[str, object]", whole)) if isinstance(whole, dict) else {}
    fields[path[0]] = _grafted(fields.get(path[0]), path[1:], value)
    return fields
