"""Builds `.venv` with Watchbill in it: what `make setup`, `make up` and `make test` call first.

Owns `.venv` and nothing else on the machine. Runs on the system's own Python with the standard library only,
since nothing is installed yet. Every package comes from a lock file and is checked by its hash; uv itself
lives in `.venv`. A second call with unchanged locks reads one file and returns; it needs no network.
What uv has in its cache is not fetched again, and a uv of the locked version on the PATH is taken as it is: with
both, a machine without a network is set up, too.
Exit codes: 0 ready, 1 a step failed (its output is shown) or the clone cannot be written to, 2 something is missing
from the system, 130 stopped with Ctrl-C.
"""

import argparse
import ctypes
import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "watchbill-setup.json"
LOG = ROOT / ".cache" / "setup.log"

UV_LOCK = "requirements-setup.lock"
#: What each level installs. The second contains the first: `make up` after `make test` has nothing to do.
LOCKS = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}
PYTHON_MIN = (3, 11)
LOG_TAIL_LINES = 30
#: What `.venv` takes at each level, rounded up, with the copies that are made on the way.
ROOM = {"runtime": "500 MB", "dev": "1.5 GB"}
#: From <linux/prctl.h>.
_SET_CHILD_SUBREAPER = 36
#: Variables that would send pip or uv somewhere else than `.venv`. Mirrors and certificates stay as they are.
STRAY_VARIABLES = (
    "CONDA_PREFIX", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PIP_USER", "PYTHONHOME",
    "PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON", "VIRTUAL_ENV",
)  # fmt: skip


class StepFailed(Exception):
    """A step of the set-up failed."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds .venv with watchbill in it.")
    parser.add_argument("--dev", action="store_true", help="also install what the tests and checks need")
    level = "dev" if parser.parse_args().dev else "runtime"
    missing = missing_from_system()
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 2
    try:
        set_up(level)
    except StepFailed as failure:
        print(
            f"{failure}\nThe first set-up needs the network and {ROOM[level]} of room. To go on: make setup",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        print(told(error), file=sys.stderr)
        return 1
    return 0


def set_up(level: str) -> None:
    """Builds `.venv`, unless it is there. Raises StepFailed, and OSError where the clone cannot be written to."""
    if is_ready(
        level
    ):  # looked at first: another user may have set it up, in a clone that we cannot write to
        return
    LOG.parent.mkdir(exist_ok=True)
    with open(LOG.parent / "setup.lock", "w") as lock:
        # `make up` and `make test` in two terminals would build one venv at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(level):
            build(level)


def told(error: OSError) -> str:
    """What keeps us from writing in the clone, and what to do."""
    path = Path(error.filename or ROOT)
    fact = f"set-up failed: {path}: {(error.strerror or str(error)).lower()}"
    if error.errno in (errno.EACCES, errno.EPERM) and os.statvfs(ROOT).f_flag & os.ST_NOEXEC:
        return f"{fact}; its file system runs no programs (noexec): clone to another one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{fact}; after a sudo make this helps: sudo chown -R {os.getuid()} {shlex.quote(str(ROOT))}"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        what = next(each for each in (path, *path.parents) if each.is_symlink() or each.exists())
        return f"{fact}; remove what is there in place of a folder: rm {shlex.quote(str(what))}"
    return fact


def missing_from_system() -> list[str]:
    """Says what the system lacks, each with the line that installs it."""
    missing: list[str] = []
    if sys.platform == "win32":
        return ["Watchbill does not run on Windows; use Linux, or macOS for the command line and the spool."]
    if sys.version_info < PYTHON_MIN:
        found = ".".join(map(str, sys.version_info[:3]))
        missing.append(f"Python 3.11 is needed, this is {found}: apt install python3.11 python3.11-venv")
    elif importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        missing.append("Python's venv module is missing: apt install python3-venv")
    if shutil.which("git") is None:
        missing.append("git is missing: apt install git")
    if sys.platform == "linux" and not can_load("libgomp.so.1"):
        missing.append("libgomp, which llama.cpp computes with, is missing: apt install libgomp1")
    return missing


def can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:  # the loader's only way to say so; it sets no errno
        return False
    return True


def is_ready(level: str) -> bool:
    """Whether this level was installed from exactly these locks by this version of Python."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return stamp.get(level) == digest(level) and not is_foreign(VENV)


def digest(level: str) -> str:
    """Identifies what a level consists of; without the sources, since the package is installed editable."""
    hashed = hashlib.sha256(repr((sys.version_info[:2], level)).encode())
    for name in (UV_LOCK, LOCKS[level], "pyproject.toml"):
        hashed.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return hashed.hexdigest()


def build(level: str) -> None:
    started = time.monotonic()
    STAMP.unlink(missing_ok=True)
    LOG.write_text("")
    lock = LOCKS[level]
    packages = sum(1 for line in (ROOT / lock).read_text().splitlines() if "==" in line)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("environment .venv", make_venv),
        ("installer uv", install_uv),
        (f"{packages} locked packages", lambda: install_locked(lock)),
        ("watchbill itself", install_package),
    ]
    for number, (title, act) in enumerate(steps, 1):
        announce(number, len(steps), title, act)
    levels = ["runtime", "dev"] if level == "dev" else ["runtime"]
    write_stamp({name: digest(name) for name in levels})
    print(f"set up in {time.monotonic() - started:.0f} s: .venv/bin/watchbill")


def announce(number: int, total: int, title: str, act: Callable[[], None]) -> None:
    started = time.monotonic()
    on_terminal = sys.stdout.isatty()
    print(f"[{number}/{total}] {title} ...", end="\n" if on_terminal else " ", flush=True)
    act()
    if not on_terminal:
        print(f"{time.monotonic() - started:.1f} s", flush=True)


def make_venv() -> None:
    if VENV.is_symlink() and not VENV.exists():
        raise FileExistsError(errno.EEXIST, "a link that leads nowhere", str(VENV))
    if is_foreign(VENV):
        run([sys.executable, "-m", "venv", "--clear", str(VENV)])


def is_foreign(venv: Path) -> bool:
    """Whether `.venv` is absent, broken, moved from elsewhere, or of another Python version than ours."""
    try:
        lines = [line.partition("=") for line in (venv / "pyvenv.cfg").read_text().splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return True
    settings = {key.strip(): value.strip() for key, _, value in lines}
    version = "{}.{}.".format(*sys.version_info)
    built_by = settings.get("command", f" {venv}")
    pip = venv / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages" / "pip" / "__main__.py"
    return not (
        settings.get("version", "").startswith(version)
        and built_by.endswith(f" {venv}")
        and os.access(venv / "bin" / "python", os.X_OK)
        and pip.is_file()
    )


def install_uv() -> None:
    here = uv_of_this_machine()
    if here is None:
        # A full disk leaves a half of uv that cannot be run, and that pip takes for an installed one.
        anew = () if os.access(VENV / "bin" / "uv", os.X_OK) else ("--force-reinstall",)
        pip(*anew, "--require-hashes", "-r", UV_LOCK)
    else:
        (VENV / "bin" / "uv").unlink(missing_ok=True)
        (VENV / "bin" / "uv").symlink_to(here)


def uv_of_this_machine() -> Path | None:
    """A uv on the PATH, if it is exactly the locked version: another one may read locks and its cache otherwise."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    own = (VENV / "bin").resolve()  # an activated environment: its uv may be the link that is made anew
    found = shutil.which("uv", path=os.pathsep.join(each for each in places if Path(each).resolve() != own))
    if found is None:
        return None
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a broken one is none
        return None
    wanted = (ROOT / UV_LOCK).read_text().partition("==")[2].split()[0]
    return Path(found).resolve() if said.stdout.split()[:2] == ["uv", wanted] else None


def install_locked(lock: str) -> None:
    locked = ("install", "--require-hashes", "-r", lock)
    with suppress(StepFailed):  # everything may be in uv's cache: then no index is asked
        return uv(*locked, "--offline", shown=False)
    try:
        uv(*locked)
    except StepFailed:
        # uv does not read pip's configuration: where only pip knows the way (a mirror, a proxy), pip goes it.
        print("uv could not fetch them, pip tries ...", end="\n" if sys.stdout.isatty() else " ", flush=True)
        pip("--require-hashes", "-r", lock)


def install_package() -> None:
    # Without isolation the build takes the locked hatchling; with it, an unlocked one would be fetched.
    uv("install", "--no-deps", "--no-build-isolation", "--editable", ".")
    for link in VENV.glob("lib/python*/site-packages/_editable_impl_watchbill.pth"):
        make_relative(link)


def make_relative(link: Path) -> None:
    """Has a link to the sources lead there from its own folder.

    Python reads it in the encoding of the locale: with LC_ALL=C every command would fail in a clone whose path has
    letters beyond ASCII.
    """
    sources = [os.path.relpath(line, link.parent) for line in link.read_text("utf-8").splitlines()]
    link.write_text("".join(f"{line}\n" for line in sources), "utf-8")


def pip(*arguments: str) -> None:
    run([str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *arguments])


def uv(command: str, *arguments: str, shown: bool = True) -> None:
    run([str(VENV / "bin" / "uv"), "pip", command, "--python", str(PYTHON), *arguments], shown=shown)


def run(command: list[str], *, shown: bool = True) -> None:
    """Runs one step. On a terminal pip and uv draw their own bars; elsewhere their output goes to the log."""
    adopt_orphans()
    environment = {name: value for name, value in os.environ.items() if name not in STRAY_VARIABLES}
    if ssl.get_default_verify_paths().cafile:  # pip on Debian trusts what the system trusts; so shall uv
        environment.setdefault("UV_SYSTEM_CERTS", "true")
    said = ""
    try:
        if shown and sys.stdout.isatty():
            status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        else:
            with open(LOG, "a") as log:
                logged = subprocess.run(
                    command, cwd=ROOT, env=environment, check=False, stdout=log, stderr=log
                )
            status = logged.returncode
            said = "\n" + "\n".join(LOG.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    except KeyboardInterrupt:
        let_orphans_end()
        raise
    if status != 0:
        raise StepFailed(f"{said}\nset-up failed (exit {status}): {' '.join(command)}")


def adopt_orphans() -> None:
    """Has Linux give us the processes whose parent ends before them."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def let_orphans_end() -> None:
    """Waits for what an interrupted step has started. Ctrl-C reached that, too, but Python's venv does not wait for
    the pip that it runs: it wrote to `.venv` for another moment, and the next set-up failed over it."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def write_stamp(stamp: dict[str, str]) -> None:
    STAMP.write_text(json.dumps(stamp, indent=1) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
