"""Pydantic AI over three APIs: chat completions, responses, Anthropic's messages; and embeddings."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, Embedder, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

BASE = os.environ["BASE"]


class Animal(BaseModel):
    """An animal."""

    animal: str
    legs: int


def look(at: str) -> str:
    """Looks at a place."""
    return f"a cow in the {at}"


def openai_provider(key: str) -> OpenAIProvider:
    client = AsyncOpenAI(base_url=f"{BASE}/v1", api_key=key, max_retries=0)
    return OpenAIProvider(openai_client=client)


def chat(key: str = "user", model: str = "a") -> Any:
    return OpenAIChatModel(model, provider=openai_provider(key))


def responses(key: str = "user", model: str = "a") -> Any:
    return OpenAIResponsesModel(model, provider=openai_provider(key))


def anthropic(key: str = "user", model: str = "a") -> Any:
    client = AsyncAnthropic(base_url=BASE, api_key=key, max_retries=0)
    # It knows by its name whether a model of Anthropic can keep to a schema; of ours it must be told.
    profile = {"supports_json_schema_output": True}
    return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client), profile=profile)


async def failing(ask: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The class of the error, its status, and whether it says when to come again."""
    try:
        await ask()
    except Exception as error:  # noqa: BLE001  whatever the client makes of it is what is asked
        headers = getattr(getattr(error.__cause__, "response", None), "headers", {})
        return [
            type(error).__name__,
            getattr(error, "status_code", None),
            int(headers.get("retry-after", 0)) > 0,
        ]
    return ["no error"]


async def scenario(make: Callable[..., Any]) -> dict[str, Any]:
    agent = Agent(make())
    plain = await agent.run("hi")
    told: dict[str, Any] = {"plain": plain.output, "tokens": plain.usage.output_tokens}
    async with agent.run_stream("hi") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    told["streamed"] = ["".join(pieces), len(pieces) > 1]
    looking = Agent(make(), tools=[look])
    told["result"] = (await looking.run("What do you see?")).output
    async with looking.run_stream("What do you see?") as stream:
        told["streamed result"] = await stream.get_output()
    for shape in (ToolOutput(Animal), NativeOutput(Animal), PromptedOutput(Animal)):
        found = await Agent(make(), output_type=shape).run("Which animal?")
        told[type(shape).__name__] = found.output.model_dump()
    second = await agent.run("And again.", message_history=plain.all_messages())
    told["second turn"] = [second.output, len(second.all_messages())]
    told["unknown"] = await failing(lambda: Agent(make(model="nope")).run("hi"))
    told["too long"] = await failing(lambda: agent.run("too long"))
    told["spent"] = await failing(lambda: Agent(make("spent")).run("hi"))
    told["late"] = await failing(lambda: Agent(make("brief")).run("slow"))
    return told


async def main() -> None:
    told: dict[str, Any] = {
        "chat": await scenario(chat),
        "responses": await scenario(responses),
        "anthropic": await scenario(anthropic),
    }
    embedder = Embedder(OpenAIEmbeddingModel("a", provider=openai_provider("user")))
    told["vectors"] = [list(vector) for vector in (await embedder.embed_documents(["one", "two"])).embeddings]
    print(json.dumps(told))


asyncio.run(main())
