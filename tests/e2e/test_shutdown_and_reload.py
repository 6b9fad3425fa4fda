"""The end of a daemon, asked for in every way there is, and a config that changes while it runs."""

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.place import Daemon, Place, gone, scripted
from support.eventually import wait_until

TALKER = scripted("talker", 'service = "4s", tokens = 20')
OTHER = scripted("other", 'text = "one"')


def test_a_term_lets_the_running_finish_and_sends_the_waiting_away(place: Place) -> None:
    """design 9: a running stream ends whole, queued ones get 503 with Retry-After, exit 0 within 30 s."""
    place.config.write_text(TALKER + OTHER)
    daemon = place.up()
    assert daemon.chat("other")[0] == 200
    stream = daemon.stream("talker", 20)
    first = stream.event()
    with ThreadPoolExecutor(2) as crowd:
        queued = [crowd.submit(daemon.chat, "talker", 5) for _ in range(2)]
        wait_until(lambda: daemon.model("talker")["queued"] == 2)
        engines = [model["pid"] for model in daemon.status()["models"].values()]
        daemon.signal(signal.SIGTERM)
        asked = time.monotonic()
        for waiting in queued:
            status, headers, answer = waiting.result(10)
            assert (status, answer["error"]["code"]) == (503, "shutting_down")
            assert 1 <= int(headers["retry-after"]) <= 60
        assert daemon.process.poll() is None  # the stream still runs
        events = [first, *stream.rest()]
    assert events[-1] == "[DONE]"
    words = [json.loads(event)["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert len([word for word in words if word]) == 20
    assert daemon.wait() == 0
    assert time.monotonic() - asked < 30
    assert gone(engines) and place.leftovers() == []
    assert "Traceback" not in daemon.stderr
    assert not (place.root / "run" / "daemon.json").exists()


@pytest.mark.parametrize("lane", ["default", "usual", "idle"])
def test_a_term_lets_whole_answers_of_every_class_finish(place: Place, lane: str) -> None:
    """design 9, RES-12: an answer that is not streamed had sent no byte, so it was refused in the middle, unless its
    class was interactive. It has sentences, at whose ends it would make way for others."""
    place.config.write_text(
        scripted("talker", 'service = "3s", tokens = 30, text = "One two. Three four."', "concurrency = 2")
        + '[lanes.usual]\nclass = "normal"\n[lanes.idle]\nclass = "background"\n'
    )
    daemon = place.up()
    with ThreadPoolExecutor(2) as callers:
        whole = callers.submit(daemon.chat, "talker", 30, lane=lane)
        body = {"model": "talker", "max_tokens": 30, "messages": [{"role": "user", "content": "Hi"}]}
        streamed = callers.submit(
            daemon.ask, "/v1/chat/completions", body | {"stream": True}, headers={"X-Watchbill-Lane": lane}
        )
        wait_until(lambda: daemon.model("talker")["in_flight"] == 2)
        daemon.signal(signal.SIGTERM)
        status, _, answer = whole.result(30)
        assert status == 200, answer
        assert len(answer["choices"][0]["message"]["content"].split()) == 30
        assert streamed.result(30)[2].endswith(b"[DONE]\n\n")
    assert daemon.wait() == 0


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGTERM, signal.SIGTERM), 0), ((signal.SIGINT, signal.SIGINT), 130)],
    ids=["TERM", "Ctrl-C"],
)
def test_a_second_signal_ends_it_now(place: Place, numbers: tuple[int, int], code: int) -> None:
    """design 9: a second signal does not wait for a stream that would take a minute; it ends with an error event."""
    place.config.write_text(scripted("talker", 'service = "60s", tokens = 600'))
    daemon = place.up()
    stream = daemon.stream("talker", 600)
    assert stream.event()
    daemon.signal(numbers[0])
    wait_until(lambda: not is_reachable(daemon))
    assert daemon.process.poll() is None
    daemon.signal(numbers[1])
    assert daemon.wait(8) == code
    assert place.leftovers() == []
    assert "Traceback" not in daemon.stderr, daemon.stderr
    assert stream.rest()[-1] != "[DONE]"


def test_a_detached_daemon_is_stopped_now(place: Place) -> None:
    """pitfalls: up --detach returns when it is ready; down --now does not wait for a running answer."""
    place.config.write_text(scripted("talker", 'service = "60s", tokens = 600'))
    started = place.run("up", "--detach", "--port", "0")
    assert started.returncode == 0, started.stderr
    daemon = Daemon.at(started.stdout.removeprefix("ready ").strip())
    stream = daemon.stream("talker", 600)
    assert stream.event()
    asked = time.monotonic()
    stopped = place.run("down", "--now")
    assert stopped.returncode == 0, stopped.stderr
    assert time.monotonic() - asked < 15
    assert place.leftovers() == []
    assert stream.rest()[-1] != "[DONE]"


def test_the_log_of_a_detached_daemon_has_a_bound(place: Place) -> None:
    """pitfalls: rotation bounds for every log, 64 MiB x 5; the daemon's own, too, while it runs."""
    place.config.write_text(OTHER)
    log = place.root / "logs" / "daemon.log"
    log.parent.mkdir(parents=True)
    log.touch()
    os.truncate(log, 65 * 2**20)  # zeros that take no room
    started = place.run("up", "--detach", "--port", "0")
    assert started.returncode == 0, started.stderr
    wait_until(lambda: log.stat().st_size < 2**20)
    kept = log.with_name("daemon.log.1")
    wait_until(lambda: kept.stat().st_size <= 64 * 2**20)
    assert b"ready http://" in kept.read_bytes()[-(2**20) :]
    assert place.run("down").returncode == 0


def test_a_changed_config_touches_only_what_changed(place: Place) -> None:
    """pitfalls: by SIGHUP, by a changed file, by `config reload`: unchanged models do not notice, changed ones come
    back changed, a wrong file is refused whole."""
    place.config.write_text(TALKER + OTHER)
    daemon = place.up()
    assert daemon.chat("other")[0] == 200
    stream = daemon.stream("talker", 20)
    assert stream.event()
    talker, other = (daemon.model(name)["pid"] for name in ("talker", "other"))

    for number, how in enumerate(("SIGHUP", "changed file", "config reload")):
        changed = TALKER + OTHER.replace("one", f"word{number}") + scripted(f"new{number}")
        reload(place, daemon, changed, how)
        wait_until(lambda name=f"new{number}": name in daemon.status()["models"])
        assert daemon.chat("other")[2]["choices"][0]["message"]["content"].split()[0] == f"word{number}"
        assert other != daemon.model("other")["pid"]
        assert set(daemon.status()["models"]) == {"talker", "other", f"new{number}"}
        other = daemon.model("other")["pid"]

        reload(place, daemon, changed + f"[modles.wrong{number}]\n", how, refused=True)
        assert set(daemon.status()["models"]) == {"talker", "other", f"new{number}"}
        assert (daemon.model("talker")["pid"], daemon.model("other")["pid"]) == (talker, other)
    assert stream.rest()[-1] == "[DONE]"
    assert daemon.model("talker")["loads"] == 1
    assert daemon.stop() == 0


def test_a_reload_of_what_was_taken_over_already_says_since_when_it_is_in_force(place: Place) -> None:
    """design 9: the daemon takes a changed file over by itself, and the operator who asks is not left in doubt."""
    place.config.write_text(OTHER)
    daemon = place.up()
    began = json.loads(daemon.ask("/wb/v1/config/reload", {})[2])
    assert began["changes"] == [] and began["since"]
    place.config.write_text(OTHER + scripted("new"))
    wait_until(lambda: "new" in daemon.status()["models"])
    done = place.run("config", "reload")
    assert done.returncode == 0
    assert re.fullmatch(r"nothing changed; this config is in force since [0-9-]+ [0-9:]+\n", done.stdout), (
        done
    )
    assert json.loads(daemon.ask("/wb/v1/config/reload", {})[2])["since"] >= began["since"]
    place.config.write_text(OTHER + "[journal]\ntraffic = false\n")
    wait_until(lambda: "the change of [journal] needs a restart" in daemon.stderr)
    done = place.run("config", "reload")
    assert "nothing changed" in done.stdout and "the change of [journal] needs a restart" in done.stdout
    assert daemon.stop() == 0


def reload(place: Place, daemon: Daemon, config: str, how: str, *, refused: bool = False) -> None:
    """Changes the config and lets the daemon know, or lets it find out; sees it say what is wrong."""
    before = daemon.stderr.count("was refused")
    place.config.write_text(config)
    if how == "config reload":
        done = place.run("config", "reload")
        assert (done.returncode, "modles" in done.stderr) == (1 if refused else 0, refused), done
        return
    if how == "SIGHUP":
        daemon.signal(signal.SIGHUP)
    if refused:
        wait_until(lambda: daemon.stderr.count("was refused") > before)
        assert "watchbill.toml:" in daemon.stderr and "modles" in daemon.stderr


def test_a_model_that_is_put_back_before_its_process_is_gone_answers_again(place: Place) -> None:
    """LANE-04: an editor that saves twice. The model's next request is answered, and `explain` does not fail."""
    stubborn = scripted("stubborn", 'fail = "ignore-term"')
    place.config.write_text(OTHER + stubborn)
    daemon = place.up()
    assert daemon.chat("stubborn")[0] == 200
    first = daemon.model("stubborn")["pid"]
    place.config.write_text(OTHER)
    assert place.run("config", "reload").returncode == 0
    assert daemon.is_in("stubborn", "stopping")
    place.config.write_text(OTHER + stubborn)
    assert place.run("config", "reload").returncode == 0
    explained = place.run("explain", "stubborn")
    assert explained.returncode == 0, explained.stderr
    status, _, answer = daemon.chat("stubborn", 5)
    assert status == 200, answer
    assert daemon.model("stubborn")["pid"] != first
    assert daemon.stop() == 0


def test_a_key_that_the_process_does_not_see_leaves_it_warm(place: Place) -> None:
    """RES-09: priority, aliases and idle time change; the process stays, a request on it runs on."""
    place.config.write_text(TALKER + OTHER)
    daemon = place.up()
    stream = daemon.stream("talker", 20)
    assert stream.event()
    before = daemon.model("talker")["pid"]
    rules = 'priority = 1\naliases = ["speaker"]\nidle = "9m"\nfamily = "voices"\n'
    place.config.write_text(scripted("talker", 'service = "4s", tokens = 20', rules) + OTHER)
    assert place.run("config", "reload").returncode == 0
    assert stream.rest()[-1] == "[DONE]"
    assert daemon.chat("speaker", 1)[0] == 200
    model = daemon.model("talker")
    assert (model["pid"], model["loads"], model["evictions"]) == (before, 1, 0)
    assert daemon.stop() == 0


def test_a_config_that_was_emptied_or_is_gone_changes_nothing(place: Place) -> None:
    """pitfalls: validated whole, then applied or refused: `> watchbill.toml` by mistake does not end every model."""
    place.config.write_text(OTHER)
    daemon = place.up()
    assert daemon.chat("other")[0] == 200
    loaded = daemon.model("other")["pid"]
    for text in ("", "# nothing yet\n", None):
        if text is None:
            place.config.unlink()
        else:
            place.config.write_text(text)
        refused = place.run("config", "reload")
        assert refused.returncode == 1 and "watchbill.toml" in refused.stderr, refused
        assert daemon.model("other")["pid"] == loaded
    assert daemon.stop() == 0


def test_a_config_is_still_watched_after_its_folder_was_away(place: Place) -> None:
    """pitfalls: a changed file is taken over: a mount that comes back, a branch that is checked out again."""
    folder, away = place.folder / "conf", place.folder / "away"
    folder.mkdir()
    (folder / "c.toml").write_text(OTHER)
    daemon = place.up("--config", str(folder / "c.toml"))
    folder.rename(away)
    folder.touch()
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: "was refused" in daemon.stderr)
    folder.unlink()
    away.rename(folder)
    (folder / "c.toml").write_text(OTHER + scripted("new"))
    wait_until(lambda: "new" in daemon.status()["models"])
    assert daemon.stop() == 0


def test_no_config_stops_the_daemon_or_its_next_reload(place: Place) -> None:
    """R50: a pipe that nobody writes into, integers of 5,000 digits, keys of 50,000 parts: each is refused, the daemon
    answers all the while, and the next good config is taken over."""
    place.config.write_text(scripted("first", 'text = "one"'))
    daemon = place.up()
    hostile = {
        "digits": lambda: write_whole(place, "a = " + "9" * 5_000),
        "hexadecimal": lambda: write_whole(place, "[server]\nport = 0x" + "f" * 5_000),
        "parts": lambda: write_whole(place, ".".join("a" * 50_000) + " = 1"),
        "pipe": lambda: replace_by_pipe(place),
        "link": lambda: (place.config.unlink(), place.config.symlink_to("nowhere")),
    }
    for make in hostile.values():
        refused = daemon.stderr.count("the old one stays")
        make()
        daemon.signal(signal.SIGHUP)
        wait_until(lambda before=refused: daemon.stderr.count("the old one stays") > before)
        assert daemon.chat("first")[0] == 200
        assert daemon.ask("/wb/v1/config/reload", {}, seconds=30)[0] in (400, 422), daemon.stderr
    place.config.unlink()
    place.config.write_text(scripted("second", 'text = "two"'))
    wait_until(lambda: "second" in daemon.status()["models"])
    assert daemon.stop() == 0


def write_whole(place: Place, text: str) -> None:
    draft = place.config.with_suffix(".new")
    draft.write_text(text)
    draft.replace(place.config)


def replace_by_pipe(place: Place) -> None:
    pipe = place.config.with_suffix(".pipe")
    os.mkfifo(pipe)
    pipe.replace(place.config)


def test_a_start_that_is_interrupted_leaves_nothing(place: Place) -> None:
    """P6: Ctrl-C at any moment of the start from the first file on, before there is an event loop, too: exit 130."""
    place.config.write_text(scripted("rock", 'load = "3s"', "permanent = true"))

    def interrupt(pause_s: float) -> int:
        root = place.folder / f"root{pause_s}"
        daemon = place.begin("--root", str(root))
        wait_until((root / "run").exists)
        time.sleep(pause_s)  # the moment itself
        daemon.signal(signal.SIGINT)
        code = daemon.wait(20)
        assert "Traceback" not in daemon.stderr, (pause_s, daemon.stderr)
        return code

    with ThreadPoolExecutor(5) as trials:
        ends = list(trials.map(interrupt, (0.0, 0.05, 0.1, 0.2, 0.8)))
    assert set(ends) <= {130, -signal.SIGINT}  # a shell shows 130 for both
    wait_until(lambda: not place.leftovers())


def is_reachable(daemon: Daemon) -> bool:
    try:
        return daemon.ask("/health", seconds=2)[0] == 200
    except OSError:
        return False
