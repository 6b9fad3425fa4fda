"""Results: the answers to all lines of a batch, in the order of the lines, as one or two files. Blocks."""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from watchbill.batches.batch import Answered, Batch
from watchbill.batches.lines import LineIndex, decode_line, read_line
from watchbill.batches.record import AnswerPlaces
from watchbill.batches.usage import Tokens, tokens_of
from watchbill.files.atomic import PRIVATE_MODE, make_folder, open_regular, writing

__all__ = ["Results", "ResultsFormat", "write_results"]


class ResultsFormat(Protocol):
    """How a dialect writes results."""

    def line(self, batch: Batch, number: int, custom_id: str, answer: Answered | None) -> tuple[bytes, bool]:
        """A line of a results file, and whether it belongs to the errors. None: the line was never answered."""
        ...


class Results(NamedTuple):
    """The sizes of the drafts, 0 for one that is not needed and not there; and what the answers took."""

    output: int
    errors: int
    tokens: Tokens


def write_results(
    batch: Batch,
    source: Path,
    index: LineIndex,
    answers: AnswerPlaces,
    *,
    results_format: ResultsFormat,
    drafts: tuple[Path, Path],
) -> Results:
    """Writes the drafts of the output and of the errors, durably. Raises OSError."""
    make_folder(drafts[0].parent)
    fd = open_regular(source)
    try:
        with contextlib.ExitStack() as stack:
            output, errors = (stack.enter_context(writing(draft, mode=PRIVATE_MODE)) for draft in drafts)
            tokens = Tokens()
            for number in range(len(index)):
                custom_id, answer = decode_line(read_line(fd, index, number)).custom_id, answers.get(number)
                line, is_error = results_format.line(batch, number, custom_id, answer)
                _put(errors if is_error else output, line)
                if answer is not None and answer.is_good:
                    tokens = tokens.plus(tokens_of(answer.body))
            results = Results(output.tell(), errors.tell(), tokens)
    finally:
        os.close(fd)
        answers.close()
    for draft, size in zip(drafts, results[:2], strict=True):
        if not size:
            draft.unlink(missing_ok=True)
    return results


def _put(file: BinaryIO, line: bytes) -> None:
    file.write(line)
    file.write(b"\n")
