"""The real `openai` client asks the real llama.cpp for responses, through the real daemon."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from e2e.place import Daemon, Place, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until

CONFIG = """
[devices.ram]
reserve = "200MB"

[models.chatty]
engine = "llamacpp"
source = "{chat}"
context = 2048
threads = 1

"""

#: How models that call tools are told about them, and write their calls; llama.cpp finds both out from the template.
CALLS = r"""
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n\n<tools>' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "</tools>\nCall one as <tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
TOOL: Any = {
    "type": "function", "name": "look", "strict": True,
    "parameters": {
        "type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}, "required": ["at"],
        "additionalProperties": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def daemon(shared_place: Place, gguf_files: GgufFiles) -> Daemon:
    slow = scripted("slow", 'service = "60s", tokens = 200', "concurrency = 1")
    caller = (
        CONFIG.partition("[models.chatty]")[2]
        + f"arguments = ['--jinja', '--chat-template', {json.dumps(CALLS)}]\n"
    )
    config = f"{CONFIG}[models.caller]{caller}"
    shared_place.config.write_text(config.replace("{chat}", str(gguf_files.chat("5MB"))) + slow)
    return shared_place.up()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        yield client


def test_a_response_is_made_whole_and_in_events(client: openai.OpenAI) -> None:
    """RES-10, LANE-01: the same text both ways, its counts, and incomplete at its bound."""
    ask: dict[str, Any] = {"model": "chatty", "input": "Tell me.", "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**ask)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert len(whole.output_text) == 12 == whole.usage.output_tokens  # a letter a token
    events = list(client.responses.create(**ask, stream=True))
    assert [told.sequence_number for told in events] == list(range(len(events)))
    deltas = "".join(told.delta for told in events if told.type == "response.output_text.delta")
    assert deltas == events[-1].response.output_text == whole.output_text
    assert events[-1].type == "response.incomplete"
    counted = client.responses.input_tokens.count(model="chatty", input="Tell me.")
    assert counted.input_tokens == whole.usage.input_tokens
    longer = client.responses.input_tokens.count(model="chatty", input="On.", previous_response_id=whole.id)
    assert longer.input_tokens > counted.input_tokens + 12


class Where(BaseModel):
    """What the model is made to write."""

    at: Literal["sky", "sea"]


def test_a_structured_answer_is_parsed(client: openai.OpenAI) -> None:
    """LANE-01: llama.cpp keeps to the schema."""
    parsed = client.responses.parse(model="chatty", input="Where?", text_format=Where, max_output_tokens=200)
    assert parsed.status == "completed" and parsed.output_parsed.at in ("sky", "sea")


def test_calls_and_their_results_reach_the_model(client: openai.OpenAI) -> None:
    """LANE-01: llama.cpp's template is given the tools and a turn that called one. A model of noise calls none."""
    call: Any = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "sky"}'}
    result: Any = {"type": "function_call_output", "call_id": "c1", "output": "blue"}
    ask: dict[str, Any] = {"model": "caller", "max_output_tokens": 8}
    first = client.responses.create(**ask, input="Where?", tools=[TOOL, {"type": "web_search"}])
    assert [tool.type for tool in first.tools] == ["function"]
    last = client.responses.create(**ask, input=[call, result], previous_response_id=first.id, tools=[TOOL])
    assert len(last.output_text) == 8
    plain = client.responses.input_tokens.count(model="caller", input="Where?")
    offered = client.responses.input_tokens.count(model="caller", input="Where?", tools=[TOOL])
    assert plain.input_tokens < offered.input_tokens < last.usage.input_tokens


def test_a_kept_response_outlives_a_daemon_that_is_killed(place: Place, gguf_files: GgufFiles) -> None:
    """LANE-01, RES-12: what was done is there again, what was being made in the background goes on under its id."""
    slow = scripted("slow", 'service = "60s", tokens = 200', "concurrency = 1")
    place.config.write_text(CONFIG.format(chat=gguf_files.chat("5MB")) + slow)
    daemon = place.up()
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        done = client.responses.create(model="chatty", input="One.", max_output_tokens=4)
        made = client.responses.create(model="slow", input="Two.", background=True)
        assert client.responses.retrieve(made.id).status in ("queued", "in_progress")
        wait_until(lambda: len(list(place.root.glob("responses/*/*.json"))) == 2)
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.process.wait()
    daemon = place.up()
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        assert client.responses.retrieve(done.id).output_text == done.output_text
        assert client.responses.retrieve(made.id).status in ("queued", "in_progress")
        assert client.responses.cancel(made.id).status == "cancelled"
        on = client.responses.create(
            model="chatty", input="On.", previous_response_id=done.id, max_output_tokens=4
        )
        assert len(on.output_text) == 4
        client.responses.delete(done.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(done.id)
