"""`config check` calls on the engines that a config only names."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from watchbill.catalog import EngineRules
from watchbill.cli import run
from watchbill.cli.facts import silent_engines

CONFIG = """
[engines.near]
driver = "ollama"
url = "http://127.0.0.1:{port}"
[models.a]
engine = "near"
source = "a:latest"
memory = "1MB"
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()[1]


def test_an_engine_that_does_not_answer_is_named_with_its_line(tmp_path, capsys) -> None:
    """Bad input is caught before it hurts; the engine may only be off, so it is worth a look, no more."""
    file = tmp_path / "watchbill.toml"
    port = free_port()
    file.write_text(CONFIG.format(port=port))
    assert run(["config", "check", "--config", str(file), "--root", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert f"{file}:4: engines.near.url: http://127.0.0.1:{port} does not answer: connection refused" in told


SITES = """
[models.a]
engine = "scripted"
[peers.rig]
url = "http://127.0.0.1:{port}"
key = "what-home-shows-there"
models = ["big"]
[tiers.cloud]
kind = "external"
enabled = true
url = "http://127.0.0.1:{port}/v1"
key = "what-the-cloud-asks-for"
models = ["big"]
daily = 1.0
price_in = 1.0
price_out = 1.0
[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{port}"
models = ["big"]
start = "no-such-program start"
stop = "true"
"""


def test_other_machines_are_asked_whether_they_know_us(tmp_path, capsys) -> None:
    """RES-23, SPOOL-10: a machine that answers, and refuses every request because of a key, was found to be well. The
    missing command of a burst machine was noticed by its first request."""
    asked: list[str] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(f"{self.command} {self.path} {self.headers['Authorization']}")
            self.send_response(401)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None: ...

    file = tmp_path / "watchbill.toml"
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file.write_text(SITES.format(port=server.server_port))
        assert run(["config", "check", "--config", str(file), "--root", str(tmp_path)]) == 0
        server.shutdown()
    told = capsys.readouterr().err
    assert "peers.rig.url" in told and "it does not know the key that this machine shows there" in told
    assert "tiers.cloud.url" in told and "it does not accept our key" in told
    assert "tiers.box.start: there is no program no-such-program" in told
    assert sorted(asked) == [
        "GET /v1/models Bearer what-the-cloud-asks-for",
        "POST /wb/v1/leases/none/renew Bearer what-home-shows-there",
    ]


def test_any_answer_is_one_and_a_mute_listener_is_none() -> None:
    """A listener that accepts and says nothing is silent, too; nobody is waited for past the bound."""
    with socket.create_server(("127.0.0.1", 0)) as talks, socket.create_server(("127.0.0.1", 0)) as mute:

        def talk() -> None:
            client, _ = talks.accept()
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        ports = {"talks": talks.getsockname()[1], "mute": mute.getsockname()[1]}
        engines = {
            name: EngineRules(name, "remote", f"http://127.0.0.1:{port}/v1") for name, port in ports.items()
        }
        told = silent_engines({**engines, "own": EngineRules("own", "llamacpp")})
        thread.join(10)
    assert list(told) == ["mute"]
    assert "does not answer" in told["mute"]
