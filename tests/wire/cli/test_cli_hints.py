"""Hints work when they are pasted: into another terminal, in another folder, for the root that was meant."""

import json
import shlex
import subprocess

import pytest

EVENT = '{"id": "one", "kind": "note", "ts": "2026-01-01T00:00:00Z"}\n'


@pytest.fixture
def pasted(alone, tmp_path):
    """Runs a command as a person pastes it: elsewhere, and where nothing names the root."""
    elsewhere = tmp_path / "another folder"
    elsewhere.mkdir()

    def paste(command: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        environment = alone.environment | {"WATCHBILL_HOME": "", "WATCHBILL_URL": ""}
        return subprocess.run(
            command, shell=True, cwd=elsewhere, env=environment, input=stdin, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip

    return paste


def test_a_request_that_could_not_wait_is_explained_by_a_command_for_its_root(watchbill, daemon):
    error = {"error": {"message": "model m cannot start this within 2 s", "code": "wait_exceeded"}}
    daemon.answers[("POST", "/v1/chat/completions")] = (503, error)
    done = watchbill("chat", "hello", "--model", "m")
    assert done.returncode == 1
    told = f"watchbill: model m cannot start this within 2 s; see: {watchbill.hint('explain', 'm')}\n"
    assert done.stderr == told


@pytest.mark.parametrize("waiting", [0, 2])
def test_who_evicts_a_model_that_comes_back_is_told_how_to_keep_it_away(watchbill, daemon, waiting):
    """RES-12: the requests that wait for it bring it back."""
    said = {"message": "m is unloaded", "model": "m", "waiting": waiting}
    daemon.answers[("POST", "/wb/v1/models/m/evict")] = (200, said)
    done = watchbill("evict", "m")
    assert (done.returncode, done.stdout) == (0, "m is unloaded\n")
    assert (watchbill.hint("requests") in done.stderr) == bool(waiting)
    assert (watchbill.hint("cancel") in done.stderr) == bool(waiting)


@pytest.mark.parametrize("command", ["status", "models", "chat hello"])
def test_a_daemon_without_models_tells_how_to_begin_for_its_root(watchbill, daemon, command):
    daemon.answers[("GET", "/wb/v1/status")] = (200, {"devices": {}, "models": {}, "lanes": {}})
    daemon.answers[("GET", "/v1/models")] = (200, {"object": "list", "data": []})
    done = watchbill(*command.split())
    said = done.stdout + done.stderr
    assert (
        watchbill.hint("pull") in said
        and f"{watchbill.hint('config', 'init')} writes one to start from" in said
    )


def test_the_command_that_mends_a_corpus_finds_it_from_anywhere(alone, pasted):
    (alone.home / "a corpus.jsonl").write_text(EVENT + "torn\n")
    done = alone("corpus", "check", "a corpus.jsonl")
    assert done.returncode == 1
    command = done.stdout.rpartition("; ")[2].removesuffix(" takes them out\n")
    assert pasted(command).returncode == 0
    assert alone("corpus", "check", "a corpus.jsonl").returncode == 0


def test_the_command_that_lists_a_spool_finds_it_from_anywhere(alone, pasted):
    assert alone("spool", "enqueue", "--spool", "./a spool", stdin=EVENT).returncode == 0
    done = alone("spool", "show", "nix", "--spool", "./a spool")
    assert done.returncode == 1
    listed = pasted(done.stderr.rpartition("; ")[2].removesuffix(" shows what there is\n") + " --json")
    assert listed.returncode == 0, listed.stderr
    assert len(listed.stdout.splitlines()) == 1


def test_the_command_that_makes_a_spool_makes_the_one_that_was_meant(alone, pasted):
    missing = alone("spool", "list", "--spool", "./a spool")
    assert missing.returncode == 2
    made = pasted(missing.stderr.rpartition(": ")[2], stdin=EVENT)
    assert made.returncode == 0, made.stderr
    assert json.loads(alone("spool", "stats", "--spool", "./a spool", "--json").stdout)["queue"] == 1


@pytest.mark.parametrize("how", ["option", "variable"])
def test_what_a_config_check_says_to_fetch_goes_to_the_root_that_was_checked(alone, tmp_path, how):
    root = tmp_path / "a root"
    named = ["--root", str(root)] if how == "option" else []
    if how == "variable":
        alone.settings["WATCHBILL_HOME"] = str(root)
    assert alone("config", "init", *named).returncode == 0
    done = alone("config", "check", *named)
    assert done.returncode == 2
    assert f"fetch it with watchbill --root {shlex.quote(str(root))} pull smollm2, or" in done.stderr
