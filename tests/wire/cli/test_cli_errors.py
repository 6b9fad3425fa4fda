"""What the command line says and how it ends when something is wrong."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from watchbill.cli.client import DEFAULT_URL, find_address
from watchbill.cli.quick import lead_with_command
from watchbill.files.host import boot_id, start_time
from watchbill.root import Root

ALL = [
    ["status"], ["models"], ["requests"], ["load", "m"], ["evict", "m"], ["explain", "m"], ["cancel", "r"],
    ["chat", "hello"], ["events"],
]  # fmt: skip


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("command", ALL, ids=lambda command: command[0])
def test_without_a_daemon_every_command_says_how_to_start_one(alone, command):
    """pitfalls: exit code 3 means no daemon, and the text says how to start it."""
    alone.url = free_address()
    done = alone(*command)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"watchbill: no daemon answers at {alone.url}")
    assert done.stderr.endswith(f"start one with: {alone.hint('up')}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["sttus"], "there is no command 'sttus'; did you mean status?"),
        (["create", "x"], "write [models.NAME] into watchbill.toml"),
        (["import", "ollama"], "watchbill config import"),
        (["push", "x"], "uploads no models"),
        (["status", "--jsn"], "Did you mean --json?"),
        (["status", "surplus"], "unexpected: surplus."),
        (["load", "a", "b", "c"], "unexpected: b c."),
        (["status", "--url"], "--url"),
        (["load"], "MODEL"),
        (["up", "--port", "many"], "many"),
        (["chat", "x", "--max-tokens", "0"], "max-tokens"),
        (["--root"], "--root"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_mistake(alone, command, told):
    """pitfalls: exit code 2 means wrong use."""
    done = alone(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "--help" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_device_given_as_the_command_of_a_maintenance_is_explained(alone):
    done = alone("maintenance", "start", "gpu:0", "--hours", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "watchbill: gpu:0 is a device, not a command; write: --device gpu:0\n"


@pytest.mark.parametrize(
    "command",
    [["up", "--root", ""], ["--root=", "status"], ["evict", "x", "--url", ""], ["status", "--url="]],
)
def test_an_empty_root_or_address_is_a_variable_that_was_not_set(alone, command):
    """design 9: neither the present folder becomes a root, nor whichever daemon is found obeys."""
    done = alone(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is empty; name one, or leave the option out" in done.stderr
    assert list(alone.home.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["load"], ["evict"], ["explain"], ["cancel"], ["logs"], ["maintenance", "end", "--device"]]
)
def test_a_name_that_is_no_text_is_an_unknown_name(watchbill, command):
    """pitfalls: one line and exit code 1 or 2, whatever bytes a shell hands over."""
    done = watchbill(*command, os.fsdecode(b"caf\xe9"))
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    "url", ["http://h/\xfc", "http://h/a b", "ftp://here", "127.0.0.1:8470", "http://", "http://h:many"]
)
def test_an_address_that_is_none_is_wrong_use(alone, url):
    done = alone("status", "--url", url)
    assert done.returncode == 2
    assert "is not an address" in done.stderr


def test_a_stranger_on_the_port_is_not_mistaken_for_the_daemon(alone, daemon):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        alone.url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        greeter = threading.Thread(target=greet, args=(stranger,))
        greeter.start()
        done = alone("status")
        greeter.join()
    assert done.returncode == 3
    assert "not a Watchbill daemon" in done.stderr
    daemon.answers[("GET", "/wb/v1/status")] = (200, b"<html>")
    alone.url = daemon.url
    assert alone("status").returncode == 3


def greet(stranger: socket.socket) -> None:
    line, _ = stranger.accept()
    with line:
        line.recv(4096)
        line.sendall(b"220 mail.example ESMTP\r\n")


def test_a_refusal_is_told_in_the_daemons_words(watchbill, daemon):
    """pitfalls: exit code 1 means failed."""
    error = {"error": {"message": "big can never fit: it needs 90 GB", "code": "never_fits"}}
    daemon.answers[("POST", "/wb/v1/models/big/load")] = (503, error)
    done = watchbill("load", "big")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "watchbill: big can never fit: it needs 90 GB\n"


def test_an_error_as_plain_text_or_none_at_all_is_told_too(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/status")] = (404, {"error": "not here"})
    assert watchbill("status").stderr == "watchbill: not here\n"
    daemon.answers[("GET", "/wb/v1/status")] = (500, b"oops")
    assert "answered 500" in watchbill("status").stderr


def test_a_missing_key_is_explained_and_a_present_one_is_sent(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/status")] = (401, {"error": {"message": "a key is needed"}})
    refused = watchbill("status")
    assert refused.returncode == 1
    assert "$WATCHBILL_API_KEY" in refused.stderr
    watchbill.settings["WATCHBILL_API_KEY"] = "s3cret"
    watchbill("models", "--json")
    assert daemon.heard[-1].headers["Authorization"] == "Bearer s3cret"


def test_a_key_is_kept_from_an_address_where_no_daemon_of_the_usual_root_lives(alone, daemon):
    """P8: any program may listen where a daemon was once, or usually is. A living daemon and a named address get it."""
    root = Root(alone.home / ".local/share/watchbill")
    root.create()
    alive = root.write_daemon(daemon.url)
    dead = json.dumps(alive._replace(start_time=alive.start_time + 1)._asdict())
    alone.settings = {"WATCHBILL_API_KEY": "s3cret", "WATCHBILL_HOME": ""}
    daemon.answers[("GET", "/wb/v1/status")] = (401, {"error": {"message": "a key is needed"}})
    for content, arguments, is_sent in (
        (json.dumps(alive._asdict()), [], True),
        (dead, [], False),
        (dead, ["--url", daemon.url], True),
    ):
        root.daemon_file.write_text(content)
        done = alone("status", *arguments)
        assert ("Authorization" in daemon.heard[-1].headers) is is_sent
        assert (f"add: --url {daemon.url}" in done.stderr) is not is_sent
    root.forget_daemon()
    assert find_address(None, root, environment={}) == (DEFAULT_URL, False)


@pytest.mark.parametrize("key", ["line\nbreak", "\u20ac"])
def test_a_key_that_cannot_be_one_is_wrong_use_and_is_not_shown(watchbill, key):
    """P8: no second header, and a secret stays one."""
    watchbill.settings["WATCHBILL_API_KEY"] = key
    done = watchbill("status")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "WATCHBILL_API_KEY" in done.stderr and key not in done.stderr


def test_the_line_break_at_the_end_of_a_key_is_not_part_of_it(watchbill, daemon):
    watchbill.settings["WATCHBILL_API_KEY"] = "secret\r\n"
    assert watchbill("status").returncode == 0
    assert daemon.heard[-1].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(watchbill, closed):
    """pitfalls: a supervisor may start us with none."""
    command = f"exec {sys.executable} -m watchbill status {closed}"
    program = f"import subprocess, sys; sys.exit(subprocess.run(['sh', '-c', {command!r}]).returncode)"
    started = watchbill.start_python(program)
    _, err = started.communicate(timeout=30)
    assert (started.returncode, err) == (0, b"")


def test_a_command_that_is_stopped_with_ctrl_c_ends_with_130(watchbill, daemon):
    """pitfalls: exit code 130 means Ctrl-C; no traceback."""
    arrived = threading.Event()

    def never(line):
        arrived.set()
        line.is_left()

    daemon.answers[("POST", "/wb/v1/models/slow/load")] = never
    waiting = watchbill.start("load", "slow")
    assert arrived.wait(20)
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, out, err) == (130, b"", b"")


def test_a_reader_who_has_seen_enough_is_no_error(watchbill, daemon):
    many = {f"model-{number}": {"state": "absent"} for number in range(5000)}
    daemon.answers[("GET", "/wb/v1/status")] = (200, {"models": many})
    shown = watchbill.start("status")
    shown.stdout.readline()
    shown.stdout.close()
    assert (shown.wait(20), shown.stderr.read()) == (0, b"")
    shown.stderr.close()


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["models"], ["config", "reference"]])
def test_an_output_that_takes_no_more_is_an_error_in_one_line(watchbill, command):
    """pitfalls: exit code 1; half a listing in a file must not look like a whole one."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "watchbill", *command],
            env=watchbill.environment, cwd=watchbill.home, stdout=full, stderr=subprocess.PIPE, timeout=30, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr
    assert b"no space left" in done.stderr


def test_the_nearest_word_about_the_address_wins(alone, daemon, tmp_path):
    """--url beats $WATCHBILL_URL beats what the daemon of the root wrote down."""
    run = tmp_path / "root" / "run"
    run.mkdir(parents=True)
    pid = os.getpid()
    record = {
        "pid": pid,
        "start_time": start_time(pid),
        "boot_id": boot_id(),
        "url": daemon.url,
        "version": "0",
    }
    (run / "daemon.json").write_text(json.dumps(record))
    assert alone("status").returncode == 0
    assert alone("--root", str(tmp_path / "root"), "status").returncode == 0
    nowhere = free_address()
    assert nowhere in alone("--root", str(tmp_path / "other"), "--url", nowhere, "status").stderr
    alone.url = nowhere
    assert nowhere in alone("status").stderr
    assert alone("status", "--url", daemon.url).returncode == 0


ALL_WITH_A_ROOT = [
    *ALL, ["config", "reload"], ["down"], ["batch", "list"], ["batch", "cancel", "b"], ["maintenance", "end"],
]  # fmt: skip


@pytest.mark.parametrize("command", ALL_WITH_A_ROOT, ids=" ".join)
@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_command_for_a_root_never_reaches_another_daemon(alone, daemon, tmp_path, command, how):
    """`evict --root EMPTY` used to evict in the daemon of the usual root. The hint starts one for this root."""
    empty = tmp_path / "an empty root"
    stale = {"pid": 2**22 + 1, "start_time": 1, "boot_id": boot_id(), "url": daemon.url, "version": "0"}
    alone.settings["WATCHBILL_URL"] = daemon.url if how == "option" else ""
    for record in (None, stale):
        if record is not None:
            (empty / "run").mkdir(parents=True)
            (empty / "run" / "daemon.json").write_text(json.dumps(record))
        if how == "variable":
            alone.settings["WATCHBILL_HOME"] = str(empty)
            done = alone(*command)
        else:
            done = alone(*command, "--root", str(empty))
        told = f"start one with: watchbill --root '{empty}' up\n"
        assert (done.returncode, daemon.heard) == (3, [])
        assert done.stderr.endswith(told), done.stderr


@pytest.mark.parametrize("command", ALL_WITH_A_ROOT, ids=" ".join)
def test_a_command_for_a_copied_root_never_reaches_the_originals_daemon(alone, daemon, tmp_path, command):
    """design 9: `cp -r` takes the record of a living daemon along; there is none on the copy all the same."""
    original = Root(tmp_path / "original")
    original.create()
    original.write_daemon(daemon.url)
    copy = tmp_path / "copy"
    shutil.copytree(original.path, copy)
    done = alone(*command, "--root", str(copy))
    assert (done.returncode, daemon.heard) == (3, []), done.stderr
    assert f"no daemon runs on {copy}" in done.stderr


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--root", "R", "--quiet", "status", "--json"], ["status", "--json", "--root", "R", "--quiet"]),
        (["--json", "--url", "U", "status"], ["status", "--json", "--url", "U"]),
        (["-q", "--root=R", "config", "check", "F"], ["config", "check", "F", "-q", "--root=R"]),
        (["--config", "F", "--json", "config", "show"], ["config", "show", "--config", "F", "--json"]),
        (["--root", "R", "maintenance", "run", "ram", "--", "x", "--json"],
         ["maintenance", "run", "ram", "--root", "R", "--", "x", "--json"]),
    ],
)  # fmt: skip
def test_options_before_the_command_mean_what_they_mean_behind_it(words, same):
    """Also before commands of two words, and never behind a `--`."""
    moved = lead_with_command(words)
    place = moved.index("--") if "--" in moved else len(moved)
    assert sorted(moved[:place]) == sorted(same[: same.index("--")] if "--" in same else same)
    assert moved[place:] == (same[same.index("--") :] if "--" in same else [])
    assert moved[0] == same[0] and (len(same) < 2 or same[1].startswith("-") or moved[1] == same[1])


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "status"], ["--quiet", "--url", "URL", "models"], ["--url=URL", "--json", "requests"],
    ],
)  # fmt: skip
def test_options_are_accepted_before_the_command(alone, daemon, words):
    daemon.answers["GET", "/wb/v1/requests"] = (200, {"requests": []})
    alone.url = daemon.url
    done = alone(*(word.replace("URL", daemon.url) for word in words))
    assert done.returncode == 0, done.stderr


def test_config_commands_take_the_root_before_them(alone, tmp_path):
    assert alone("--root", str(tmp_path / "a root"), "--quiet", "config", "init").returncode == 0


def test_a_broken_record_of_a_daemon_means_no_daemon(alone, tmp_path):
    run = tmp_path / "root" / "run"
    run.mkdir(parents=True)
    for content in ("", "[]", "{", '{"pid": "x"}', "[" * 3000):
        (run / "daemon.json").write_text(content)
        assert alone("down").returncode == 3


def test_the_version_is_one_line(alone):
    done = alone("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("watchbill ")
    assert done.stdout.count("\n") == 1


def test_the_completion_script_is_what_the_shell_accepts(alone, tmp_path):
    """pitfalls: shell completion."""
    script = alone("completion", "bash")
    assert script.returncode == 0, script.stderr
    assert "evict" in script.stdout
    (tmp_path / "script").write_text(script.stdout)
    subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)


@pytest.mark.parametrize("command", [["--help"], ["spool", "--help"], ["--version"]])
def test_a_reader_that_has_seen_enough_of_the_help_is_no_failure(command):
    """pitfalls: `| head -1` ends with 0, also under `pipefail`."""
    reading, writing = os.pipe()
    os.close(reading)  # it left before the first word
    done = subprocess.run([sys.executable, "-m", "watchbill", *command], stdout=writing, check=False)
    os.close(writing)
    assert done.returncode == 0


def test_words_of_ollama_mean_the_commands_they_mean_there(alone):
    """The first ten minutes: `ls`, `serve` and `help` work, with their options."""
    assert [each["name"] for each in json.loads(alone("ls", "--json").stdout)["models"]] == ["smollm2"]
    assert alone("serve", "--port", "99999").stderr == (
        "watchbill: 99999 is not a port; ports are 1 to 65535, and 0 picks one that is free\n"
    )
    assert "Usage: watchbill COMMAND" in alone("help").stdout


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "http://nosuch.invalid:8470",
            "no such host is known: check the name, and whether this machine is online",
        ),
        ("https://127.0.0.1:{port}", "it does not speak TLS; try http:// instead of https://"),
    ],
)
def test_an_address_that_does_not_answer_is_explained_in_words(alone, daemon, url, told):
    """No numbers of the operating system, and no words of its libraries."""
    alone.url = url.format(port=daemon.url.rpartition(":")[2])
    done = alone("status")
    assert done.returncode == 3 and told in done.stderr, done.stderr
    assert "rrno" not in done.stderr and "SSL:" not in done.stderr
