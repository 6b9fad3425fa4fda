"""What people and scripts see of the listings."""

import json
import subprocess
import sys

import pytest

LISTINGS = [
    (["status"], "/wb/v1/status"),
    (["models"], "/v1/models"),
    (["requests"], "/wb/v1/requests"),
    (["explain", "smollm2"], "/wb/v1/explain?model=smollm2"),
]


@pytest.mark.parametrize(("command", "path"), LISTINGS)
def test_json_is_the_apis_answer_byte_for_byte(watchbill, daemon, command, path):
    """design 9: every listing has --json; standard output holds the API's JSON and nothing else."""
    odd = b'{ "data":[],\t"requests" : [],"models":{}, "unknown": "\\u00e9"}\n'
    daemon.answers[("GET", path)] = (200, odd)
    done = watchbill(*command, "--json")
    assert (done.returncode, done.stdout.encode(), done.stderr) == (0, odd, "")


def test_status_fits_into_80_columns_and_names_everything(watchbill):
    """RES-26 (basic): devices, models with state, sizes and reason, lanes; readable on the narrowest terminal."""
    watchbill.settings["COLUMNS"] = "80"
    done = watchbill("status")
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for told in (
        "1 of 3 models ready, 6 requests waiting", "7.1 GB of 22 GB", "used 5 GB", "loading 2 GB",
        "stopping 100 MB", "free 14.9 GB", "reserve 2 GB", "15 GB available", "● ready", "◐ loading",
        "✗ failed", "210 MB", "/models/broken.gguf: no such file", "4.2 s",
    ):  # fmt: skip
        assert told in done.stdout, told


def test_status_says_who_has_leased_a_model_where_it_is_served_and_why_a_program_is_down(watchbill, daemon):
    """RES-23, RES-26: not only in the JSON."""
    models = {
        "small": {"state": "ready", "tier": "local", "site": None, "leased": "laptop"},
        "big": {"state": "ready", "tier": "peer", "site": "rig"},
        "large": {
            "state": "absent",
            "tier": "burst",
            "site": "box",
            "reason": "it has not been requested yet",
        },
    }
    programs = {"door": {"pid": None, "starts": 8, "last_end": "exited with status 2: NATS_TOKEN is not set"}}
    status = {"devices": {}, "models": models, "lanes": {}, "programs": programs}
    daemon.answers[("GET", "/wb/v1/status")] = (200, json.dumps(status).encode())
    lines = [line.strip() for line in watchbill("status").stdout.splitlines()]
    for told in (
        "leased: laptop", "served by rig", "served by the burst tier box", "it has not been requested yet",
        "exited with status 2: NATS_TOKEN is not set",
    ):  # fmt: skip
        assert told in lines, told


@pytest.mark.parametrize("columns", [60, 40])
def test_status_stays_readable_on_a_narrow_terminal(watchbill, columns):
    """Whole states, sizes and titles: columns that can be spared are left out, and texts are wrapped."""
    watchbill.settings["COLUMNS"] = str(columns)
    shown = watchbill("status").stdout
    assert max(len(line) for line in shown.splitlines()) <= columns
    for told in (
        "● ready",
        "◐ loading",
        "✗ failed",
        "MEMORY",
        "QUEUED",
        "200 MB",
        "smollm2",
        "7.1 GB of 22 GB",
    ):
        assert told in shown, told
    assert not any("…" in line and "lab/" not in line for line in shown.splitlines())


def test_nothing_is_cut_where_no_terminal_sets_a_width(watchbill):
    """A script that greps the table finds whole names and whole reasons."""
    shown = watchbill("status").stdout
    assert "lab/Qwen2.5-14B-Instruct-GGUF:Q4_K_M" in shown
    assert "room was made by evicting two models that nobody had asked for in the last minute" in shown


def test_a_pipe_gets_no_colours(watchbill):
    assert "\x1b" not in watchbill("status").stdout


@pytest.mark.parametrize(
    ("setting", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_it_does_not_want_them(watchbill, setting, coloured):
    """pitfalls: NO_COLOR."""
    watchbill.settings |= setting
    screen = watchbill.on_terminal("status")
    assert screen.end() == 0
    assert ("\x1b[32m" in screen.seen) is coloured


def test_control_characters_of_others_never_reach_a_terminal(watchbill, daemon):
    """A model's name or an engine's words must not be able to steer somebody's terminal."""
    model = {"state": "failed", "reason": "\x1b]0;owned\x07 \x9b31m bad"}
    daemon.answers[("GET", "/wb/v1/status")] = (
        200,
        {"models": {"e\x1b[2Jvil": model}, "devices": {}, "lanes": {}},
    )
    watchbill.settings["NO_COLOR"] = "1"
    screen = watchbill.on_terminal("status")
    assert screen.end() == 0
    assert "vil" in screen.seen
    assert not set(screen.seen) & {"\x1b", "\x07", "\x9b"}


def test_a_terminal_without_unicode_gets_ascii(watchbill):
    watchbill.settings |= {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = watchbill("status")
    assert done.returncode == 0, done.stderr
    assert "* ready" in done.stdout
    assert done.stdout.isascii()


def test_an_older_daemon_without_some_fields_is_still_shown(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/status")] = (200, {"models": {"a": {}}, "devices": {"ram": {}}})
    done = watchbill("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "a " in done.stdout


def test_models_tells_the_other_names(watchbill):
    shown = watchbill("models").stdout
    assert "smollm2" in shown
    assert "tiny, small" in shown
    assert "2048" in shown


def test_requests_tells_place_and_reason(watchbill, daemon):
    """LANE-08 (basic): every waiting request can learn its position and the reason it waits."""
    waiting = {
        "id": "r-17", "model": "big", "lane": "default", "state": "waiting", "position": 2,
        "reason": "behind r-16 for big", "waited_ms": 1500, "forecast_ms": 1_000, "starts_in_ms": 9000,
    }  # fmt: skip
    daemon.answers[("GET", "/wb/v1/requests")] = (200, {"requests": [waiting]})
    shown = watchbill("requests").stdout
    for told in ("r-17", "big", "default", "waiting", "2", "1.5 s", "9 s", "behind r-16 for big"):
        assert told in shown, told


def test_a_running_request_starts_no_more(watchbill, daemon):
    """LANE-08 (basic): the forecast of a start that has been is not shown as one to come."""
    running = {"id": "r-1", "model": "a", "state": "running", "waited_ms": 85, "forecast_ms": 1050}
    daemon.answers[("GET", "/wb/v1/requests")] = (200, {"requests": [running]})
    assert watchbill("requests").stdout.splitlines()[1].split() == [
        "r-1",
        "a",
        "-",
        "running",
        "-",
        "85",
        "ms",
        "-",
    ]


def test_requests_says_when_there_are_none(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/requests")] = (200, {"requests": []})
    assert watchbill("requests").stdout == "no open requests\n"


def test_explain_understands_a_request_too(watchbill, daemon):
    """design 9: explain MODEL|REQUEST."""
    daemon.answers[("GET", "/wb/v1/explain?model=r-17")] = (404, {"error": {"message": "no model r-17"}})
    found = {
        "id": "r-17",
        "state": "waiting",
        "forecast_ms": 9000,
        "evict": ["a", "b"],
        "costs": {"momentum_ms": 3000},
    }
    daemon.answers[("GET", "/wb/v1/requests/r-17")] = (200, found)
    shown = watchbill("explain", "r-17").stdout
    assert "forecast  9 s" in shown
    assert "a, b" in shown
    assert "momentum  3 s" in shown


def test_explain_says_beside_a_figure_whether_it_was_measured(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/explain?model=smollm2")] = (
        200,
        {"load_ms": 2500, "load_is_guess": False, "service_ms": 900, "service_is_guess": True},
    )
    shown = watchbill("explain", "smollm2").stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [
        ["load", "2.5", "s", "(measured)"],
        ["service", "900", "ms", "(a", "guess)"],
    ]


def test_explain_of_a_stranger_says_what_the_daemon_said(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/explain?model=x%2Fy")] = (404, {"error": {"message": "no model x/y"}})
    done = watchbill("explain", "x/y")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "watchbill: no model x/y\n")


def test_events_are_shown_as_they_happen(watchbill, daemon):
    """RES-26 (basic): the journal can be followed."""
    event = {
        "t": 1_750_000_000_000,
        "event": "evict",
        "model": "a",
        "reason": "idle",
        "ms": 900,
        "bytes": 10**9,
    }

    def journal(line):
        line.open()
        line.say(f": here\n\ndata: {json.dumps(event)}\n\n")
        line.is_left()

    daemon.answers[("GET", "/wb/v1/events")] = journal
    following = watchbill.start("events", "--json")
    assert json.loads(following.stdout.readline()) == event
    following.terminate()
    following.communicate()
    shown = watchbill.start("events")
    line = shown.stdout.readline().decode()
    for told in ("evict", "idle", "900 ms", "1 GB"):
        assert told in line, told
    shown.terminate()
    shown.communicate()


def test_a_journal_that_ends_is_an_ended_daemon_and_no_silence(watchbill, daemon):
    """pitfalls: exit code 3, no daemon; a watcher must not go on as if nothing happened."""
    daemon.answers[("GET", "/wb/v1/events")] = lambda line: line.open()
    done = watchbill("events", "--json")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"the daemon at {daemon.url} hung up" in done.stderr


@pytest.mark.parametrize("command", ["status", "models", "requests"])
def test_a_listing_answers_without_the_heavy_imports(watchbill, daemon, command):
    """design 12: `status` answers in under 150 ms; these packages alone would take longer."""
    daemon.answers[("GET", "/wb/v1/requests")] = (200, [])
    program = (
        "import sys; from watchbill.cli import run; code = run(sys.argv[1:]);"
        "heavy = {'httptools', 'pydantic', 'rich', 'textual', 'cyclopts', 'asyncio', 'msgspec'};"
        "print(sorted(heavy & set(sys.modules)), code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, command],
        env=watchbill.environment, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stderr == "[] 0\n"
