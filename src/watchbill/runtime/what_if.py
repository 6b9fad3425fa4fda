"""What if: a question to the simulator about the traffic of the last day, answered by a program of its own.

The program is `watchbill.simulate.what_if`. It gets the catalog that is in force, which may have models that no config
names, in a file that only its owner can read, and writes its answer beside it. It ends with the daemon, with its
deadline, and when the call is cancelled.
"""

import pickle
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType

from watchbill.catalog import Catalog, Server
from watchbill.errors import NotFound, RunTimeout, TheirsError
from watchbill.processes import Keeper
from watchbill.runtime.limits import WHAT_IF_ANSWER_BYTES_MAX, WHAT_IF_MS_MAX
from watchbill.runtime.recorder import LoadLine
from watchbill.runtime.traffic import traffic_files

__all__ = ["ANSWER", "NOTHING_TO_SIMULATE", "QUESTION", "Question", "ask_what_if"]

QUESTION, ANSWER = "question", "answer.json"
#: The exit code of the program when there is no traffic that could be simulated; its words say why.
NOTHING_TO_SIMULATE = 2
_PROGRAM = "watchbill.simulate.what_if"


@dataclass(frozen=True, slots=True)
class Question:
    """The traffic, the machine as it is, and what would be different."""

    traffic: Path
    catalog: Catalog
    known: tuple[LoadLine, ...]  # size and load time of each model, as far as known
    hours: float
    memory: Mapping[str, int]  # device -> bytes more, or fewer
    policy: str | None = None  # None: as configured


async def ask_what_if(keeper: Keeper, question: Question, *, timeout_ms: int = WHAT_IF_MS_MAX) -> bytes:
    """The answer as JSON. Raises NotFound where nothing can be simulated, RunTimeout when it takes too long."""
    if not traffic_files(question.traffic):
        raise NotFound("no request was recorded yet; ask a model something, and simulate a second later")
    run = keeper.root / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="what-if-", dir=run, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.joinpath(QUESTION).write_bytes(_packed(question))
        argv = (sys.executable, "-P", "-m", _PROGRAM, str(folder))
        finished = await keeper.run("what-if", argv, timeout_ms=timeout_ms)
        if finished.code == 0:
            with folder.joinpath(ANSWER).open("rb") as file:
                return file.read(WHAT_IF_ANSWER_BYTES_MAX)
    if finished.code == NOTHING_TO_SIMULATE:
        raise NotFound(finished.output.strip())
    if finished.code is None or finished.code < 0:
        raise RunTimeout(
            f"the simulation took longer than {timeout_ms // 1000} s and was ended; ask for fewer hours"
        )
    raise TheirsError(f"the simulation failed: {finished.output.strip()[-300:]}")


def _packed(question: Question) -> bytes:
    """The question without the keys of callers: the simulator has no use for them."""
    out = BytesIO()
    pickler = pickle.Pickler(out)
    pickler.dispatch_table = {MappingProxyType: _plain}  # which pickle refuses
    pickler.dump(replace(question, catalog=replace(question.catalog, server=Server())))
    return out.getvalue()


def _plain(table: MappingProxyType[object, object]) -> tuple[type, tuple[dict[object, object]]]:
    return dict, (dict(table),)
