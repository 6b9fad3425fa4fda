"""Stop sequences: texts at which an answer ends, found here while it streams. Does no I/O.

Engines stop at such texts, too, but most do not say that they did, or at which. Promises the same text and the same
sequence however the answer was split: the sequence that is complete first, the longest of those.
"""

__all__ = ["StopSequences"]


class StopSequences:
    """Looks for the sequences of one request in one answer."""

    def __init__(self, sequences: tuple[str, ...]) -> None:
        self._sequences = sequences
        self._held = ""  # the end of what was heard, which may be the beginning of a sequence
        self.found: str | None = None  # the one that ended the answer

    def feed(self, text: str) -> str:
        """Takes more of the answer; gives what surely belongs to it. After a sequence nothing does."""
        if self.found is not None or not self._sequences:
            return "" if self._sequences else text
        heard = self._held + text
        begin, end = len(heard), len(heard) + 1
        for sequence in self._sequences:
            at = heard.find(sequence)
            if at >= 0 and (at + len(sequence), at) < (end, begin):
                begin, end, self.found = at, at + len(sequence), sequence
        keep = 0 if self.found is not None else self._begun(heard)
        self._held = heard[len(heard) - keep :]
        return heard[: min(begin, len(heard) - keep)]

    def end(self) -> str:
        """The answer is over: what is held back belongs to it."""
        held, self._held = self._held, ""
        return held if self.found is None else ""

    def _begun(self, heard: str) -> int:
        """How many of the last characters may begin a sequence."""
        longest, last = 0, heard[-1:]
        for sequence in self._sequences:
            # Only where a sequence has the last character can its beginning end with it.
            at = sequence.rfind(last, 0, len(sequence) - 1) if last else -1
            while at >= longest:
                if heard.endswith(sequence[: at + 1]):
                    longest = at + 1
                    break
                at = sequence.rfind(last, 0, at)
        return longest
