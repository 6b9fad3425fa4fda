"""The shape of the package: imports point downward, the core is pure, and nothing grows without bound.

The layers themselves stand in `tools/structure.py`, which also writes them into docs/structure.md. An import counts
wherever it stands: inside a function, or for the type checker only.
"""

import ast
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.parsed import parsed

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "watchbill"

LAYERS = runpy.run_path(str(SOURCE.parent / "tools" / "structure.py"))["LAYERS"]
LAYER_OF = {unit: number for number, layer in enumerate(LAYERS) for unit in layer.units}

FUNCTION_LINES_MAX = 60
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc", "base_utils"}

#: What would make a decision depend on anything but the events.
IMPURE = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "id", "hash"}

#: Who may start processes, and why.
STARTERS = {
    "watchbill.processes": "its purpose",
    "watchbill.plans.bash_parse": "asks `bash -n`, also on a machine with nothing but the standard library",
    "watchbill.engines.scripted_server": "plays an engine that forks away from its guard; it is a program of its own",
}
STARTING_MODULES = {"subprocess", "multiprocessing", "pty"}
STARTING_CALLS = {
    "create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "ProcessPoolExecutor",
}  # fmt: skip
STARTING_OS_CALLS = ("exec", "fork", "popen", "posix_spawn", "spawn", "system")


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found: dict[str, ast.Module] = {}
    for path, tree in parsed(PACKAGE).items():
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = tree
    return found


def unit_of(module: str) -> str:
    """The part of the package that has a layer: watchbill.core.admission belongs to core."""
    return module.split(".")[1] if "." in module else "__init__"


@cache
def imports(module: str) -> tuple[tuple[str, int], ...]:
    """Every module that this one imports, with the line."""
    return tuple(imports_in(module))


def imports_in(module: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: write the import in full"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in trees() else node.module), node.lineno


def own_imports(module: str) -> Iterator[tuple[str, int]]:
    return ((target, line) for target, line in imports(module) if target.split(".")[0] == "watchbill")


def test_every_module_has_a_layer() -> None:
    strangers = {unit_of(module) for module in trees()} - set(LAYER_OF)
    assert not strangers, (
        f"give these a layer in tools/structure.py, then run `make docs`: {sorted(strangers)}"
    )


def test_imports_point_downward() -> None:
    upward = [
        f"{module}:{line} imports {target}"
        for module in trees()
        for target, line in own_imports(module)
        if LAYER_OF[unit_of(target)] > LAYER_OF[unit_of(module)]
    ]
    assert not upward, "\n".join(upward)


#: The parts of the fleet, each above those that it may use.
FLEET_PARTS = {
    "folder": set[str](),
    "door": {"folder"},
    "permissions": {"folder"},
    "state": {"folder"},
    "matching": {"folder", "state"},
    "views": {"folder", "state", "matching", "permissions"},
    "agent": {"folder", "door", "state", "matching", "permissions"},
    "coordinator": {"folder", "state", "matching", "views"},
}


def test_the_parts_of_the_fleet_import_only_those_below_them() -> None:
    """An agent and a coordinator share nothing but the folder, or a door to it."""
    parts = {module: module.split(".")[2] for module in trees() if module.startswith("watchbill.fleet.")}
    upward = [
        f"{module}:{line} imports {target}"
        for module, part in parts.items()
        for target, line in own_imports(module)
        if (used := parts.get(target)) in FLEET_PARTS and used != part and used not in FLEET_PARTS[part]
    ]
    assert not upward, "\n".join(upward)
    assert set(parts.values()) == {*FLEET_PARTS, "limits", "logs", "command_lines"}


def test_imports_make_no_circle() -> None:
    graph = {module: {target for target, _ in own_imports(module)} - {module} for module in trees()}
    circle = find_circle(graph)
    assert not circle, " -> ".join(circle)


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of the graph, or nothing."""
    finished: set[str] = set()

    def context(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in finished:
            for target in sorted(graph.get(node, ())):
                if circle := context(target, [*path, node]):
                    return circle
            finished.add(node)
        return []

    return next((circle for node in sorted(graph) if (circle := context(node, []))), [])


def test_the_core_is_pure() -> None:
    """P9: a decision depends on the events and nothing else."""
    core = [module for module in trees() if unit_of(module) == "core"]
    assert core
    impure = [
        f"{module}:{line} imports {target}"
        for module in core
        for target, line in imports(module)
        if target.split(".")[0] in IMPURE
    ]
    impure += [
        f"{module}:{node.lineno} calls {node.func.id}"
        for module in core
        for node in ast.walk(trees()[module])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    impure += [
        f"{module}:{node.lineno} waits"
        for module in core
        for node in ast.walk(trees()[module])
        if isinstance(node, ast.Await | ast.AsyncFunctionDef)
    ]
    assert not impure, "\n".join(impure)


def test_only_processes_starts_processes() -> None:
    started = [
        found for module in trees() if not module.startswith(tuple(STARTERS)) for found in starts_of(module)
    ]
    assert not started, "\n".join(started)


def starts_of(module: str) -> Iterator[str]:
    """Where a module starts processes, or could."""
    for target, line in imports(module):
        if target.split(".")[0] in STARTING_MODULES:
            yield f"{module}:{line} imports {target}"
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Attribute):
            of_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            if node.attr in STARTING_CALLS or (of_os and node.attr.startswith(STARTING_OS_CALLS)):
                yield f"{module}:{node.lineno} uses {node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (
                f"{module}:{node.lineno} imports {alias.name}"
                for alias in node.names
                if alias.name.startswith(STARTING_OS_CALLS)
            )


def test_names_say_something() -> None:
    empty = [module for module in trees() if SAYS_NOTHING & set(module.split("."))]
    assert not empty


def test_functions_stay_short() -> None:
    too_long: list[str] = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    too_long.append(f"{module}:{node.lineno} {node.name} has {lines} lines")
    assert not too_long, "\n".join(too_long)


def modules_after(program: str, *arguments: str) -> set[str]:
    """What a fresh interpreter has imported when the program ends."""
    program += "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def roots(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def test_the_spool_needs_only_the_standard_library() -> None:
    """A producer that imports the spool (a git hook, a small device) pays for nothing else."""
    before, after = modules_after(""), modules_after("import watchbill.spool")
    foreign = roots(after - before) - set(sys.stdlib_module_names) - {"watchbill"}
    assert not foreign
    own = {unit_of(module) for module in after if module.startswith("watchbill.")}
    assert own <= {"spool", "files", "errors"}


def test_the_file_mechanisms_need_only_the_standard_library() -> None:
    """Plans and the file half of the fleet stand on them, on machines where nothing else can be installed."""
    known = set(sys.stdlib_module_names) | {"watchbill"}
    strangers = [
        f"{module}:{line} imports {target}"
        for module in trees()
        if unit_of(module) == "files"
        for target, line in imports(module)
        if target.split(".")[0] not in known
        or (target.startswith("watchbill") and unit_of(target) != "files")
    ]
    assert not strangers, "\n".join(strangers)


HEAVY = {
    "cyclopts",
    "httptools",
    "pydantic",
    "rich",
    "textual",
    "uvloop",
    "xllamacpp",
}


@pytest.mark.parametrize("command", ["status", "models"])
def test_a_listing_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    """`watchbill status` answers within 150 ms: what it imports is what it costs."""
    program = (
        "import sys\nfrom watchbill.cli import main\nimport watchbill.cli.client, watchbill.cli.status\n"
        "sys.argv[0] = 'watchbill'\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 3, end.code"
    )
    modules = modules_after(program, command, "--root", str(tmp_path))
    assert not roots(modules) & HEAVY


def test_texts_from_outside_are_quoted_in_one_place() -> None:
    """R43: `quoting` escapes and cuts what a message shows of them. The spool stands alone and has two of its own."""
    by_hand = [
        f"{module}:{node.lineno}"
        for module in trees()
        if unit_of(module) != "spool"
        for node in ast.walk(trees()[module])
        if isinstance(node, ast.FormattedValue)
        and node.conversion in {ord("a"), ord("r")}
        and isinstance(node.value, ast.Subscript)
        and isinstance(node.value.slice, ast.Slice)
    ]
    assert not by_hand, f"use quoted(): {by_hand}"
