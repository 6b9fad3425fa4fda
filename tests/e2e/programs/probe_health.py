"""Asks for /health again and again until its standard input ends, and prints how long the slowest answer took.

    python probe_health.py PORT

A request that has nothing to wait for waits as long as the daemon's event loop stands still. Prints one JSON object:
the number of answers, and the longest and the ninth of ten in milliseconds. A line "begun" goes before it, after a
first answer that does not count. Imports nothing of Watchbill.
"""

import json
import select
import socket
import sys
import time

PAUSE_S = 0.005
ASKED = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def probe(port: int) -> list[float]:
    took_ms: list[float] = []

    def ask() -> float:
        began = time.perf_counter()
        client.sendall(ASKED)
        assert client.recv(4096), "the daemon closed the connection"
        return (time.perf_counter() - began) * 1000

    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask()
        print("begun", flush=True)
        took_ms.append(ask())
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            took_ms.append(ask())
    return sorted(took_ms)


if __name__ == "__main__":
    slow = probe(int(sys.argv[1]))
    print(json.dumps({"count": len(slow), "longest_ms": slow[-1], "p90_ms": slow[len(slow) * 9 // 10]}))
