"""An engine that writes down what it is asked, outside of everything that can lose its power, and repeats it.

    ledger_engine.py PORT MODEL LEDGER LOAD_S

It listens after its load, answers after 5 to 20 ms, and has no state of its own.
"""

import json
import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, MODEL, LEDGER, LOAD_S = sys.argv[1:]
ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        os.write(ledger, f"{MODEL}\t{text}\n".encode())
        time.sleep(random.uniform(0.005, 0.02))
        said = {"role": "assistant", "content": f"{MODEL} heard {text}"}
        usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        if not body.get("stream"):
            whole = {"index": 0, "message": said, "finish_reason": "stop"}
            return self._answer(
                json.dumps({**base, "choices": [whole], "usage": usage}).encode(), "application/json"
            )
        events = [
            {**base, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
            {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**base, "choices": [], "usage": usage},
        ]
        told = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return self._answer(told.encode(), "text/event-stream")

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line of a log for each of ten thousand answers helps nobody."""


class Server(ThreadingHTTPServer):
    """Threads that do not outlive it."""

    daemon_threads = True
    request_queue_size = 64


time.sleep(float(LOAD_S))
os.write(ledger, f"{MODEL}\tloaded\n".encode())
Server(("127.0.0.1", int(PORT)), Handler).serve_forever()
