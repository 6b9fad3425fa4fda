"""Ctrl-C at any moment: exit code 130 and not a word of Python's own."""

import os
import signal
import subprocess
import sys
import time

import pytest

#: From the first line of Python's own start to the end of a short command, in seconds.
MOMENTS = [each / 50 for each in range(1, 31)]
#: What each of them imports and holds open differs.
COMMANDS = [
    ["--help"],
    ["status"],
    ["doctor"],
    ["config", "check"],
    ["simulate", "--seeds", "40"],
    ["spool", "drain", "--spool", "./s", "--corpus", "c.jsonl"],
    ["spool", "enqueue", "--spool", "./s"],
    ["pull", "http://127.0.0.1:9/nothing.gguf"],
]


#: Says when it has come as far as Watchbill's own code: what Python says before that is not ours.
ENTERED = """
import os, sys
from watchbill.interrupts import leave_at_once
leave_at_once()
os.write(int(sys.argv.pop(1)), b".")
from watchbill.__main__ import main
main()
"""


def begin(alone, command: list[str]) -> "subprocess.Popen[str]":
    heard, entered = os.pipe()
    running = subprocess.Popen(
        [sys.executable, "-c", ENTERED, str(entered), *command], env=alone.environment, cwd=alone.home,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=[entered],
    )  # fmt: skip
    os.close(entered)
    assert os.read(heard, 1) == b"."
    os.close(heard)
    return running


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: "-".join(words[:2]))
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.timeout(300)
def test_ctrl_c_says_nothing_at_any_moment(alone, command, times):
    """pitfalls: exit code 130; or the command was done before."""
    codes = set()
    for moment in MOMENTS[:: 5 if command != ["--help"] else 3]:
        running = begin(alone, command)
        time.sleep(moment)  # the moment is what is tried, not waited for
        for _ in range(times):
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
        codes.add(running.returncode)
        assert "Traceback" not in said and "KeyboardInterrupt" not in said and "ignored" not in said, said
        # At its very end Python lets the signal itself end the process: 130 for a shell, too.
        assert running.returncode in {0, 1, 2, 3, 130, -signal.SIGINT}, (moment, running.returncode, said)
    assert 130 in codes or command in (["--help"], ["status"], ["config", "check"])


def test_an_import_that_is_interrupted_says_nothing(alone, tmp_path):
    """pitfalls: the first thing that Watchbill does is to take care of Ctrl-C, before its long imports."""
    (tmp_path / "watchbill_stops.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = (
        "import sys; from watchbill import __main__ as way_in\n"
        "stop = sys.argv[1]\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == stop: import watchbill_stops\n"
        "sys.meta_path.insert(0, Stop())\n"
        "sys.argv = ['watchbill', 'spool', 'list']\n"
        "way_in.main()\n"
    )
    for module in (
        "watchbill.cli",
        "watchbill.errors",
        "watchbill.cli.app",
        "cyclopts",
        "watchbill.cli.spool",
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, module], env=alone.environment | {"PYTHONPATH": str(tmp_path)},
            cwd=alone.home, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (module, done.returncode, done.stderr) == (module, 130, "")


#: Is interrupted where Python drops exceptions, as in a callback of its import machinery.
DROPPED = """
import os, signal, sys, time
from watchbill.interrupts import STOPPED, leave_at_once, raise_again
leave_at_once()
raise_again()
class Drops:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
try:
    Drops()
    time.sleep(30)
except KeyboardInterrupt:
    sys.exit(STOPPED)
"""


def test_an_interrupt_that_python_drops_comes_again(alone):
    """pitfalls: Ctrl-C while a command imported its modules was reported as "ignored", and the command went on."""
    done = subprocess.run(
        [sys.executable, "-c", DROPPED], env=alone.environment, cwd=alone.home, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


#: The last thing that a process does in Python: it is stopped with Ctrl-C when its handlers are gone.
LAST = """
import os, signal, sys
from watchbill import __main__ as way_in
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT, really=True):
        if really:
            kill(pid, number)
sys.last = Last()
sys.argv = ["watchbill", "spool", "list", "--spool", "./nothing"]
way_in.main()
"""


def test_ctrl_c_at_the_very_end_does_not_change_the_exit_code(alone):
    """pitfalls: Python had taken its handlers away, and a second Ctrl-C at the prompt gave -2 in place of 130."""
    ends = {
        subprocess.run(
            [sys.executable, "-c", text], env=alone.environment, cwd=alone.home, capture_output=True, timeout=60,
            check=False,
        ).returncode
        for text in (LAST, LAST.replace("really=True", "really=False"))
    }  # fmt: skip
    assert len(ends) == 1 and ends != {-signal.SIGINT}, ends


def test_a_command_in_the_background_of_a_shell_keeps_ignoring_ctrl_c(alone):
    """A shell starts `command &` with Ctrl-C ignored: another command's Ctrl-C does not end it."""
    running = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "watchbill", "spool", "enqueue",
         "--spool", "./s"],
        env=alone.environment, cwd=alone.home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdin is not None and running.stdout is not None
    running.stdin.write('{"id": "1"}\n')
    running.stdin.flush()
    assert running.stdout.readline()
    os.kill(running.pid, signal.SIGINT)
    running.stdin.write('{"id": "2"}\n')
    told, _ = running.communicate(timeout=30)
    assert (running.returncode, told.count("\n")) == (0, 1)
