"""Configs of llama-swap, imported and started for real: the scripted engine's server stands in for llama-server."""

import json
import sys
from pathlib import Path

import pytest

from e2e.place import Place
from watchbill.engines import scripted_server
from watchbill.engines.scripted import check_script

FIXTURES = Path(__file__).parents[1] / "fixtures" / "llama_swap"


@pytest.mark.parametrize(
    ("name", "asked"), [("scripted-one", ("alpha", "first", "beta")), ("scripted-groups", ("kept", "a", "b"))]
)
def test_an_imported_config_starts_and_answers(place: Place, name: str, asked: tuple[str, ...]) -> None:
    place.environment |= {
        "PYTHON": sys.executable, "SERVER": scripted_server.__file__,
        "SCRIPT": json.dumps(check_script({"text": "imported"}, 4)),
    }  # fmt: skip
    made = place.run("config", "import", "llama-swap", str(FIXTURES / f"{name}.yaml"))
    assert made.returncode == 0, made.stderr
    assert place.run("config", "check").returncode == 0
    daemon = place.up()
    for model in asked:
        status, _, told = daemon.chat(model)
        assert status == 200 and told["choices"][0]["message"]["content"].startswith("imported"), told
    states = {name: each["state"] for name, each in daemon.status()["models"].items()}
    assert list(states.values()).count("ready") <= 2, states
    if name == "scripted-one":
        assert states == {"alpha": "absent", "beta": "ready"}, "one at a time, as llama-swap"
    assert daemon.stop() == 0
