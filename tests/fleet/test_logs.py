"""What the parts of a fleet log, and how much of it."""

import logging
from collections.abc import Iterator

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.logs import Part, set_levels

VARIABLES = {
    "GPU_LOG_LEVEL": Part.AGENT, "EXECUTOR_LOG_LEVEL": Part.EXECUTOR, "WORKER_LOG_LEVEL": Part.WORKER,
    "BRAIN_LOG_LEVEL": Part.COORDINATOR,
}  # fmt: skip
TASKS = """### fine
- **command**: `true`
### broken
- **command**: `false`
- **retries**: 0
### held
- **command**: `touch {BATCH_PATH}/ran`
"""


@pytest.fixture
def levels() -> Iterator[None]:
    """The levels of this process are put back afterwards."""
    loggers = [logging.getLogger(), *(part.logger for part in Part)]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize("variable", VARIABLES)
def test_each_part_has_a_variable_of_its_own(variable: str) -> None:
    """FLEET-11: one part says more, the others stay at INFO; `--quiet` is above all of them."""
    set_levels({variable: "debug"})
    assert [part for part in Part if part.logger.level == logging.DEBUG] == [VARIABLES[variable]]
    assert {part.logger.level for part in Part} == {logging.DEBUG, logging.INFO}
    set_levels({variable: "debug"}, logging.WARNING)
    assert {part.logger.level for part in Part} == {logging.WARNING}


@pytest.mark.usefixtures("levels")
def test_the_rest_has_a_level_and_a_wrong_word_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """FLEET-11."""
    set_levels({"WATCHBILL_LOG_LEVEL": "WARNING", "GPU_LOG_LEVEL": "loud"})
    assert (logging.getLogger().level, Part.AGENT.logger.level) == (logging.WARNING, logging.INFO)
    assert "GPU_LOG_LEVEL='LOUD' is no level and counts as INFO; use one of DEBUG, INFO" in caplog.text


def test_every_part_tells_its_own_story_at_its_own_level(fleet: FleetFolder) -> None:
    """FLEET-11: decisions are in logs/brain_decisions.log; permissions, tasks and the agent are told apart."""
    (fleet.root / "permissions.toml").write_text('ask = ["touch *"]\n')
    fleet.write_plan("p", TASKS)
    fleet.start_coordinator(BRAIN_LOG_LEVEL="DEBUG")
    quiet = {"GPU_LOG_LEVEL": "ERROR", "EXECUTOR_LOG_LEVEL": "DEBUG", "WORKER_LOG_LEVEL": "INFO"}
    fleet.start_agent("cpu-1", **quiet)
    batch = fleet.submit("p")
    decisions = fleet.root / "logs" / "brain_decisions.log"
    wait_until(lambda: decisions.exists() and f"DEBUG action=accept batch={batch}" in decisions.read_text())
    wait_until(lambda: f"action=hold batch={batch} task=held" in decisions.read_text())
    wait_until(lambda: f"WARNING action=fail batch={batch} task=broken" in decisions.read_text())
    said = fleet.log.read_text()
    assert f"DEBUG fine of {batch}: `true` is allowed: " in said
    assert f"INFO held of {batch}: `touch" in said and "needs approval" in said
    assert f"INFO started fine of {batch}, attempt 1" in said
    assert "WARNING ended " in said and "INFO claimed " not in said
