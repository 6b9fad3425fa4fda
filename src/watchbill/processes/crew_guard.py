"""The crew's guard: one small process between an agent and the process trees of all its tasks.

It runs alone (`python -I -S crew_guard.py`) and starts a task with one `posix_spawn`: a guard per task, as engines have
it, costs 70-90 ms. It keeps the same promises for each tree: own session, TERM and then KILL, no survivors, bounded
output. When the pipe from the agent ends, even by kill -9, every tree is ended. It enforces timeouts and the agent's
lease by itself, so an agent that is stopped or hangs keeps nothing alive. It touches no file but the outputs on the
agent's private disk: a shared folder that hangs cannot stop it.

    from the agent, JSON lines                          to the agent, JSON lines
    start id argv env spill timeout_ms grace_ms         started id pid
          memory_max processes_max
    stop id grace_ms        TERM, then KILL             failed id errno              the command could not be started
    kill id                 KILL                        stuck id pids                they survived KILL so far
    lease number ms         without another one in      ended id code cause ms cpu_ms rss out err
                            time, all trees are ended   lease number                 the guard is well
    measure                 how far is each task?       measured id output written cpu_ms rss
    (end of file)           TERM, then KILL, then exit

The task of a process is found by its session, its process group, its ancestors and a mark in its environment.
A process that escaped all four belongs to one of the tasks that ran when its parent died, and is ended with the last of
them.
"""

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from watchbill.processes import guard, process_table
    from watchbill.processes.task_output import OutputBounds, TaskOutput
else:  # a program of its own: nothing of Watchbill but the files beside this one
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import guard
    import process_table
    from task_output import OutputBounds, TaskOutput

#: The variable by which every process of a task can be told from those of another task.
TASK_MARK = b"WATCHBILL_CREW_TASK"
#: Bytes of orders that are read at once.
ORDERS_BYTES = 64 * 2**10
#: Bytes of the list of children that are read at once.
CHILDREN_BYTES = 64 * 2**10
#: How much of each output a running task shows.
SO_FAR_BYTES = 4_096
#: How often tasks with limits are looked at.
LIMITS_ROUND_S = 0.5

RUNNING, STOPPING, KILLING, STUCK = range(4)


class Bounds:
    """The limits from this guard's command line; it cannot import Watchbill's."""

    def __init__(self, orphan_term_ms: int, kill_ms: int, *output: int) -> None:
        self.orphan_term_s = orphan_term_ms / 1000
        self.kill_s = kill_ms / 1000
        self.output = OutputBounds(*output)


class Task:
    """One tree and its stage."""

    def __init__(self, order: dict[str, Any], pid: int, streams: tuple[TaskOutput, TaskOutput]) -> None:
        self.id: str = order["id"]
        self.pid = pid  # also its session and its process group
        self.streams = streams
        self.grace_s: float = order["grace_ms"] / 1000
        self.began = time.monotonic()
        timeout_ms: int | None = order["timeout_ms"]
        self.stage = RUNNING
        #: When the present stage ends; a task without a timeout runs without one.
        self.deadline = None if timeout_ms is None else self.began + timeout_ms / 1000
        self.stuck_at = 0.0  # when KILL should have had its effect
        self.cause = "exit"
        self.code: int | None = None  # of its first process, once that has ended
        self.cpu_ms = 0
        self.memory_max: int = order.get("memory_max", 0)
        self.processes_max: int = order.get("processes_max", 0)
        #: The most that was measured: the figures of an orphaned process are lost when it ends.
        self.cpu_ms_seen = self.written_seen = self.rss_seen = 0
        #: Of the outputs, when their ends were last told.
        self.totals_told: tuple[int, ...] = (0,) * len(streams)


class CrewGuard:
    """All trees of one agent."""

    def __init__(self, control: int, status: int, bounds: Bounds) -> None:
        self.control, self.status, self.bounds = control, status, bounds
        self.tasks: dict[str, Task] = {}
        self.by_pid: dict[int, Task] = {}  # first processes that have not ended
        self.streams: dict[int, TaskOutput] = {}  # polled
        self.paused: list[TaskOutput] = []
        self.suspects: dict[int, frozenset[str]] = {}  # escaped process -> the tasks it may belong to
        self.asked = b""
        self.unsaid = b""
        self.is_told_to_close = False
        self.is_closing = False
        self.lease_ends_at: float | None = None
        self.strays_at: float | None = None  # when to look for escaped processes again
        self.limits_at = 0.0  # when to look again at tasks with limits
        self.environment = dict(os.environb)
        self.own_pid = os.getpid()
        self.listed = open_children(self.own_pid)
        self.poll = select.poll()
        self.wake = os.pipe()

    def run(self) -> None:
        """Serves until the agent's pipe has ended and no process is left."""
        self.listen()
        while True:
            self.reap()
            self.advance()
            self.flush()
            if self.is_closing and not self.tasks and not self.children():
                return
            self.wait()

    def listen(self) -> None:
        os.set_blocking(self.status, False)
        guard.wake_for_signals(self.poll, self.wake)
        signal.signal(signal.SIGTERM, self.on_term)
        self.poll.register(self.control, select.POLLIN)

    def on_term(self, *_: object) -> None:
        """Notes that this guard got TERM itself."""
        self.is_told_to_close = True

    # ------------------------------------------------------------ waiting

    def wait(self) -> None:
        self.resume_streams()
        for descriptor, _ in self.poll.poll(self.patience_ms()):
            if descriptor == self.control:
                self.hear()
            elif descriptor == self.status:
                self.flush()
            elif descriptor in self.streams:
                self.carry(self.streams[descriptor])
            else:
                guard.drain(self.wake[0])

    def patience_ms(self) -> int | None:
        """Milliseconds until something has to be done by the clock; None for no limit."""
        ends = [task.deadline for task in self.tasks.values() if task.deadline is not None]
        if self.lease_ends_at is not None and self.tasks:
            ends.append(self.lease_ends_at)
        ends += [stream.window_end for stream in self.paused]
        if self.strays_at is not None:
            ends.append(self.strays_at)
        if any(map(has_limits, self.tasks.values())):
            ends.append(self.limits_at)
        return max(0, int((min(ends) - time.monotonic()) * 1000) + 1) if ends else None

    def carry(self, stream: TaskOutput) -> None:
        if not stream.may_grow(time.monotonic()):
            self.mute(stream)
            self.paused.append(stream)
            return
        stream.carry()
        if not stream.is_open:
            self.mute(stream)

    def mute(self, stream: TaskOutput) -> None:
        if self.streams.pop(stream.heard, None) is not None:
            self.poll.unregister(stream.heard)

    def resume_streams(self) -> None:
        now = time.monotonic()
        waiting, self.paused = self.paused, []
        for stream in waiting:
            if stream.may_grow(now):
                self.attend(stream)
            else:
                self.paused.append(stream)

    def attend(self, stream: TaskOutput) -> None:
        self.streams[stream.heard] = stream
        self.poll.register(stream.heard, select.POLLIN)

    # ------------------------------------------------------------ orders

    def hear(self) -> None:
        """Reads the agent's orders; an end of file means that the agent is dead or has closed the crew."""
        words = os.read(self.control, ORDERS_BYTES)
        if not words:
            self.poll.unregister(self.control)
            self.close()
            return
        *lines, self.asked = (self.asked + words).split(b"\n")
        for line in lines:
            self.obey(json.loads(line.decode()))

    def obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "start":
                self.start(order)
            case "lease":
                self.lease_ends_at = time.monotonic() + order["ms"] / 1000
                self.say({"said": "lease", "number": order["number"]})
            case "measure":
                self.measure()
            case "stop" if (task := self.tasks.get(order["id"])) is not None:
                self.stop(task, "stopped", order["grace_ms"] / 1000)
            case "kill" if (task := self.tasks.get(order["id"])) is not None:
                task.cause = "killed" if task.cause == "exit" else task.cause
                self.kill(task)
            case _:
                pass  # about a task that has ended meanwhile

    def close(self) -> None:
        """Ends every tree, and then this guard."""
        self.is_closing = True
        for task in self.tasks.values():
            self.stop(task, "stopped", self.bounds.orphan_term_s)

    def start(self, order: dict[str, Any]) -> None:
        out = TaskOutput(f"{order['spill']}.out", self.bounds.output)
        err = TaskOutput(f"{order['spill']}.err", self.bounds.output)
        try:
            pid = self.spawn(order, out.said, err.said)
        except (OSError, ValueError) as error:
            for stream in (out, err):
                stream.finish()
            number = getattr(error, "errno", None) or errno.EINVAL
            self.say({"said": "failed", "id": order["id"], "errno": number})
            return
        finally:
            os.close(out.said)
            os.close(err.said)
        task = Task(order, pid, (out, err))
        self.tasks[task.id] = self.by_pid[pid] = task
        for stream in task.streams:
            self.attend(stream)
        self.say({"said": "started", "id": task.id, "pid": pid})
        if self.is_closing:
            self.stop(task, "stopped", 0)

    def spawn(self, order: dict[str, Any], out: int, err: int) -> int:
        argv = [as_bytes(word) for word in order["argv"]]
        given = {as_bytes(name): as_bytes(value) for name, value in order["env"].items()}
        marks = {TASK_MARK: as_bytes(order["id"])}
        # The marks come first: /proc/PID/environ is only read as far as necessary.
        environment = marks | self.environment | given | marks
        return os.posix_spawnp(
            argv[0],
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ],
            setsid=True,
            setsigdef=guard.RESTORED_SIGNALS,
            setsigmask=(),
        )

    # ------------------------------------------------------------ ending trees

    def stop(self, task: Task, cause: str, grace_s: float) -> None:
        """Sends TERM; KILL follows. A second order can only shorten the time."""
        deadline = time.monotonic() + grace_s
        if task.stage == STOPPING and task.deadline is not None:
            task.deadline = min(task.deadline, deadline)
        if task.stage != RUNNING:
            return
        task.stage, task.deadline = STOPPING, deadline
        if task.code is None:
            task.cause = cause
        for pid in self.tree_of(task):
            guard.send(pid, signal.SIGTERM)
            guard.send(pid, signal.SIGCONT)  # a stopped process acts on no signal but KILL

    def kill(self, task: Task) -> None:
        """Kills the tree, again and again until no new process of it is found."""
        if task.stage < KILLING:
            task.stage, task.stuck_at = KILLING, time.monotonic() + self.bounds.kill_s
        if task.pid in self.by_pid:  # not reaped yet, so its group cannot be a stranger's
            # One call for the whole group: no member can fork past it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(task.pid, signal.SIGKILL)
        killed: set[int] = set()
        while found := [pid for pid in self.tree_of(task) if pid not in killed]:
            for pid in found:
                guard.send(pid, signal.SIGKILL)
            killed.update(found)
            if time.monotonic() >= task.stuck_at:
                break
        pause_ms = guard.STUCK_ROUND_MS if task.stage == STUCK else guard.KILL_ROUND_MS
        task.deadline = time.monotonic() + pause_ms / 1000

    def advance(self) -> None:
        """Takes the steps whose time has come."""
        if self.is_told_to_close and not self.is_closing:
            self.close()
        now = time.monotonic()
        if self.lease_ends_at is not None and now >= self.lease_ends_at:
            self.lease_ends_at = None
            for task in self.tasks.values():
                self.stop(task, "lease", self.bounds.orphan_term_s)
        for task in list(self.tasks.values()):
            if task.deadline is not None and now >= task.deadline:
                self.end_stage(task)
        if now >= self.limits_at:
            self.limits_at = now + LIMITS_ROUND_S
            self.enforce([task for task in self.tasks.values() if has_limits(task)])
        escaped = set(self.children()) - self.by_pid.keys()
        self.finish_ended(has_escaped=bool(escaped))
        self.end_strays(has_escaped=bool(escaped))

    def end_stage(self, task: Task) -> None:
        if task.stage == RUNNING:
            self.stop(task, "timeout", task.grace_s)
            return
        self.kill(task)
        if task.stage == KILLING and time.monotonic() >= task.stuck_at:
            task.stage = STUCK
            self.say({"said": "stuck", "id": task.id, "pids": self.tree_of(task)})

    def reap(self) -> None:
        """Waits for dead children, of tasks and of processes that escaped."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.suspects.pop(pid, None)
            task = self.by_pid.pop(pid, None)
            if task is not None:
                task.code = os.waitstatus_to_exitcode(status)
                task.cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1000)
                # That of its largest process: exact, where a short task was never measured.
                task.rss_seen = max(task.rss_seen, usage.ru_maxrss * 1024)

    def finish_ended(self, *, has_escaped: bool) -> None:
        """Reports tasks of which nothing is left, and ends what the others left behind."""
        for task in [each for each in self.tasks.values() if each.code is not None]:
            if (has_escaped or process_table.is_group(task.pid)) and self.tree_of(task):
                self.stop(task, "exit", self.bounds.orphan_term_s)
            else:
                self.finish(task)

    def finish(self, task: Task) -> None:
        del self.tasks[task.id]
        for stream in task.streams:
            self.mute(stream)
        self.paused = [each for each in self.paused if each not in task.streams]
        out, err = (stream.finish() for stream in task.streams)
        self.say({
            "said": "ended", "id": task.id, "code": task.code, "cause": task.cause,
            "ms": int((time.monotonic() - task.began) * 1000), "cpu_ms": task.cpu_ms, "rss": task.rss_seen,
            "out": out, "err": err,
        })  # fmt: skip

    # ------------------------------------------------------------ which process belongs to which task

    def children(self) -> list[int]:
        """Our children, those included that were left to us by others."""
        if self.listed < 0:
            return [pid for pid, row in process_table.processes().items() if row.parent == self.own_pid]
        words = b""
        while part := os.pread(self.listed, CHILDREN_BYTES, len(words)):
            words += part
        return [int(word) for word in words.split()]

    def tree_of(self, task: Task) -> list[int]:
        """Every living process of a task, parents first."""
        rows = process_table.processes()
        return [pid for pid, owner in self.owners(rows).items() if owner == task.id]

    def end_strays(self, *, has_escaped: bool) -> None:
        """Kills what escaped from tasks that have all ended."""
        self.strays_at = time.monotonic() + guard.KILL_ROUND_MS / 1000 if self.is_closing else None
        if not has_escaped:
            return
        for pid, owner in self.owners(process_table.processes()).items():
            if owner == "":
                guard.send(pid, signal.SIGKILL)
                self.strays_at = time.monotonic() + guard.KILL_ROUND_MS / 1000

    def owners(self, rows: dict[int, process_table.Row]) -> dict[int, str]:
        """The task of every process below us; "" for one whose tasks have all ended, and nothing where it is open."""
        below: dict[int, list[int]] = {}
        for pid, row in rows.items():
            below.setdefault(row.parent, []).append(pid)
        by_leader = {task.pid: task.id for task in self.tasks.values()}
        owners: dict[int, str | None] = {
            pid: self.owner_of(pid, rows[pid], by_leader) for pid in below.get(self.own_pid, ())
        }
        found = list(owners)
        for pid in found:  # grows during the loop
            for child in below.get(pid, ()):
                owners[child] = by_leader.get(rows[child].session, owners[pid])
                found.append(child)
        return {pid: owner for pid, owner in owners.items() if owner is not None}

    def owner_of(self, pid: int, row: process_table.Row, by_leader: dict[int, str]) -> str | None:
        """The task of a child of ours."""
        if pid in self.by_pid:
            return self.by_pid[pid].id
        owner = by_leader.get(row.session) or by_leader.get(row.group)
        if owner is not None:
            return owner
        marked = process_table.mark_of(pid, TASK_MARK)
        if marked is not None:
            return marked if marked in self.tasks else ""
        suspects = self.suspects.setdefault(pid, frozenset(self.tasks)) & self.tasks.keys()
        return None if len(suspects) > 1 else next(iter(suspects), "")

    def enforce(self, limited: list[Task]) -> None:
        """Kills the tasks that have more memory or processes than they may."""
        if not limited:
            return
        rows = process_table.processes()
        owners = self.owners(rows)
        for task in limited:
            pids = [pid for pid, owner in owners.items() if owner == task.id]
            rss = sum(rows[pid].rss for pid in pids)
            task.rss_seen = max(task.rss_seen, rss)
            excess = "memory" if 0 < task.memory_max < rss else ""
            excess = "processes" if 0 < task.processes_max < len(pids) else excess
            if excess and task.stage == RUNNING:
                task.cause = excess if task.code is None else task.cause
                self.kill(task)  # at once: whatever it does with a warning would take more

    # ------------------------------------------------------------ how far tasks have got

    def measure(self) -> None:
        """Reports for each task how much its tree has written, and how much processor time and memory it has used."""
        if not self.tasks:
            return
        rows = process_table.processes()
        ticks, written, rss = (dict.fromkeys(self.tasks, 0) for _ in range(3))
        for pid, owner in self.owners(rows).items():
            if owner in ticks:
                ticks[owner] += rows[pid].ticks
                written[owner] += process_table.written_by(pid)
                rss[owner] += rows[pid].rss
        for task in self.tasks.values():
            task.cpu_ms_seen = max(task.cpu_ms_seen, ticks[task.id] * 1000 // process_table.TICKS_PER_S)
            task.written_seen = max(task.written_seen, written[task.id])
            task.rss_seen = max(task.rss_seen, rss[task.id])
            self.say({
                "said": "measured", "id": task.id, "output": sum(stream.total for stream in task.streams),
                "written": task.written_seen, "cpu_ms": task.cpu_ms_seen, "rss": task.rss_seen,
                "tails": self.new_tails(task),
            })  # fmt: skip

    @staticmethod
    def new_tails(task: "Task") -> list[str]:
        """The end of each output of a task; none where nothing was added since the last time."""
        totals = tuple(stream.total for stream in task.streams)
        if totals == task.totals_told:
            return []
        task.totals_told = totals
        return [bytes(stream.tail[-SO_FAR_BYTES:]).decode("utf-8", "replace") for stream in task.streams]

    # ------------------------------------------------------------ reports

    def say(self, report: dict[str, object]) -> None:
        """Tells the agent something at the end of this turn: reports that come together wake it once."""
        self.unsaid += json.dumps(report).encode() + b"\n"

    def flush(self) -> None:
        """Writes as much as the agent takes. One that is stopped takes nothing, and never stops us."""
        if not self.unsaid:
            return
        try:
            while self.unsaid:
                self.unsaid = self.unsaid[os.write(self.status, self.unsaid) :]
        except BlockingIOError:
            self.poll.register(self.status, select.POLLOUT)
            return
        except BrokenPipeError:
            self.unsaid = b""
        with contextlib.suppress(KeyError):  # only polled while something is unsent
            self.poll.unregister(self.status)


def open_children(pid: int) -> int:
    """The kernel's list of a process's children, which is read in each turn; -1 where the kernel was built without."""
    try:
        return os.open(f"/proc/self/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def has_limits(task: Task) -> bool:
    """Whether a running task may be ended for what it uses."""
    return task.stage == RUNNING and (task.memory_max > 0 or task.processes_max > 0)


def as_bytes(text: str) -> bytes:
    """A word as the kernel gets it: UTF-8, and bytes that were no UTF-8 as they were."""
    return text.encode("utf-8", "surrogateescape")


def main(arguments: list[str]) -> None:
    """crew_guard.py CONTROL STATUS ORPHAN_TERM_MS KILL_MS MEMORY_BYTES FILE_BYTES BYTES_PER_S"""
    control, status = int(arguments[0]), int(arguments[1])
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)
    guard.own_tree()
    CrewGuard(control, status, Bounds(*map(int, arguments[2:7]))).run()


if __name__ == "__main__":
    main(sys.argv[1:])
