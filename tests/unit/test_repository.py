"""The repository's own machinery: locks that can be trusted, a set-up that says what it lacks, tests that can fail."""

import ast
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.parsed import parsed

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements-setup.lock", "requirements.lock", "requirements-dev.lock", "requirements-clients.lock")


def pins_of(lock: str) -> dict[str, set[str]]:
    """Name -> versions; a package may be pinned differently for different Pythons."""
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==([^ \\]+)", (ROOT / lock).read_text(), re.MULTILINE):
        pins.setdefault(name, set()).add(version)
    return pins


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    requirements = re.split(r"\n(?=\S)", text.strip())
    bare = [requirement.split()[0] for requirement in requirements if "--hash=sha256:" not in requirement]
    assert requirements and bare == []


def test_tests_run_on_the_versions_that_users_get() -> None:
    users, developers = (
        pins_of("requirements.lock"),
        pins_of("requirements-dev.lock"),
    )
    assert {name: developers.get(name) for name in users} == users


def test_set_up_takes_the_build_backend_from_the_lock() -> None:
    """Without this the editable install would fetch an unlocked hatchling, and need the network each time."""
    declared = re.search(r'requires = \["hatchling==([\d.]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert declared is not None
    assert pins_of("requirements.lock")["hatchling"] == {declared[1]}


@pytest.fixture
def poor_path(tmp_path: Path) -> Path:
    """A PATH with make and a shell, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("make", "sh", "bash", "env"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def make_setup(path: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [str(path / "make"), "setup", *overrides]
    return subprocess.run(
        command, cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )


def test_a_missing_python_is_named_with_its_apt_line(poor_path: Path) -> None:
    done = make_setup(poor_path, "DEBIAN_PYTHON=")
    assert done.returncode == 2
    assert "apt install python3 python3-venv" in done.stderr


def test_a_python_that_is_too_old_is_named_with_its_apt_line(poor_path: Path, tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 'SyntaxError' >&2\nexit 1\n")
    old.chmod(0o755)
    done = make_setup(poor_path, f"PYTHON={old}")
    assert done.returncode == 2
    assert "Python 3.11" in done.stderr and "apt install" in done.stderr


def test_missing_parts_of_the_system_are_all_named_at_once(poor_path: Path, tmp_path: Path) -> None:
    """Python without venv, no git, and not the library that llama.cpp is linked with."""
    program = (
        "import ctypes, importlib.util as u, runpy, sys\n"
        "def refuse(name): raise OSError(f'{name}: cannot open shared object file')\n"
        "ctypes.CDLL = refuse\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'ensurepip' else find(name, *rest)\n"
        f"sys.argv = ['setup.py']\nrunpy.run_path({str(ROOT / 'tools' / 'setup.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": str(poor_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    for package in ("python3-venv", "git", "libgomp1"):
        assert f"apt install {package}" in done.stderr


def fake_venv(folder: Path, *, command_for: Path, version: str) -> Path:
    """What `is_foreign` looks at of an environment."""
    packages = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages" / "pip"
    packages.mkdir(parents=True)
    (packages / "__main__.py").touch()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(
        f"version = {version}\ncommand = /usr/bin/python3 -m venv {command_for}\n"
    )
    return folder


def test_an_environment_is_rebuilt_when_it_is_broken_moved_or_of_another_python(tmp_path: Path) -> None:
    is_foreign = runpy.run_path(str(ROOT / "tools" / "setup.py"))["is_foreign"]
    ours = "{}.{}.0".format(*sys.version_info)
    good = fake_venv(tmp_path / "with a space", command_for=tmp_path / "with a space", version=ours)
    assert not is_foreign(good)
    assert is_foreign(tmp_path / "absent")
    assert is_foreign(fake_venv(tmp_path / "moved", command_for=tmp_path / "elsewhere", version=ours))
    assert is_foreign(fake_venv(tmp_path / "old", command_for=tmp_path / "old", version="3.10.4"))
    shutil.rmtree(good / "lib")
    assert is_foreign(good)


# ------------------------------------------------------------------ the tests themselves

#: Loops that wait by sleeping and are neither `eventually` nor `wait_until`.
OTHER_WAITS = {
    "tests/support/peer.py": "an engine watches its client for as long as it answers; the answer's end cancels it",
    "tests/wire/ollama_standin.py": "the same, in a program that runs by itself",
    "tests/wire/programs/fake_systemctl.py": "a program of its own, which its caller bounds",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_sleep(statement: ast.stmt) -> bool:
    """Whether it sleeps for some time; `sleep(0)` is one turn of the event loop."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    call = value.value if isinstance(value, ast.Await) else value
    return isinstance(call, ast.Call) and name_of(call) == "sleep" and ast.unparse(call.args[0]) != "0"


def is_wait(loop: ast.While) -> bool:
    """Whether a loop does nothing but sleep, and give up at some time."""
    others = [statement for statement in loop.body if not is_sleep(statement)]
    return len(others) < len(loop.body) and all(map(is_giving_up, others))


def is_giving_up(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return all(isinstance(one, ast.Raise | ast.Break) for one in statement.body)
    return isinstance(statement, ast.Assert)


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def test_a_test_waits_with_eventually_or_wait_until_alone() -> None:
    """Each private copy had another bound, and failed without the value that it saw."""
    found: set[str] = set()
    for folder in ("tests", "bench"):
        for file, tree in parsed(ROOT / folder).items():
            loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
            if any(map(is_wait, loops)):
                found.add(str(file.relative_to(ROOT)))
    assert found == {"tests/support/eventually.py", *OTHER_WAITS}


def asserting_functions(tree: ast.Module) -> set[str]:
    """The names of a module's functions that assert something, by themselves or by a function of the same module."""
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    calls = {
        one: {name_of(call) for call in ast.walk(one) if isinstance(call, ast.Call)} for one in functions
    }
    found: set[str] = set()
    while more := {one.name for one in functions if asserts(one, calls[one], found)} - found:
        found |= more
    return found


def asserts(function: Function, calls: set[str], known: set[str]) -> bool:
    by_name = {"raises", "warns", "fail", "eventually", "wait_until"} | known
    return (
        any(isinstance(node, ast.Assert) for node in ast.walk(function))
        or not calls.isdisjoint(by_name)
        or any(name.startswith("assert_") for name in calls)
    )


def test_every_test_asserts_something() -> None:
    """A test that only runs the code is green when the code does nothing."""
    silent: list[str] = []
    for file, tree in parsed(ROOT / "tests").items():
        asserting = asserting_functions(tree)
        tests = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, Function) and node.name.startswith("test_")
        }
        silent += [f"{file.relative_to(ROOT)}: {name}" for name in sorted(tests - asserting)]
    assert silent == []


def test_no_pattern_repeats_a_group_possessively_without_a_reason() -> None:
    """Before 3.11.5 Python does not go back when the next repetition of such a group fails halfway (gh-106052), and
    Debian 12 has 3.11.2: large bodies were read wrongly there."""
    group = re.compile(r"[^\\\['&(]\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in path.read_text().splitlines()
        if group.search(line) and "gh-106052" not in path.read_text()
    ]
    assert found == []
