"""A serial engine that does not watch its clients: it ends what it began, or stops at a write that fails.

    deaf_engine.py PORT COUNTS whole|stream SECONDS

COUNTS gets a line for every question: how many were in hand at once.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, counts, kind, seconds = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
lock, active = threading.Lock(), set()
FRAME = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            active.add(self)
            with open(counts, "a") as file:
                file.write(f"{len(active)}\n")
        try:
            self.answer()
        finally:
            with lock:
                active.discard(self)
        self.wfile.write(b"0\r\n\r\n")  # whoever sees the end finds nothing in hand

    def answer(self):
        frames = [FRAME] * 40
        if kind == "whole":
            time.sleep(seconds)
            frames = frames[:1]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for frame in (*frames, LAST, None):
            if kind == "stream":
                time.sleep(seconds / 40)
            text = b"data: " + (b"[DONE]" if frame is None else json.dumps(frame).encode()) + b"\n\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
