"""Commands that change something: what they ask for, and what they show meanwhile."""

import json
import threading

import pytest

HARD = "lab/Qwen 2.5?x=1#ü"
QUOTED = "lab%2FQwen%202.5%3Fx%3D1%23%C3%BC"


@pytest.mark.parametrize(
    ("command", "address", "body"),
    [
        (["load", HARD], ("POST", f"/wb/v1/models/{QUOTED}/load"), {}),
        (["evict", HARD], ("POST", f"/wb/v1/models/{QUOTED}/evict"), {"force": False}),
        (["evict", HARD, "--force"], ("POST", f"/wb/v1/models/{QUOTED}/evict"), {"force": True}),
        (["pin", HARD], ("POST", f"/wb/v1/models/{QUOTED}/pin"), {"pinned": True}),
        (["pin", HARD, "--off"], ("POST", f"/wb/v1/models/{QUOTED}/pin"), {"pinned": False}),
        (["cancel", "r-1"], ("DELETE", "/wb/v1/requests/r-1"), None),
    ],
)
def test_an_action_is_asked_for_by_its_documented_address(watchbill, daemon, command, address, body):
    daemon.answers[address] = (200, {"message": "it is done"})
    done = watchbill(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "it is done\n", "")
    assert (daemon.heard[-1].json if body is not None else None) == body
    if body is not None:
        assert daemon.heard[-1].headers["Content-Type"] == "application/json"
    answered = watchbill(*command, "--json")
    assert json.loads(answered.stdout) == {"message": "it is done"}


def test_an_empty_answer_is_a_success_too(watchbill, daemon):
    daemon.answers[("DELETE", "/wb/v1/requests/r-1")] = (204, b"")
    assert watchbill("cancel", "r-1").stdout == "r-1 is cancelled\n"
    assert watchbill("cancel", "r-1", "--json").stdout == "{}\n"


def test_cancelling_a_stranger_says_where_to_look(watchbill):
    done = watchbill("cancel", "r-404")
    assert done.returncode == 1
    assert done.stderr == f"watchbill: no open request r-404; {watchbill.hint('requests')} lists them\n"


def test_a_failed_load_shows_the_engines_last_words(watchbill, daemon):
    """pitfalls: the last engine lines are inside the error of a failed load."""
    message = "bad cannot be loaded: exit code 1\n  gguf: bad magic\n  giving up"
    daemon.answers[("POST", "/wb/v1/models/bad/load")] = (
        503,
        {"error": {"message": message, "code": "model_failed"}},
    )
    done = watchbill("load", "bad")
    assert (done.returncode, done.stderr) == (1, f"watchbill: {message}\n")


def hold_load(daemon):
    """Makes the load of `slow` last until the returned event is set."""
    go_on = threading.Event()

    def load(line):
        assert go_on.wait(20)
        line.open("application/json")
        line.say('{"message": "slow is loaded"}')

    daemon.answers[("POST", "/wb/v1/models/slow/load")] = load
    daemon.answers[("GET", "/wb/v1/status")] = (
        200,
        {"models": {"slow": {"state": "loading", "load_ms": 60_000}}},
    )
    return go_on


def test_a_load_shows_its_progress_to_a_person(watchbill, daemon):
    """design 9: every long action shows progress."""
    go_on = hold_load(daemon)
    screen = watchbill.on_terminal("load", "slow")
    screen.see("loading slow (loading)")
    screen.see("━")
    go_on.set()
    assert screen.end() == 0
    assert "slow is loaded" in screen.seen


def test_quiet_draws_no_bar_even_on_a_terminal(watchbill, daemon):
    go_on = hold_load(daemon)
    go_on.set()
    screen = watchbill.on_terminal("load", "slow", "--quiet")
    assert screen.end() == 0
    assert screen.seen == "slow is loaded\r\n"


def test_a_bar_that_is_left_with_ctrl_c_ends_with_130(watchbill, daemon):
    go_on = hold_load(daemon)
    screen = watchbill.on_terminal("load", "slow")
    screen.see("loading slow (loading)")
    screen.type("\x03")
    assert screen.end() == 130
    assert "Traceback" not in screen.seen
    go_on.set()
