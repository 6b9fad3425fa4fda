"""A registry of models on loopback, as Ollama's library is one: manifests that name layers, and blobs."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Registry", "serving_registry"]

KIND = "application/vnd.ollama.image."


class Registry:
    """What it has, and what it was asked."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.url = ""
        self.endless = False  # blobs have no length, and go on

    def add(self, name: str, **layers: bytes) -> None:
        """A model: `add("library/tiny:latest", model=..., system=...)`."""
        listed = []
        for kind, content in layers.items():
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self.blobs[digest] = content
            listed.append({"mediaType": KIND + kind, "digest": digest, "size": len(content)})
        repository, _, tag = name.rpartition(":")
        manifest = {"schemaVersion": 2, "config": {}, "layers": listed}
        self.manifests[f"/v2/{repository}/manifests/{tag}"] = json.dumps(manifest).encode()

    def find(self, path: str) -> bytes | None:
        """What lies at an address."""
        self.asked.append(path)
        return self.manifests.get(path) or self.blobs.get(path.rpartition("/blobs/")[2])


@contextmanager
def serving_registry() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = registry.find(self.path)
            if registry.endless and "/blobs/" in self.path:
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):  # until the client has had enough
                    for _ in range(1_000):
                        self.wfile.write(bytes(2**20))
                return
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, format: str, *args: object) -> None:
            """A test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
