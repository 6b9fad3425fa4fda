"""A collector of OpenTelemetry for tests: a real HTTP server that reads OTLP as the protocol's own package does."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.eventually import wait_until

__all__ = ["Collector", "collector"]


class Collector:
    """What was received. `gate`: while it is closed, no request is answered."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.headers: list[dict[str, str]] = []
        self.gate = Event()
        self.gate.set()
        self.status = 200
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> None:
        self.headers.append(headers)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in group.resource.attributes}
            self.services.add(named["service.name"])
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str) -> Any:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def until(self, count: int) -> None:
        wait_until(lambda: len(self.spans) >= count)

    @staticmethod
    def facts(span: Any) -> dict[str, Any]:
        return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """A collector that listens."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.gate.wait(60)
            if found.status == 200:
                found.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
