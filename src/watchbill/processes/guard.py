"""The guard: a small process between the daemon and one engine, so that no engine outlives its daemon.

It runs alone (`python -I -S guard.py`), loads nothing of Watchbill but two small modules, and owns one process tree. As
subreaper it inherits every descendant whose parent exits. So a tree that forks or daemonises still belongs to it, and
"no children left" and "the tree is gone" mean the same. It promises: when the pipe from the daemon ends, even by
kill -9, or when it is told to stop, the whole tree gets TERM and, after a bound, KILL. It is also the only writer of
the tree's log: the tree writes into a pipe, so no log ever exceeds its bound, however fast a program writes. It never
restarts anything.

    from the daemon                             to the daemon
    stop SIGNAL MILLIS   signal, then KILL      started PID
    kill                 KILL at once           failed ERRNO             the command could not be started
    (end of file)        TERM, then KILL        exited CODE              its first process; -9 = SIGKILL
                                                stuck PID ...            survived KILL so far
                                                gone                     the last message: no process is left

An engine whose first process exits with 0 and leaves others behind has daemonised: it counts as alive until the last of
them is gone. One that exits with another code has failed, and its other processes are stopped.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # as typing has it; importing typing would take longer than everything else here
if TYPE_CHECKING or __package__:
    from watchbill.files.rotate import rotate
    from watchbill.processes.process_table import descendants
else:  # a program of its own
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path += [here, os.path.join(os.path.dirname(here), "files")]
    from process_table import descendants
    from rotate import rotate

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: When memory runs out, the kernel kills an engine before the daemon.
OOM_SCORE_ADJ = "500"
#: After KILL, a tree that forks quickly is checked again this often.
KILL_ROUND_MS = 20
#: Processes that survive KILL hang in the kernel (a dead disk, a GPU driver); KILL is repeated this often.
STUCK_ROUND_MS = 1000

#: Python ignores the first two, and the guard handles the others: the engine starts with the defaults for all of them.
RESTORED_SIGNALS = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM
)  # fmt: skip
#: A log that cannot be written or moved for one of these reasons loses lines. The engine goes on without them.
NO_LOG = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
)
#: Bytes that are copied from the pipe to the log at once; the pipe itself holds as much.
LOG_PIECE_BYTES = 64 * 2**10
#: The rate of a log is measured over windows of this length.
LOG_WINDOW_MS = 100
APPENDING = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

SERVING, STOPPING, KILLING, STUCK = range(4)


class Guard:
    """One tree and its stage."""

    def __init__(self, control: int, status: int, log: "LogWriter", bounds: "Bounds") -> None:
        self.control = control
        self.status = status
        self.log = log
        self.bounds = bounds
        self.stage = SERVING
        self.deadline = 0.0  # of the present stage, on the monotonic clock
        self.first_pid = 0
        self.asked = b""  # bytes from the daemon that are not a whole line yet
        self.poll = select.poll()
        self.wake = os.pipe()

    def run(self, argv: list[str]) -> None:
        """Starts the command and stays until no process of its tree is left."""
        self.listen()
        self.first_pid, failure = start(argv, self.log.said)
        os.close(self.log.said)  # the tree has the only other ends: closing them is the end of file
        if failure:
            os.waitpid(self.first_pid, 0)
            self.say(f"failed {failure}")
            return
        self.say(f"started {self.first_pid}")
        while self.reap():
            self.wait()
            self.advance()
        self.log.carry_the_rest()
        self.say("gone")

    def listen(self) -> None:
        """Registers for the daemon's pipe, the death of children, and signals."""
        wake_for_signals(self.poll, self.wake)
        signal.signal(signal.SIGTERM, self.on_term)
        self.poll.register(self.control, select.POLLIN)

    def on_term(self, *_: object) -> None:
        """Ends this guard with its tree: it got TERM itself."""
        self.stop(signal.SIGTERM, self.bounds.orphan_term_ms)

    def wait(self) -> None:
        """Sleeps until something happens, the stage ends, or the log may grow again."""
        pause_ms = self.log.listen(self.poll)
        for descriptor, _ in self.poll.poll(shorter(self.stage_ms(), pause_ms)):
            if descriptor == self.control:
                self.obey()
            elif descriptor == self.log.heard:
                self.log.carry()
            else:
                drain(self.wake[0])

    def stage_ms(self) -> int | None:
        """How long the present stage may last before the next step; None without a bound."""
        if self.stage == SERVING:
            return None
        if self.stage >= KILLING:
            return KILL_ROUND_MS if self.stage == KILLING else STUCK_ROUND_MS
        return max(0, int((self.deadline - time.monotonic()) * 1000) + 1)

    def obey(self) -> None:
        """Reads the daemon's commands; its end of file means that the daemon is dead."""
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
        """Sends the tree a signal; KILL follows when the time is over. A second command can only shorten that time."""
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
        # Parents first: a shell whose child is killed before it goes on to its next command.
        while found := [pid for pid in descendants() if pid not in killed]:
            for pid in found:
                send(pid, signal.SIGKILL)
            killed.update(found)
            # A process that forks without end would be ahead of us after a pause, so there is none until no new one
            # is found.
            if time.monotonic() >= self.deadline:
                return

    def advance(self) -> None:
        """Takes the next step of the stop sequence when the time of the present one is over."""
        if self.stage == STOPPING and time.monotonic() >= self.deadline:
            self.kill()
        elif self.stage >= KILLING:
            # Repeated: a process that was forked between the listing and the kill is killed in the next round.
            self.kill()
            if self.stage == KILLING and time.monotonic() >= self.deadline:
                self.stage = STUCK
                self.say("stuck " + " ".join(str(pid) for pid in descendants()))

    def reap(self) -> bool:
        """Waits for dead children. False when there are no children left."""
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
        """Tells the daemon, if it still runs."""
        try:
            os.write(self.status, line.encode() + b"\n")
        except BrokenPipeError:
            return


class Bounds:
    """The limits from this guard's command line; it cannot import Watchbill's."""

    def __init__(self, orphan_term_ms: int, kill_ms: int) -> None:
        self.orphan_term_ms = orphan_term_ms
        self.kill_ms = kill_ms


class LogWriter:
    """Copies the tree's output from a pipe to our own output, which is the log's file.

    No file exceeds its bound. A program that writes faster than its rate blocks in its write: it is slowed down, and
    costs neither disk nor processor time. A log of one file keeps its beginning, one of several its end.
    """

    def __init__(self, path: str, bytes_max: int, files_max: int, bytes_per_s_max: int) -> None:
        self.path = path
        self.bytes_max = bytes_max
        self.files_max = files_max
        self.window_bytes_max = max(1, bytes_per_s_max * LOG_WINDOW_MS // 1000)
        self.window_bytes = 0
        self.window_end = 0.0
        self.heard, self.said = os.pipe()
        self.is_open = True
        self.is_polled = False
        os.set_blocking(self.heard, False)

    def listen(self, poll: select.poll) -> int | None:
        """Polls the pipe unless its rate is used up; then returns the milliseconds to pause."""
        now = time.monotonic()
        if now >= self.window_end:
            self.window_bytes, self.window_end = 0, now + LOG_WINDOW_MS / 1000
        may_grow = self.is_open and self.window_bytes < self.window_bytes_max
        if may_grow and not self.is_polled:
            poll.register(self.heard, select.POLLIN)
        elif self.is_polled and not may_grow:
            poll.unregister(self.heard)
        self.is_polled = may_grow
        return int((self.window_end - now) * 1000) + 1 if self.is_open and not may_grow else None

    def carry(self) -> None:
        """Copies one piece, if there is one."""
        try:
            words = os.read(self.heard, LOG_PIECE_BYTES)
        except BlockingIOError:
            return
        self.is_open = bool(words)
        self.window_bytes += len(words)
        self.store(words)

    def carry_the_rest(self) -> None:
        """Copies what dead processes left in the pipe: no more than the kernel's buffer, up to the end of file."""
        while self.is_open:
            self.carry()

    def store(self, words: bytes) -> None:
        """Writes into the file, and into the next one when it is full. Lines stay whole where they fit."""
        try:
            while words:
                piece = fitting(words, self.bytes_max - os.fstat(1).st_size)
                words = words[os.write(1, piece) if piece else 0 :]
                if words and not self.begin_anew():
                    return
        except OSError as error:
            if error.errno not in NO_LOG:
                raise

    def begin_anew(self) -> bool:
        """Starts a new file when the present one is full. False when the log keeps its beginning and is full."""
        size = os.fstat(1).st_size
        if self.files_max <= 1:
            return size < self.bytes_max
        if size:
            rotate_log(self.path, self.files_max)
        return True


def fitting(words: bytes, room: int) -> bytes:
    """As many of these bytes as there is room for, up to the end of a line if possible."""
    if len(words) <= room:
        return words
    room = max(0, room)
    return words[: words.rfind(b"\n", 0, room) + 1 or room]


def shorter(first_ms: int | None, second_ms: int | None) -> int | None:
    """The shorter of two waits; None means without limit."""
    waits = [wait for wait in (first_ms, second_ms) if wait is not None]
    return min(waits, default=None)


def wake_for_signals(poll: select.poll, wake: tuple[int, int]) -> None:
    """Lets the death of a child, and signals that mean nothing else to a guard, end a wait of `poll`."""
    for end in wake:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: an ignored signal would stay ignored in what the guard starts.
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_nothing)
    poll.register(wake[0], select.POLLIN)


def on_nothing(*_: object) -> None:
    """A signal that only wakes us up."""


def start(argv: list[str], output: int) -> tuple[int, int]:
    """Starts the command in a session of its own; returns its pid and the errno of a failed start."""
    guard = os.getpid()
    heard, said = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        become(argv, guard, said, output)
    os.close(said)
    failure = os.read(heard, 16)
    os.close(heard)
    return pid, int(failure or b"0")


def become(argv: list[str], guard: int, said: int, output: int) -> None:
    """Turns this fresh child into the engine. Never returns."""
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        # If the guard itself is killed, the engine's first process dies with it; `reap` finds the rest.
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
    """Makes the kernel's OOM killer choose this process before the daemon."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(OOM_SCORE_ADJ)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS}:
            raise


def prctl(option: int, value: int) -> None:
    """Sets an attribute of this process through prctl, which Python does not offer."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def send(pid: int, number: int) -> None:
    """Signals a process that may be gone, or may belong to another user by now."""
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


def rotate_log(path: str, files_max: int) -> None:
    """Moves the log behind our output to `.1`, and redirects our output to a new one.

    Where it cannot be moved (a full disk, a folder that is gone) it is truncated: its size matters most then.
    """
    try:
        rotate_privately(path, files_max)
        fresh = open_private(path)
    except OSError as error:
        if error.errno not in NO_LOG:
            raise
        os.ftruncate(1, 0)
        return
    errors_go_there = os.path.samestat(os.fstat(1), os.fstat(2))
    os.dup2(fresh, 1)
    if errors_go_there:
        os.dup2(fresh, 2)
    os.close(fresh)


def open_private(path: str) -> int:
    """Opens a log for appending; only its owner may read it, whatever the umask and the file's creator."""
    descriptor = os.open(path, APPENDING, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def rotate_privately(path: str, files_max: int) -> None:
    """Frees the name of a log. Only the owner may read the older files: earlier versions left some open to all."""
    rotate(path, files_max)
    for number in range(1, files_max):
        with contextlib.suppress(FileNotFoundError):
            os.chmod(f"{path}.{number}", 0o600)


def own_tree() -> None:
    """Makes this process the one that every orphan below it comes to, and that goes on when its parent dies.

    It may have been stopped (SIGSTOP), and its engine would stay until it goes on. The signal also comes when only
    the thread ends that started it, and means nothing to a process that runs."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def main(arguments: list[str]) -> None:
    """guard.py CONTROL STATUS ORPHAN_TERM_MS KILL_MS LOG LOG_BYTES LOG_FILES LOG_BYTES_PER_S COMMAND ..."""
    control, status = int(arguments[0]), int(arguments[1])
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    own_tree()
    log = LogWriter(arguments[4], *map(int, arguments[5:8]))
    Guard(control, status, log, Bounds(*map(int, arguments[2:4]))).run(arguments[8:])


if __name__ == "__main__":
    main(sys.argv[1:])
