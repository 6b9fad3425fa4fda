"""Tiers for real: a second daemon that a command starts and stops, and llama.cpp behind a key as the external one."""

import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

from e2e.place import Place, chat_body, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until
from watchbill.processes.ports import claim_port


def burst_of(place: Place, far: Path, port: int, more: str = "") -> str:
    """A burst tier that is a whole daemon of its own, with its own root and config."""
    command = f"{sys.executable} -m watchbill"
    return (
        scripted("small")
        + f"""
[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{port}"
models = ["big"]
start = "{command} up --detach --no-fleet --root {far / "root"} --config {far / "watchbill.toml"} --port {port}"
stop = "{command} down --root {far / "root"}"
idle = "3s"
{more}
"""
    )


def far_daemon(folder: Path, config: str) -> Path:
    far = folder / "far"
    far.mkdir()
    (far / "watchbill.toml").write_text(config)
    return far


def far_pid(far: Path) -> int | None:
    try:
        return json.loads((far / "root" / "run" / "daemon.json").read_text())["pid"]
    except FileNotFoundError:  # it is not there yet, or has just ended
        return None


def test_a_second_daemon_is_started_and_stopped_by_the_commands_and_killed_in_between(place: Place) -> None:
    """SPOOL-09: started on demand, killed under a request without its first byte, started again, stopped when idle."""
    port = claim_port(place.folder / "ports")
    far = far_daemon(place.folder, scripted("big", 'service = "3s", tokens = 1, load = "100ms"'))
    place.config.write_text(burst_of(place, far, port))
    daemon = place.up()
    assert far_pid(far) is None
    answers: list[tuple[int, dict[str, str], dict[str, object]]] = []
    asking = threading.Thread(target=lambda: answers.append(daemon.chat("big", seconds=120)))
    asking.start()
    wait_until(lambda: (first := far_pid(far)) is not None and bool(first), 60)
    wait_until(lambda: daemon.status()["tiers"]["box"]["in_flight"] == 1, 60)
    first = far_pid(far)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    asking.join(120)
    status, headers, told = answers[0]
    assert status == 200, (told, place.events())
    assert (status, headers["x-watchbill-tier"]) == (200, "burst")
    assert far_pid(far) not in (None, first)
    wait_until(lambda: far_pid(far) is None, 60)
    wait_until(lambda: daemon.status()["tiers"]["box"]["models"] == {"big": "absent"}, 60)
    assert daemon.stop() == 0


def test_a_killed_daemons_machine_is_stopped_by_the_next(place: Place) -> None:
    """SPOOL-09: kill -9 of the daemon that started it; nothing runs on and costs money."""
    port = claim_port(place.folder / "ports")
    far = far_daemon(place.folder, scripted("big"))
    place.config.write_text(burst_of(place, far, port).replace('idle = "3s"', 'idle = "10m"'))
    daemon = place.up()
    assert daemon.chat("big", seconds=90)[0] == 200
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    assert far_pid(far) is not None
    again = place.up()
    wait_until(lambda: far_pid(far) is None, 60)
    assert again.stop() == 0


def test_an_external_tier_behind_a_key_is_llama_cpp(place: Place, gguf_files: GgufFiles) -> None:
    """SPOOL-10: the same words as asked directly, under the server's own name, its tokens priced and kept."""
    server = Place(place.folder / "server")
    server.folder.mkdir()
    server.config.write_text(
        f'[server.keys.us]\nkey = "a-key-of-some-length"\n[models.talk]\nengine = "llamacpp"\nsource = "'
        f'{gguf_files.chat("8MB")}"\n'
        "context = 512\n"
    )
    far = server.up()
    place.environment["CLOUD_KEY"] = "a-key-of-some-length"
    place.config.write_text(
        scripted("small")
        + f"""
[tiers.cloud]
kind = "external"
enabled = true
url = "{far.url}"
key = "env:CLOUD_KEY"
models = {{ far = "talk" }}
price_in = 1000
price_out = 1000
daily = 50
"""
    )
    daemon = place.up()
    body = chat_body("far", 12) | {"temperature": 0}
    status, headers, answer = daemon.ask("/v1/chat/completions", body)
    assert status == 200, answer
    assert headers["x-watchbill-tier"] == "external"
    key = {"Authorization": "Bearer a-key-of-some-length"}
    _, _, direct = far.ask("/v1/chat/completions", body | {"model": "talk"}, headers=key)
    told, meant = json.loads(answer), json.loads(direct)
    assert told["choices"][0]["message"] == meant["choices"][0]["message"]
    tokens = told["usage"]["prompt_tokens"] + told["usage"]["completion_tokens"]
    assert abs(float(headers["x-watchbill-cost"]) - tokens / 1000) < 1e-6
    assert daemon.status()["tiers"]["cloud"]["spent_today"] > 0
    shown = place.run("status").stdout
    assert re.search(r"cloud +external +ready", shown), shown
    explained = place.run("explain", "far").stdout
    assert "would start it in" in explained
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    again = place.up()
    assert again.status()["tiers"]["cloud"]["spent_today"] > 0
    assert again.stop() == 0
    assert far.stop() == 0
    server.close()
