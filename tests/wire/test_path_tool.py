"""`tools/path.py` traces the three paths that the structure is judged by."""

import re
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "path.py"
#: Generous: a load, some chats and some events under a profiler, on a busy machine.
WAIT_S = 300
FIGURES = r"((?:\s+\d+){4})$"


def test_a_warm_chat_passes_few_files_and_the_tool_prints_its_figures() -> None:
    """Files, functions, calls and changes of file, measured through real sockets and processes; a miss is an error."""
    done = subprocess.run(
        [sys.executable, str(TOOL)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for path in ("warm chat", "warm chat, streamed", "load", "spool event"):
        row = re.search(rf"^{path}{FIGURES}", done.stdout, re.MULTILINE)
        assert row is not None, done.stdout + done.stderr
        files, functions, calls, changes = map(int, row[1].split())
        assert 1 < files <= functions <= calls
        assert files - 1 <= changes < calls
    assert re.search(r"^pass  a warm chat passes \d+ files with \d+ changes", done.stdout, re.MULTILINE)
