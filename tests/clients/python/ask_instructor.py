"""instructor in its modes for OpenAI's chat and responses and for Anthropic's messages, whole and in pieces."""

import json
import os
from collections.abc import Callable
from typing import Any

import anthropic
import instructor
import openai
from pydantic import BaseModel, field_validator

BASE = os.environ["BASE"]


class Animal(BaseModel):
    """An animal."""

    animal: str
    legs: int


class Counted(Animal):
    """An animal whose legs nobody believes, which is asked for again."""

    @field_validator("legs")
    @classmethod
    def believe(cls, legs: int) -> int:
        raise ValueError("no animal has so many legs")


def openai_client(mode: instructor.Mode, key: str = "user") -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=f"{BASE}/v1", api_key=key, max_retries=0), mode=mode)


def anthropic_client(mode: instructor.Mode, key: str = "user") -> Any:
    return instructor.from_anthropic(
        anthropic.Anthropic(base_url=BASE, api_key=key, max_retries=0), mode=mode
    )


def failing(ask: Callable[[], Any]) -> list[Any]:
    """The class of the error below instructor's own, and its status."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001  whatever the client makes of it is what is asked
        links: list[BaseException] = [error]
        while (link := links[-1].__cause__ or links[-1].__context__) is not None and link not in links:
            links.append(link)
        told = [each for each in links if getattr(each, "status_code", None)]
        return (
            [type(told[0]).__name__, told[0].status_code]
            if told
            else [type(error).__name__, str(error)[:300]]
        )
    return ["no error"]


def scenario(make: Callable[..., Any], mode: instructor.Mode) -> dict[str, Any]:
    def ask(text: str, shape: Any = Animal, *, key: str = "user", model: str = "a", retries: int = 1) -> Any:
        return make(mode, key).create(
            model=model, response_model=shape, max_retries=retries, max_tokens=99,
            messages=[{"role": "user", "content": text}],
        )  # fmt: skip

    told: dict[str, Any] = {"schema": ask("Which animal?").model_dump()}
    partial = make(mode).create_partial(
        model="a", response_model=Animal, max_tokens=99, messages=[{"role": "user", "content": "Which animal?"}]
    )  # fmt: skip
    told["in pieces"] = list(partial)[-1].model_dump()
    told["asked again"] = failing(lambda: ask("Which animal?", Counted, retries=2))[0]
    told["unknown"] = failing(lambda: ask("hi", model="nope"))
    told["too long"] = failing(lambda: ask("too long"))
    told["spent"] = failing(lambda: ask("hi", key="spent"))
    told["late"] = failing(lambda: ask("slow", key="brief"))
    return told


print(
    json.dumps(
        {
            "tools": scenario(openai_client, instructor.Mode.TOOLS),
            "tools_strict": scenario(openai_client, instructor.Mode.TOOLS_STRICT),
            "json_schema": scenario(openai_client, instructor.Mode.JSON_SCHEMA),
            "json": scenario(openai_client, instructor.Mode.JSON),
            "anthropic_tools": scenario(anthropic_client, instructor.Mode.ANTHROPIC_TOOLS),
        }
    )
)
