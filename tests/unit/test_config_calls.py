"""`config check` calls on the engines that a config only names."""

import socket
import threading

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
