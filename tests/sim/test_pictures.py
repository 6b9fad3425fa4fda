"""`simulate --svg`: the timeline and the frontier as pictures that need nothing from elsewhere."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from watchbill.simulate.compare import contender_of, run
from watchbill.simulate.engine import Power
from watchbill.simulate.pictures import timeline_svg
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.timeline import Span, Timeline

SVG = "{http://www.w3.org/2000/svg}"
SCENARIO = """
title = "Two models & one place"
duration = "10m"
[devices.ram]
capacity = "10GB"
[models]
left = { memory = "8GB", load = "5s", service = "2s" }
right = { memory = "8GB", load = "5s", service = "2s" }
[lanes]
chat = { class = "interactive", max_wait = "60s" }
[[traffic]]
kind = "poisson"
models = ["left"]
lane = "chat"
every = "20s"
service = { mean = "2s", sigma = 0.5 }
[[traffic]]
kind = "poisson"
models = ["right"]
lane = "chat"
every = "25s"
service = { mean = "2s", sigma = 0.5 }
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pictures") / "small.toml"
    file.write_text(SCENARIO)
    return file


def drawn(scenario: Path, *words: str) -> ElementTree.Element:
    target = scenario.parent / "out.svg"
    done = subprocess.run(
        [sys.executable, "-m", "watchbill", "simulate", str(scenario), *words, "--svg", str(target)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "drew " in done.stderr
    return ElementTree.parse(target).getroot()


def texts(picture: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text")]


def test_a_run_is_a_timeline_of_which_model_was_in_memory_when(scenario: Path) -> None:
    picture = drawn(scenario)
    told = texts(picture)
    assert {"left", "right", "ram 10 GB", "waiting requests", "Two models & one place"} <= set(told)
    bars = [each for each in picture.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    said = [each.find(f"{SVG}title").text or "" for each in bars]  # type: ignore[union-attr]
    assert any(text.startswith("left: loading from ") for text in said)
    assert any(text.startswith("right: in memory from ") for text in said)
    assert "http" not in ElementTree.tostring(picture, encoding="unicode").replace(SVG[1:-1], "")


def test_policies_and_weights_are_drawn_too(scenario: Path) -> None:
    assert {"fifo", "exhaustive", "turns", "rate"} <= set(texts(drawn(scenario, "--compare")))
    frontier = drawn(scenario, "--frontier")
    points = list(frontier.iter(f"{SVG}circle"))
    assert len(points) > 3 and all(each.find(f"{SVG}title") is not None for each in points)


def test_the_timeline_is_what_happened(scenario: Path) -> None:
    """One place: the two models are never in memory at once, and every load of the report is drawn."""
    played, timeline = Scenario.read(scenario), Timeline()
    report = run(played, contender_of("rate", played.catalog.policy), 0, timeline=timeline)
    warm = sorted((s.start, s.end) for s in timeline.spans if s.power is Power.WARM)
    assert all(first[1] <= second[0] for first, second in pairwise(warm))
    assert sum(span.power is Power.LOADING for span in timeline.spans) == report.loads
    assert max(held for _, held in timeline.memory["ram"]) == report.peak["ram"]


def test_a_hostile_name_stays_a_name() -> None:
    name = '"><script>alert(1)</script>\x1b[2J\ud800&'
    text = timeline_svg(name, {"rate": Timeline([Span(name, Power.WARM, 0, 10)], end=10)})
    picture = ElementTree.fromstring(text)
    assert not list(picture.iter(f"{SVG}script")) and "\x1b" not in text


def test_a_file_that_cannot_be_written_is_named(scenario: Path) -> None:
    words = [sys.executable, "-m", "watchbill", "simulate", str(scenario), "--svg", "/proc/none/x.svg"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--svg /proc/none/x.svg: no such file" in done.stderr
