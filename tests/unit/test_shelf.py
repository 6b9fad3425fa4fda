"""The shelf: which files are models, what they are called, and why the others are none."""

import os
from pathlib import Path

import pytest

from gguf_models import make_chat_model, make_embedding_model
from support.ollama_folder import keep_model, snapshot
from watchbill.shelf import Folder, OllamaStore, Why, find_store, parts_of
from watchbill.shelf.naming import names_of, settle


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("made") / "any.gguf"
    make_chat_model(path, 300_000)
    return path.read_bytes()


# ------------------------------------------------------------------ names

CALLED = {
    "qwen2.5-0.5b-instruct-q4_k_m": ["qwen2.5-0.5b-instruct", "qwen2.5:0.5b", "qwen2.5"],
    "Llama-3.2-1B-Instruct-Q8_0": ["llama3.2:1b", "llama3.2:1b-instruct", "llama3.2:1b-instruct-q8_0", "llama3.2"],
    "Meta-Llama-3.1-8B-Instruct-Q5_K_M": ["llama3.1:8b", "meta-llama-3.1-8b-instruct"],
    "gemma-3n-E4B-it-UD-Q4_K_XL": ["gemma3n:e4b", "gemma-3n-e4b-it"],
    "SmolLM2-135M-Instruct.Q4_1": ["smollm2", "smollm2:135m"],
    "mistral-7b-instruct-v0.3.Q4_K_M": ["mistral", "mistral:7b"],
    "mixtral-8x7b-instruct-v0.1.Q4_K_M": ["mixtral:8x7b"],
    "Qwen3-30B-A3B-Instruct-2507-Q4_K_M": ["qwen3:30b", "qwen3:30b-a3b-instruct-2507"],
    "gpt-oss-20b-mxfp4": ["gpt-oss:20b", "gpt-oss"],
    "nomic-embed-text-v1.5.f16": ["nomic-embed-text-v1.5"],
    "qwen2.5-coder-7b-instruct-q4_k_m-00001-of-00002": ["qwen2.5-coder:7b"],
}  # fmt: skip


@pytest.mark.parametrize("stem", CALLED)
def test_a_file_answers_to_the_names_that_people_type(stem: str) -> None:
    own = names_of(stem)
    assert set(CALLED[stem]) <= {own.name, *settle({stem: own})[stem]}


def test_the_short_name_means_the_instruct_model_in_the_usual_quantization() -> None:
    stems = [
        "qwen2.5-0.5b-q4_k_m",
        "qwen2.5-0.5b-instruct-q8_0",
        "qwen2.5-0.5b-instruct-q4_k_m",
        "qwen2.5-7b-q4_k_m",
    ]
    given = settle({stem: names_of(stem) for stem in stems})
    assert [stem for stem in stems if "qwen2.5:0.5b" in given[stem]] == ["qwen2.5-0.5b-instruct-q4_k_m"]
    assert [stem for stem in stems if "qwen2.5" in given[stem]] == [], (
        "two sizes: the family alone is ambiguous"
    )
    every = [name for names in given.values() for name in names] + [names_of(stem).name for stem in stems]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("stem", "name"),
    [("Müller-7b", "mueller-7b"), ("Mu\u0308ller-7b", "mueller-7b"), ("Größe", "groesse"), ("café-q4_0", "cafe-q4_0"),
     ("Łódź", "lodz"), ("模型-7b", "7b")],
)  # fmt: skip
def test_letters_with_marks_are_spelled_and_not_left_out(stem: str, name: str) -> None:
    """Issue 19: names are ASCII, and `m-ller` is nobody's model."""
    assert names_of(stem).name == name


def test_a_changed_model_does_not_take_the_name_of_the_original() -> None:
    own = names_of("Llama-3.2-1B-Instruct-abliterated-Q8_0")
    assert not {"llama3.2", "llama3.2:1b"} & set(settle({"x": own})["x"])


@pytest.mark.parametrize("stem", ["model", "ggml-model-q4_0", "..", "-", "Ünïcode ☃", "a b  c", "x" * 300])
def test_any_file_name_gives_a_name_that_is_allowed(stem: str) -> None:
    """P8: and one that says nothing is replaced by the title inside."""
    own = names_of(stem, "Tiny Thing 1.1B Chat")
    assert own.name.isascii() and own.name[0].isalnum() and ".." not in own.name
    if stem.startswith(("model", "ggml")):
        assert "tiny-thing:1.1b" in own.claims


# ------------------------------------------------------------------ files


def looked(folder: Folder) -> tuple[set[str], dict[str, Why]]:
    models, passed = folder.look()
    return {model.name for model in models}, {each.file.name: each.why for each in passed}


def test_only_whole_models_count_and_every_other_file_has_its_reason(tmp_path: Path, model: bytes) -> None:
    """A file in the models folder is a model without a config; a broken one is named."""
    (tmp_path / "whole-1b.gguf").write_bytes(model)
    (tmp_path / "half.gguf").write_bytes(model[:-1000])
    (tmp_path / "page.gguf").write_text("<html>")
    (tmp_path / "nowhere.gguf").symlink_to("/nonexistent")
    (tmp_path / "browser.gguf.crdownload").write_bytes(model)
    (tmp_path / "reserved.gguf").write_bytes(model)
    (tmp_path / "reserved.gguf.aria2").write_bytes(b"")
    (tmp_path / ".pull").mkdir()
    (tmp_path / ".pull" / "later.gguf.part").write_bytes(model[:10])
    (tmp_path / ".hidden.gguf").write_bytes(model)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "sha.gguf").write_bytes(model)
    (tmp_path / "notes.txt").write_text("")
    os.mkfifo(tmp_path / "pipe.gguf")
    names, passed = looked(Folder(tmp_path))
    assert names == {"whole-1b"}
    assert passed == {
        "half.gguf": Why.BROKEN, "page.gguf": Why.BROKEN, "nowhere.gguf": Why.BROKEN, "reserved.gguf": Why.ARRIVING,
        "reserved.gguf.aria2": Why.UNFINISHED, "browser.gguf.crdownload": Why.UNFINISHED,
        "later.gguf.part": Why.UNFINISHED,
    }  # fmt: skip


def test_a_file_that_comes_later_counts_when_it_has_stopped_changing(tmp_path: Path, model: bytes) -> None:
    folder = Folder(tmp_path)
    assert looked(folder) == (set(), {})
    file = tmp_path / "late.gguf"
    file.write_bytes(model)  # whole, as of a downloader that reserves the space first
    assert looked(folder) == (set(), {"late.gguf": Why.ARRIVING})
    os.utime(file, ns=(1, 1))  # and written again
    assert looked(folder) == (set(), {"late.gguf": Why.ARRIVING})
    assert looked(folder) == ({"late"}, {})
    file.write_bytes(model[:-1])
    assert looked(folder)[0] == set()
    assert looked(folder) == (set(), {"late.gguf": Why.BROKEN})
    file.unlink()
    assert looked(folder) == (set(), {})


def test_parts_projectors_embeddings_and_equal_names(tmp_path: Path, model: bytes) -> None:
    make_embedding_model(tmp_path / "embed.gguf")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same-1b.gguf").write_bytes(model)
    (tmp_path / "a" / "mmproj-same-1b-f16.gguf").write_bytes(b"GGUF")
    (tmp_path / "lonely").mkdir()
    (tmp_path / "lonely" / "mmproj.gguf").write_bytes(b"GGUF")
    (tmp_path / "split-00001-of-00002.gguf").write_bytes(model)
    (tmp_path / "split-00002-of-00002.gguf").write_bytes(model)
    models, passed = Folder(tmp_path).look()
    by_name = {each.name: each for each in models}
    assert set(by_name) == {"embed", "same-1b", "b/same-1b", "split"}
    assert by_name["embed"].embedding
    assert by_name["same-1b"].projector == tmp_path / "a" / "mmproj-same-1b-f16.gguf"
    assert by_name["b/same-1b"].projector is None
    assert [each.file.parent.name for each in passed] == ["lonely"]
    assert len(parts_of(by_name["split"].file)) == 2


# ------------------------------------------------------------------ an installed Ollama


def test_the_models_of_an_installed_ollama_are_read_and_never_changed(tmp_path: Path, model: bytes) -> None:
    store = tmp_path / "models"
    blob = keep_model(store, "qwen2.5:0.5b", model, system="Be brief.", params='{"temperature": 0.5}')
    keep_model(store, "mine", model, host="registry.ollama.ai/me")
    keep_model(store, "repo:Q4", model, host="hf.co/owner")
    keep_model(store, "broken", b"nothing")
    keep_model(store, "gone", b"GGUF" + model).unlink()
    (store / "manifests" / "registry.ollama.ai" / "library" / "odd").mkdir()
    (store / "manifests" / "registry.ollama.ai" / "library" / "odd" / "latest").write_text("{")
    before = snapshot(store)
    looking = OllamaStore(store)
    for _ in range(2):
        models, passed = looking.look()
        assert [each.name for each in models] == ["hf.co/owner/repo:Q4", "qwen2.5:0.5b", "me/mine"]
        assert {each.file.parent.name for each in passed} == {"broken", "gone", "odd"}
    found = models[1]
    assert (found.layers.file, found.layers.text("system")) == (blob, "Be brief.")
    assert found.layers.parameters() == {"temperature": 0.5}
    assert snapshot(store) == before


def test_ollamas_folder_is_found_as_ollama_finds_it(tmp_path: Path) -> None:
    def made(name: str) -> Path:
        (tmp_path / name / "manifests").mkdir(parents=True)
        return tmp_path / name

    system, home, named = made("system"), made("home/.ollama/models"), made("named")
    here = {"HOME": str(tmp_path / "home")}
    assert find_store({**here, "OLLAMA_MODELS": str(named)}, system) == named
    assert find_store({**here, "OLLAMA_MODELS": "/nonexistent"}, system) is None
    assert find_store(here, system) == home
    assert find_store({"HOME": "/nonexistent"}, system) == system
    assert find_store({}, Path("/nonexistent")) is None
