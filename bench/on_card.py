"""What trials on a real NVIDIA card share: what was promised and seen, the card's memory by process, and a stranger."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.eventually import wait_until
from watchbill.probes.nvml import NvmlProbe, load_nvml

__all__ = ["OnCard", "Sampler"]

#: A program that takes so many MiB of the card and keeps them for so many seconds.
TAKE = """
import sys, time, torch
held = torch.zeros(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("took", held.numel() >> 20, flush=True)
time.sleep(float(sys.argv[2]))
"""
PATIENCE_S = 120.0


class OnCard:
    """A trial on the card, and what was promised and seen."""

    def __init__(self, folder: Path, python: str) -> None:
        self.python, self.failed, self.take = python, 0, folder / "take.py"
        self.take.write_text(TAKE)

    def say(self, what: str, seen: str, kept: bool) -> None:
        self.failed += not kept
        print(f"{'kept  ' if kept else 'BROKEN'}  {what}: {seen}", flush=True)

    @contextmanager
    def stranger(self, mib: int) -> Generator[None]:
        """Somebody else's program on the card."""
        program = [self.python, str(self.take), str(mib), str(2 * PATIENCE_S)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()
            process.wait(PATIENCE_S)

    def until(self, true: Callable[[], bool]) -> float:
        """The seconds until it was true."""
        begun = time.monotonic()
        wait_until(true, PATIENCE_S)
        return time.monotonic() - begun


class Sampler:
    """The card's memory by process, as the driver tells it."""

    def __init__(self) -> None:
        library = load_nvml()
        if library is None:
            raise SystemExit("nvidia-ml-py is missing: pip install nvidia-ml-py")
        self._probe = NvmlProbe(library)
        self.most_mb = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def by_process(self) -> dict[int, int]:
        return {pid: used >> 20 for pid, used in self._probe.read()["gpu:0"].processes.items()}

    def free_mb(self) -> int:
        return self._probe.read()["gpu:0"].available >> 20

    def _watch(self) -> None:
        while True:
            self.most_mb = max(self.most_mb, sum(self.by_process().values()))
            time.sleep(0.02)

    def again(self) -> None:
        self.most_mb = 0
