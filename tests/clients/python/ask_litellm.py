"""litellm as OpenAI's, Ollama's and Anthropic's client; its proxy and many agents ask through it."""

import json
import logging
import os
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices, three times
import litellm
from pydantic import BaseModel

BASE = os.environ["BASE"]
logging.disable(logging.CRITICAL)
litellm.suppress_debug_info = True
litellm.telemetry = False
AS_OPENAI = {"prefix": "openai", "api_base": f"{BASE}/v1"}
AS_OLLAMA = {"prefix": "ollama_chat", "api_base": BASE}
AS_ANTHROPIC = {"prefix": "anthropic", "api_base": BASE}
LOOK = {
    "type": "function",
    "function": {
        "name": "look", "description": "Looks at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}  # fmt: skip


class Animal(BaseModel):
    """An animal."""

    animal: str
    legs: int


def failing(ask: Callable[[], Any]) -> list[Any]:
    """The class of the error, its status, and whether it says when to come again."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001  whatever the client makes of it is what is asked
        headers = dict(getattr(getattr(error, "response", None), "headers", None) or {})
        headers |= dict(getattr(error, "litellm_response_headers", None) or {})
        return [
            type(error).__name__,
            getattr(error, "status_code", None),
            int(headers.get("retry-after", 0)) > 0,
        ]
    return ["no error"]


def scenario(way: dict[str, str]) -> dict[str, Any]:
    def ask(text: Any, *, key: str = "user", model: str = "a", **more: Any) -> Any:
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return litellm.completion(
            f"{way['prefix']}/{model}", messages, api_base=way["api_base"], api_key=key, max_tokens=99,
            num_retries=0, max_retries=0, **more,
        )  # fmt: skip

    plain = ask("hi")
    told: dict[str, Any] = {
        "plain": plain.choices[0].message.content,
        "tokens": plain.usage.completion_tokens,
    }
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask("hi", stream=True)]
    told["streamed"] = ["".join(pieces), len([piece for piece in pieces if piece]) > 1]
    messages: list[Any] = [{"role": "user", "content": "What do you see?"}]
    message = ask(messages, tools=[LOOK]).choices[0].message
    [call] = message.tool_calls
    told["call"] = [call.function.name, json.loads(call.function.arguments)]
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "a cow in the field"}]
    told["result"] = ask(messages, tools=[LOOK]).choices[0].message.content
    chunks = list(ask(messages[:1], tools=[LOOK], stream=True))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0].function
    told["streamed call"] = [built.name, json.loads(built.arguments)]
    told["schema"] = json.loads(ask("Which animal?", response_format=Animal).choices[0].message.content)
    told["unknown"] = failing(lambda: ask("hi", model="nope"))
    told["too long"] = failing(lambda: ask("too long"))
    told["spent"] = failing(lambda: ask("hi", key="spent"))
    told["late"] = failing(lambda: ask("slow", key="brief"))
    return told


told: dict[str, Any] = {
    "openai": scenario(AS_OPENAI), "ollama": scenario(AS_OLLAMA), "anthropic": scenario(AS_ANTHROPIC)
}  # fmt: skip
response = litellm.responses("hi", "openai/a", api_base=f"{BASE}/v1", api_key="user")
told["response"] = response.output[-1].content[0].text
events = [
    event.type
    for event in litellm.responses("hi", "openai/a", api_base=f"{BASE}/v1", api_key="user", stream=True)
]
told["events"] = [events[0], events[-1]]
vectors = litellm.embedding("openai/a", ["one", "two"], api_base=f"{BASE}/v1", api_key="user")
told["vectors"] = [each["embedding"] for each in vectors.data]
# It sends no key there, whatever it is given.
told["ollama vectors"] = failing(
    lambda: litellm.embedding("ollama/a", ["one"], api_base=BASE, api_key="user")
)
print(json.dumps(told))
