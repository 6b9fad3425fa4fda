"""The guard: a small process between the daemon and one engine, so that no engine outlives its daemon.

It runs alone (`python -I -S guard.py`), imports nothing of Watchbill, and owns one process tree. As
subreaper it inherits every descendant whose parent exits, so a tree that forks or daemonises is still all
its own; "no children left" and "the tree is gone" are the same thing. It promises: when the pipe from the
daemon ends, even by kill -9, or when it is told to stop, the whole tree gets TERM and, after a bound, KILL.
It also cuts a log that grows too large. It never restarts anything.

    from the daemon                             to the daemon
    stop SIGNAL MILLIS   signal, then KILL      started PID
    kill                 KILL at once           failed ERRNO             the command could not be started
    (end of file)        TERM, then KILL        exited CODE              its first process; -9 = SIGKILL
                                                stuck PID ...            survived KILL so far
                                                gone                     the last word: no process is left

An engine whose first process exits with 0 and leaves others behind has daemonised: it counts as alive until
the last of them is gone. One that exits with anything else has failed, and what it left behind is stopped.
"""

import ctypes
import errno
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: The kernel, when out of memory, takes an engine before the daemon.
OOM_SCORE_ADJ = "500"
#: After KILL a tree that forks quickly is looked at again this often.
KILL_ROUND_MS = 20
#: Processes that survive KILL sit in the kernel (a dead disk, a GPU driver); they are tried again this often.
STUCK_ROUND_MS = 1000

#: Python ignores the first two, and the guard handles the others: the engine begins with none of that.
RESTORED_SIGNALS = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM
)  # fmt: skip
#: A log that cannot be kept for one of these reasons is cut all the same.
NO_COPY = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EACCES, errno.EROFS, errno.EIO})

SERVING, STOPPING, KILLING, STUCK = range(4)


class Guard:
    """One tree and what is happening to it."""

    def __init__(self, control: int, status: int, log_path: str, bounds: "Bounds") -> None:
        self.control = control
        self.status = status
        self.log_path = log_path
        self.bounds = bounds
        self.stage = SERVING
        self.deadline = 0.0  # of the present stage, on the monotonic clock
        self.first_pid = 0
        self.asked = b""  # what the daemon wrote and we have not read as a line yet
        self.poll = select.poll()
        self.wake = os.pipe()

    def run(self, argv: list[str]) -> None:
        """Starts the command and stays until nothing of its tree is left."""
        self.listen()
        self.first_pid, failure = start(argv)
        if failure:
            os.waitpid(self.first_pid, 0)
            self.say(f"failed {failure}")
            return
        self.say(f"started {self.first_pid}")
        while self.reap():
            self.wait()
            self.advance()
        self.say("gone")

    def listen(self) -> None:
        """Hears the daemon, the death of children, and whoever sends us a signal."""
        for end in self.wake:
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the engine.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_nothing)
        signal.signal(signal.SIGTERM, self.on_term)
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(self.wake[0], select.POLLIN)

    def on_term(self, *_: object) -> None:
        """Somebody asks this guard itself to go: it goes, with its tree."""
        self.stop(signal.SIGTERM, self.bounds.orphan_term_ms)

    def wait(self) -> None:
        """Sleeps until something happens, the stage ends, or the log wants a look."""
        wait_ms = self.bounds.log_check_ms
        if self.stage != SERVING:
            wait_ms = max(0, min(wait_ms, int((self.deadline - time.monotonic()) * 1000) + 1))
        if self.stage >= KILLING:
            wait_ms = KILL_ROUND_MS if self.stage == KILLING else STUCK_ROUND_MS
        for descriptor, _ in self.poll.poll(wait_ms):
            if descriptor == self.control:
                self.obey()
            else:
                drain(self.wake[0])
        cut_log(self.log_path, self.bounds.log_bytes_max, self.bounds.log_files_max)

    def obey(self) -> None:
        """Reads what the daemon wants; its end of file means that it is dead."""
        words = os.read(self.control, 4096)
        if not words:
            self.poll.unregister(self.control)
            self.stop(signal.SIGTERM, self.bounds.orphan_term_ms)
            return
        *lines, self.asked = (self.asked + words).split(b"\n")
        for line in lines:
            match line.split():
                case [b"kill"]:
                    self.kill()
                case [b"stop", number, millis]:
                    self.stop(int(number), int(millis))
                case _:
                    print(f"guard: cannot read {line!r}", file=sys.stderr, flush=True)

    def stop(self, number: int, millis: int) -> None:
        """Sends the tree a signal; KILL follows when the time is over. A second wish can only shorten that time."""
        deadline = time.monotonic() + millis / 1000
        if self.stage == STOPPING:
            self.deadline = min(self.deadline, deadline)
        if self.stage != SERVING:
            return
        self.stage = STOPPING
        self.deadline = deadline
        for pid in descendants():
            send(pid, number)
            send(pid, signal.SIGCONT)  # a stopped process acts on no signal but KILL

    def kill(self) -> None:
        """Kills the tree."""
        if self.stage < KILLING:
            self.stage = KILLING
            self.deadline = time.monotonic() + self.bounds.kill_ms / 1000
        killed: set[int] = set()
        while found := set(descendants()) - killed:
            for pid in found:
                send(pid, signal.SIGKILL)
            killed |= found
            # Who forks without end would be ahead of us after a pause: there is none until nobody new is found.
            if time.monotonic() >= self.deadline:
                return

    def advance(self) -> None:
        """Goes on to the next step of the ladder when the time of the present one is over."""
        if self.stage == STOPPING and time.monotonic() >= self.deadline:
            self.kill()
        elif self.stage >= KILLING:
            # Again and again: what was forked between the look and the kill is killed in the next round.
            self.kill()
            if self.stage == KILLING and time.monotonic() >= self.deadline:
                self.stage = STUCK
                self.say("stuck " + " ".join(str(pid) for pid in descendants()))

    def reap(self) -> bool:
        """Buries the dead. False when there is nobody left to bury."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.first_pid:
                code = os.waitstatus_to_exitcode(status)
                self.say(f"exited {code}")
                if code != 0:
                    self.stop(signal.SIGTERM, self.bounds.orphan_term_ms)

    def say(self, line: str) -> None:
        """Tells the daemon, if there still is one."""
        try:
            os.write(self.status, line.encode() + b"\n")
        except BrokenPipeError:
            return


class Bounds:
    """The limits this guard was given on its command line; it cannot import Watchbill's."""

    def __init__(self, orphan_term_ms: int, kill_ms: int, log_check_ms: int, *log: int) -> None:
        self.log_bytes_max, self.log_files_max = log
        self.orphan_term_ms = orphan_term_ms
        self.kill_ms = kill_ms
        self.log_check_ms = log_check_ms


def on_nothing(*_: object) -> None:
    """A signal that only wakes us up."""


def start(argv: list[str]) -> tuple[int, int]:
    """Starts the command in a session of its own; gives its pid and the errno of a start that failed."""
    guard = os.getpid()
    heard, said = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        become(argv, guard, said)
    os.close(said)
    failure = os.read(heard, 16)
    os.close(heard)
    return pid, int(failure or b"0")


def become(argv: list[str], guard: int, said: int) -> None:
    """Turns this fresh child into the engine. Never returns."""
    try:
        os.setsid()
        # If the guard itself is killed, the engine's first process goes with it; `reap` finds the rest.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        offer_to_the_oom_killer()
        for number in RESTORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(said, str(error.errno or errno.EINVAL).encode())
    finally:
        os._exit(127)


def offer_to_the_oom_killer() -> None:
    """Puts this process before the daemon in the kernel's choice of whom to kill."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(OOM_SCORE_ADJ)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS}:
            raise


def prctl(option: int, value: int) -> None:
    """Sets an attribute of this process that has no other door."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def descendants() -> list[int]:
    """Every living process below us, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := parent_of(int(entry))):
            children.setdefault(parent, []).append(int(entry))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # grows while we walk
        found += children.get(pid, ())
    return found


def parent_of(pid: int) -> int | None:
    """The parent of a living process; None for one that is gone or waits to be buried."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, *_ = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in {b"Z", b"X"} else int(parent)


def send(pid: int, number: int) -> None:
    """Signals a process that may already be gone, or may have become another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def drain(descriptor: int) -> None:
    """Empties a non-blocking pipe."""
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        return


def cut_log(path: str, bytes_max: int, files_max: int) -> None:
    """Moves a log that grew too large to `.1` and begins anew, while its writer goes on.

    The writer holds the file open for appending, so the file stays and its content is copied away. Lines
    written between the copy and the cut are lost; a log is not a record.
    """
    if os.fstat(1).st_size <= bytes_max:
        return
    try:
        keep_end(path, bytes_max, files_max)
    except OSError as error:
        # A full disk is the very moment to cut: then without keeping a copy.
        if error.errno not in NO_COPY:
            raise
    os.ftruncate(1, 0)


def keep_end(path: str, bytes_max: int, files_max: int) -> None:
    """Copies the end of the log to `.1`."""
    shift_logs(path, files_max)
    with open(path, "rb") as source, open(path + ".1", "wb") as target:
        source.seek(max(0, os.fstat(1).st_size - bytes_max))
        while block := source.read(2**20):
            target.write(block)


def shift_logs(path: str, files_max: int) -> None:
    """Makes room for a new `.1`: each older file moves up by one, and the oldest is overwritten."""
    for number in range(files_max - 2, 0, -1):
        try:
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
        except FileNotFoundError:
            continue


def main(arguments: list[str]) -> None:
    """guard.py CONTROL STATUS LOG ORPHAN_TERM_MS KILL_MS CHECK_MS LOG_BYTES LOG_FILES COMMAND ..."""
    control, status = int(arguments[0]), int(arguments[1])
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    Guard(control, status, arguments[2], Bounds(*map(int, arguments[3:8]))).run(arguments[8:])


if __name__ == "__main__":
    main(sys.argv[1:])
