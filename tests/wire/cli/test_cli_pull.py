"""`pull`: a model file arrives, and people see it arrive."""

import hashlib
import json
import threading

from support.registry import serving_registry

CONTENT = b"GGUF" + bytes(3_000_000)


def test_a_file_is_pulled_into_the_roots_models_folder(alone):
    """pitfalls: `pull` takes a path; results on standard output, no bars without a terminal."""
    (alone.home / "tiny.gguf").write_bytes(CONTENT)
    done = alone("pull", "tiny.gguf")
    landed = alone.home / "root" / "models" / "tiny.gguf"
    assert (done.returncode, done.stdout) == (0, f"{landed} (3 MB)\n")
    assert landed.read_bytes() == CONTENT
    again = alone("pull", "tiny.gguf", "--json")
    assert json.loads(again.stdout) == {
        "path": str(landed), "bytes": len(CONTENT), "fetched": False, "model": None,
    }  # fmt: skip


def test_a_pulled_file_may_get_another_name_but_not_another_place(alone):
    (alone.home / "tiny.gguf").write_bytes(CONTENT)
    assert alone("pull", "tiny.gguf", "--name", "other.gguf").returncode == 0
    assert (alone.home / "root" / "models" / "other.gguf").is_file()
    refused = alone("pull", "tiny.gguf", "--name", "../escaped.gguf")
    assert refused.returncode == 2
    assert not (alone.home / "root" / "escaped.gguf").exists()


def test_a_name_with_a_slash_is_refused_as_a_name(alone):
    """P8: and not as a folder that is missing."""
    (alone.home / "tiny.gguf").write_bytes(CONTENT)
    refused = alone("pull", "tiny.gguf", "--name", "a/b.gguf")
    assert (refused.returncode, refused.stderr.count("it has a slash")) == (2, 1)


def test_a_file_that_is_no_model_is_told_when_it_arrives(alone, gguf_files):
    """design 9: a page in place of a file, or half a download, and not only when the model is first asked for."""
    (alone.home / "page.gguf").write_text("<html>sign in to download</html>")
    done = alone("pull", "page.gguf", "--json")
    assert (done.returncode, json.loads(done.stdout)["fetched"]) == (0, True)
    assert done.stderr.startswith("warning: ")
    assert "page.gguf cannot be loaded: not a GGUF file" in done.stderr
    assert "warning" not in alone("pull", str(gguf_files.embedding())).stderr


def test_a_file_that_nobody_serves_comes_with_the_lines_that_serve_it(alone, gguf_files):
    """A file is served by itself, unless the config says otherwise; then the lines that serve it are printed."""
    pull = ("pull", str(gguf_files.embedding()), "--name", "My Model.v2.gguf")
    assert "it is served as: my-model.v2; try: " in alone(*pull).stderr
    config = alone.home / "watchbill.toml"
    config.write_text("[library]\nfiles = false\n")
    done = alone(*pull)
    assert "no model of the config serves it yet" in done.stderr
    assert f"add them to {config}" in done.stderr
    lines = done.stderr.partition("\n\n")[2].partition("\n\n")[0]
    config.write_text(lines)
    assert alone("config", "check").returncode == 0, lines
    assert "it is served as: my-model.v2" in alone(*pull).stderr


def test_a_name_of_the_library_is_pulled_without_a_daemon_and_served_later(alone, gguf_files):
    """LANE-03: `pull qwen2.5:0.5b`, as people know it; the same command finds it the second time."""
    content = gguf_files.chat("3MB").read_bytes()
    with serving_registry() as registry:
        registry.add("library/qwen2.5:0.5b", model=content)
        alone.settings["WATCHBILL_REGISTRY"] = registry.url
        done = alone("pull", "qwen2.5:0.5b")
        assert done.returncode == 0 and "it is served as: qwen2.5:0.5b" in done.stderr, done.stderr
        again = alone("pull", "qwen2.5:0.5b", "--json")
        assert json.loads(again.stdout)["fetched"] is False
        refused = alone("pull", "nonesuch:1b")
        assert (refused.returncode, "file does not exist" in refused.stderr) == (1, True)
    assert "qwen2.5:0.5b" in alone("list").stdout
    assert alone("rm", "qwen2.5:0.5b").returncode == 0
    assert json.loads(alone("list", "--json").stdout)["models"][0]["name"] == "smollm2"
    assert list((alone.home / "root" / "models" / "blobs").glob("sha256-*")) == []


def test_a_source_that_is_not_there_fails_and_one_without_its_hash_is_wrong_use(alone, daemon):
    assert alone("pull", "nowhere.gguf").returncode == 1
    unchecked = alone("pull", f"{daemon.url}/tiny.gguf")
    assert unchecked.returncode == 2
    assert "--sha256" in unchecked.stderr


def test_a_person_sees_the_bytes_arrive(alone, daemon):
    """design 9: every long action shows progress."""
    go_on = threading.Event()

    def slowly(line):
        handler = line._handler
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:2_000_000])
        assert go_on.wait(20)
        handler.wfile.write(CONTENT[2_000_000:])

    daemon.answers[("GET", "/tiny.gguf")] = slowly
    digest = hashlib.sha256(CONTENT).hexdigest()
    screen = alone.on_terminal("pull", f"{daemon.url}/tiny.gguf", "--sha256", digest)
    screen.see("/3.0 MB")
    go_on.set()
    assert screen.end() == 0, screen.seen
    assert (alone.home / "root" / "models" / "tiny.gguf").read_bytes() == CONTENT
