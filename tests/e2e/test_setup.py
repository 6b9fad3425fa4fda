"""From a fresh clone to a working command, and again without a network."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTHING: Mapping[str, str] = {}
#: Every way to a package index that pip and uv know ends at a port where nobody listens.
DEAD_ENDS = {
    "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9",
    "PIP_INDEX_URL": "http://127.0.0.1:9/", "UV_DEFAULT_INDEX": "http://127.0.0.1:9/", "PIP_RETRIES": "0",
    "UV_HTTP_RETRIES": "0",
}  # fmt: skip


def without_network() -> list[str]:
    """A network namespace without an interface, where this user may make one; DEAD_ENDS go everywhere.

    A user namespace maps the user: GNU make refuses to start a command ("Invalid argument") as a user whose id the
    namespace does not know.
    """
    ways = (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"])
    tried = (
        way
        for way in ways
        if subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0
    )
    return next(tried, []) if shutil.which("unshare") else []


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What git would hand out, with the changes that are not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = tmp_path / "clone with a space" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return tmp_path / "clone with a space"


def make(clone: Path, *before: str, env: Mapping[str, str] = NOTHING) -> subprocess.CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    stray = {"PYTHONPATH": "/nonexistent", "PIP_TARGET": "/nonexistent", "VIRTUAL_ENV": "/nonexistent"}
    return subprocess.run(
        [*before, "make", "setup"],
        cwd=clone,
        env=outer | stray | dict(env),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(300)
def test_a_fresh_clone_is_set_up_once_and_then_needs_no_network(clone: Path) -> None:
    first = make(clone)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "[4/4]" in first.stdout
    watchbill = clone / ".venv" / "bin" / "watchbill"
    said = subprocess.run([watchbill, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("watchbill ")
    cut_off = without_network()
    again = make(clone, *cut_off, env=DEAD_ENDS)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr

    # A changed pyproject.toml reinstalls the package; everything it needs is here already.
    with open(clone / "pyproject.toml", "a") as file:
        file.write("\n# a comment\n")
    # The environment may be activated, with its own uv first on the path.
    activated = f"{clone / '.venv' / 'bin'}:{os.environ['PATH']}"
    changed = make(clone, *cut_off, env={**DEAD_ENDS, "PATH": activated})
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert "[4/4]" in changed.stdout
    assert (clone / ".venv" / "bin" / "uv").resolve(strict=True).is_file()

    # A new .venv on a machine that has the packages in uv's cache, and uv: still no network.
    on_path = clone.parent / "on the path"
    on_path.mkdir()
    shutil.copy((clone / ".venv" / "bin" / "uv").resolve(), on_path / "uv")
    shutil.rmtree(clone / ".venv")
    # Without the variable that names the cache.
    dead_ends = {name: value for name, value in DEAD_ENDS.items() if name != "UV_DEFAULT_INDEX"}
    anew = make(clone, *cut_off, env={**dead_ends, "PATH": f"{on_path}:{os.environ['PATH']}"})
    assert anew.returncode == 0, anew.stdout + anew.stderr
    assert watchbill.exists()
