"""llama.cpp's own addresses on the real llama.cpp, through the real daemon: each is a request in its turn."""

import json
from typing import Any

import pytest

from e2e.place import Daemon, Place, scripted
from gguf_models import GgufFiles

MODEL = """
[models.{name}]
engine = "llamacpp"
source = "{source}"
aliases = ["{name}-too"]
context = 512
threads = 1
"""
USER = {"role": "user", "content": "Where?"}


@pytest.fixture(scope="module")
def daemon(shared_place: Place, gguf_files: GgufFiles) -> Daemon:
    filler = MODEL.format(name="filler", source=gguf_files.infill())
    plain = MODEL.format(name="plain", source=gguf_files.chat("5MB"))
    shared_place.config.write_text(f'[devices.ram]\nreserve = "200MB"\n{filler}{plain}' + scripted("other"))
    return shared_place.up()


def asked(daemon: Daemon, path: str, body: object = None) -> Any:
    status, headers, text = daemon.ask(path, body)
    assert status == 200, text
    assert headers["x-watchbill-model"] == "filler"
    return json.loads(text)


def test_what_is_between_two_texts_is_filled_in(daemon: Daemon) -> None:
    """LANE-01, LANE-03: /infill whole and streamed, with a file beside it; and Ollama's `suffix` by the same way."""
    ask = {
        "model": "filler-too", "input_prefix": "def add(", "input_suffix": "return", "n_predict": 6, "temperature": 0,
        "input_extra": [{"filename": "a.py", "text": "x = 1"}],
    }  # fmt: skip
    whole = asked(daemon, "/infill", ask)
    assert len(whole["content"]) == 6 == whole["tokens_predicted"]
    _, headers, text = daemon.ask("/infill", {**ask, "stream": True})
    assert headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")]
    assert "".join(event["content"] for event in events) == whole["content"] and events[-1]["stop"] is True
    options = {"num_predict": 6, "temperature": 0}
    body = {"model": "filler", "prompt": "def add(", "suffix": "return", "options": options, "stream": False}
    status, _, text = daemon.ask("/api/generate", body)
    told = json.loads(text)
    assert status == 200 and len(told["response"]) == 6 and told["done_reason"] == "length"


def test_a_model_without_tokens_for_it_fills_nothing_in(daemon: Daemon) -> None:
    """LANE-01: 501 that names the model, and not to be tried again; the model stays well."""
    status, headers, text = daemon.ask(
        "/infill", {"model": "plain", "input_prefix": "a", "input_suffix": "b"}
    )
    assert (status, headers.get("x-should-retry")) == (501, "false") and b"plain" in text
    assert daemon.chat("plain")[0] == 200


def test_texts_become_tokens_and_texts_again(daemon: Daemon) -> None:
    """LANE-01: /tokenize, also with the pieces, and /detokenize."""
    text = "ahoy, wörld"
    tokens = asked(daemon, "/tokenize", {"model": "filler", "content": text})["tokens"]
    assert len(tokens) == len(text.encode())  # a token a byte
    assert asked(daemon, "/detokenize", {"model": "filler", "tokens": tokens})["content"] == text
    pieces = asked(daemon, "/tokenize", {"model": "filler", "content": "ab", "with_pieces": True})["tokens"]
    assert [piece["piece"] for piece in pieces] == ["a", "b"]
    special = {"model": "filler", "content": "<|im_start|>", "parse_special": True}
    assert len(asked(daemon, "/tokenize", special)["tokens"]) == 1


def test_a_template_is_applied_without_an_answer(daemon: Daemon) -> None:
    """LANE-01: /apply-template gives what the model would read; bad messages are the caller's fault."""
    prompt = asked(daemon, "/apply-template", {"model": "filler", "messages": [USER]})["prompt"]
    assert "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n" in prompt
    status, _, text = daemon.ask("/apply-template", {"model": "filler", "messages": "none"})
    assert status == 400 and b"messages" in text


def test_what_a_model_is_and_does_can_be_read(daemon: Daemon) -> None:
    """LANE-01: /props and /slots by `?model=`; neither shows the engine's key or any prompt of another caller."""
    props = asked(daemon, "/props?model=filler")
    assert props["default_generation_settings"]["n_ctx"] == 512 and props["total_slots"] >= 1
    assert "im_start" in props["chat_template"]
    secret = "this is nobody else's business"
    daemon.ask("/v1/completions", {"model": "filler", "prompt": secret, "max_tokens": 2})
    slots = asked(daemon, "/slots?model=filler")
    assert len(slots) == props["total_slots"] and not any(slot["is_processing"] for slot in slots)
    assert secret not in json.dumps(slots)


@pytest.mark.parametrize("path", ["/infill", "/tokenize", "/detokenize", "/apply-template"])
def test_an_engine_without_the_address_is_named(daemon: Daemon, path: str) -> None:
    """LANE-01: 501 from an engine that does not have it, 404 for a model that is not there, 400 without one."""
    body = {"content": "x", "tokens": [1], "messages": [USER], "input_prefix": "a", "input_suffix": "b"}
    assert daemon.ask(path, {**body, "model": "other"})[0] == 501
    assert daemon.ask(path, {**body, "model": "nope"})[0] == 404
    assert daemon.ask(path, body)[0] == 400
    assert daemon.ask("/props?model=other")[0] == 501
