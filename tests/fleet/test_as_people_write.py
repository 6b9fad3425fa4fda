"""A plan as people write it is run as they mean it: one batch with everything that the format leaves open.

What is read is shown by `tests/plans`; here it has run. GPU memory, models and pairs of cards are in `test_peaks`,
`test_model_tasks` and `test_abilities`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.fleet_folder import FleetFolder, shared_folder

PLAN = Path(__file__).parents[1] / "plans" / "corpus" / "people" / "plan.md"


class Ran(NamedTuple):
    """The batch after its end."""

    fleet: FleetFolder
    batch: str
    home: Path

    def text(self, name: str) -> str:
        return (self.fleet.batch("people", self.batch) / name).read_text()

    def states(self) -> dict[str, str]:
        return {task["id"]: task["state"] for task in self.fleet.status(self.batch)["tasks"]}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    with shared_folder(tmp_path_factory.mktemp("people")) as fleet:
        folder = fleet.write_plan("people", "")
        (folder / "plan.md").write_text(PLAN.read_text())
        (folder / "numbers.json").write_text('{"all": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]}')
        home = fleet.home / "someone"
        (home / "venv").mkdir(parents=True)
        (home / "venv" / "activate").write_text("ACTIVATED=yes\n")
        fleet.start_coordinator()
        fleet.start_agent("cpu-1", HOME=str(home), LIBRARIES="/before")
        batch = fleet.submit("people", "--set", "WORD=hi", "--set", "PRIORITY=urgent")
        assert fleet.wait(batch) == 1  # two tasks fail on purpose
        yield Ran(fleet, batch, home)


def test_every_task_comes_to_the_end_that_its_author_means(ran: Ran) -> None:
    """PLAN-01: a parenthesis behind a name, headings outside of Tasks, places in prose, inputs in any form."""
    assert ran.states() == {
        "init": "complete", "shell": "complete", "transcribe_one": "complete", "transcribe_two": "complete",
        "summarize_one": "complete", "summarize_two": "complete", "embed_1": "complete", "embed_2": "complete",
        "broken": "failed", "hungry": "failed", "aggregate": "complete",
    }  # fmt: skip


def test_one_item_goes_on_while_another_still_works_at_the_step_before(ran: Ran) -> None:
    """PLAN-02: `transcribe_{ITEM.id}` is no barrier. The second transcript waits for the first summary here."""
    states = ran.states()
    assert (states["transcribe_two"], states["summarize_two"]) == ("complete", "complete")


def test_a_script_may_rewrite_the_manifest_that_it_was_expanded_from(ran: Ran) -> None:
    """PLAN-04: `{PLAN_PATH}/history/{BATCH_ID}/manifest.json:videos` is read once."""
    assert ran.text("manifest.json") == '{"videos": []}\n'
    assert [ran.text(f"summary-{name}.txt") for name in ("one", "two")] == ["one\n", "two\n"]


def test_a_shell_command_of_the_brain_runs_beside_the_coordinator(ran: Ran) -> None:
    """PLAN-02, PLAN-08: `executor: brain` and `task_class: brain`, without a card."""
    assert ran.text("init") == "brain \n"
    assert ran.text("all").endswith("brain\n")


def test_a_line_of_bash_has_its_variables_and_the_home_of_the_agent(ran: Ran) -> None:
    """PLAN-02: `source ~/...`, `export A="$HOME/...:$A"`, `[[ ]]`; defaults in prose are values."""
    assert ran.text("shell") == f"yes {ran.home}/lib:/before hi small very calm\n"


def test_a_batch_of_items_is_one_claim_and_one_command_per_item(ran: Ran) -> None:
    """PLAN-04: batch_size."""
    lines = [line.split() for line in ran.text("embedded").splitlines()]
    assert sorted(number for number, _ in lines) == ["1", "2", "3", "4"]
    assert sorted(len([n for n, slip in lines if slip == each]) for each in {slip for _, slip in lines}) == [
        1,
        3,
    ]


def test_a_task_that_requires_a_pattern_waits_for_no_file_that_never_comes(ran: Ran) -> None:
    """PLAN-02: a pattern in `requires` is met by any file, and names itself where there is none."""
    assert "one\ntwo\n" in ran.text("all")
    assert not (ran.fleet.batch("people", ran.batch) / "hungry").exists()
    (failed,) = [
        entry for entry in ran.fleet.entries("people", ran.batch, "fail") if entry["task"] == "hungry"
    ]
    assert "nothing-*.json" in failed["tail"]


def test_an_aggregating_task_runs_although_some_failed_and_the_summary_names_them(ran: Ran) -> None:
    """PLAN-05: `continue on failures`."""
    page = ran.text("RUN_SUMMARY.md")
    missing = page.partition("## Complete without all they depend on")[2].partition("\n## ")[0]
    assert "aggregate" in missing and "broken" in missing


def test_the_input_priority_is_that_of_every_slip(ran: Ran) -> None:
    """PLAN-07: urgent is 1."""
    issued = ran.fleet.entries("people", ran.batch, "issue")
    assert {entry["name"][0] for entry in issued} == {"1"}


def test_a_goal_driven_plan_is_refused_by_that_name(ran: Ran) -> None:
    """PLAN-01: not as a typing error, and nothing is written."""
    folder = ran.fleet.write_plan("goal", "### a\n- **command**: `true`\n")
    text = (folder / "plan.md").read_text().replace("Show it.", "- **type**: target_count\n- **target**: 50")
    (folder / "plan.md").write_text(text)
    done = ran.fleet.plan("submit", "goal")
    assert done.returncode == 2 and "goal-driven" in done.stderr and "did you mean" not in done.stderr
    assert not (folder / "history").exists()
