"""The set-up of a clone, in odd places."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.eventually import wait_until

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "setup.py"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a clone as its set-up looks at before it fetches anything."""
    folder = tmp_path / "a clone"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(TOOL, folder / "tools")
    for name in ("pyproject.toml", "requirements-setup.lock", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda path: path.touch(), ".venv"),
        (lambda path: path.symlink_to("/nowhere/at/all"), ".venv"),
        (lambda path: path.touch(), ".cache"),
    ],
)
def test_a_clone_that_cannot_be_written_to_is_told_with_what_to_do(
    clone: Path, spoil: Callable[[Path], None], name: str
) -> None:
    spoil(clone / name)
    done = subprocess.run(
        [sys.executable, clone / "tools" / "setup.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(f": rm '{clone / name}'\n")


def test_an_interrupted_step_leaves_nothing_that_goes_on_writing(clone: Path) -> None:
    """Python's venv does not wait for the pip that it runs; the next set-up met it in .venv, and failed."""
    (clone / ".cache").mkdir()  # of the step's output
    step = "(trap '' INT; echo > began; sleep 0.5; echo > ended) & exec sleep 60"
    program = f"import runpy; runpy.run_path('tools/setup.py')['run'](['sh', '-c', {step!r}], shown=False)"
    running = subprocess.Popen(
        [sys.executable, "-c", program], cwd=clone, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_until((clone / "began").exists)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    assert (clone / "ended").exists()


def test_the_sources_are_found_whatever_the_path_and_the_locale(tmp_path: Path) -> None:
    """Issue 19: Python reads the link to the sources in the encoding of the locale, so it names no folder."""
    spec = importlib.util.spec_from_file_location("watchbill_setup", TOOL)
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    sources, site = tmp_path / "Mödel ßrv" / "src", tmp_path / "Mödel ßrv" / ".venv" / "site-packages"
    for folder in (sources, site):
        folder.mkdir(parents=True)
    (sources / "here.py").write_text("print('found')")
    (site / "link.pth").write_text(f"{sources}\n", "utf-8")
    setup.make_relative(site / "link.pth")
    code = f"import site; site.addsitedir({str(site)!r}); import here"
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, env=environment, check=False
    )
    assert done.stdout == b"found\n", done.stderr
