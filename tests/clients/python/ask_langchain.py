"""LangChain over four APIs: chat completions, responses, Anthropic's messages, Ollama's chat; and embeddings."""

import json
import os
from collections.abc import Callable
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

BASE = os.environ["BASE"]


class Animal(BaseModel):
    """An animal."""

    animal: str
    legs: int


@tool
def look(at: str) -> str:
    """Looks at a place."""
    return f"a cow in the {at}"


def openai_chat(key: str = "user", model: str = "a") -> Any:
    return ChatOpenAI(
        model=model, base_url=f"{BASE}/v1", api_key=key, max_retries=0, stream_usage=True, use_responses_api=False
    )  # fmt: skip


def openai_responses(key: str = "user", model: str = "a") -> Any:
    return ChatOpenAI(model=model, base_url=f"{BASE}/v1", api_key=key, max_retries=0, use_responses_api=True)


def anthropic(key: str = "user", model: str = "a") -> Any:
    return ChatAnthropic(model=model, base_url=BASE, api_key=key, max_retries=0, max_tokens=99)


def ollama(key: str = "user", model: str = "a") -> Any:
    return ChatOllama(
        model=model, base_url=BASE, client_kwargs={"headers": {"Authorization": f"Bearer {key}"}}
    )  # fmt: skip


def text_of(message: Any) -> str:
    return str(message.text)


def failing(ask: Callable[[], Any]) -> list[Any]:
    """The class of the error, its status, and the seconds after which to come again."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001  whatever the client makes of it is what is asked
        headers = getattr(getattr(error, "response", None), "headers", {})
        status = getattr(error, "status_code", None)
        return [type(error).__name__, status, int(headers.get("retry-after", 0)) > 0]
    return ["no error"]


def scenario(make: Callable[..., Any], methods: list[str]) -> dict[str, Any]:
    chat = make()
    plain = chat.invoke("hi")
    told: dict[str, Any] = {
        "plain": text_of(plain),
        "tokens": (plain.usage_metadata or {}).get("output_tokens"),
    }
    pieces = list(chat.stream("hi"))
    told["streamed"] = ["".join(map(text_of, pieces)), len(pieces) > 1]
    summed = pieces[0]
    for piece in pieces[1:]:
        summed += piece
    told["streamed tokens"] = (summed.usage_metadata or {}).get("output_tokens")
    asked: list[Any] = [HumanMessage("What do you see?")]
    bound = chat.bind_tools([look])
    asked.append(bound.invoke(asked))
    [call] = asked[-1].tool_calls
    told["call"] = [call["name"], call["args"]]
    asked.append(ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"]))
    told["result"] = text_of(bound.invoke(asked))
    for method in methods:
        structured = chat.with_structured_output(Animal, method=method)
        told[method] = structured.invoke("As JSON: which animal?").model_dump()
    told["unknown"] = failing(lambda: make(model="nope").invoke("hi"))
    told["too long"] = failing(lambda: chat.invoke("too long"))
    told["spent"] = failing(lambda: make("spent").invoke("hi"))
    told["late"] = failing(lambda: make("brief").invoke("slow"))
    return told


told: dict[str, Any] = {
    "chat": scenario(openai_chat, ["json_schema", "function_calling", "json_mode"]),
    "responses": scenario(openai_responses, ["json_schema", "function_calling"]),
    "anthropic": scenario(anthropic, ["json_schema", "function_calling"]),
    "ollama": scenario(ollama, ["json_schema", "function_calling", "json_mode"]),
    "openai vectors": OpenAIEmbeddings(
        model="a", base_url=f"{BASE}/v1", api_key="user", check_embedding_ctx_length=False
    ).embed_documents(["one", "two"]),
    "ollama vectors": OllamaEmbeddings(
        model="a", base_url=BASE, client_kwargs={"headers": {"Authorization": "Bearer user"}}
    ).embed_documents(["one", "two"]),
}  # fmt: skip
print(json.dumps(told))
