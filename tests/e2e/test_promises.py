"""Promised against kept on the real llama.cpp through the real daemon, a quarter of a minute; `make bench` runs ten."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_models import GgufFiles

PROMISES = Path(__file__).parents[2] / "bench" / "promises.py"
SECONDS = 15


@pytest.mark.timeout(300)  # the longest bound of a request is 110 s
def test_every_request_is_answered_within_its_bound_while_the_config_is_edited(gguf_files: GgufFiles) -> None:
    """LANE-04, RES-04: with edits of the config every five seconds no request outlives its lane's max_wait and timeout,
    memory stays within the budget, and nothing is left behind."""
    source = gguf_files.chat("5MB")
    done = subprocess.run(
        [sys.executable, str(PROMISES), "--seconds", str(SECONDS), "--source", str(source), "--json"],
        capture_output=True, text=True, timeout=270, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    print(json.dumps(result, indent=1))
    assert (result["late"], result["unanswered"], result["left_behind"]) == (0, 0, [])
    assert 0 < result["pss_peak"] <= result["budget"]
    assert result["edits"]["saved"] >= 2 and not result["edits"]["unexpected"]
    assert sum(lane["answered"] for lane in result["lanes"].values()) >= result["requests"] / 4 > 0
