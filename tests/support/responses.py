"""Responses of OpenAI's newer dialect that are made in the background, as a client follows them."""

from typing import Any

import openai

from support.eventually import eventually

__all__ = ["until"]


async def until(client: openai.AsyncOpenAI, id: str, status: str) -> Any:
    """The response, when it has this status."""

    async def found() -> Any:
        response = await client.responses.retrieve(id)
        return response if response.status == status else None

    return await eventually(found)
