"""`list`, `ps`, `run`, `rm` and `stop`: what they ask for, and what people see."""

import json

import pytest

from watchbill.cli.shelf import about
from watchbill.cli.timings import Timings

LIBRARY = {
    "models": [
        {
            "name": "qwen2.5-0.5b", "aliases": ["qwen2.5:0.5b"], "origin": "folder", "engine": "llamacpp",
            "size": 400_000_000, "modified_s": 1.0,
        },
        {"name": "far", "aliases": [], "origin": "config", "engine": "remote", "size": None, "modified_s": None},
    ],
    "passed": [{"file": "half.gguf", "why": "broken", "detail": "truncated"}],
}  # fmt: skip
PS = {"models": [{"name": "tiny:latest", "size": 100, "size_vram": 40, "context_length": 4096,
                  "expires_at": "2318-01-01T00:00:00Z"}]}  # fmt: skip


def test_list_shows_models_and_what_is_not_served(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    shown = watchbill("list")
    assert shown.returncode == 0
    for text in ("qwen2.5-0.5b", "400 MB", "folder", "qwen2.5:0.5b", "half.gguf: broken: truncated"):
        assert text in shown.stdout
    assert json.loads(watchbill("list", "--json").stdout) == LIBRARY


def test_ps_shows_where_a_model_is_and_until_when(watchbill, daemon):
    daemon.answers[("GET", "/api/ps")] = (200, PS)
    shown = watchbill("ps").stdout
    assert "tiny " in shown and "60%/40% CPU/GPU" in shown and "Forever" in shown
    assert json.loads(watchbill("ps", "--json").stdout) == PS


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "Less than a second"), (1, "1 second"), (59, "59 seconds"), (61, "About a minute"), (299, "4 minutes"),
     (3600, "About an hour"), (20 * 3600, "20 hours"), (3 * 86400, "3 days"), (21 * 86400, "3 weeks"),
     (90 * 86400, "3 months"), (1000 * 86400, "2 years")],
)  # fmt: skip
def test_times_are_told_in_ollamas_words(seconds, words):
    """Issue 19: `5 minutes from now` and `3 weeks ago`, as in Ollama's `ps` and `list`."""
    assert about(round(seconds * 1000)) == words


def test_stop_evicts_and_rm_deletes(watchbill, daemon):
    daemon.answers[("POST", "/wb/v1/models/tiny/evict")] = (200, {"message": "tiny was unloaded"})
    assert watchbill("stop", "tiny").stdout == "tiny was unloaded\n"
    daemon.answers[("DELETE", "/api/delete")] = (200, b"")
    assert watchbill("rm", "a", "b").stdout == "removed a\nremoved b\n"
    asked = [heard.json for heard in daemon.heard if heard.method == "DELETE"]
    assert asked == [{"model": "a"}, {"model": "b"}]
    daemon.answers[("DELETE", "/api/delete")] = (
        400,
        {"error": "a is a model of the config; take it out there"},
    )
    refused = watchbill("rm", "a")
    assert (refused.returncode, refused.stderr) == (
        1,
        "watchbill: a is a model of the config; take it out there\n",
    )
    assert watchbill("rm").returncode == 2, "wrong use"


def test_rm_says_which_other_names_go_with_the_file(watchbill, daemon):
    left = {**LIBRARY, "models": LIBRARY["models"][1:]}

    def delete(line):
        daemon.answers[("GET", "/wb/v1/library")] = (200, left)
        line.open()

    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    daemon.answers[("DELETE", "/api/delete")] = delete
    assert watchbill("rm", "qwen2.5:0.5b").stdout == (
        "removed qwen2.5:0.5b, and with its file its other names: qwen2.5-0.5b\n"
    )
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    assert json.loads(watchbill("rm", "--json", "qwen2.5-0.5b").stdout) == {
        "removed": ["qwen2.5-0.5b", "qwen2.5:0.5b"]
    }
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    daemon.answers[("DELETE", "/api/delete")] = (404, {"error": "model 'qwen2.5-05b' not found"})
    assert "did you mean qwen2.5-0.5b? see: " in watchbill("rm", "qwen2.5-05b").stderr


def test_cp_and_show_are_what_ollamas_users_know(watchbill, daemon):
    daemon.answers[("POST", "/api/copy")] = (200, b"")
    assert watchbill("cp", "tiny", "mine").stdout == "mine is another name of tiny\n"
    assert daemon.heard[-1].json == {"source": "tiny", "destination": "mine"}
    told = {
        "details": {"family": "llama", "parameter_size": "134.52M", "quantization_level": "Q4_K_M", "format": "gguf"},
        "model_info": {"llama.context_length": 8192}, "capabilities": ["completion", "tools"],
        "parameters": 'stop   "<|im_end|>"', "license": "Apache\nLicense",
    }  # fmt: skip
    daemon.answers[("POST", "/api/show")] = (200, told)
    shown = watchbill("show", "tiny").stdout
    for words in ("llama", "134.52M", "Q4_K_M", "8192", "completion, tools", 'stop "<|im_end|>"', "Apache\n"):
        assert words in shown
    assert json.loads(watchbill("show", "--json", "tiny").stdout) == told


def answer(line):
    line.open()
    line.say(
        'data: {"choices": [{"delta": {"content": "blue"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    )


@pytest.mark.parametrize(
    ("words", "piped", "question"),
    [
        (["Why?", "Really"], None, "Why? Really"),
        ([], "from a pipe\n", "from a pipe"),
        (["summarize"], "a text", "a text\n\nsummarize"),
    ],
)
def test_run_asks_what_the_command_or_the_pipe_says(watchbill, daemon, words, piped, question):
    daemon.answers[("POST", "/api/show")] = (200, {})
    daemon.answers[("POST", "/v1/chat/completions")] = answer
    asked = watchbill("run", "tiny", *words, stdin=piped)
    assert (asked.returncode, asked.stdout) == (0, "blue\n"), asked.stderr
    said = daemon.heard[-1].json
    assert (said["model"], said["messages"]) == ("tiny", [{"role": "user", "content": question}])


def test_run_pulls_a_model_that_is_not_here(watchbill, daemon):
    daemon.answers[("POST", "/v1/chat/completions")] = answer

    def pull(line):
        line.open("application/x-ndjson")
        line.say(
            '{"status": "pulling x", "digest": "sha256:x", "total": 9, "completed": 9}\n{"status": "success"}\n'
        )

    daemon.answers[("POST", "/api/pull")] = pull
    asked = watchbill("run", "qwen2.5:0.5b", "hi")
    assert (asked.stdout, "not here yet; pulling it" in asked.stderr) == ("blue\n", True)

    def fail(line):
        line.open("application/x-ndjson")
        line.say('{"error": "pull model manifest: file does not exist"}\n')

    daemon.answers[("POST", "/api/pull")] = fail
    refused = watchbill("run", "nonesuch", "hi")
    assert refused.returncode == 1
    assert "no model is called nonesuch, and it cannot be pulled" in refused.stderr
    assert watchbill.hint("list") in refused.stderr


def test_run_on_a_terminal_is_a_conversation(watchbill, daemon):
    daemon.answers[("POST", "/api/show")] = (200, {})
    daemon.answers[("POST", "/v1/chat/completions")] = answer
    screen = watchbill.on_terminal("run", "tiny")
    screen.see("talking to tiny")
    screen.type("hello\n")
    screen.see("blue")
    screen.type("/bye\n")
    assert screen.end() == 0


def test_run_verbose_prints_the_figures_that_ollama_prints(watchbill, daemon):
    """Issue 19: `run --verbose` as Ollama's users know it, beside the answer."""

    def timed(line):
        line.open()
        usage = {"prompt_tokens": 26, "completion_tokens": 3}
        timings = {"prompt_n": 13, "prompt_ms": 130.0, "predicted_ms": 60.0}
        last = {"choices": [], "usage": usage, "timings": timings}
        line.say(
            'data: {"choices": [{"delta": {"content": "blue"}, "finish_reason": "stop"}]}\n\n'
            f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"
        )

    daemon.answers[("POST", "/api/show")] = (200, {})
    daemon.answers[("POST", "/v1/chat/completions")] = timed
    asked = watchbill("run", "tiny", "Why?", "--verbose", "--format", "json", "--keepalive", "10m")
    assert (asked.returncode, asked.stdout) == (0, "blue\n"), asked.stderr
    for line in (
        "prompt eval count:    26 token(s)", "prompt eval duration: 130.0ms", "prompt eval rate:     100.00 tokens/s",
        "eval count:           3 token(s)", "eval duration:        60.0ms", "eval rate:            50.00 tokens/s",
    ):  # fmt: skip
        assert line in asked.stderr.splitlines(), asked.stderr
    assert asked.stderr.splitlines()[1].startswith("total duration:       ")
    said = daemon.heard[-1].json
    assert said["stream_options"] == {"include_usage": True}
    assert (said["response_format"], said["keep_alive"]) == ({"type": "json_object"}, "10m")
    assert "duration" not in watchbill("run", "tiny", "Why?").stderr, "only where it was asked for"


def test_run_lets_a_model_think_and_shows_or_hides_its_thoughts(watchbill, daemon):
    """Issue 19: `--think`, `--think=high`, `--hidethinking` and `--nowordwrap` as Ollama's users type them."""

    def thinking(line):
        line.open()
        for delta in (
            {"reasoning_content": "the air"},
            {"reasoning_content": " scatters\n"},
            {"content": "blue"},
        ):
            line.say(f"data: {json.dumps({'choices': [{'delta': delta, 'finish_reason': None}]})}\n\n")
        line.say('data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')

    daemon.answers[("POST", "/api/show")] = (200, {})
    daemon.answers[("POST", "/v1/chat/completions")] = thinking
    shown = watchbill("run", "tiny", "--think", "Why?", "--nowordwrap")
    assert (shown.returncode, shown.stdout) == (0, "blue\n"), shown.stderr
    assert shown.stderr == "Thinking...\nthe air scatters\n\n...done thinking.\n\n"
    assert daemon.heard[-1].json["messages"] == [{"role": "user", "content": "Why?"}]
    assert daemon.heard[-1].json["chat_template_kwargs"] == {"enable_thinking": True}
    hidden = watchbill("run", "tiny", "--think=high", "--hidethinking", "Why?")
    assert (hidden.returncode, hidden.stdout, hidden.stderr) == (0, "blue\n", "")
    assert daemon.heard[-1].json["reasoning_effort"] == "high"
    without = watchbill("run", "tiny", "--think=false", "Why?")
    assert (without.returncode, without.stdout, without.stderr) == (0, "blue\n", "")
    assert daemon.heard[-1].json["chat_template_kwargs"] == {"enable_thinking": False}
    assert watchbill("run", "tiny", "--think=loud", "Why?").returncode == 2


def test_figures_of_an_engine_that_tells_none_are_measured():
    moments = iter((0.0, 2.0, 4.0, 4.0))
    timings = Timings(lambda: next(moments))
    timings.take_headers({"x-watchbill-wait-ms": "1500", "x-watchbill-load-ms": "500"})
    timings.count_piece()
    timings.count_piece()
    timings.take({"usage": {"prompt_tokens": 10, "completion_tokens": 20}})
    told = dict(line.split(":", 1) for line in timings.lines())
    assert {key: value.strip() for key, value in told.items()} == {
        "total duration": "4.000s", "load duration": "500.0ms", "wait duration": "1.500s (with the load)",
        "prompt eval count": "10 token(s)", "prompt eval duration": "500.0ms", "prompt eval rate": "20.00 tokens/s",
        "eval count": "20 token(s)", "eval duration": "2.000s", "eval rate": "10.00 tokens/s",
    }  # fmt: skip


@pytest.mark.parametrize("part", ["modelfile", "parameters", "system", "template", "license"])
def test_show_prints_one_part_alone(watchbill, daemon, part):
    """Issue 19: `show --modelfile` and its siblings, for scripts that read Ollama's."""
    daemon.answers[("POST", "/api/show")] = (200, {part: "first\nsecond \x1b[1m\n"})
    shown = watchbill("show", "tiny", f"--{part}")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "first\nsecond \x1b[1m\n", "")
    daemon.answers[("POST", "/api/show")] = (200, {})
    empty = watchbill("show", "tiny", f"--{part}")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert empty.stderr.startswith("tiny has no ")
    both = watchbill("show", "tiny", f"--{part}", "--json")
    assert (both.returncode, f"--{part} and --json" in both.stderr) == (2, True)


def test_show_and_cp_say_which_model_was_meant(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    for command in (["show", "qwen2.5-05b"], ["cp", "qwen2.5-05b", "mine"]):
        daemon.answers[("POST", f"/api/{command[0].replace('cp', 'copy')}")] = (404, {"error": "not found"})
        refused = watchbill(*command)
        assert refused.returncode == 1
        assert "no model is called qwen2.5-05b; did you mean qwen2.5-0.5b? see: " in refused.stderr


@pytest.mark.parametrize(
    ("prefix", "found"), [("qw", True), ("QWEN2.5:0", True), ("5-0.5", False), ("f", False)]
)
def test_list_shows_those_of_which_a_name_begins_so(watchbill, daemon, prefix, found):
    """Issue 19: `ollama list PREFIX`, also as `ls`."""
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    shown = watchbill("ls", prefix)
    assert (shown.returncode, "qwen2.5-0.5b" in shown.stdout) == (0, found)
    assert ("far" in shown.stdout) == (prefix == "f")
    assert "half.gguf" not in shown.stdout
    assert [
        each["name"] == "far" for each in json.loads(watchbill("list", prefix, "--json").stdout)["models"]
    ] == ([False] if found else [True] if prefix == "f" else [])


def test_list_says_that_no_name_begins_so(watchbill, daemon):
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    assert "no model has a name that begins with llama; see: " in watchbill("list", "llama").stdout


@pytest.mark.parametrize("words", [["-v"], ["-V"], ["--version"], ["version"]])
def test_the_version_is_told_however_it_is_asked_for(watchbill, words):
    """Issue 19: `ollama -v`."""
    told = watchbill(*words)
    assert (told.returncode, told.stdout.split()[0]) == (0, "watchbill")


@pytest.mark.parametrize("command", [["run", "half", "hi"], ["rm", "half.gguf"], ["show", "HALF"]])
def test_a_file_that_is_not_served_is_told_with_the_reason(watchbill, daemon, command):
    """Issue 19: `run half` pulled another model of that name, and `rm half.gguf` knew nothing of it."""
    daemon.answers[("GET", "/wb/v1/library")] = (200, LIBRARY)
    daemon.answers[("DELETE", "/api/delete")] = (404, {"error": "not found"})
    refused = watchbill(*command)
    assert refused.returncode == 1
    assert (
        "half.gguf is not served: broken: truncated; pull it again, or delete it with: rm /" in refused.stderr
    )
    assert refused.stderr.endswith("/models/half.gguf\n")
    assert not [heard for heard in daemon.heard if heard.path == "/api/pull"]
