"""An engine that answers without pause: what a request's text names is sent until the caller leaves.

    python hostile_engine.py

Prints its port. Ends with its standard input. Imports nothing of Watchbill.
"""

import contextlib
import re
import socket
import sys
import threading

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
SAYS = b'data: {"choices":[{"index":0,"delta":{"content":"aaaa"}}]}\n\n'
CALLS = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a",'
    b'"function":{"name":"f","arguments":"%b"}}]}}]}\n\n' % (b"a" * 100)
)
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#: What begins an answer, and what follows for ever.
STORMS = {
    b"words": (EVENTS, SAYS * 2_000),
    b"tools": (EVENTS, CALLS * 1_000),
    b"comments": (EVENTS, b": a\n" * 16_000),
    b"blanks": (EVENTS, b"\n" * 65_536),
    b"line": (EVENTS + b"data: ", b"a" * 65_536),
    b"bytes": (CHUNKED, b"1\r\n\n\r\n" * 10_000),
    b"headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: aaaaaaaaaaaaaaaaaaaa\r\n" * 1_000),
    b"extension": (CHUNKED + b"1;", b"a" * 65_536),
    b"brackets": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"[" * 65_536),
}


def answer(caller: socket.socket) -> None:
    """Hears one request and answers it for ever."""
    with caller, contextlib.suppress(OSError):
        heard = b""
        while not (named := re.search(rb"storm ([a-z]+)", heard)):
            if not (piece := caller.recv(65_536)):
                return
            heard += piece
        begins, goes_on = STORMS[named[1]]
        caller.sendall(begins)
        while True:
            caller.sendall(goes_on)


def serve(listener: socket.socket) -> None:
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
    sys.stdin.read()
