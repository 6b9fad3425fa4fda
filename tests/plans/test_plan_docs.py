"""docs/plans.md says what is so, and `plan` says it on the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from watchbill.plans.bash_reader import parse_command
from watchbill.plans.check import check
from watchbill.plans.graph import Graph, nodes_of
from watchbill.plans.inputs import BUILT_INS
from watchbill.plans.keys import table_of_keys

PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()
CORPUS = Path(__file__).parent / "corpus" / "transcribe"


def cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|").strip("`") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


REFUSED = [
    cells(row) for row in PAGE.partition("<!-- refused -->")[2].strip().partition("\n\n")[0].splitlines()[2:]
]


def test_the_plan_of_the_page_is_right() -> None:
    """PLAN-01"""
    (plan,) = re.findall(r"^````markdown\n(.*?)^````\n\n- \*\*Sections", PAGE, re.MULTILINE | re.DOTALL)
    checked = check(plan)
    assert checked.findings.errors == []
    assert Graph(nodes_of(checked.plan.tasks)).start().ready == ["scan"]


def test_the_page_lists_every_key_and_every_built_in() -> None:
    """PLAN-02, PLAN-03"""
    assert table_of_keys() in PAGE
    assert [name for name in BUILT_INS if f"`{{{name}}}`" not in PAGE] == []


@pytest.mark.parametrize(("refused", "instead"), [(row[0], row[2]) for row in REFUSED])
def test_what_the_page_refuses_is_refused_and_what_it_recommends_is_not(refused: str, instead: str) -> None:
    """R51"""
    assert parse_command(refused).refusals
    assert parse_command(instead).refusals == ()


#: No package that is not pure Python is there: a machine that only submits plans.
REFUSE_COMPILED = """
import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
class Refuse:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        compiled = spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
        if compiled and name.split(".")[0] not in sys.stdlib_module_names:
            raise ImportError(f"{name} is compiled")
sys.meta_path.insert(0, Refuse())
from watchbill.cli import main
sys.argv[0] = "watchbill"
main()
"""


def watchbill(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONUTF8": "1"} | variables
    command = [sys.executable, "-c", REFUSE_COMPILED, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def write_plan(folder: Path, tasks: str) -> None:
    folder.mkdir(parents=True)
    (folder / "plan.md").write_text(f"# p\n\n## Tasks\n\n{tasks}\n")


def test_check_says_file_line_and_what_to_write_and_exits_with_2(tmp_path: Path) -> None:
    """PLAN-03, FLEET-12, FLEET-13"""
    write_plan(tmp_path / "bad", "### a\n- **comand**: ls")
    told = watchbill("plan", "check", "bad", folder=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert "bad/plan.md:6: comand is not a key of a task; did you mean command?" in told.stderr.splitlines()
    answer = json.loads(watchbill("plan", "check", "bad", "--json", folder=tmp_path).stdout)
    assert answer["ok"] is False
    assert {"line": 6, "text": "comand is not a key of a task", "hint": "did you mean command?"} in answer[
        "errors"
    ]


def test_check_finds_a_plan_by_folder_file_or_name(tmp_path: Path) -> None:
    """PLAN-03"""
    write_plan(tmp_path / "fleet" / "plans" / "video", "### a\n- **command**: `ls`")
    fleet = str(tmp_path / "fleet")
    for arguments, variables in (
        (["fleet/plans/video"], {}),
        (["fleet/plans/video/plan.md"], {}),
        (["video", "--root", fleet], {}),
        (["video"], {"WATCHBILL_FLEET": fleet}),
    ):
        told = watchbill("plan", "check", *arguments, folder=tmp_path, **variables)
        assert (told.returncode, told.stderr.count("taken as cpu")) == (0, 1), told.stderr
    gone = watchbill("plan", "check", "../video", "--root", fleet, folder=tmp_path)
    assert gone.returncode == 2 and "name a folder with a plan.md" in gone.stderr


def test_check_shows_the_defaults_it_has_read(tmp_path: Path) -> None:
    """PLAN-03"""
    told = watchbill("plan", "check", str(CORPUS), folder=tmp_path)
    assert told.returncode == 0
    assert "the input OUT is '/srv/out' unless it is set" in told.stderr
    assert told.stdout.endswith("plan.md is right: 10 tasks, 7 inputs\n")


def test_check_counts_the_errors_and_notes_that_it_does_not_list(tmp_path: Path) -> None:
    """PLAN-03, R53: a plan with hundreds of notes showed the first hundred and nothing of the others."""
    tasks = "".join(f"### t{each}\n- command: ls\n- llm_min_tier: 2\n" for each in range(130))
    write_plan(tmp_path / "many", tasks)
    told = watchbill("plan", "check", "many", folder=tmp_path)
    assert (told.returncode, told.stderr.count("is noted, not acted on")) == (0, 100)
    assert re.search(r"plan\.md: \d+ more notes\n", told.stderr)
    write_plan(tmp_path / "wrong", tasks.replace("command", "comand"))
    told = watchbill("plan", "check", "wrong", folder=tmp_path)
    assert told.returncode == 2
    assert re.search(r"plan\.md: \d+ more errors\n$", told.stderr)


def test_graph_draws_a_right_plan_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    """PLAN-03"""
    drawn = watchbill("plan", "graph", str(CORPUS), folder=tmp_path)
    assert (drawn.returncode, drawn.stdout.splitlines()[0]) == (0, "flowchart TD")
    assert "    t2 -. per item .-> t3" in drawn.stdout.splitlines()
    write_plan(tmp_path / "bad", "### a\n- **command**: ls\n- **depends_on**: a")
    assert watchbill("plan", "graph", "bad", folder=tmp_path).returncode == 2
