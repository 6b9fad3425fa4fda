"""Memory that others take: models leave before anything dies, and a person is told."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from e2e.place import Place, scripted
from support.eventually import wait_until

GROUPS = Path("/sys/fs/cgroup/memory")
#: Takes some memory at once, then so much each second up to a bound, and keeps it.
HOG = """
import mmap, sys, time
first, each_s, most = (int(word) * 10**6 for word in sys.argv[1:])
held, begun = [], time.monotonic()
def take(size):
    piece = mmap.mmap(-1, size)
    for at in range(0, size, 4096):
        piece[at] = 1
    held.append(piece)
take(first)
while sum(map(len, held)) < most:
    take(each_s // 20)
    print(sum(map(len, held)), flush=True)
    time.sleep(max(0, begun + (sum(map(len, held)) - first) / each_s - time.monotonic()))
print("done", flush=True)
time.sleep(600)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 2 GiB."""
    folder = GROUPS / f"watchbill-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(2 * 2**30))
    except OSError as error:
        pytest.skip(f"no control group of version 1 can be made here: {error}")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text().split())
    folder.rmdir()


@pytest.fixture
def routx(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A service that must live."""
    program = tmp_path / f"routx{secrets.token_hex(4)}"  # nobody else on the machine is called so
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([str(program), "600"]) as process:
        yield process
        process.kill()


def name_of(process: "subprocess.Popen[bytes]") -> str:
    return Path(process.args[0]).name  # type: ignore[index]


def enter(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def kills(group: Path) -> int:
    """How often the kernel killed something in the group for want of memory."""
    rows = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
    return int(rows["oom_kill"])


@pytest.mark.timeout(120)
def test_models_leave_before_the_kernel_kills_anything(
    group: Path, place: Place, routx: "subprocess.Popen[bytes]"
) -> None:
    """RES-05, RES-06: in 2 GiB a hog takes 100 MB each second beside a permanent model and a protected process. The
    model is gone within the grace, whoever it was answering is told, and nothing is killed."""
    place.config.write_text(
        f"[devices.ram]\nreserve = '512MiB'\nprotect = ['{name_of(routx)}']\n"
        + scripted("mnemos", 'load = "100ms", service = "40s", memory = "900MB"', "permanent = true").replace(
            'memory = "30MB"', 'memory = "900MB"'
        )
    )
    enter(group, routx.pid)
    daemon = place.begin()
    enter(group, daemon.pid)  # before it has read anything: an interpreter takes longer than this line
    daemon.wait_ready()
    wait_until(lambda: daemon.is_in("mnemos", "ready"))
    capacity = daemon.status()["devices"]["ram"]["capacity"]
    assert capacity == 2 * 2**30
    stream = daemon.stream("mnemos", 400)
    stream.event()
    with (
        ThreadPoolExecutor(1) as reader,
        subprocess.Popen(
            [sys.executable, "-c", HOG, "600", "100", "1250"], stdout=subprocess.PIPE, text=True
        ) as hog,
    ):
        enter(group, hog.pid)
        try:
            told = reader.submit(stream.rest)
            assert "done\n" in iter(lambda: _line(hog), "")  # it got all it wanted
            assert daemon.is_in("mnemos", "absent")
            assert any("preempted" in event for event in told.result(10))
            assert kills(group) == 0
            assert routx.poll() is None
            assert hog.poll() is None
        finally:
            hog.kill()
    [evicted] = place.events("evict")
    assert "emergency" in evicted["reason"]
    [stopped] = place.events("stopped")
    assert stopped["ms"] < 2_000
    alerts = place.events("alert")
    assert [alert["reason"].split(":")[0] for alert in alerts] == ["emergency"]
    daemon.stop()


@pytest.mark.timeout(120)
def test_several_models_leave_in_time_for_a_program_that_takes_memory_fast(group: Path, place: Place) -> None:
    """RES-05, RES-06: in 2 GiB a hog takes 400 MB each second. With one victim at a time and two seconds of grace for
    each the kernel killed the permanent model. Here all of them are gone before, and nothing is killed."""
    tables = [
        scripted(name, 'load = "100ms", service = "40s", memory = "300MB"', rules).replace(
            'memory = "30MB"', 'memory = "300MB"'
        )
        for name, rules in (("logos", ""), ("pathos", ""), ("mnemos", "permanent = true"))
    ]
    place.config.write_text("[devices.ram]\nreserve = '400MiB'\n" + "".join(tables))
    daemon = place.begin()
    enter(group, daemon.pid)
    daemon.wait_ready()
    wait_until(lambda: daemon.is_in("mnemos", "ready"))
    streams = [daemon.stream(name, 400) for name in ("logos", "pathos", "mnemos")]
    for stream in streams:
        stream.event()
    with subprocess.Popen(
        [sys.executable, "-c", HOG, "300", "400", "1650"], stdout=subprocess.PIPE, text=True
    ) as hog:
        enter(group, hog.pid)
        try:
            assert "done\n" in iter(lambda: _line(hog), "")
            assert kills(group) == 0 and hog.poll() is None
        finally:
            hog.kill()
            for stream in streams:
                stream.close()
    assert {event["model"] for event in place.events("evict")} == {"logos", "pathos", "mnemos"}
    assert not place.events("died")
    daemon.stop()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


class Receiver(BaseHTTPRequestHandler):
    """A webhook."""

    def do_POST(self) -> None:
        received = self.server.received  # type: ignore[attr-defined]
        received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.timeout(90)
def test_a_protected_process_that_dies_is_told_by_command_and_webhook(
    place: Place, routx: "subprocess.Popen[bytes]"
) -> None:
    """RES-05: journal, command and webhook get the alert."""
    told = place.folder / "told"
    notify = place.folder / "notify"
    notify.write_text(f'#!/bin/sh\necho "$1 / $2" >> {told}\n')
    notify.chmod(0o755)
    hook = HTTPServer(("127.0.0.1", 0), Receiver)
    hook.received = []  # type: ignore[attr-defined]
    Thread(target=hook.serve_forever, daemon=True).start()
    place.config.write_text(
        f"[alerts]\ncommand = '{notify}'\nwebhook = 'http://127.0.0.1:{hook.server_port}/'\n"
        f"[devices.ram]\nprotect = ['{name_of(routx)}']\n" + scripted("a")
    )
    place.up()
    assert not place.events("alert")
    routx.kill()
    routx.wait()
    wait_until(lambda: hook.received and told.exists() and told.read_text())  # type: ignore[attr-defined]
    assert f"protected process {name_of(routx)} is not running" in hook.received[0]  # type: ignore[attr-defined]
    assert (
        told.read_text() == f"Watchbill: protected / the protected process {name_of(routx)} is not running\n"
    )
    hook.shutdown()
    hook.server_close()
