"""`config init` and `config check` as a newcomer meets them: on a bare machine, and on a full disk."""

import json
import subprocess
import sys

import pytest

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_who_begins_with_a_config_is_told_how_to_get_its_model(alone):
    """design 9: the model of the first config is not there yet, and the advice is a whole command."""
    fetch = alone.hint("pull", "smollm2")
    assert fetch in alone("config", "init").stderr
    missing = alone("config", "check")
    assert missing.returncode == 2
    assert f"fetch it with {fetch}, or correct the path" in missing.stderr


def test_a_bare_machine_has_nothing_to_mend(alone):
    """design 9: without a config `up` fetches the one small model itself, so that it is missing is no fault."""
    done = alone("config", "check")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_full_disk_takes_nobodys_config_and_leaves_no_half_one(alone, force):
    """design 9: written whole or not at all, and the message names the file."""
    place = alone.home / "mine.toml"
    if force:
        place.write_text("# mine\n")
    words = [sys.executable, "-m", "watchbill", "config", "init", "mine.toml", *force]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *words],
        env=alone.environment, cwd=alone.home, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "watchbill: mine.toml: cannot be written: file too large\n"
    assert [each.name for each in alone.home.iterdir()] == (["mine.toml"] if force else [])
    assert not force or place.read_text() == "# mine\n"


def test_overwriting_a_link_writes_the_file_behind_it(alone):
    """design 9: dotfiles are often links."""
    (alone.home / "real.toml").write_text("# old\n")
    (alone.home / "watchbill.toml").symlink_to("real.toml")
    assert alone("config", "init", "--force").returncode == 0
    assert (alone.home / "watchbill.toml").is_symlink()
    assert "[models.smollm2]" in (alone.home / "real.toml").read_text()


def test_an_error_without_a_place_in_a_file_is_told_as_json_too(alone):
    """design 9: a check that fails says why, also to programs."""
    told = json.loads(alone("config", "check", "--json", "--root", "~nobody-of-this-name/x").stdout)
    assert told["ok"] is False
    assert "nobody-of-this-name" in told["errors"][0]["text"]


def test_a_variable_that_is_not_set_hides_no_other_finding(alone):
    """Issue 19: all errors at once; a key's variable is often set for the daemon alone."""
    (alone.home / "watchbill.toml").write_text(
        '[server]\nkeys = { me = { key = "env:NOT_SET_HERE" } }\n'
        '[models.a]\nengine = "process"\ncommand = "no-such-program --port ${PORT}"\n'
    )
    checked = alone("config", "check")
    assert checked.returncode == 2
    assert "'NOT_SET_HERE' is not set" in checked.stderr
    assert "there is no program no-such-program" in checked.stderr
    told = json.loads(alone("config", "check", "--json").stdout)
    assert [each["key"] for each in told["errors"]] == ["server.keys.me.key"]
    assert [each["key"] for each in told["findings"] if each["grave"]] == ["models.a.command"]
