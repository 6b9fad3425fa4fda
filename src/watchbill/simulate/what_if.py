"""What if: the last day's traffic, simulated as the machine is and as it would be. A program for `runtime/what_if.py`.

    python -m watchbill.simulate.what_if FOLDER        # reads FOLDER/question, writes FOLDER/answer.json

Three columns answer the question: what was recorded, the same traffic in the simulator on the machine as it is, and on
the changed one. The last two are comparable with each other; the first says how far to trust them.
"""

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from watchbill.core.messages import Refusal
from watchbill.errors import WatchbillError
from watchbill.runtime.recorder import RequestLine
from watchbill.runtime.what_if import ANSWER, NOTHING_TO_SIMULATE, QUESTION, Question
from watchbill.simulate.adjust import adjust
from watchbill.simulate.compare import contender_of, run
from watchbill.simulate.pictures import timeline_svg
from watchbill.simulate.recent import Recent, read_recent
from watchbill.simulate.report import Report, part_of
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.timeline import Timeline
from watchbill.units import format_bytes

__all__ = ["answer", "main"]

_AS_IT_IS, _SEED = "as it is", 0
#: A simulation never takes time from requests that wait.
_NICENESS = 19
_REFUSALS = frozenset(each.value for each in Refusal) - {Refusal.ENGINE_FAILED, Refusal.PREEMPTED}

Row = dict[str, object]


def answer(question: Question) -> Row:
    """The figures and the picture. Raises ConfigError where there is nothing to simulate."""
    recent, catalog = read_recent(question.traffic, hours=question.hours).on(question.catalog, question.known)
    present = recent.trace.scenario(catalog)
    changed = adjust(
        present, [f"devices.{name}.capacity={more:+d}" for name, more in question.memory.items()]
    )
    name, policy = _named(question), present.catalog.policy.name
    timelines: dict[str, Timeline] = {}
    runs = [
        {"name": "recorded", **_recorded(recent)},
        _simulated(_AS_IT_IS, present, policy, timelines),
        _simulated(name, changed, question.policy or policy, timelines),
    ]
    return {
        "since_ms": recent.since_ms,
        "until_ms": recent.until_ms,
        "requests": len(recent.trace.requests),
        "left_out": recent.left_out,
        "runs": runs,
        "svg": timeline_svg("The recorded traffic, simulated", timelines),
    }


def _named(question: Question) -> str:
    parts = [
        f"{format_bytes(abs(size))} {'more' if size > 0 else 'less'} on {device}"
        for device, size in question.memory.items()
        if size
    ]
    parts += [f"policy {question.policy}"] if question.policy else []
    return ", ".join(parts) or "the same again"


def _simulated(name: str, scenario: Scenario, policy: str, timelines: dict[str, Timeline]) -> Row:
    timelines[name] = Timeline()
    contender = contender_of(policy, scenario.catalog.policy)
    report = run(scenario, contender, _SEED, timeline=timelines[name])
    return {"name": name, "loads": report.loads, "classes": _classes(report)}


def _classes(report: Report) -> Row:
    return {
        work_class.word: {
            "requests": figures.callers,
            "answered": figures.answered,
            "refused": figures.refused + figures.expired,
            "wait_p50_ms": figures.wait_p50_ms,
            "wait_p95_ms": figures.wait_p95_ms,
        }
        for work_class, figures in report.classes.items()
    }


def _recorded(recent: Recent) -> Row:
    lines = recent.trace.requests
    classes = {line.work_class for line in lines}
    loads = [line for line in recent.trace.loads if line.at_ms >= 0]
    told = {
        name: _as_recorded([line for line in lines if line.work_class == name]) for name in sorted(classes)
    }
    return {"loads": len(loads), "classes": told}


def _as_recorded(lines: Sequence[RequestLine]) -> Row:
    waits = sorted(float(line.waited_ms) for line in lines)
    return {
        "requests": len(lines),
        "answered": sum(line.outcome == "ok" for line in lines),
        "refused": sum(line.outcome in _REFUSALS for line in lines),
        "wait_p50_ms": part_of(waits, 0.5),
        "wait_p95_ms": part_of(waits, 0.95),
    }


def main(folder: Path) -> int:
    """Answers the question in a folder."""
    os.nice(_NICENESS)
    question = cast("Question", pickle.loads(folder.joinpath(QUESTION).read_bytes()))
    try:
        told = answer(question)
    except WatchbillError as error:
        print(error)
        return NOTHING_TO_SIMULATE
    folder.joinpath(ANSWER).write_bytes(msgspec.json.encode(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
