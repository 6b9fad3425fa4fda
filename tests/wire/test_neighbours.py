"""Addresses of other programs: each is a request like any other, in its turn."""

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, HELLO, open_gateway
from support.peer import Asked, stream_of
from watchbill.catalog import ApiKey, Server
from watchbill.config.load import parse

CHAT = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
PASSED = [
    "/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking", "/infill", "/tokenize", "/detokenize",
    "/apply-template", "/v1/audio/speech", "/v1/images/generations",
]  # fmt: skip
#: Of what the engine makes, the addresses that are served without /v1, too.
PASSED_ON_BESIDE_V1 = ["/audio/speech", "/images/generations"]
READ = ["/props", "/slots", "/v1/audio/voices"]


async def repeat(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Says what it was asked."""
    told = {"method": asked.method, "path": asked.path, "body": asked.body.decode("utf-8", "replace")}
    body = json.dumps({**told, "kind": asked.headers.get("content-type")}).encode()
    writer.write(
        b"HTTP/1.1 200 -\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


@pytest.mark.parametrize("path", PASSED)
async def test_an_address_of_the_engine_is_passed_on(path: str) -> None:
    """LANE-01: through the scheduler, as the answer's headers say."""
    async with open_gateway(repeat) as opened:
        answer = await opened.ask(path, {"model": "alias/of-a", "query": "x"})
        assert (answer.status, answer.json["path"]) == (200, path)
        assert answer.headers["x-watchbill-model"] == "a"
        await opened.until_idle()


@pytest.mark.parametrize("path", READ)
async def test_an_address_that_is_read_names_its_model_in_the_query(path: str) -> None:
    """LANE-01"""
    async with open_gateway(repeat) as opened:
        answer = await opened.ask(f"{path}?model=a&x=1%202")
        assert (answer.json["method"], answer.json["path"]) == ("GET", f"{path}?x=1+2")
        assert (await opened.ask(path)).status == 400


@pytest.mark.parametrize("path", ["/v1/images/edits", "/v1/images/variations"])
async def test_a_form_is_passed_on(path: str) -> None:
    """LANE-01: `model` is a field of the form."""
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n'
    async with open_gateway(repeat) as opened:
        answer = await opened.ask(path, body, headers={"Content-Type": "multipart/form-data; boundary=b"})
        assert (answer.status, answer.json["path"]) == (200, path)


@pytest.mark.parametrize("prefix", ["", "/api/v0", "/openai/v1", "/v1", "/lane/batch/api/v0"])
async def test_openai_is_served_below_other_addresses(prefix: str) -> None:
    """LANE-01: errors have OpenAI's shape there, too."""
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask(f"{prefix}/chat/completions", CHAT)
        assert answer.json["choices"][0]["message"]["content"] == "hello there"
        refused = await opened.ask(f"{prefix}/chat/completions", {**CHAT, "model": "nope"})
        assert (refused.status, refused.code) == (404, "model_not_found")


async def test_clients_whose_base_address_lacks_v1_find_what_they_find_below_it() -> None:
    """LANE-01, issue 18: chat was there, and OpenAI's responses, which its clients ask first, were not."""
    async with open_gateway(repeat) as opened:
        for path in PASSED_ON_BESIDE_V1:
            answer = await opened.ask(path, {"model": "a"})
            assert (answer.status, answer.json["path"]) == (200, f"/v1{path}")
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n'
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        heard = await opened.ask("/audio/transcriptions", form, headers=headers)
        assert heard.json["path"] == "/v1/audio/transcriptions"
        assert (await opened.ask("/audio/voices?model=a")).json["path"] == "/v1/audio/voices"
    async with open_gateway(HELLO) as opened, openai.AsyncOpenAI(base_url=opened.url, api_key="x") as client:
        made = await client.responses.create(model="a", input="hi")
        assert made.output_text == "hello there"
        assert (await client.models.retrieve("a")).id == "a"
        assert (await opened.ask("/files")).status == (await opened.ask("/v1/files")).status
        body = {**CHAT, "max_tokens": 5}
        said = await opened.ask("/messages", body)
        assert said.json["content"][0]["text"] == "hello there"
        refused = await opened.ask("/messages", {**body, "model": "nope"})
        assert (refused.status, refused.json["type"]) == (404, "error")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/v1/v1/messages", "/v1/messages"), ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/api/tags", "/api/tags"), ("//v1/models", "/v1/models"), ("/v1/health", "/health"),
        ("/v1/v1/models/a", "/v1/models/a"), ("/lane/batch/chat/completions", "/lane/batch/v1/chat/completions"),
        ("/lane/batch/v1/v1/models", "/lane/batch/v1/models"),
    ],
)  # fmt: skip
async def test_a_base_address_that_is_not_quite_right_is_told(asked: str, meant: str) -> None:
    """LANE-01: one /v1 too many or too few, or a slash at the end, is the commonest mistake in a client's settings."""
    async with open_gateway(HELLO) as opened:
        answer = await opened.ask(asked, CHAT)
        told = answer.json["error"]["message"]
        assert answer.status == 404 and told.endswith(f"; did you mean {meant!r}?")
        assert "did you mean" not in (await opened.ask("/v1/nothing", CHAT)).json["error"]["message"]


async def test_azures_client_is_served() -> None:
    """LANE-01: the deployment is the model, the key is in `api-key`."""
    server = Server(keys=(ApiKey("me", "k" * 16),))
    async with open_gateway(HELLO, server=server) as opened:
        client = openai.AsyncAzureOpenAI(
            azure_endpoint=opened.url, api_key="k" * 16, api_version="2024-10-21"
        )
        async with client:
            answer = await client.chat.completions.create(**CHAT)
            assert answer.choices[0].message.content == "hello there"
        plain = {"api-key": "k" * 16}
        path = "/openai/deployments/a/chat/completions?api-version=1"
        assert (await opened.ask(path, {"messages": CHAT["messages"]}, headers=plain)).status == 200
        assert (await opened.ask(path, CHAT, headers={"api-key": "wrong"})).status == 401


async def test_azures_deployment_is_the_model_whatever_the_body_names() -> None:
    """LANE-01: a client that was given a deployment sends any other name in the body, as in openai's own examples."""
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with open_gateway(repeat) as opened:
        for name, below in (("a", "/audio/speech"), ("b/with:slash", "/images/generations")):
            answer = await opened.ask(
                f"/openai/deployments/{name}{below}?api-version=1", {"model": "<ignored>"}
            )
            assert (answer.status, answer.headers["x-watchbill-model"]) == (200, name)
            assert answer.json["path"] == f"/v1{below}"
        answer = await opened.ask("/openai/deployments/a/audio/transcriptions", form, headers=headers)
        assert (answer.status, answer.headers["x-watchbill-model"]) == (200, "a")
    async with open_gateway(HELLO) as opened:
        client = openai.AsyncAzureOpenAI(
            azure_endpoint=opened.url, api_key="x", api_version="2024-10-21", azure_deployment="a"
        )
        async with client:
            answer = await client.chat.completions.create(model="<ignored>", messages=[])
            assert answer.choices[0].message.content == "hello there"
        assert opened.peer.asked[-1].json["model"] != "<ignored>"


async def test_lm_studio_lists_models() -> None:
    """LANE-01"""
    async with open_gateway(HELLO) as opened:
        await opened.ask("/v1/chat/completions", CHAT)
        listed = {each["id"]: each for each in (await opened.ask("/api/v0/models")).json["data"]}
        assert (listed["a"]["state"], listed["b/with:slash"]["state"]) == ("loaded", "not-loaded")
        assert listed["a"]["max_context_length"] == 4096
        assert (await opened.ask("/api/v0/models/b/with:slash")).json["type"] == "llm"


@pytest.mark.parametrize("lane", ["", "/lane/batch"])
async def test_whole_answers_have_the_figures_that_lm_studio_tells(lane: str) -> None:
    """LANE-01, issue 18: `stats`, `model_info` and `runtime`, as LM Studio documents them; nowhere else."""
    async with open_gateway(HELLO) as opened:
        told = (await opened.ask(f"{lane}/api/v0/chat/completions", CHAT)).json
        assert told["choices"][0]["message"]["content"] == "hello there"
        stats = told["stats"]
        assert set(stats) == {"tokens_per_second", "time_to_first_token", "generation_time", "stop_reason"}
        assert stats["stop_reason"] == "eosFound"
        assert 0 <= stats["time_to_first_token"] < 10 and 0 <= stats["generation_time"] < 10
        assert set(told["model_info"]) == {"arch", "quant", "format", "context_length"}
        assert told["model_info"]["context_length"] == 4096
        assert set(told["runtime"]) == {"name", "version", "supported_formats"}
        text = (await opened.ask(f"{lane}/api/v0/completions", {"model": "a", "prompt": "hi"})).json
        assert "stats" in text
        assert "stats" not in (await opened.ask("/v1/chat/completions", CHAT)).json
        refused = await opened.ask(f"{lane}/api/v0/chat/completions", {**CHAT, "model": "nope"})
        assert (refused.status, set(refused.json)) == (404, {"error"})


async def test_llama_swap_says_what_runs_and_unloads_it() -> None:
    """LANE-01"""
    async with open_gateway(HELLO) as opened:
        await opened.ask("/v1/chat/completions", CHAT)
        assert (await opened.ask("/running")).json == {"running": [{"model": "a", "state": "ready"}]}
        async with httpx.AsyncClient(base_url=opened.url) as client:
            assert (await client.head("/unload")).status_code == 405  # HEAD changes nothing anywhere
        assert opened.driver.model_status("a") == "ready"
        assert (await opened.ask("/unload")).body == b"OK"
        await eventually(lambda: opened.driver.model_status("a") == "absent")
        assert (await opened.ask("/running")).json == {"running": []}


async def test_llama_swap_unloads_one_model_and_has_its_page_at_ui() -> None:
    """Issue 19: POST /api/models/unload/NAME, which may have slashes, and a bookmark of /ui."""
    async with open_gateway(HELLO) as opened:
        for model in ("a", "b/with:slash"):
            await opened.ask("/v1/chat/completions", {**CHAT, "model": model})
        for name in ("b/with:slash", "b/with:slash", "alias/of-a"):
            answer = await opened.ask(f"/api/models/unload/{name}", b"", method="POST")
            assert (answer.status, answer.body) == (200, b"OK")
            await eventually(lambda: opened.driver.model_status("b/with:slash") == "absent")
        await eventually(lambda: opened.driver.model_status("a") == "absent")
        assert (await opened.ask("/api/models/unload/nope", b"", method="POST")).status == 404
        for path in ("/ui", "/ui/"):
            answer = await opened.ask(path)
            assert (answer.status, answer.headers["location"]) == (302, "/")


async def test_an_engines_own_pages_are_below_upstream() -> None:
    """LANE-01: method, path, query, body and kind are kept; a name may have slashes; it needs admin rights."""
    keys = (ApiKey("me", "k" * 16), ApiKey("root", "r" * 16, admin=True))
    root, me = {"Authorization": f"Bearer {'r' * 16}"}, {"Authorization": f"Bearer {'k' * 16}"}
    async with open_gateway(repeat, server=Server(keys=keys)) as opened:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            kind = {"Content-Type": "text/x-odd"}
            answer = await opened.ask(
                "/upstream/b/with:slash/x/y?z=1", b"body", method=method, headers=root | kind
            )
            assert answer.json == {"method": method, "path": "/x/y?z=1", "body": "body", "kind": "text/x-odd"}
            assert answer.headers["x-watchbill-model"] == "b/with:slash"
        assert (await opened.ask("/upstream/a", headers=root)).json["path"] == "/"
        assert (await opened.ask("/upstream/nope/x", headers=root)).status == 404
        assert (await opened.ask("/upstream/a/x", headers=me)).status == 403
        await opened.until_idle()


@pytest.mark.parametrize("path", ["a/x%20y%2Fz?q=%20", "b%2Fwith:slash/x%20y%2Fz?q=%20"])
async def test_escapes_below_upstream_stay_as_they_are(path: str) -> None:
    """LANE-01: the engine gets the path that was sent."""
    async with open_gateway(repeat) as opened:
        assert (await opened.ask(f"/upstream/{path}")).json["path"] == "/x%20y%2Fz?q=%20"


UPWARDS = [
    "a/../x", "a/%2e%2e/%2E%2e/x", "a/.%2e", "a%2f..%2f..%2fx", "a/%252e%252e/x", "a/..%5cx", "a/x/..;v=1/y", "..",
    "a/..%2fx", "a/" + "%25" + "25" * 2000,
]  # fmt: skip


async def test_a_path_below_upstream_stays_below_the_engines_address() -> None:
    """R49: an engine's `url` may have a path; what is above it is not ours."""
    async with open_gateway(repeat) as opened:
        for path in UPWARDS:
            answer = await opened.ask(f"/upstream/{path}")
            assert (answer.status, answer.code) == (400, "invalid_request"), path
        assert not opened.peer.asked
        assert (await opened.ask("/upstream/a/..x/...")).json["path"] == "/..x/..."


async def test_what_an_engine_made_is_shown_in_a_sandbox() -> None:
    """R46: a script in an engine's page would act on our origin, with the rights of our own page."""
    page = stream_of(b"<script>alert(1)</script>", content_type="text/html")
    async with open_gateway(page) as opened:
        for path, body in [
            ("/upstream/a/", None),
            ("/props?model=a", None),
            *((path, CHAT) for path in PASSED),
        ]:
            headers = (await opened.ask(path, body)).headers
            assert headers["content-type"].startswith("text/html"), path
            assert headers["content-security-policy"] == "sandbox", path
            assert headers["x-content-type-options"] == "nosniff", path


async def test_no_model_is_loaded_again_for_what_its_engine_does_not_have() -> None:
    """RES-02: a swap costs others their model; the answer is known. One in memory is asked anew."""
    lacking = stream_of(b"{}", status=404, content_type="application/json")
    async with open_gateway(lacking) as opened:

        async def asked(path: str) -> int:
            """How many requests reached the engine."""
            before = len(opened.peer.asked)
            assert (await opened.ask(path)).status == 501
            return len(opened.peer.asked) - before

        assert await asked("/props?model=a") == 1
        assert await asked("/props?model=a") == 1
        await opened.ask("/unload")
        await eventually(lambda: opened.driver.model_status("a") == "absent")
        assert await asked("/props?model=alias/of-a") == 0
        assert opened.driver.model_status("a") == "absent"
        assert await asked("/slots?model=a&slot=9") == 1  # another address
        assert await asked("/props?model=a") == 1
        opened.gateway.reconfigure(opened.gateway.server)
        assert not opened.gateway.lacking


# ------------------------------------------------------------------ origins

ORIGINS = Server(
    origins=(
        "https://*.lan",
        "http://localhost:*",
        "app://*",
        "chrome-extension://abcdef",
        "https://Chat.example",
    )
)


@pytest.mark.parametrize(
    ("origin", "is_let"),
    [
        ("https://chat.lan", True), ("https://a.b.lan", True), ("http://localhost:3000", True),
        ("app://obsidian.md", True),
        ("chrome-extension://abcdef", True), ("https://chat.example", True), ("https://lan", False),
        ("https://chat.lan:444", False), ("https://chat.lan.evil.com", False), ("https://evillan", False),
        ("http://chat.lan", False), ("http://localhost", False), ("http://localhost:3000.evil.com", False),
        ("http://localhost:x", False), ("chrome-extension://other", False), ("null", False), ("app://a/b", False),
        ("https://chat.lan, https://evil.com", False), ("", False),
    ],
)  # fmt: skip
async def test_an_origin_is_let_by_its_pattern(origin: str, is_let: bool) -> None:
    """R44"""
    async with open_gateway(HELLO, server=ORIGINS) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT, headers={"Origin": origin})
        assert answer.status == (200 if is_let else 403)
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = await opened.ask("/v1/chat/completions", method="OPTIONS", headers=asked)
        assert preflight.status == (204 if is_let else 403)


#: What Ollama lets call without a setting, and what it does not.
OF_OLLAMA = [
    *(f"{scheme}://{host}{port}" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "0.0.0.0")
      for port in ("", ":5173")),
    "app://obsidian.md", "file://", "tauri://localhost", "vscode-webview://1a2b", "vscode-file://vscode-app",
]  # fmt: skip
NOT_OF_OLLAMA = [
    "https://chat.example", "http://localhost.evil.com", "http://localhost:5173.evil.com", "http://192.168.1.2:3000",
    "chrome-extension://abcdef", "null", "moz-extension://x", "ftp://localhost",
]  # fmt: skip


@pytest.mark.parametrize("setting", ["true", "false"])
async def test_ollamas_defaults_are_one_setting(setting: str, tmp_path: Path) -> None:
    """R44: `server.ollama_origins` lets those pages call that Ollama lets, in every dialect, and none beside."""
    text = f"[server]\nollama_origins = {setting}\norigins = ['https://mine.example']\n"
    server = parse(text + "[models.m]\nengine = 'scripted'\n", base=tmp_path).server
    async with open_gateway(HELLO, server=server) as opened:

        async def is_let(origin: str, path: str = "/api/tags") -> bool:
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            preflight = await opened.ask(path, method="OPTIONS", headers=asked)
            answer = await opened.ask(path, headers={"Origin": origin})
            assert (preflight.status == 204) is (answer.status == 200), (
                origin,
                preflight.status,
                answer.status,
            )
            assert answer.headers.get("access-control-allow-origin") == (
                origin if answer.status == 200 else None
            )
            return answer.status == 200

        for path in ("/api/tags", "/v1/models"):
            assert [origin for origin in OF_OLLAMA if await is_let(origin, path)] == (
                OF_OLLAMA if setting == "true" else []
            )
        assert [origin for origin in NOT_OF_OLLAMA if await is_let(origin)] == []
        assert await is_let("https://mine.example")
        closed = await opened.ask("/unload", b"", method="POST", headers={"Origin": "app://obsidian.md"})
        assert closed.status == 403


async def test_what_needs_admin_rights_is_closed_to_every_page_but_our_own() -> None:
    """R44: also without keys, where every program of the machine is an operator."""
    async with open_gateway(HELLO, server=ORIGINS, catalog=CATALOG) as opened:
        routes = [
            (method, path) for method, path, access, _ in opened.gateway.routes() if access.value == "admin"
        ]
        assert len(routes) > 15
        for method, path in routes:
            filled = (
                path.replace("{name:.+}", "a").replace("{tail:.+}", "a").replace("{", "").replace("}", "")
            )
            headers = {"Origin": "https://chat.lan"}
            if method != "HEAD":
                answer = await opened.ask(filled, b"{}", method=method, headers=headers)
                assert answer.status == 403, (method, path)
        own = {"Origin": f"http://127.0.0.1:{opened.serving.port}"}
        assert (await opened.ask("/unload", b"", method="POST", headers=own)).status == 200
