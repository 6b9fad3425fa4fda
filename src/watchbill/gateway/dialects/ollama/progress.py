"""Work with progress, as Ollama tells it: lines of JSON as it goes, or one object when it is done.

An error before the first line is an ordinary refusal; after it, it is the last line. A client that asked for one object
gets the refusal in any case.
"""

from collections.abc import AsyncIterator

from watchbill.errors import RequestError, TheirsError
from watchbill.gateway.answers import json_response, let_go
from watchbill.gateway.dialects.ollama.response import error_line
from watchbill.gateway.http.messages import Answer, Stream
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.wire import line

__all__ = ["tell_progress"]

Fields = dict[str, object]


async def tell_progress(context: RequestContext, body: Fields, steps: AsyncIterator[Fields]) -> Answer:
    """Does the steps and tells of each. Raises what goes wrong before anything was told."""
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        raise RequestError("stream must be true or false")
    if stream is False:
        last: Fields = {}
        async for step in steps:
            last = step
        return json_response(last, context.lines())
    answer = Stream(context.request, {"Content-Type": "application/x-ndjson"}, lines=context.lines())
    is_open = False
    try:
        async for step in steps:
            if not is_open:
                await answer.open()
                is_open = True
            await answer.write(line(step))
    except TheirsError as error:
        if not is_open:
            raise
        await answer.write(error_line(error))
        let_go(error)
    await answer.end()
    return answer
