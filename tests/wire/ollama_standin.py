"""A stand-in for Ollama: a real HTTP server that loads, holds, expires and unloads models as Ollama does.

Its answers have the shape of those recorded from a real server (`tests/fixtures/ollama`; a test compares every one of
them). What it shares with Ollama beyond shapes: a load takes time and ends when its client leaves; `keep_alive` belongs
to the model and stays until a request brings another one; 0 unloads when the last answer has ended.

There may be a limit of models in memory (OLLAMA_MAX_LOADED_MODELS). Then one model is loaded after the other, and for
one too many the scheduler chooses a victim, whoever loaded it: the idle one with the shortest `keep_alive`, or, where
none is idle, the one with the shortest. The victim's `keep_alive` becomes 0, and the scheduler waits for an unload
before it goes on, for this request and for every other that needs a load, also when its client has left. Requests for
models that are in memory do not pass the scheduler: one that brings a `keep_alive` calls the victim's unload off, and
the scheduler goes on waiting. `/api/ps` shows when a model would leave from the moment in which it was idle for the
first time; before that it shows now plus its `keep_alive`.

As a program it takes the names of its models, with their memory, and prints its port:

    python ollama_standin.py --limit 3 one=200000000 two
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Any

DEFAULT_KEEP_ALIVE_S = 300.0
#: What Ollama makes of a negative keep_alive: the longest duration Go has.
FOR_EVER_S = (2**63 - 1) / 1e9
LONGEST_S = 10_000_000_000.0

REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error",
    501: "Not Implemented",
}  # fmt: skip
JSON = "application/json; charset=utf-8"
WORDS = ["I", "'m", " glad", " to", " make", " your", " acquaintance", "."]


@dataclass
class Kept:
    """A model on the stand-in's disk."""

    name: str
    size: int = 98_362_760  # of its file
    memory: int = 209_505_483
    vram: int = 0
    embedding: bool = False

    @property
    def listed(self) -> str:
        return self.name if ":" in self.name else f"{self.name}:latest"

    @property
    def details(self) -> dict[str, Any]:
        return {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
                "parameter_size": "134.52M", "quantization_level": "Q4_1"}  # fmt: skip


@dataclass
class Runner:
    """A model in the stand-in's memory, or on the way into it."""

    model: Kept
    keep_alive_s: float
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False
    unloading: bool = False
    working: int = 0
    idle_until: datetime | None = None  # None: it was never idle
    timer: asyncio.TimerHandle | None = None

    @property
    def expires(self) -> datetime:
        if self.idle_until is not None:
            return self.idle_until
        return datetime.now(UTC) + timedelta(seconds=min(self.keep_alive_s, LONGEST_S))


class Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Request:
    method: str
    path: str
    body: bytes

    def fields(self) -> dict[str, Any]:
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refusal(400, _go_complaint(self.body.decode())) from error


class OllamaStandin:
    """One server. Tests read `loads`, `unloads`, `asked` and `listed`, and turn the delays."""

    def __init__(
        self, *models: Kept, load_s: float = 0.0, unload_s: float = 0.0, token_s: float = 0.0, limit: int = 0
    ):
        self.models = {model.listed: model for model in models}
        self.load_s, self.unload_s, self.token_s, self.limit = load_s, unload_s, token_s, limit
        self.runners: dict[str, Runner] = {}
        self.loads: list[str] = []  # that ended well
        self.unloads: list[str] = []
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.refuse: tuple[int, str] | None = None  # every load, from now on
        self.speaks = asyncio.Event()  # cleared: it takes requests and answers none
        self.speaks.set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # the scheduler: one load after the other
        self._unloaded = asyncio.Event()
        self._work: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ for tests

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listed(self) -> list[str]:
        """What is in memory or on its way there, as /api/ps would say."""
        return sorted(self.runners)

    def left_s(self, name: str) -> float:
        return (self.runners[name].expires - datetime.now(UTC)).total_seconds()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """The server is gone, with everything in its memory; `start` begins anew on the same port."""
        assert self._server is not None
        self._server.close()
        for context in list(self._visits):
            context.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        for task in list(self._work):
            task.cancel()
        for runner in self.runners.values():
            if runner.timer is not None:
                runner.timer.cancel()
        self.runners.clear()
        self._turn, self._unloaded = asyncio.Lock(), asyncio.Event()

    # ------------------------------------------------------------------ memory

    def find(self, name: str) -> Kept:
        tagged = name if ":" in name else f"{name}:latest"
        if tagged not in self.models:
            raise Refusal(404, f"model '{name}' not found")
        return self.models[tagged]

    @contextlib.asynccontextmanager
    async def use(self, name: str, keep_alive: object) -> AsyncIterator[Runner]:
        """The model's runner, loaded when it was not, for the time of one request."""
        runner = await self._runner(self.find(name), _seconds(keep_alive))
        try:
            yield runner
        finally:
            self._rest(runner)

    async def _runner(self, model: Kept, keep_alive_s: float | None) -> Runner:
        """A runner that counts this request."""
        if self.refuse is not None:
            raise Refusal(*self.refuse)
        runner = self.runners.get(model.listed)
        if runner is not None and not runner.unloading:
            await runner.ready.wait()
            if not runner.failed and not runner.unloading:
                return self._take(runner, keep_alive_s)
        place: asyncio.Future[Runner] = asyncio.get_running_loop().create_future()
        self._begin(self._schedule(model, keep_alive_s, place))
        return await place

    def _take(self, runner: Runner, keep_alive_s: float | None) -> Runner:
        runner.working += 1
        if runner.timer is not None:
            runner.timer.cancel()
        if keep_alive_s is not None:
            runner.keep_alive_s = keep_alive_s
        return runner

    async def _schedule(
        self, model: Kept, keep_alive_s: float | None, place: "asyncio.Future[Runner]"
    ) -> None:
        async with self._turn:
            while not place.done():  # done: its client has left
                runner = self.runners.get(model.listed)
                if runner is not None and not runner.unloading:
                    place.set_result(self._take(runner, keep_alive_s))
                elif runner is None and (not self.limit or len(self.runners) < self.limit):
                    await self._load(model, keep_alive_s, place)
                else:
                    self._unloaded.clear()
                    self._expire(runner or self._victim())
                    await self._unloaded.wait()

    def _victim(self) -> Runner:
        by_duration = sorted(self.runners.values(), key=lambda runner: runner.keep_alive_s)
        return next((runner for runner in by_duration if not runner.working), by_duration[0])

    async def _load(self, model: Kept, keep_alive_s: float | None, place: "asyncio.Future[Runner]") -> None:
        runner = Runner(model, DEFAULT_KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s)
        runner.working = 1
        self.runners[model.listed] = runner
        await asyncio.wait([place], timeout=self.load_s)
        if place.done():  # the client left: so does the load
            runner.failed = True
            del self.runners[model.listed]
        else:
            self.loads.append(model.listed)
            place.set_result(runner)
        runner.ready.set()

    def _rest(self, runner: Runner) -> None:
        """A request of this runner has ended."""
        runner.working -= 1
        if runner.working or self.runners.get(runner.model.listed) is not runner:
            return
        if runner.keep_alive_s <= 0:
            self._expire(runner)
            return
        stay = min(runner.keep_alive_s, LONGEST_S)
        runner.idle_until = datetime.now(UTC) + timedelta(seconds=stay)
        if stay < 86_400:
            runner.timer = asyncio.get_running_loop().call_later(stay, self._expire, runner)

    def _expire(self, runner: Runner) -> None:
        """Unloads it now, or as soon as its last request has ended."""
        runner.keep_alive_s = 0.0
        if runner.timer is not None:
            runner.timer.cancel()
        if not runner.working and not runner.unloading:
            runner.unloading = True
            self._begin(self._unload(runner))

    async def _unload(self, runner: Runner) -> None:
        await asyncio.sleep(self.unload_s)
        if self.runners.get(runner.model.listed) is runner:
            del self.runners[runner.model.listed]
            self.unloads.append(runner.model.listed)
        self._unloaded.set()

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # ------------------------------------------------------------------ HTTP

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        try:
            while (request := await _read(reader)) is not None:
                await self._answer_unless_left(request, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._visits.discard(task)
            writer.close()

    async def _answer_unless_left(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answering = asyncio.create_task(self._answer(request, Out(writer, request.method)))
        leaving = asyncio.create_task(_left(reader))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait([answering, leaving])
        if answering.cancelled():
            raise ConnectionResetError
        answering.result()

    async def _answer(self, request: Request, out: "Out") -> None:
        self.asked.append(
            (request.method, request.path, json.loads(request.body) if _is_json(request.body) else {})
        )
        await self.speaks.wait()
        known = {path: method for method, path in ROUTES}
        method = "GET" if request.method == "HEAD" else request.method
        act = ROUTES.get((method, request.path))
        if act is None and request.path in known:
            out.whole(405, "text/plain", b"405 method not allowed", {"Allow": known[request.path]})
        elif act is None:
            out.whole(404, "text/plain", b"404 page not found")
        else:
            try:
                await act(self, request, out)
            except Refusal as refusal:
                out.refuse(refusal, openai=request.path.startswith("/v1/"))

    # ------------------------------------------------------------------ answers

    async def root(self, _: Request, out: "Out") -> None:
        out.whole(200, "text/plain; charset=utf-8", b"Ollama is running")

    async def version(self, _: Request, out: "Out") -> None:
        out.json({"version": "0.0.0"})

    async def tags(self, _: Request, out: "Out") -> None:
        out.json({"models": [
            {"name": model.listed, "model": model.listed, "modified_at": _now(), "size": model.size,
             "digest": "0" * 64, "details": model.details | {"context_length": 8192, "embedding_length": 576},
             "capabilities": ["embedding" if model.embedding else "completion"]}
            for model in self.models.values()
        ]})  # fmt: skip

    async def ps(self, _: Request, out: "Out") -> None:
        out.json({"models": [
            {"name": name, "model": name, "size": runner.model.memory, "digest": "0" * 64,
             "details": runner.model.details, "expires_at": _spell(runner.expires), "size_vram": runner.model.vram,
             "context_length": 4096}
            for name, runner in self.runners.items()
        ]})  # fmt: skip

    async def show(self, request: Request, out: "Out") -> None:
        model = self.find(request.fields()["model"])
        body = {"modelfile": f"FROM {model.listed}\n", "parameters": "num_thread 2", "template": "{{ .Prompt }}",
                "details": model.details, "model_info": {"general.architecture": "llama"},
                "tensors": [{"name": "output.weight", "type": "Q4_1", "shape": [576, 1536]}],
                "capabilities": ["completion"], "modified_at": _now()}  # fmt: skip
        out.begin(200, JSON)
        out.piece(json.dumps(body).encode())
        out.end()

    async def generate(self, request: Request, out: "Out") -> None:
        fields = request.fields()
        model, keep_alive = self.find(fields["model"]), fields.get("keep_alive")
        if not fields.get("prompt") and keep_alive is not None and _seconds(keep_alive) == 0:
            runner = self.runners.get(model.listed)
            if runner is not None:
                runner.idle_until = datetime.now(UTC)
                self._expire(runner)
            out.json(self._said(fields, response="", done=True, done_reason="unload"))
            return
        if model.embedding:
            raise Refusal(400, f'"{model.name}" does not support generate')
        async with self.use(fields["model"], keep_alive):
            if not fields.get("prompt"):
                out.json(self._said(fields, response="", done=True, done_reason="load"))
            else:
                end = {"context": [1, 4093, 198]}
                await self._speak(fields, out, lambda text: {"response": text}, end)

    async def chat(self, request: Request, out: "Out") -> None:
        fields = request.fields()
        async with self.use(fields["model"], fields.get("keep_alive")):
            await self._speak(
                fields, out, lambda text: {"message": {"role": "assistant", "content": text}}, {}
            )

    async def _speak(
        self, fields: dict[str, Any], out: "Out", shape: Callable[[str], dict[str, Any]], end: dict[str, Any]
    ) -> None:
        words = WORDS[: fields.get("options", {}).get("num_predict", len(WORDS))]
        counts = {"total_duration": 95429696, "load_duration": 1281260, "prompt_eval_count": 11,
                  "prompt_eval_duration": 27716000, "eval_count": len(words), "eval_duration": 58849000}  # fmt: skip
        last = {"done": True, "done_reason": "length", **end, **counts}
        if fields.get("stream") is False:
            await asyncio.sleep(self.token_s * len(words))
            out.json(self._said(fields, **shape("".join(words)), **last))
            return
        out.begin(200, "application/x-ndjson")
        for word in words:
            await asyncio.sleep(self.token_s)
            out.piece(_compact(self._said(fields, **shape(word), done=False)) + b"\n")
        out.piece(_compact(self._said(fields, **shape(""), **last)) + b"\n")
        out.end()

    @staticmethod
    def _said(fields: dict[str, Any], **rest: object) -> dict[str, object]:
        return {"model": fields["model"], "created_at": _now(), **rest}

    async def embed(self, request: Request, out: "Out") -> None:
        fields = request.fields()
        model = self.find(fields["model"])
        async with self.use(fields["model"], fields.get("keep_alive")):
            if not model.embedding:
                raise Refusal(501, "This server does not support embeddings. Start it with `--embeddings`")
            out.json({"model": fields["model"], "embeddings": [[0.1, 0.2]], "total_duration": 1, "load_duration": 1,
                      "prompt_eval_count": 1})  # fmt: skip

    async def pull(self, request: Request, out: "Out") -> None:
        fields = request.fields()
        steps = [{"status": "pulling manifest"}]
        try:
            self.find(fields["model"])
            steps += [
                {"status": "verifying sha256 digest"},
                {"status": "writing manifest"},
                {"status": "success"},
            ]
        except Refusal:
            if fields.get("stream") is False:
                raise Refusal(500, "pull model manifest: file does not exist") from None
            steps.append({"error": "pull model manifest: file does not exist"})
        if fields.get("stream") is False:
            out.json(steps[-1])
            return
        out.begin(200, "application/x-ndjson")
        for step in steps:
            out.piece(_compact(step) + b"\n")
        out.end()

    async def push(self, request: Request, out: "Out") -> None:
        out.begin(200, "application/x-ndjson")
        for step in ({"status": "retrieving manifest"}, {"error": "push access denied"}):
            out.piece(_compact(step) + b"\n")
        out.end()

    async def delete(self, request: Request, out: "Out") -> None:
        del self.models[self.find(request.fields()["model"]).listed]
        out.whole(200, "text/plain", b"")

    async def v1_models(self, _: Request, out: "Out") -> None:
        listed = [
            {"id": name, "object": "model", "created": int(time.time()), "owned_by": "library"}
            for name in self.models
        ]
        out.json_line({"object": "list", "data": listed})

    async def v1_embeddings(self, request: Request, out: "Out") -> None:
        fields = request.fields()
        if not self.find(fields["model"]).embedding:
            raise Refusal(501, "This server does not support embeddings. Start it with `--embeddings`")
        async with self.use(fields["model"], None):
            vectors = [{"object": "embedding", "embedding": [0.1, 0.2], "index": 0}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            out.json_line({"object": "list", "data": vectors, "model": fields["model"], "usage": usage})

    async def v1_chat(self, request: Request, out: "Out") -> None:
        fields = request.fields()
        async with self.use(fields["model"], None):
            words = WORDS[: fields.get("max_tokens") or len(WORDS)]
            if fields.get("stream"):
                await self._v1_stream(fields, words, out)
                return
            await asyncio.sleep(self.token_s * len(words))
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            out.json_line(_v1(fields, "chat.completion", [choice]) | {"usage": _usage(words)})

    async def _v1_stream(self, fields: dict[str, Any], words: list[str], out: "Out") -> None:
        out.begin(200, "text/event-stream")
        for place, word in enumerate(words):
            await asyncio.sleep(self.token_s)
            delta = {"role": "assistant"} if not place else {}
            choice = {"index": 0, "delta": {**delta, "content": word}, "finish_reason": None}
            out.event(_v1(fields, "chat.completion.chunk", [choice]))
        out.event(
            _v1(fields, "chat.completion.chunk", [{"index": 0, "delta": {}, "finish_reason": "length"}])
        )
        if fields.get("stream_options", {}).get("include_usage"):
            out.event(_v1(fields, "chat.completion.chunk", []) | {"usage": _usage(words)})
        out.piece(b"data: [DONE]\n\n")
        out.end()


Act = Callable[[OllamaStandin, Request, "Out"], Awaitable[None]]
ROUTES: dict[tuple[str, str], Act] = {
    ("GET", "/"): OllamaStandin.root,
    ("GET", "/api/version"): OllamaStandin.version,
    ("GET", "/api/tags"): OllamaStandin.tags,
    ("GET", "/api/ps"): OllamaStandin.ps,
    ("POST", "/api/show"): OllamaStandin.show,
    ("POST", "/api/generate"): OllamaStandin.generate,
    ("POST", "/api/chat"): OllamaStandin.chat,
    ("POST", "/api/embed"): OllamaStandin.embed,
    ("POST", "/api/pull"): OllamaStandin.pull,
    ("POST", "/api/push"): OllamaStandin.push,
    ("DELETE", "/api/delete"): OllamaStandin.delete,
    ("GET", "/v1/models"): OllamaStandin.v1_models,
    ("POST", "/v1/chat/completions"): OllamaStandin.v1_chat,
    ("POST", "/v1/embeddings"): OllamaStandin.v1_embeddings,
}


class Out:
    """One answer, with the headers in the order in which Ollama sends them."""

    def __init__(self, writer: asyncio.StreamWriter, method: str) -> None:
        self._writer, self._method = writer, method

    def whole(self, status: int, kind: str, body: bytes, extra: dict[str, str] | None = None) -> None:
        self._head(status, {**(extra or {}), "Content-Type": kind}, f"Content-Length: {len(body)}")
        if self._method != "HEAD":
            self._writer.write(body)

    def json(self, body: object, status: int = 200) -> None:
        self.whole(status, JSON, _compact(body))

    def json_line(self, body: object, status: int = 200) -> None:
        self.whole(status, "application/json", _compact(body) + b"\n")

    def refuse(self, refusal: Refusal, *, openai: bool) -> None:
        if openai:
            kind = "not_found_error" if refusal.status == 404 else "api_error"
            error = {"message": str(refusal), "type": kind, "param": None, "code": None}
            self.json_line({"error": error}, refusal.status)
        else:
            self.json({"error": str(refusal)}, refusal.status)

    def begin(self, status: int, kind: str) -> None:
        self._head(status, {"Content-Type": kind}, "Transfer-Encoding: chunked")

    def piece(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, body: object) -> None:
        self.piece(b"data: " + _compact(body) + b"\n\n")

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    def _head(self, status: int, headers: dict[str, str], last: str) -> None:
        lines = [
            f"HTTP/1.1 {status} {REASONS[status]}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        lines += [f"Date: {formatdate(usegmt=True)}", last, "", ""]
        self._writer.write("\r\n".join(lines).encode())


async def _left(reader: asyncio.StreamReader) -> None:
    """Returns when the client is gone. Takes nothing of what it may send next."""
    while not reader.at_eof():  # noqa: ASYNC110  a reader has no event for its end
        await asyncio.sleep(0.005)


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(method, path, await reader.readexactly(int(headers.get("content-length", "0"))))


def _v1(fields: dict[str, Any], kind: str, choices: list[object]) -> dict[str, object]:
    head = {"id": "chatcmpl-739", "object": kind, "created": int(time.time()), "model": fields["model"]}
    return head | {"system_fingerprint": "fp_ollama", "choices": choices}


def _usage(words: list[str]) -> dict[str, int]:
    return {"prompt_tokens": 11, "completion_tokens": len(words), "total_tokens": 11 + len(words)}


def _seconds(keep_alive: object) -> float | None:
    if keep_alive is None:
        return None
    if isinstance(keep_alive, str):
        keep_alive = float(keep_alive.rstrip("smh")) * {"s": 1, "m": 60, "h": 3600}[keep_alive[-1]]
    assert isinstance(keep_alive, int | float)
    return FOR_EVER_S if keep_alive < 0 else float(keep_alive)


def _go_complaint(body: str) -> str:
    return f"invalid character '{body.strip()[1:2]}' looking for beginning of object key string"


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _compact(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _now() -> str:
    return _spell(datetime.now(UTC))


def _spell(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "555Z"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--load", type=float, default=0.0)
    parser.add_argument("--unload", type=float, default=0.0)
    parser.add_argument("--token", type=float, default=0.0)
    parser.add_argument("models", nargs="+")
    asked = parser.parse_args()
    kept = (name.partition("=") for name in asked.models)
    models = [Kept(name, memory=int(memory or 2**20)) for name, _, memory in kept]
    delays = {"load_s": asked.load, "unload_s": asked.unload, "token_s": asked.token}
    standin = OllamaStandin(*models, **delays, limit=asked.limit)
    standin.port = asked.port
    await standin.start()
    print(standin.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
