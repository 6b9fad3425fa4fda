"""Conversations: streamed, stoppable, remembered, never silently short."""

import json
import subprocess
import threading

ASK = ("POST", "/v1/chat/completions")


def chunk(text: str | None = None, finish: str | None = None) -> str:
    delta = {} if text is None else {"content": text}
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"


def saying(*texts: str, finish: str = "stop"):
    def answer(line):
        line.open()
        line.say(": queued 1\n" + chunk("") + "".join(chunk(text) for text in texts) + chunk(finish=finish))
        line.say("data: [DONE]\n\n")

    return answer


def test_an_answer_is_printed_and_nothing_else(watchbill, daemon):
    """LANE-09 (basic): watchbill chat streams an answer."""
    daemon.answers[ASK] = saying("Rayleigh", " scattering")
    done = watchbill("chat", "Why is", "the sky blue?", "--system", "Be brief.", "--max-tokens", "9")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Rayleigh scattering\n", "")
    assert daemon.heard[-1].json == {
        "model": "smollm2",  # the one that is loaded, not the first
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why is the sky blue?"},
        ],
        "stream": True,
        "max_tokens": 9,
    }


def test_pieces_appear_while_the_model_still_writes(watchbill, daemon):
    """LANE-09 (basic): chunk by chunk, to a pipe as well."""
    seen = threading.Event()

    def answer(line):
        line.open()
        line.say(chunk("one "))
        assert seen.wait(20)
        line.say(chunk("two") + chunk(finish="stop") + "data: [DONE]\n\n")

    daemon.answers[ASK] = answer
    talking = watchbill.start("chat", "count", "--model", "any")
    assert talking.stdout.read(4) == b"one "
    seen.set()
    out, err = talking.communicate(timeout=20)
    assert (talking.returncode, out, err) == (0, b"two\n", b"")


def test_the_question_may_come_through_a_pipe(watchbill, daemon):
    daemon.answers[ASK] = saying("fine")
    assert watchbill("chat", "-m", "any", stdin="a long\ntext\n").stdout == "fine\n"
    assert daemon.heard[-1].json["messages"] == [{"role": "user", "content": "a long\ntext"}]
    empty = watchbill("chat", stdin="")
    assert empty.returncode == 1
    assert "nothing to ask" in empty.stderr


def test_bytes_that_are_no_text_are_asked_as_far_as_they_are(watchbill, daemon):
    """docs/cli: `git diff | watchbill chat` over a file in another encoding."""
    daemon.answers[ASK] = saying("fine")
    asking = watchbill.start_with(subprocess.PIPE, "chat", "-m", "any")
    out, err = asking.communicate(b"caf\xe9 d'\xc3\xa9t\xc3\xa9", timeout=20)
    assert (asking.returncode, out, err) == (0, b"fine\n", b"")
    assert daemon.heard[-1].json["messages"][0]["content"] == "caf? d'\xe9t\xe9"


def test_an_error_within_the_stream_is_an_error(watchbill, daemon):
    def answer(line):
        line.open()
        line.say(chunk("begun") + 'data: {"error": {"message": "cut for memory", "code": "preempted"}}\n\n')

    daemon.answers[ASK] = answer
    done = watchbill("chat", "x", "-m", "any")
    assert (done.returncode, done.stdout, done.stderr) == (1, "begun", "watchbill: cut for memory\n")


def test_an_answer_that_breaks_off_is_not_taken_for_a_short_one(watchbill, daemon):
    """R30: never silent truncation."""

    def answer(line):
        line.open()
        line.say(chunk("begun"))

    daemon.answers[ASK] = answer
    done = watchbill("chat", "x", "-m", "any")
    assert done.returncode == 1
    assert "ended before its end" in done.stderr


def test_a_refusal_before_the_stream_is_told(watchbill, daemon):
    daemon.answers[ASK] = (404, {"error": {"message": "no model nix", "code": "model_not_found"}})
    done = watchbill("chat", "x", "-m", "nix")
    assert (done.returncode, done.stderr) == (1, "watchbill: no model nix\n")


def test_an_answer_that_reached_its_limit_says_so_beside_the_answer(watchbill, daemon):
    daemon.answers[ASK] = saying("half", finish="length")
    done = watchbill("chat", "x", "-m", "any")
    assert done.stdout == "half\n"
    assert "cut" in done.stderr


def test_without_models_chat_says_what_to_do(watchbill, daemon):
    daemon.answers[("GET", "/v1/models")] = (200, {"data": []})
    done = watchbill("chat", "x")
    assert done.returncode == 1
    assert "watchbill.toml" in done.stderr


def test_without_a_name_a_model_is_asked_that_can_answer(watchbill, daemon):
    """design 9: not the embedder, though it is loaded, and not one that failed."""
    embedder = {"id": "embedder", "status": {"value": "loaded"}, "capabilities": ["embedding"]}
    broken = {"id": "broken", "status": {"value": "failed"}, "capabilities": ["completion"]}
    able = {"id": "able", "status": {"value": "unloaded"}, "capabilities": ["completion", "tools"]}
    daemon.answers[("GET", "/v1/models")] = (200, {"data": [embedder, broken, able]})
    daemon.answers[ASK] = saying("yes")
    assert watchbill("chat", "x").returncode == 0
    assert daemon.heard[-1].json["model"] == "able"


def test_a_conversation_remembers_what_was_said(watchbill, daemon):
    daemon.answers[ASK] = saying("first answer")
    screen = watchbill.on_terminal("chat", "-m", "any")
    screen.see("> ")
    screen.type("first\r")
    screen.see("first answer\r\n> ")
    screen.type("second\r")
    screen.forget()
    screen.see("first answer\r\n> ")
    said = daemon.heard[-1].json["messages"]
    assert [message["content"] for message in said] == ["first", "first answer", "second"]
    screen.type("/new\r")
    screen.see("forgotten")
    screen.forget()
    screen.type("third\r")
    screen.see("first answer\r\n> ")
    assert daemon.heard[-1].json["messages"] == [{"role": "user", "content": "third"}]
    screen.type("\x04")
    assert screen.end() == 0


def test_a_conversation_understands_the_words_of_ollama(watchbill, daemon):
    """Issue 19: /clear, /set, /load, and three quotes around a question of several lines."""
    daemon.answers[ASK] = saying("yes")
    screen = watchbill.on_terminal("chat", "-m", "any")
    screen.see("> ")
    screen.type('"""first\r')
    screen.see("... ")
    screen.type('second"""\r')
    screen.see("yes\r\n> ")
    assert daemon.heard[-1].json["messages"] == [{"role": "user", "content": "first\nsecond"}]
    for typed, seen in (
        ("/clear", "forgotten"), ("/load other", "talking to other"), ("/set system Be brief.", "prompt is set"),
        ("/set verbose", "answer: on"), ("/verbose", "answer: off"), ("/nonesuch", "there is no command /nonesuch"),
        ("/?", "several lines"),
    ):  # fmt: skip
        screen.forget()
        screen.type(f"{typed}\r")
        screen.see(seen)
    screen.forget()
    screen.type("third\r")
    screen.see("yes\r\n> ")
    said = daemon.heard[-1].json
    assert (said["model"], "stream_options" in said) == ("other", False)
    assert said["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "third"},
    ]  # fmt: skip
    screen.type("/bye\r")
    assert screen.end() == 0


def test_a_model_that_thinks_says_so_on_a_terminal(watchbill, daemon):
    """Issue 19: no silent wait while a model thinks."""

    def answer(line):
        line.open()
        line.say('data: {"choices": [{"delta": {"reasoning_content": "hmm"}}]}\n\n' + chunk("blue", "stop"))
        line.say("data: [DONE]\n\n")

    daemon.answers[ASK] = answer
    screen = watchbill.on_terminal("chat", "x", "-m", "any")
    assert screen.end() == 0
    assert "thinking" in screen.seen and "hmm" not in screen.seen and "blue" in screen.seen
    assert watchbill("chat", "x", "-m", "any").stdout == "blue\n"


def test_ctrl_c_stops_the_answer_at_the_model_and_the_next_one_leaves(watchbill, daemon):
    """LANE-07 (basic): hanging up is what stops the work."""
    left = threading.Event()

    def answer(line):
        line.open()
        line.say(chunk("endless "))
        if line.is_left():
            left.set()

    daemon.answers[ASK] = answer
    screen = watchbill.on_terminal("chat", "-m", "any")
    screen.see("> ")
    screen.type("go\r")
    screen.see("endless ")
    screen.type("\x03")
    screen.see("Ctrl-C again leaves")
    assert left.wait(20)
    daemon.answers[ASK] = saying("ok")
    screen.type("more\r")
    screen.see("ok\r\n> ")
    said = [message["content"] for message in daemon.heard[-1].json["messages"]]
    assert said == ["go", "endless ", "more"]
    assert screen.leave() == 130
    assert "Traceback" not in screen.seen


def test_a_failed_question_is_forgotten_and_the_conversation_goes_on(watchbill, daemon):
    daemon.answers[ASK] = (503, {"error": {"message": "loading, come back", "code": "wait_exceeded"}})
    screen = watchbill.on_terminal("chat", "-m", "any")
    screen.see("> ")
    screen.type("lost\r")
    screen.see("loading, come back")
    daemon.answers[ASK] = saying("ok")
    screen.type("again\r")
    screen.see("ok\r\n> ")
    assert daemon.heard[-1].json["messages"] == [{"role": "user", "content": "again"}]
    screen.type("/exit\r")
    assert screen.end() == 0


def test_escape_sequences_of_a_model_do_not_reach_the_terminal(watchbill, daemon):
    daemon.answers[ASK] = saying("a\x1b]0;owned\x07b")
    watchbill.settings["NO_COLOR"] = "1"
    screen = watchbill.on_terminal("chat", "x", "-m", "any")
    assert screen.end() == 0
    assert "\x1b]0" not in screen.seen
    assert "\x07" not in screen.seen
    assert "\x1b]0;owned\x07" in watchbill("chat", "x", "-m", "any").stdout


def test_an_error_in_a_quiet_conversation_is_shown_and_commands_no_terminal(watchbill, daemon):
    """design 9: --quiet leaves errors; an engine's words are not the terminal's orders."""
    refusal = {"error": {"message": "the engine said \x1b[31mno", "code": "engine_failed"}}
    daemon.answers[("POST", "/v1/chat/completions")] = (502, refusal)
    screen = watchbill.on_terminal("chat", "--quiet")
    screen.see("> ")
    screen.type("hello\n")
    assert "\x1b[31m" not in screen.see("the engine said")
    screen.type("/exit\n")
    assert screen.end() == 0
