"""Tasks in a sandbox: what they may write to, on throwaway folders of the test alone (FLEET-10, R54)."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from support.fleet_rig import FleetRig, marked_processes
from watchbill.errors import ConfigError
from watchbill.fleet.agent.preparing import CannotCage, NotNow, prepare
from watchbill.fleet.agent.work import Setting
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.work import Work
from watchbill.fleet.permissions.rules import Network, RuleBook
from watchbill.fleet.permissions.ruling import read_rules
from watchbill.plans.task import Sandbox
from watchbill.processes import landlock
from watchbill.processes.sandbox import Cage, can_bubblewrap, can_landlock, in_bubblewrap, in_landlock

CAN = {Sandbox.LIGHT: can_landlock, Sandbox.STRICT: can_bubblewrap}


@pytest.fixture(params=[Sandbox.LIGHT, Sandbox.STRICT], ids=["light", "strict"])
def level(request: pytest.FixtureRequest) -> Sandbox:
    if not CAN[request.param]():
        pytest.skip(f"this machine cannot make the sandbox {request.param.value}")
    return request.param


def task(name: str, command: str, *keys: str) -> str:
    lines = "".join(f"- **{key}\n" for key in ("retries**: 0", *keys))
    return f"### {name}\n- **command**:\n  ```bash\n  {command}\n  ```\n{lines}"


def finish(rig: FleetRig) -> list[str]:
    """Runs to the end, and returns how each task ended."""
    rig.start("cpu-1")
    wait_until(rig.turn, 60)
    return [str(each["why"]) for each in rig.results("cpu-1")]


#: Ways to change something outside of the cage, in a throwaway folder: {OUT} is outside, {IN} may be written to.
WAYS_OUT = {
    "make": "touch {OUT}/made",
    "change": "echo x > {OUT}/kept",
    "append": "echo x >> {OUT}/kept",
    "remove": "rm {OUT}/kept",
    "move": "mv {OUT}/kept {OUT}/moved",
    "link": "ln -s x {OUT}/link",
    "folder": "mkdir {OUT}/folder",
    "through a link": "ln -s {OUT} {IN}/way && touch {IN}/way/made",
    "by a child": "setsid bash -c 'touch {OUT}/made'; test -e {OUT}/made",
    "by the path of a process": "touch /proc/self/root{OUT}/made",
    "by another folder": "cd {OUT} && touch made",
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A throwaway folder that a user without rights can reach."""
    with tempfile.TemporaryDirectory(prefix="watchbill-sandbox-") as made:
        root = Path(made)
        for path in (root, root / "in", root / "out"):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        (root / "out/kept").write_text("kept")
        (root / "out/kept").chmod(0o666)
        yield root


def run_without_rights(argv: list[str]) -> int:
    """Runs a program as a user without rights, whoever runs this test."""
    who: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    done = subprocess.run(
        argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False, **who
    )
    return done.returncode


def in_sandbox(level: Sandbox, cage: Cage, argv: list[str]) -> list[str]:
    return in_landlock(cage, argv) if level is Sandbox.LIGHT else in_bubblewrap(cage, argv)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_program_in_a_sandbox_changes_nothing_outside(place: Path, level: Sandbox, way: str) -> None:
    """FLEET-10, R54: and without the sandbox the same command succeeds, so this can fail."""
    cage = Cage((place / "in",), (place,))
    if run_without_rights(in_sandbox(level, cage, ["true"])) != 0:
        pytest.skip("a user without rights cannot make this sandbox here")
    command = WAYS_OUT[way].replace("{OUT}", str(place / "out")).replace("{IN}", str(place / "in"))
    before = state_of(place / "out")
    assert run_without_rights(in_sandbox(level, cage, ["bash", "-c", command])) != 0
    assert state_of(place / "out") == before
    (place / "in/way").unlink(missing_ok=True)
    assert run_without_rights(["bash", "-c", command]) == 0
    assert state_of(place / "out") != before


def state_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() if path.is_file() else "" for path in folder.iterdir()}


def test_a_task_in_a_sandbox_can_do_its_work(rig: FleetRig, level: Sandbox) -> None:
    """FLEET-10: batch folder, result file, passing files, devices, the plan's scripts, output."""
    folder = rig.submit(
        "b1",
        task(
            "works",
            "bash scripts/s.sh > {BATCH_PATH}/out && mkdir -p {BATCH_PATH}/a/b && mv {BATCH_PATH}/out {BATCH_PATH}/a/b "
            '&& test -d "$TMPDIR" && touch "$TMPDIR/x" && mktemp > /dev/null && echo \'{"n": 1}\' > $WATCHBILL_RESULT',
            f"sandbox**: {level.value}",
        )
        + task("says", "echo '{\"n\": 2}'", f"sandbox**: {level.value}"),
    )
    (folder / "scripts").mkdir()
    (folder / "scripts/s.sh").write_text("echo done\n")
    assert finish(rig) == ["done", "done"]
    assert (rig.batch_folder("b1") / "a/b/out").read_text() == "done\n"
    assert sorted(json.loads(each["answer"])["n"] for each in rig.results("cpu-1")) == [1, 2]
    assert list((rig.agents[0].folder / "outputs").iterdir()) == []
    assert rig.agents[0].heartbeat()["sandbox"] in ("light", "strict")


def test_rules_give_every_task_a_sandbox_and_further_folders(rig: FleetRig, level: Sandbox) -> None:
    """FLEET-10: [sandbox] of the root; a plan cannot take it away."""
    data, other = rig.root.parent / "data", rig.root.parent / "other"
    data.mkdir()
    other.mkdir()
    (rig.root / "permissions.toml").write_text(f'[sandbox]\nlevel = "{level.value}"\nwrite = ["{data}/**"]\n')
    rig.submit("b1", task("may", f"touch {data}/made") + task("may_not", f"touch {other}/made"))
    (rig.root / "plans/p/permissions.toml").write_text('[sandbox]\nlevel = "none"\n')
    assert sorted(finish(rig)) == ["done", "failed"]
    assert (data / "made").exists() and not (other / "made").exists()


CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"


def test_a_task_without_network_reaches_no_port(rig: FleetRig, level: Sandbox) -> None:
    """FLEET-10, R54: a port of this test, with and without."""
    import socket

    if level is Sandbox.LIGHT and landlock.version() < landlock.KNOWS_TCP:
        pytest.skip("this kernel's landlock knows no network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Not the environment's: a strict sandbox has a /tmp of its own, and the checkout may lie there.
        command = f'{os.path.realpath(sys.executable)} -c "{CONNECT}" {server.getsockname()[1]}'
        (rig.root / "permissions.toml").write_text(f'[sandbox]\nlevel = "{level.value}"\n')
        rig.submit("b1", task("reaches", command))
        assert finish(rig) == ["done"]
        (rig.root / "permissions.toml").write_text(f'[sandbox]\nlevel = "{level.value}"\nnet = "none"\n')
        rig.submit("b2", task("reaches", command))
        wait_until(rig.turn, 60)
    assert [each["why"] for each in rig.results("cpu-1")] == ["done", "failed"]


def test_a_stopped_task_in_a_sandbox_leaves_no_process(rig: FleetRig, level: Sandbox) -> None:
    """R55: the guard ends the sandbox and everything in it."""
    command = "touch {BATCH_PATH}/started; ( setsid sleep 1000 & ); sleep 1000"
    rig.submit("b1", task("stays", command, f"sandbox**: {level.value}", "timeout**: 2s"))
    assert finish(rig) == ["timeout"]
    assert (rig.batch_folder("b1") / "started").exists()
    assert not marked_processes(f"BATCH_PATH={rig.root}")


def test_an_agent_that_cannot_make_the_sandbox_runs_nothing_of_the_task(tmp_path: Path) -> None:
    """FLEET-10: another agent may; without one the task fails and says why."""
    for folder in ("plans/p/history/b1", "outputs"):
        (tmp_path / folder).mkdir(parents=True)
    demands = Work(command="true", sandbox=Sandbox.STRICT)
    slip = Slip("a", "b1", "p", 1, 1, 0, (), {}, (), demands)
    for can in (frozenset[Sandbox](), frozenset({Sandbox.LIGHT})):
        setting = Setting(tmp_path, "cpu-1", tmp_path / "outputs", sandboxes=can)
        with pytest.raises(CannotCage, match="strict"):
            prepare(setting, "name", slip)
    assert list((tmp_path / "outputs").iterdir()) == []


@pytest.mark.parametrize(
    ("key", "word"), [("sandbox", "vault"), ("type", "dream"), ("class", "quantum"), ("sandbox", "STRICT")]
)
def test_a_word_of_a_later_version_in_a_slip_is_left_to_agents_that_know_it(
    tmp_path: Path, key: str, word: str
) -> None:
    """FLEET-10: a sandbox that this agent does not know is not taken for none."""
    for folder in ("plans/p/history/b1", "outputs"):
        (tmp_path / folder).mkdir(parents=True)
    content = Slip("a", "b1", "p", 1, 1, 0, (), {}, (), Work(command="true")).encode()
    slip = Slip.decode(json.dumps({**json.loads(content), key: word}).encode())
    setting = Setting(tmp_path, "cpu-1", tmp_path / "outputs", sandboxes=frozenset(Sandbox))
    with pytest.raises(NotNow, match=f"{key} .*{word}.*this version does not know"):
        prepare(setting, "name", slip)
    assert json.loads(slip.encode())[key] == word
    assert list((tmp_path / "outputs").iterdir()) == []


WRONG = {
    '[sandbox]\nlevel = "hard"\n': "not known",
    '[sandbox]\nlevle = "light"\n': "level",
    '[sandbox]\nnet = "some"\n': "not known",
    '[sandbox]\nwrite = ["data"]\n': "whole path",
    '[sandbox]\nwrite = "/data"\n': "no list",
    'sandbox = "light"\n': "no table",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_in_the_sandbox_is_named(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rules(text, "permissions.toml")
    assert WRONG[text] in str(caught.value)


def test_a_plan_can_only_add_restrictions() -> None:
    strict = read_rules('[sandbox]\nlevel = "strict"\nnet = "none"\nwrite = ["/data"]\n', "permissions.toml")
    lax = read_rules(
        '[sandbox]\nlevel = "none"\nnet = "all"\nwrite = ["/other"]\n', "plans/p/permissions.toml"
    )
    for book in (RuleBook(strict, lax), RuleBook(strict)):
        assert (book.sandbox.level, book.sandbox.net) == (Sandbox.STRICT, Network.NONE)
        assert book.sandbox.write == ("/data",)
    assert RuleBook(lax, strict).sandbox.level is Sandbox.STRICT
    assert RuleBook(None, lax).sandbox.write == ()
