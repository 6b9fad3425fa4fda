"""`list`, `ps`, `run`, `rm` and `stop`: what they ask for, and what people see."""

import json

import pytest

from watchbill.cli.shelf import about

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
