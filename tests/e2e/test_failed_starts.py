"""Starts that cannot succeed, wholly or in part: one clear line, the right exit code, and nothing left behind."""

import json
import resource
import socket
from pathlib import Path

import pytest

from e2e.place import Place, scripted
from gguf_models import GgufFiles

REAL = '[models.{name}]\nengine = "llamacpp"\nsource = "{path}"\ncontext = 256\nthreads = 1\n'


def refused_start(place: Place, *arguments: str) -> str:
    """Starts the daemon in vain and gives its complaint. It wrote nothing else, and nothing runs."""
    failed = place.run("up", *(arguments or ("--port", "0")))
    assert (failed.returncode, failed.stdout) == (2, ""), failed
    assert "Traceback" not in failed.stderr, failed.stderr
    assert place.leftovers() == []
    assert not (place.root / "run" / "daemon.json").exists()
    for folder in ("engines", "ports"):
        assert list((place.root / "run" / folder).glob("*")) == []
    return failed.stderr


def test_a_wrong_config_is_refused_by_file_and_line(place: Place) -> None:
    """pitfalls: exit 2 with FILE:LINE for all that is wrong at once, before anything starts."""
    place.config.write_text('[server]\nprot = 1\n\n[models.big]\nengine = "scripted"\nmemory = "9 gigs"\n')
    said = refused_start(place).splitlines()
    assert len(said) == 2, said
    assert "watchbill.toml:2: server.prot" in said[0] and "port" in said[0]
    assert "watchbill.toml:6: models.big.memory" in said[1] and "9 gigs" in said[1]
    place.config.write_text('[models.a\nengine = "scripted"\n')
    assert "watchbill.toml:1:" in refused_start(place)
    assert "no-such.toml" in refused_start(place, "--config", "no-such.toml")


def test_cards_that_nobody_can_read_stop_no_model_elsewhere(place: Place) -> None:
    """pitfalls: what cannot be loaded does not stop `up`: one warning with what to do, and the others are served."""
    place.config.write_text('[devices."gpu:0"]\n' + scripted("here") + scripted("there").replace(
        'memory = "30MB"', 'memory = { "gpu:0" = "30MB" }'))  # fmt: skip
    daemon = place.up()
    assert "warning: no card can be read, so no model is loaded on a card" in daemon.stderr
    assert daemon.chat("here")[0] == 200
    assert daemon.chat("there")[2]["error"]["code"] == "device_unreadable"
    assert daemon.stop() == 0


def test_bad_model_files_fail_alone(place: Place, gguf_files: GgufFiles) -> None:
    """pitfalls, RES-20: up starts with one warning for each, requests get 503 model_failed, the others serve; `config
    check` exits with 2."""
    whole = gguf_files.chat("5MB").read_bytes()
    bad = {"missing": None, "garbage": b"not a model at all" * 100, "cut": whole[: len(whole) // 2]}
    models = scripted("well")
    for name, content in bad.items():
        path = place.folder / f"{name}.gguf"
        if content is not None:
            path.write_bytes(content)
        models += REAL.format(name=name, path=path.name)
    place.config.write_text(models)
    checked = place.run("config", "check")
    assert checked.returncode == 2
    assert all(f"{name}.gguf" in checked.stdout + checked.stderr for name in bad)

    daemon = place.up()
    warnings = [line for line in daemon.stderr.splitlines() if line]
    assert len(warnings) == len(bad), warnings
    for name in bad:
        (warning,) = [line for line in warnings if f"{name}.gguf" in line]
        assert warning.startswith(f"warning: model {name} cannot be loaded: ")
        assert daemon.model(name)["state"] == "failed"
        assert f"{name}.gguf" in daemon.model(name)["reason"]
        status, headers, answer = daemon.chat(name)
        assert (status, answer["error"]["code"]) == (503, "model_failed")
        assert f"{name}.gguf" in answer["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 60
    assert daemon.chat("well")[0] == 200
    assert daemon.stop() == 0


def test_a_daemon_without_a_usable_model_does_not_start(place: Place) -> None:
    """pitfalls: no usable model at all is exit 2."""
    place.config.write_text(REAL.format(name="lost", path="lost.gguf"))
    said = refused_start(place)
    assert "lost.gguf: cannot be opened: No such file" in said and "watchbill pull" in said
    assert said.splitlines()[-1].startswith("watchbill: no model can be loaded")


def test_a_missing_program_is_said_at_the_start_as_config_check_says_it(place: Place) -> None:
    """The first ten minutes: a model whose program is not here would fail at its first request."""
    lost = '[models.lost]\nengine = "process"\ncommand = "no-such-program --port ${PORT}"\n'
    place.config.write_text(scripted("here", 'text = "x"') + lost)
    checked = place.run("config", "check")
    assert checked.returncode == 2 and "there is no program no-such-program" in checked.stderr
    daemon = place.up()
    assert "lost cannot be loaded: there is no program no-such-program; install it" in daemon.stderr
    assert daemon.stop() == 0


def test_a_port_that_is_taken_is_said(place: Place) -> None:
    """pitfalls: exit 2; the permanent model that began to load meanwhile is gone again."""
    place.config.write_text(scripted("rock", 'load = "5s"', "permanent = true"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused_start(place, "--port", str(port))
    assert said.count("\n") == 1
    assert f"127.0.0.1:{port}" in said and "--port" in said
    assert "key" in refused_start(place, "--host", "0.0.0.0", "--port", "0")
    for port in ("99999", "-1"):
        assert "is not a port" in refused_start(place, f"--port={port}")


@pytest.mark.parametrize("option", ["--port", "--ollama-port"])
def test_a_port_that_is_taken_is_said_before_a_model_is_fetched(place: Place, option: str) -> None:
    """Issue 19: without a config and without a model, the answer comes before 98 MB do."""
    place.environment |= {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused_start(place, option, port, *([] if option == "--port" else ["--port", "0"]))
    assert said.count("\n") == 1 and f"cannot listen on 127.0.0.1:{port}" in said
    assert not list((place.root / "models").glob("*.gguf"))


@pytest.mark.parametrize("state", ["newer", "not a folder"])
def test_a_root_that_cannot_be_used_is_left_alone(place: Place, state: str) -> None:
    """pitfalls: a root of a newer version is refused, not misread."""
    place.config.write_text(scripted("well"))
    if state == "newer":
        place.root.mkdir()
        (place.root / "VERSION").write_text("999\n")
        said = refused_start(place)
        assert "999" in said and (place.root / "VERSION").read_text() == "999\n"
    else:
        place.root.write_text("a file")
        failed = place.run("up", "--port", "0")
        assert (failed.returncode, failed.stdout) == (2, ""), failed
        said = failed.stderr
    assert str(place.root) in said and "--root" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--detach",)], ids=["foreground", "detached"])
def test_a_full_disk_is_said_in_one_line(place: Place, more: tuple[str, ...]) -> None:
    """P7: exit 2 and the root's name, although not even the log can be written; with room it starts as ever."""
    place.config.write_text(scripted("well"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Inherited: no byte goes to any file, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        failed = place.run("up", "--port", "0", *more)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (failed.returncode, failed.stdout) == (2, ""), failed
    assert failed.stderr.count("\n") == 1 and str(place.root) in failed.stderr, failed.stderr
    assert list(place.root.rglob(".*")) == [] and place.leftovers() == []
    assert place.up().stop() == 0


def test_a_second_daemon_is_sent_away(place: Place) -> None:
    """pitfalls: one daemon per root: the second prints pid and address of the first, exits 2, and harms nothing."""
    place.config.write_text(scripted("well"))
    first = place.up()
    assert first.chat("well")[0] == 200
    engine = first.model("well")["pid"]
    second = place.run("up", "--port", "0")
    assert (second.returncode, second.stdout) == (2, "")
    assert str(first.pid) in second.stderr and first.url in second.stderr
    assert second.stderr.count("\n") == 1
    assert first.model("well")["pid"] == engine
    assert json.loads(Path(place.root, "run", "daemon.json").read_text())["pid"] == first.pid
    assert first.stop() == 0
