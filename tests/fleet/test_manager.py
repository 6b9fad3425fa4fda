"""The machine that only submits plans: the shared folder and the standard library, no daemon, no package (FLEET-13)."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from cyclopts import Parameter

from support.fleet_folder import FleetFolder
from watchbill.cli import plan as declared
from watchbill.cli.plan_quick import VERBS, understand_plan
from watchbill.fleet.folder import places

SOURCE = Path(declared.__file__).parents[2]
#: Isolated and without site: nothing but the standard library and our own source can be imported.
BARE = (
    "import sys; sys.path.insert(0, {source!r}); from watchbill.cli import run; sys.exit(run(sys.argv[1:]))"
)


def bare(fleet: FleetFolder, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-I", "-S", "-c", BARE.format(source=str(SOURCE)), *words]
    return subprocess.run(
        program, env=fleet.environment(), cwd=fleet.home, capture_output=True, text=True, check=False
    )


def test_plans_are_checked_submitted_and_followed_with_the_standard_library_alone(fleet: FleetFolder) -> None:
    """FLEET-12, FLEET-13."""
    root = ("--root", str(fleet.root))
    fleet.write_plan("p", "### a\n- **command**: `echo {WORD}`\n", inputs="- `WORD`")
    assert bare(fleet, "plan", "check", "p", *root).returncode == 0
    assert "a" in bare(fleet, "plan", "graph", "p", *root).stdout
    shown = bare(fleet, "plan", "submit", "p", "--set", "WORD=x", "--dry-run", *root)
    assert "echo x" in shown.stdout.splitlines(), shown.stderr
    submitted = bare(fleet, "plan", "submit", "p", "--set=WORD=x", "--json", "--quiet", *root)
    batch = json.loads(submitted.stdout)["batch"]
    status = bare(fleet, "plan", "status", batch, "--json", *root)
    assert json.loads(status.stdout)["state"] == "submitted", status.stderr
    assert bare(fleet, "plan", "wait", batch, "--timeout", "0.1", *root).returncode == 124
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert bare(fleet, "plan", "wait", batch, *root).returncode == 0
    assert bare(fleet, "plan", "logs", "a", *root).stdout == "x\n"
    assert "cpu-1" in bare(fleet, "gpus", *root).stdout
    assert json.loads(bare(fleet, "gpus", "--json", *root).stdout)["agents"]["cpu-1"]["alive"] is True
    assert (
        json.loads(bare(fleet, "plan", "list", "--json", *root).stdout)["batches"][0]["state"] == "complete"
    )
    assert "1 complete" in bare(fleet, "plan", "status", *root).stdout
    assert "kept" in bare(fleet, "plan", "resume", batch, "--explain", *root).stdout
    assert bare(fleet, "plan", "retry", "a", *root).returncode == 0
    assert bare(fleet, "plan", "wait", batch, *root).returncode == 0
    assert bare(fleet, "plan", "cancel", batch, *root).returncode == 2


def test_what_needs_a_package_says_so(fleet: FleetFolder) -> None:
    """FLEET-13."""
    done = bare(fleet, "coordinator", "--help")
    assert done.returncode == 2 and "cyclopts" in done.stderr and "Traceback" not in done.stderr


def test_the_short_way_knows_every_command_and_option_of_the_long_one() -> None:
    """Two parsers, one list of options."""
    functions = {
        name.rstrip("_"): function
        for name, function in vars(declared).items()
        if inspect.isfunction(function) and function.__module__ == declared.__name__
    }
    assert functions.keys() == VERBS.keys()
    for verb, function in functions.items():
        assert _options(function) == set(VERBS[verb].options), verb


def _options(function: Any) -> set[str]:
    found: set[str] = set()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        names = [name.replace("_", "-")]
        if get_origin(parameter.annotation) is not None:
            for mark in get_args(parameter.annotation):
                if isinstance(mark, Parameter) and mark.name:
                    names = [mark.name] if isinstance(mark.name, str) else list(mark.name)
        found |= {each if each.startswith("-") else f"--{each}" for each in names}
    return found


def test_the_short_way_leaves_alone_what_it_does_not_understand() -> None:
    """Mistakes are judged where the messages are."""
    for words in (
        ["plan"], ["plan", "submit"], ["plan", "check", "a", "b"], ["plan", "check", "--jso"],
        ["plan", "wait", "b", "--timeout", "x"],
        ["plan", "status", "--root"], ["plan", "status", "--root", "a", "--root", "b"], ["plan", "check", "--help"],
        ["plan", "list", "--json=yes"], ["plan", "status", "--root="],
    ):  # fmt: skip
        assert understand_plan(words) is None, words


def test_a_signal_and_an_approval_are_sent_with_the_standard_library_alone(fleet: FleetFolder) -> None:
    """FLEET-07, FLEET-13."""
    root = ("--root", str(fleet.root))
    fleet.write_plan("p", "### a\n- **command**: `true`\n")
    assert bare(fleet, "plan", "submit", "p", *root).returncode == 0
    (fleet.root / places.PROCESSING / "gpu-1").mkdir(parents=True)
    assert bare(fleet, "signal", "gpu-1", "hold", *root).returncode == 0
    told = bare(fleet, "signal", "gpu-1", "abort", "a_1", *root)
    assert told.returncode == 0 and "gpu-1 has no task a_1 now; it has none" in told.stderr
    assert sorted(path.name for path in (fleet.root / places.SIGNALS).iterdir()) == [
        "gpu-1.abort.a_1",
        "gpu-1.hold",
    ]
    for words, complaint in (
        (("signal", "gpu-1", "abort"), "needs the name of a task"),
        (("signal", "gpu-2", "hold"), "not an agent"),
        (("signal", "gpu-1", "explode"), "explode"),
    ):
        refused = bare(fleet, *words, *root)
        assert refused.returncode == 2 and complaint in refused.stderr, refused.stderr
    listed = bare(fleet, "approve", *root)
    assert listed.returncode == 0, listed.stderr


@pytest.mark.parametrize(
    "words", [("plan",), ("plan", "submit"), ("plan", "logs"), ("gpus",), ("signal",), ("approve",)]
)
def test_help_of_the_fleet_commands_needs_no_package(fleet: FleetFolder, words: tuple[str, ...]) -> None:
    """FLEET-13: the usage with every option."""
    shown = bare(fleet, *words, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"Usage: watchbill {' '.join(words)}")
    if words != ("plan",):
        assert "--root" in shown.stdout
    else:
        assert all(verb in shown.stdout for verb in VERBS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan",), "a command is missing; write: watchbill plan COMMAND"),
        (("plan", "xyz"), "plan has no command 'xyz'"),
        (("plan", "submit"), "PLAN is missing; write: watchbill plan submit PLAN [OPTIONS]"),
        (("plan", "submit", "p", "--set"), "--set needs a value"),
        (("plan", "wait", "b", "--timeout", "soon"), "--timeout cannot be 'soon'"),
        (("plan", "logs", "a", "b"), "there is no place for 'b'"),
        (("plan", "retry"), "TASK... is missing"),
        (("signal", "gpu-1"), "stop|hold|resume|abort|kill is missing"),
        (("gpus", "--nope"), "there is no option '--nope'; write: watchbill gpus [OPTIONS]"),
        (("approve", "--json=1"), "--json takes no value"),
    ],
)
def test_a_mistake_is_named_without_any_package(
    fleet: FleetFolder, words: tuple[str, ...], told: str
) -> None:
    """FLEET-13: a wrong word was answered with the name of a package that is missing, and that these commands need
    none."""
    refused = bare(fleet, *words)
    assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "package" not in refused.stderr


def test_without_a_command_it_says_what_needs_no_package(fleet: FleetFolder) -> None:
    """FLEET-13."""
    for words in ((), ("--help",)):
        shown = bare(fleet, *words)
        assert shown.returncode == 0 and "plan, status, gpus, signal, approve" in shown.stdout, shown.stderr


def test_status_tells_the_state_of_a_fleet_from_its_folder_alone(fleet: FleetFolder) -> None:
    """FLEET-12, FLEET-13: without a daemon, by --root and by the environment."""
    fleet.write_plan("p", "### a\n- **command**: `true`\n")
    batch = fleet.submit("p")
    told = bare(fleet, "status", "--root", str(fleet.root))
    assert told.returncode == 0, told.stderr
    assert batch in told.stdout and "coordinator: none" in told.stdout
    found = json.loads(bare(fleet, "status", "--json", "--root", str(fleet.root)).stdout)
    assert [each["batch"] for each in found["batches"]] == [batch]
    named = fleet.run("status", WATCHBILL_FLEET=str(fleet.root))
    assert named.returncode == 0 and batch in named.stdout, named.stderr
    assert fleet.run("status").returncode == 3
