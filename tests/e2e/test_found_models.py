"""What is pulled is served: no config, a file in the models folder, and the commands that Ollama's users know."""

import json
import shutil

from e2e.place import Place
from gguf_models import GgufFiles
from support.eventually import wait_until
from support.ollama_folder import keep_model


def test_a_pulled_file_is_run_listed_stopped_and_removed_without_a_config(
    place: Place, gguf_files: GgufFiles
) -> None:
    """LANE-03: a daemon without a config serves the models folder, and fetches nothing while a model is there."""
    source = place.folder / "Qwen2.5-0.5B-Instruct-Q4_K_M.gguf"
    shutil.copyfile(gguf_files.chat("3MB"), source)
    pulled = place.run("pull", str(source))
    assert pulled.returncode == 0 and "it is served as: qwen2.5-0.5b-instruct-q4_k_m" in pulled.stderr
    assert "qwen2.5:0.5b" in place.run("list").stdout, "before any daemon"
    daemon = place.begin()
    daemon.wait_ready()
    assert '"qwen2.5-0.5b-instruct-q4_k_m"' in daemon.stderr, (
        "the first question is for a model that is there"
    )
    asked = place.run("run", "qwen2.5:0.5b", "hello", "--max-tokens", "4")
    assert (asked.returncode, len(asked.stdout.removesuffix("\n"))) == (0, 4), asked  # blanks count
    assert "100% CPU" in place.run("ps").stdout
    assert place.run("stop", "qwen2.5").returncode == 0
    assert "no model is in memory" in place.run("ps").stdout
    assert place.run("pull", str(source), "--name", "second.gguf").returncode == 0
    assert daemon.chat("second", 2)[0] == 200, "it is served when `pull` says so"
    (place.root / "models" / "half.gguf").write_bytes(source.read_bytes()[:-500])
    wait_until(lambda: "half.gguf: broken" in place.run("list").stdout, 20)
    assert place.run("rm", "second", "qwen2.5").returncode == 0
    assert sorted(path.name for path in (place.root / "models").glob("*.gguf")) == ["half.gguf"]
    assert json.loads(place.run("list", "--json").stdout)["models"] == []
    gone = place.run("rm", "qwen2.5")
    assert (gone.returncode, "no model is called qwen2.5" in gone.stderr) == (1, True)
    place.run("down")
    assert daemon.wait() == 0


def test_the_embedded_model_is_served_beside_an_installed_ollama_or_its_absence_is_said(
    place: Place, gguf_files: GgufFiles
) -> None:
    """LANE-03: the README's first question is for the embedded model. Without a network Ollama's models are enough."""
    keep_model(place.folder / ".ollama" / "models", "tiny:1b", gguf_files.chat("3MB").read_bytes())
    place.environment |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    daemon = place.begin()
    daemon.wait_ready()
    assert "fetching the embedded model" in daemon.stderr
    assert "the models of the installed Ollama are served" in daemon.stderr
    assert daemon.chat("tiny:1b", 2)[0] == 200
    place.run("down")
    assert daemon.wait() == 0
