"""One owner per card on a host (R14): locks that die with their holder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchbill.errors import OursError
from watchbill.processes.device_lock import CardLocks, locks_folder

HOLDER = """
import sys, time
from pathlib import Path
from watchbill.processes.device_lock import CardLocks
locks = CardLocks(Path(sys.argv[1]))
locks.take({"gpu:1": "GPU-aaaa"}, "the agent gpu-1")
print("taken", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"taken\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_owner_of_a_card_is_refused_and_told_by_whom(
    tmp_path: Path, holder: "subprocess.Popen[bytes]"
) -> None:
    """R14: by UUID, whatever number the card has for whom; all cards or none."""
    locks = CardLocks(tmp_path)
    with pytest.raises(
        OursError, match=rf"gpu:0 \(GPU-aaaa\) belongs to the agent gpu-1 \(pid {holder.pid}\)"
    ):
        locks.take({"gpu:3": "GPU-bbbb", "gpu:0": "GPU-aaaa"}, "the daemon")
    other = CardLocks(tmp_path)
    other.take({"gpu:3": "GPU-bbbb"}, "the daemon")  # not kept by the one that was refused
    other.release()


def test_a_killed_owner_leaves_no_lock(tmp_path: Path, holder: "subprocess.Popen[bytes]") -> None:
    """R14: the kernel frees it, and a pid that is used again is nobody's claim."""
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    locks = CardLocks(tmp_path)
    locks.take({"gpu:0": "GPU-aaaa"}, "the daemon")
    assert json.loads(next(tmp_path.iterdir()).read_text()) == {"pid": os.getpid(), "what": "the daemon"}
    locks.release()


def test_an_owner_may_take_its_card_again(tmp_path: Path) -> None:
    locks = CardLocks(tmp_path)
    locks.take({"gpu:0": "GPU-aaaa"}, "the daemon")
    locks.take({"gpu:0": "GPU-aaaa", "gpu:1": "GPU-bbbb"}, "the daemon")
    with pytest.raises(OursError, match=f"the daemon \\(pid {os.getpid()}\\)"):
        CardLocks(tmp_path).take({"gpu:0": "GPU-aaaa"}, "another")
    locks.release()
    CardLocks(tmp_path).take({"gpu:0": "GPU-aaaa"}, "another")


def test_locks_lie_where_every_user_sees_them_or_in_the_users_own_folder(tmp_path: Path) -> None:
    shared = Path("/run/lock")
    is_shared = shared.is_dir() and os.access(shared, os.W_OK | os.X_OK)
    assert locks_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == (shared if is_shared else tmp_path)
