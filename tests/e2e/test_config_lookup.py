"""Which config a command uses, with a real daemon that was started with one from another folder."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.place import Place, scripted
from support.forked_commands import run_watchbill

CONFIG = scripted("alpha") + '\n[spool.notes]\nschema = "any"\ncorpus = "notes.jsonl"\npath = "events"\n'
EVENT = '{"id": "one", "kind": "note", "ts": 1}\n'


@pytest.fixture
def elsewhere(place: Place, tmp_path: Path) -> Path:
    """A folder with a config of its own, in which commands for the root of `place` are typed."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "watchbill.toml").write_text(scripted("stranger"))
    place.config.write_text(CONFIG)
    return folder


def typed(
    place: Place, folder: Path, *arguments: str, stdin: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    return run_watchbill(*arguments, cwd=folder, env=place.environment | variables, input=stdin, timeout=60)


def models_shown(place: Place, folder: Path, *arguments: str, **variables: str) -> set[str]:
    done = typed(place, folder, "config", "show", "--json", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    keys = (each["key"] for each in json.loads(done.stdout)["values"])
    return {key.split(".")[1] for key in keys if key.startswith("models.")}


@pytest.mark.parametrize("state", ["running", "stopped", "killed"])
def test_a_root_leads_to_the_config_its_daemon_was_started_with(
    place: Place, elsewhere: Path, state: str
) -> None:
    """docs/config.md: from any folder, while the daemon runs and after its end."""
    daemon = place.up()
    if state == "stopped":
        assert place.run("down").returncode == 0
    elif state == "killed":
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    named = ("--root", str(place.root))
    stored = typed(place, elsewhere, "spool", "enqueue", "--spool", "notes", *named, stdin=EVENT)
    assert stored.returncode == 0, stored.stderr
    drained = typed(place, elsewhere, "spool", "drain", "--spool", "notes", "--once", *named)
    assert drained.returncode == 0, drained.stderr
    assert (place.root / "events" / "queue").is_dir()
    read = typed(place, elsewhere, "corpus", "read", "notes", *named)
    assert (read.returncode, read.stdout) == (0, EVENT), read.stderr
    assert models_shown(place, elsewhere, *named) == {"alpha"}
    checked = typed(place, elsewhere, "config", "check", *named)
    assert (checked.returncode, checked.stdout.split(" is right")[0]) == (0, str(place.config))
    looked = json.loads(typed(place, elsewhere, "doctor", "--json", *named).stdout)
    assert str(place.config) in json.dumps(looked)
    assert str(place.config) in typed(place, elsewhere, "systemd", "units", "--self", "--user", *named).stdout
    assert [each.name for each in elsewhere.iterdir()] == ["watchbill.toml"]


def test_what_names_a_config_counts_before_the_daemons(place: Place, elsewhere: Path) -> None:
    """docs/config.md: --config, then $WATCHBILL_CONFIG, then the daemon's; without --root only a running daemon's."""
    place.up()
    named, mine = ("--root", str(place.root)), elsewhere / "mine.toml"
    mine.write_text(scripted("mine"))
    assert models_shown(place, elsewhere, *named, WATCHBILL_CONFIG="mine.toml") == {"mine"}
    assert models_shown(
        place, elsewhere, *named, "--config", "watchbill.toml", WATCHBILL_CONFIG=str(mine)
    ) == {"stranger"}
    by_variable = {"WATCHBILL_HOME": str(place.root)}
    assert models_shown(place, elsewhere, **by_variable) == {"alpha"}
    assert place.run("down").returncode == 0
    assert models_shown(place, elsewhere, **by_variable) == {"stranger"}
    place.config.unlink()
    assert models_shown(place, elsewhere, *named) == {"stranger"}


def test_the_hint_that_starts_a_daemon_again_starts_it_with_its_config(place: Place, elsewhere: Path) -> None:
    """Hints work when they are pasted, also into a terminal in another folder."""
    place.up()
    assert place.run("down").returncode == 0
    refused = typed(place, elsewhere, "status", "--root", str(place.root))
    assert refused.returncode == 3
    assert refused.stderr.strip().endswith(f"--root {place.root} up --config {place.config}")


def test_a_mistyped_spool_does_not_become_a_folder(place: Place, elsewhere: Path) -> None:
    """docs/spool.md: where the config has spools, a bare word is one of them or a folder that is there."""
    (elsewhere / "watchbill.toml").write_text(CONFIG)
    done = typed(place, elsewhere, "spool", "enqueue", "--spool", "ntoes", stdin=EVENT)
    assert done.returncode == 2
    assert "did you mean notes?" in done.stderr and "./ntoes" in done.stderr
    assert [each.name for each in elsewhere.iterdir()] == ["watchbill.toml"]
    done = typed(place, elsewhere, "spool", "enqueue", "--spool", "./ntoes", stdin=EVENT)
    assert done.returncode == 0, done.stderr
