"""The scripted engine's server: a real process with a real port that behaves, or misbehaves, as it is told.

It runs alone (`python -I -S scripted_server.py`) and imports nothing of Watchbill, so that it starts in 40
ms and occupies little beyond the memory it was told to take. It speaks enough of the OpenAI protocol for
every client: /health, /v1/models, /v1/chat/completions, /v1/completions, /v1/embeddings; /wb-scripted/state
tells what it is doing. One thread per connection; what is asked for together beyond `concurrency` waits for
a slot.

What it can be told is described in `scripted.py`. Requests with the header `X-Watchbill-Probe` are spared
every failure but `healthy-but-silent`: they belong to the load.
"""

import json
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
import zlib
from typing import cast

HEADER_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 2**20
BACKLOG = 512
#: Memory is taken in this many steps over the load, as a real engine does.
MEMORY_STEPS = 10
DIMENSIONS = range(8)  # of an embedding
LATE_WORDS = 16  # after which an answer hangs late in its stream

Fields = dict[str, object]


class Gone(Exception):
    """The client has left."""


class Script:
    """What to do, as numbers; `scripted.py` has checked it."""

    def __init__(self, text: str, state_path: str) -> None:
        fields = cast("Fields", json.loads(text))
        durations = ("load_ms", "service_ms", "wake_ms", "linger_ms")
        seconds = (cast("int", fields[name]) / 1000 for name in durations)
        self.load_s, self.service_s, self.wake_s, self.linger_s = seconds
        self.tokens = cast("int", fields["tokens"])
        self.memory_bytes = cast("int", fields["memory_bytes"])
        self.concurrency = cast("int", fields["concurrency"])
        self.jitter = cast("float", fields["jitter"])
        self.text = cast("str", fields["text"])
        self.fail = cast("list[str]", fields["fail"])
        self._fail_times = cast("int", fields["fail_times"])
        self._seed = cast("int", fields["seed"])
        self._state_path = state_path
        self._lock = threading.Lock()

    def fails(self, failure: str) -> bool:
        """Whether to misbehave now. Counts: with `fail_times` only the first so many times, over all starts."""
        if failure not in self.fail:
            return False
        with self._lock:
            done = self._failures_so_far()
            if self._fail_times and done >= self._fail_times:
                return False
            with open(self._state_path, "w", encoding="ascii") as file:
                file.write(str(done + 1))
            return True

    def jittered(self, seconds: float) -> float:
        """The duration, longer or shorter by up to `jitter`; the same seed gives the same row."""
        with self._lock:
            self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64
            draw = self._seed / 2**63 - 1
        return seconds * (1 + self.jitter * draw)

    def _failures_so_far(self) -> int:
        try:
            with open(self._state_path, encoding="ascii") as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0


class Engine:
    """The model: loading, then serving with so many slots."""

    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self.script = script
        self.is_ready = self.is_asleep = False
        self.slots = threading.Semaphore(script.concurrency)
        self.lock = threading.Lock()
        self.counts = {"active": 0, "queued": 0, "served": 0, "cancelled": 0, "most": 0, "health": 0}
        self.ready_at = 0.0  # on the machine's monotonic clock
        self.memory: list[mmap.mmap] = []

    def load(self) -> None:
        """Takes its time and its memory."""
        load_s = self.script.jittered(self.script.load_s)
        self.take_memory(load_s)
        if self.script.fails("crash-on-load"):
            die("crashes while it loads, as its script says")
        if self.script.fails("hang-on-load"):
            return
        self.ready_at, self.is_ready = time.monotonic(), True
        say(f"ready after {load_s:.3f} s")

    def take_memory(self, seconds: float) -> None:
        for _ in range(MEMORY_STEPS):
            time.sleep(seconds / MEMORY_STEPS)
            if step := self.script.memory_bytes // MEMORY_STEPS:
                # Populated: every page is really there, as weights are.
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
                self.memory.append(mmap.mmap(-1, step, flags=flags))

    def sleep(self, asleep: bool) -> None:
        """Gives its memory back, or takes it again; what is asked of it wakes it, too."""
        with self.lock:
            if self.is_asleep and not asleep:
                self.take_memory(self.script.wake_s)
            elif asleep:
                self.memory.clear()
            self.is_asleep = asleep

    def count(self, **changes: int) -> None:
        """Moves the counters that /wb-scripted/state shows."""
        with self.lock:
            for name, change in changes.items():
                self.counts[name] += change
            # What it had in hand at once, waiting for a slot or in one: it does not trust its own slots.
            self.counts["most"] = max(self.counts["most"], self.counts["active"] + self.counts["queued"])


class Connection(threading.Thread):
    """One client, until it leaves or asks to close."""

    def __init__(self, engine: Engine, client: socket.socket) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.script = engine.script
        self.client = client
        self.reader = client.makefile("rb")
        self.is_probe = False

    def run(self) -> None:
        """Answers requests one after the other."""
        with self.client:
            self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while self.answer_one():
                    pass
            except (Gone, ConnectionError):
                return

    def answer_one(self) -> bool:
        """Reads and answers a request; tells whether the connection stays open."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.reader.readline(HEADER_BYTES_MAX)
            if not line or len(head) > HEADER_BYTES_MAX:
                return False
            head += line
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, path, version = first.split(" ", 2)
        fields = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        self.is_probe = "x-watchbill-probe" in headers
        body = self.read_exactly(min(int(headers.get("content-length", "0")), BODY_BYTES_MAX))
        self.route(method, path.partition("?")[0], body)
        return version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"

    def route(self, method: str, path: str, body: bytes) -> None:
        """Sends the request to what answers it."""
        self.engine.count(health=int(path == "/health"))
        if path == "/wb-scripted/state":
            facts = {"ready": self.engine.is_ready, "ready_at": self.engine.ready_at, "pid": os.getpid()}
            self.send_json(200, {**self.engine.counts, **facts})
        elif not self.engine.is_ready:
            self.send_error(503, "Loading model")
        elif path == "/health":
            self.send_json(200, {"status": "ok"})
        elif path == "/is_sleeping":
            self.send_json(200, {"is_sleeping": self.engine.is_asleep})
        elif method == "POST" and path in ("/sleep", "/wake_up"):
            self.engine.sleep(path == "/sleep")
            self.send_json(200, {})
        elif path == "/v1/models":
            listed = {"id": self.engine.name, "object": "model", "meta": {"continues": True}}
            self.send_json(200, {"object": "list", "data": [listed]})
        elif method == "POST" and path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            self.serve(path, body)
        else:
            self.send_error(404, f"no {method} {path} here")

    def serve(self, path: str, body: bytes) -> None:
        """Waits for a slot, works, and counts what became of it."""
        try:
            asked = cast("object", json.loads(body))
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            self.send_error(400, "the body is not a JSON object")
            return
        self.engine.sleep(False)
        self.wait_for_slot()
        try:
            end = self.misbehaves() or self.work(path, cast("Fields", asked))
        except (Gone, ConnectionError):
            time.sleep(self.script.linger_s)
            self.engine.count(cancelled=1)
            raise
        finally:
            self.engine.count(active=-1)
            self.engine.slots.release()
        # After the slot is free: a client that sees the end of an answer may ask at once, and finds the slot free.
        self.engine.count(served=1)
        self.client.sendall(end)

    def wait_for_slot(self) -> None:
        self.engine.count(queued=1)
        got = False
        try:
            while not (got := self.engine.slots.acquire(timeout=0.05)):
                self.sleep(0)
        finally:
            self.engine.count(queued=-1, active=int(got))

    def misbehaves(self) -> bytes:
        """Fails before the first byte, if the script says so; returns the answer that is a failure."""
        if self.script.fails("healthy-but-silent"):
            self.hang()
        if self.is_probe:
            return b""
        if self.script.fails("crash-before-first-byte"):
            die("crashes before the first byte, as its script says")
        if self.script.fails("hang-before-first-byte"):
            self.hang()
        if self.script.fails("http-500"):
            return refusal(500, "fails, as its script says")
        return b""

    def work(self, path: str, asked: Fields) -> bytes:
        """Answers as an engine would; returns the end of the answer, which is still to be sent."""
        if path == "/v1/embeddings":
            self.sleep(self.script.jittered(self.script.service_s))
            return reply(200, embeddings(self.engine.name, asked.get("input", "")))
        answer = Answer(self.engine.name, path == "/v1/chat/completions", self.words_for(asked), asked)
        pause_s = 0 if self.is_probe else self.script.jittered(self.script.service_s) / self.script.tokens
        if asked.get("stream") is True:
            return self.stream(answer, pause_s)
        self.sleep(pause_s * len(answer.words))
        if not self.is_probe and self.script.fails("bad-frames"):
            return response(200, b'{"choices": [{"message": ')
        return reply(200, answer.whole())

    def words_for(self, asked: Fields) -> list[str]:
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        words = [word + " " for word in self.script.text.split()] or [f"{self.engine.name} "]
        row = [words[number % len(words)] for number in range(self.script.tokens)][begun(asked) :]
        return row[:limit] if isinstance(limit, int) and limit > 0 else row

    def stream(self, answer: "Answer", pause_s: float) -> bytes:
        """Sends the answer word by word as server-sent events; returns their end."""
        self.sleep(pause_s)
        self.client.sendall(head_of(200, "text/event-stream", "Transfer-Encoding: chunked"))
        for number, frame in enumerate(answer.frames()):
            if 0 < number < len(answer.words):
                self.sleep(pause_s)
            self.client.sendall(chunk(b"data: " + json.dumps(frame).encode() + b"\n\n"))
            if number == 0 and not self.is_probe and self.script.fails("crash-after-first-byte"):
                die("crashes after the first byte, as its script says")
            if number == LATE_WORDS and not self.is_probe and self.script.fails("hang-late-in-stream"):
                self.hang()
            if number == len(answer.words) // 2 and not self.is_probe:
                if self.script.fails("hang-mid-stream"):
                    self.hang()
                if self.script.fails("bad-frames"):
                    self.client.sendall(chunk(b'data: {"choices": [{"del\n\nno field at all\r\r\n'))
                    raise Gone
        return chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    # ------------------------------------------------------------------ the wire

    def sleep(self, seconds: float) -> None:
        """Lets time pass. Raises Gone at once when the client leaves meanwhile."""
        watch = select.poll()
        watch.register(self.client, select.POLLRDHUP | select.POLLHUP)
        if watch.poll(seconds * 1000):
            raise Gone

    def hang(self) -> None:
        """Does nothing more, until the client gives up."""
        while True:
            self.sleep(3600)

    def read_exactly(self, size: int) -> bytes:
        body = self.reader.read(size)
        if len(body) < size:
            raise Gone
        return body

    def send_json(self, status: int, fields: object) -> None:
        self.client.sendall(reply(status, fields))

    def send_error(self, status: int, message: str) -> None:
        self.client.sendall(refusal(status, message))


def head_of(status: int, kind: str, length: str) -> bytes:
    return f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode()


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def response(status: int, body: bytes) -> bytes:
    return head_of(status, "application/json", f"Content-Length: {len(body)}") + body


def reply(status: int, fields: object) -> bytes:
    return response(status, json.dumps(fields).encode())


def refusal(status: int, message: str) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return reply(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})


def begun(asked: Fields) -> int:
    """How many words of the answer are there already: a chat that ends with the assistant's words is continued."""
    last = cast("list[object]", asked["messages"])[-1:] if isinstance(asked.get("messages"), list) else []
    said = cast("Fields", last[0]) if last and isinstance(last[0], dict) else {}
    return len(str(said.get("content")).split()) if said.get("role") == "assistant" else 0


class Answer:
    """One completion, whole or in frames."""

    def __init__(self, model: str, is_chat: bool, words: list[str], asked: Fields) -> None:
        self.words = words
        self.is_chat = is_chat
        self.kind = "chat.completion.chunk" if is_chat else "text_completion"  # of a frame
        options = asked.get("stream_options")
        self.wants_usage = isinstance(options, dict) and bool(cast("Fields", options).get("include_usage"))
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        self.reason = "length" if limit == len(words) else "stop"
        self.base = {"id": f"scripted-{time.monotonic_ns()}", "created": int(time.time()), "model": model}
        prompt = len(str(asked.get("messages") or asked.get("prompt") or "").split())
        said = len(words)
        self.usage = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}

    def whole(self) -> Fields:
        """The answer to a request without `stream`."""
        text = "".join(self.words)
        kind = "chat.completion" if self.is_chat else "text_completion"
        said = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": 0, "finish_reason": self.reason, **said}
        return {**self.base, "object": kind, "choices": [choice], "usage": self.usage}

    def frames(self) -> list[Fields]:
        """One frame per word, one for the end, one for the usage if it was asked for."""
        frames = [self.frame(word, None, is_first=number == 0) for number, word in enumerate(self.words)]
        frames.append(self.frame("", self.reason, is_first=False))
        if self.wants_usage:
            frames.append({**self.base, "object": self.kind, "choices": [], "usage": self.usage})
        return frames

    def frame(self, word: str, reason: str | None, *, is_first: bool) -> Fields:
        said: Fields = {"text": word}
        if self.is_chat:
            role: Fields = {"role": "assistant"} if is_first else {}
            said = {"delta": {**role, **({"content": word} if word else {})}}
        return {**self.base, "object": self.kind, "choices": [{"index": 0, "finish_reason": reason, **said}]}


def embeddings(model: str, asked: object) -> Fields:
    """A vector per text, the same for the same text."""
    texts = cast("list[object]", asked) if isinstance(asked, list) else [asked]
    vectors = [[zlib.crc32(f"{n}:{text}".encode()) / 2**31 - 1 for n in DIMENSIONS] for text in texts]
    data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(len(str(text).split()) for text in texts))
    return {"object": "list", "model": model, "data": data, "usage": usage}


def say(line: str) -> None:
    print(f"scripted: {line}", flush=True)


def die(why: str) -> None:
    """Ends the process as a crash would: at once, with all its threads."""
    say(why)
    os._exit(1)


def main(name: str, port: str, script_text: str, state_path: str) -> None:
    """scripted_server.py MODEL PORT SCRIPT STATE_FILE"""
    script = Script(script_text, state_path)
    if "ignore-term" in script.fail:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "fork-and-exit" in script.fail:
        if os.fork():
            os._exit(0)
        os.setsid()
    threading.stack_size(256 * 1024)
    engine = Engine(name, script)
    with socket.create_server(("127.0.0.1", int(port)), backlog=BACKLOG) as door:
        threading.Thread(target=engine.load, daemon=True).start()
        while True:
            client, _ = door.accept()
            Connection(engine, client).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
