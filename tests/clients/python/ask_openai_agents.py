"""OpenAI's Agents SDK, over the Responses API (its default) and over chat completions."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    handoff,
    set_tracing_disabled,
)  # fmt: skip
from openai import AsyncOpenAI
from pydantic import BaseModel

BASE = os.environ["BASE"]
set_tracing_disabled(True)


class Animal(BaseModel):
    """An animal."""

    animal: str
    legs: int


@function_tool
def look(at: str) -> str:
    """Looks at a place."""
    return f"a cow in the {at}"


def client(key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{BASE}/v1", api_key=key, max_retries=0)


def responses(key: str = "user", model: str = "a") -> Any:
    return OpenAIResponsesModel(model, client(key))


def chat(key: str = "user", model: str = "a") -> Any:
    return OpenAIChatCompletionsModel(model, client(key))


async def failing(ask: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The class of the error, its status and code, and whether it says when to come again."""
    try:
        await ask()
    except Exception as error:  # noqa: BLE001  whatever the client makes of it is what is asked
        headers = getattr(getattr(error, "response", None), "headers", {})
        status, code = getattr(error, "status_code", None), getattr(error, "code", None)
        return [type(error).__name__, status, code, int(headers.get("retry-after", 0)) > 0]
    return ["no error"]


async def scenario(make: Callable[..., Any]) -> dict[str, Any]:
    agent = Agent(name="plain", instructions="Be brief.", model=make())
    plain = await Runner.run(agent, "hi")
    told: dict[str, Any] = {
        "plain": plain.final_output, "tokens": plain.raw_responses[0].usage.output_tokens
    }  # fmt: skip
    stream = Runner.run_streamed(agent, "hi")
    pieces = [
        event.data.delta
        async for event in stream.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    told["streamed"] = ["".join(pieces), len(pieces) > 1, stream.final_output]
    looking = Agent(name="looking", model=make(), tools=[look])
    told["result"] = (await Runner.run(looking, "What do you see?")).final_output
    stream = Runner.run_streamed(looking, "What do you see?")
    told["streamed items"] = [
        event.item.type async for event in stream.stream_events() if event.type == "run_item_stream_event"
    ]
    told["streamed result"] = stream.final_output
    shaped = Agent(name="shaped", model=make(), output_type=Animal)
    told["schema"] = (await Runner.run(shaped, "Which animal?")).final_output.model_dump()
    both = Agent(name="both", model=make(), tools=[look], output_type=Animal)
    told["tool and schema"] = (await Runner.run(both, "Which animal?")).final_output.model_dump()
    forced = Agent(
        name="forced", model=make(), tools=[look], model_settings=ModelSettings(tool_choice="required")
    )
    told["required"] = (await Runner.run(forced, "Look.")).final_output
    first = Agent(name="first", model=make(), handoffs=[handoff(agent)])
    handed = await Runner.run(first, "hi")
    told["handoff"] = [handed.last_agent.name, handed.final_output]
    again = await Runner.run(agent, [*plain.to_input_list(), {"role": "user", "content": "And again."}])
    told["second turn"] = again.final_output
    told["unknown"] = await failing(lambda: Runner.run(Agent(name="x", model=make(model="nope")), "hi"))
    told["too long"] = await failing(lambda: Runner.run(agent, "too long"))
    told["spent"] = await failing(lambda: Runner.run(Agent(name="x", model=make("spent")), "hi"))
    told["late"] = await failing(lambda: Runner.run(Agent(name="x", model=make("brief")), "slow"))
    return told


async def main() -> None:
    told = {"responses": await scenario(responses), "chat": await scenario(chat)}
    kept = Agent(name="kept", model=responses())
    first = await Runner.run(kept, "hi")
    on = await Runner.run(kept, "And again.", previous_response_id=first.last_response_id)
    told["previous response"] = {
        "second": on.final_output,
        "other": on.last_response_id != first.last_response_id,
    }
    print(json.dumps(told))


asyncio.run(main())
