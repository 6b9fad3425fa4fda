"""The Ollama door, compared with what a real Ollama answered, and asked by Ollama's own client."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import ollama
import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from support.peer import Asked, chat_events, peer_listening, sse, stream_of, tool_events
from watchbill.catalog import ApiKey, EngineRules, Lane, Model, Server
from watchbill.units import Bytes, Millis

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ollama"
MIB = {"ram": Bytes(2**20)}
MODELS = {
    "smol": Model("smol", "peer", concurrency=8, memory=MIB),
    "stays": Model("stays", "peer", memory=MIB, permanent=True),
    "vectors": Model("vectors", "peer", memory=MIB, embedding=True),
}
LANES = {
    "default": Lane("default", queue_max=16),
    "kind": Lane("kind", fallback="I am busy."),
    "tiny": Lane("tiny", queue_max=1),
    "brief": Lane("brief", timeout_ms=Millis(200), fallback="Later."),
}
CATALOG_HERE = replace(CATALOG, models=MODELS, lanes=LANES)
ASK = {"model": "smol", "prompt": "The sky is"}
CHAT = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}

#: Model information that only the engine's own tokenizer knows is left out; what is there has the same kind.
LOOSE = {"model_info", "tensors"}


class Recorded:
    """An answer of a real Ollama."""

    def __init__(self, name: str) -> None:
        head, _, self.body = (FIXTURES / f"{name}.http").read_text().partition("\n\n")
        first, *lines = head.splitlines()
        self.status = int(first.split(" ")[1])
        self.headers = {
            key.lower(): value.strip() for key, _, value in (each.partition(":") for each in lines)
        }

    @property
    def objects(self) -> list[object]:
        return [json.loads(each) for each in self.body.splitlines()]


def differences(theirs: object, ours: object, place: str = "") -> list[str]:
    """Keys that are missing and kinds that differ; what we say more is no difference."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = [f"{place}.{key} is missing" for key in theirs if key not in ours]
        for key in theirs.keys() & ours.keys():
            if key not in LOOSE:
                found += differences(theirs[key], ours[key], f"{place}.{key}")
        return found
    if isinstance(theirs, list) and isinstance(ours, list):
        return differences(theirs[0], ours[0], f"{place}[0]") if theirs and ours else []
    return (
        [] if type(theirs) is type(ours) else [f"{place}: {type(theirs).__name__}, not {type(ours).__name__}"]
    )


async def load(opened: OpenGateway, model: str = "smol") -> None:
    assert (await opened.ask("/api/generate", {"model": model})).status == 200


CASES = [
    # recorded answer, method, path, body, the model is loaded before
    ("root", "GET", "/", None, False),
    ("head_root", "HEAD", "/", None, False),
    ("version", "GET", "/api/version", None, False),
    ("tags", "GET", "/api/tags", None, False),
    ("show", "POST", "/api/show", {"model": "smol"}, False),
    ("ps_empty", "GET", "/api/ps", None, False),
    ("ps_loaded", "GET", "/api/ps", None, True),
    ("load_only", "POST", "/api/generate", {"model": "smol"}, False),
    ("unload", "POST", "/api/generate", {"model": "smol", "keep_alive": 0}, True),
    ("keep_alive_minus1", "POST", "/api/generate", {"model": "smol", "keep_alive": -1}, False),
    ("generate_stream", "POST", "/api/generate", ASK, False),
    ("generate_nostream", "POST", "/api/generate", {**ASK, "stream": False}, False),
    ("chat_stream", "POST", "/api/chat", CHAT, False),
    ("chat_nostream", "POST", "/api/chat", {**CHAT, "stream": False}, False),
    ("chat_unknown", "POST", "/api/chat", {**CHAT, "model": "nope"}, False),
    ("generate_badjson", "POST", "/api/generate", b"{bad", False),
    ("not_found", "GET", "/api/nothing", None, False),
    ("method", "GET", "/api/generate", None, False),
]


@pytest.mark.parametrize(("name", "method", "path", "body", "loaded"), CASES, ids=[case[0] for case in CASES])
async def test_an_answer_has_the_shape_of_a_real_ollamas(
    name: str, method: str, path: str, body: object, loaded: bool
) -> None:
    """api.md: status, media type, framing, keys and their kinds, against the recorded answers."""
    recorded = Recorded(name)
    models = {"smol": MODELS["smol"]}
    async with open_gateway(catalog=replace(CATALOG_HERE, models=models)) as opened:
        if loaded:
            await load(opened)
        if method == "HEAD":
            reader, writer = await opened.connect()
            writer.write(b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            head = (await reader.read()).decode()
            assert head.startswith("HTTP/1.1 200") and "Content-Length: 17" in head
            assert head.endswith("\r\n\r\n")
            return
        answer = await opened.ask(path, body, method=method)
        assert answer.status == recorded.status
        assert answer.headers["content-type"] == recorded.headers["content-type"]
        if name != "show":  # Ollama sends a large answer in chunks
            assert answer.headers.get("transfer-encoding") == recorded.headers.get("transfer-encoding")
        if "allow" in recorded.headers:
            assert answer.headers["allow"] == recorded.headers["allow"]
        if "json" not in recorded.headers["content-type"]:
            assert answer.body.decode() == recorded.body
            return
        ours = [json.loads(each) for each in answer.body.splitlines()]
        assert differences(recorded.objects[0], ours[0]) == []
        assert differences(recorded.objects[-1], ours[-1]) == []


async def test_a_model_for_ever_ends_in_centuries_and_after_an_unload_it_is_gone() -> None:
    """api.md: /api/ps; fixtures ps_forever and ps_after_unload."""
    async with open_gateway(catalog=CATALOG_HERE) as opened:
        await eventually(lambda: opened.driver.status()["models"]["stays"]["state"] == "ready")
        await load(opened)
        listed = (await opened.ask("/api/ps")).json["models"]
        assert differences(Recorded("ps_forever").objects[0]["models"][0], listed[0]) == []
        ends = {each["name"]: each["expires_at"] for each in listed}
        assert ends["stays:latest"] > "2300" > ends["smol:latest"]
        gone = await opened.ask("/api/generate", {"model": "smol", "keep_alive": 0})
        assert gone.json["done_reason"] == "unload"
        kept = await opened.ask("/api/generate", {"model": "stays", "keep_alive": 0})
        assert (kept.json["done_reason"], kept.json["watchbill"]) == ("load", {"stays": "permanent"})
        await eventually(lambda: opened.driver.status()["models"]["smol"]["state"] == "absent")
        left = (await opened.ask("/api/ps")).json["models"]
        assert [each["name"] for each in left] == ["stays:latest"]  # RES-02: a permanent one is not unloaded


async def test_a_model_that_somebody_else_uses_is_not_unloaded_under_them() -> None:
    """api.md: keep_alive is a hint."""
    gate = asyncio.Event()

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "wait" in str(asked.json["messages"]):
            await gate.wait()
        await stream_of(sse(*chat_events("done")))(asked, writer)

    async with open_gateway(talk, catalog=CATALOG_HERE) as opened:
        other = asyncio.create_task(opened.ask("/api/generate", {**ASK, "prompt": "wait", "stream": False}))
        await eventually(lambda: opened.count("running") == 1)
        answer = await opened.ask("/api/generate", {**ASK, "stream": False, "keep_alive": 0})
        assert answer.status == 200
        assert opened.driver.status()["models"]["smol"]["state"] == "ready"
        gate.set()
        assert (await other).json["response"] == "done"
        await opened.ask("/api/generate", {**ASK, "keep_alive": "0s"})
        await eventually(lambda: opened.driver.status()["models"]["smol"]["state"] == "absent")


async def test_a_prompt_is_counted_whole_however_much_of_it_the_engine_remembered() -> None:
    """api.md: a real Ollama counts so (11 in chat_stream and in chat_nostream after it), and clients bill by it."""
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
    timings = {"cache_n": 10, "prompt_n": 1, "prompt_ms": 2.5, "predicted_n": 2, "predicted_ms": 4}
    *words, last = chat_events("hello there", usage=False)
    told = sse(*words, {"choices": [], "usage": usage, "timings": timings}, last)
    async with open_gateway(stream_of(told), catalog=CATALOG_HERE) as opened:
        for stream in (False, True):
            answer = await opened.ask("/api/chat", {**CHAT, "stream": stream})
            ended = json.loads(answer.body.splitlines()[-1])
            assert (ended["prompt_eval_count"], ended["prompt_eval_duration"]) == (11, 2_500_000)
            assert (ended["eval_count"], ended["eval_duration"]) == (2, 4_000_000)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("what", ["words", "a tool call"])
async def test_who_divides_by_the_duration_of_an_answer_can(what: str, stream: bool) -> None:
    """api.md: of an engine that tells no times; clients show tokens per second."""
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    delta = {"content": "hello"} if what == "words" else {"tool_calls": [call]}
    begun = sse({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    ended = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
    async with open_gateway(stream_of(begun, ended), catalog=CATALOG_HERE) as opened:
        answer = await opened.ask("/api/chat", {**CHAT, "stream": stream})
        last = json.loads(answer.body.splitlines()[-1])
        assert last["eval_duration"] > 0 and last["prompt_eval_duration"] > 0
        assert last["eval_duration"] + last["prompt_eval_duration"] <= last["total_duration"]


# ------------------------------------------------------------------ Ollama's own client


async def test_the_ollama_client_is_served() -> None:
    """api.md: the PyPI client chats, generates, lists and reads errors."""
    async with open_gateway(catalog=CATALOG_HERE) as opened, ollama.AsyncClient(host=opened.url) as client:
        whole = await client.chat("smol", [{"role": "user", "content": "hi"}])
        assert whole.message.content == "hello there" and whole.done and whole.done_reason == "stop"
        assert whole.prompt_eval_count == 3 and whole.eval_count == 2
        assert 0 < whole.eval_duration + whole.prompt_eval_duration <= whole.total_duration
        parts = [part async for part in await client.chat("smol:latest", CHAT["messages"], stream=True)]
        assert "".join(part.message.content for part in parts) == "hello there"
        assert [part.done for part in parts] == [False, False, True]
        assert parts[-1].model == "smol:latest"
        assert (await client.generate("smol", "hi")).response == "hello there"
        words = [part.response async for part in await client.generate("smol", "hi", stream=True)]
        assert words == ["hello ", "there", ""]
        assert [model.model for model in (await client.list()).models] == [
            "smol:latest", "stays:latest", "vectors:latest",
        ]  # fmt: skip
        assert "smol:latest" in [model.name for model in (await client.ps()).models]
        assert (await client.show("smol")).capabilities == ["completion"]
        with pytest.raises(ollama.ResponseError) as missing:
            await client.chat("nope", CHAT["messages"])
        assert missing.value.status_code == 404
        assert missing.value.error == "model 'nope' not found"
        assert (await client.pull("smol")).status == "success"


async def test_options_images_tools_and_formats_reach_the_engine_in_its_own_words() -> None:
    """api.md: options are mapped, `num_ctx` never causes a reload, images and schemas pass."""
    async with open_gateway(catalog=CATALOG_HERE) as opened, ollama.AsyncClient(host=opened.url) as client:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        await client.chat(
            "smol",
            [{"role": "user", "content": "see", "images": [b"\x89PNG\r\n\x1a\n123"]}],
            options={
                "num_predict": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "stop": ["x"],
                "repeat_penalty": 1.1, "num_ctx": 99_999, "num_gpu": 1,
            },
            format=schema,
            think=False,
            keep_alive="5m",
        )  # fmt: skip
        asked = opened.peer.asked[-1]
        assert asked.path == "/v1/chat/completions"
        sent = asked.json
        assert {name: sent[name] for name in ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")} == {
            "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "stop": ["x"],
        }  # fmt: skip
        assert sent["repeat_penalty"] == 1.1 and sent["stream"] is True
        assert not {"num_ctx", "num_gpu", "options", "keep_alive", "format", "think", "images"} & sent.keys()
        assert sent["response_format"]["json_schema"]["schema"] == schema
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        part = sent["messages"][0]["content"][1]
        assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        await client.generate("smol", "x", format="json", system="be brief", options={"num_predict": -1})
        sent = opened.peer.asked[-1].json
        assert sent["response_format"] == {"type": "json_object"} and "max_tokens" not in sent
        assert sent["messages"][0] == {"role": "system", "content": "be brief"}
        await client.generate("smol", "x", raw=True)
        assert opened.peer.asked[-1].path == "/v1/completions"


@pytest.mark.parametrize("stream", [True, False])
async def test_tool_calls_come_whole_and_go_back_with_their_answers(stream: bool) -> None:
    """api.md: tools are translated both ways; arguments are an object here and a text there."""
    async with (
        open_gateway(stream_of(sse(*tool_events())), catalog=CATALOG_HERE) as opened,
        ollama.AsyncClient(host=opened.url) as client,
    ):
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        asked = await client.chat("smol", CHAT["messages"], tools=tools, think=True, stream=stream)
        parts = [part async for part in asked] if stream else [asked]
        calls = [call for part in parts for call in part.message.tool_calls or []]
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("look", {"at": "x"}), ("go", {}),
        ]  # fmt: skip
        assert "".join(part.message.thinking or "" for part in parts) == "hm"
        assert opened.peer.asked[0].json["tools"][0]["function"]["name"] == "look"
        history = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call.model_dump() for call in calls]},
            {"role": "tool", "tool_name": "go", "content": "went"},
            {"role": "tool", "tool_name": "look", "content": "seen"},
        ]
        await client.chat("smol", history)
        _, said, went, seen = opened.peer.asked[-1].json["messages"]
        ids = [call["id"] for call in said["tool_calls"]]
        assert said["tool_calls"][0]["function"]["arguments"] == '{"at":"x"}'
        assert (went["tool_call_id"], seen["tool_call_id"]) == (ids[1], ids[0])


async def test_embeddings_come_for_one_text_and_for_many() -> None:
    """api.md: /api/embed and the older /api/embeddings."""
    body = json.dumps(
        {"data": [{"embedding": [0.5, 1]}, {"embedding": [2, 3]}], "usage": {"prompt_tokens": 4}}
    )
    async with (
        open_gateway(
            stream_of(body.encode(), content_type="application/json"), catalog=CATALOG_HERE
        ) as opened,
        ollama.AsyncClient(host=opened.url) as client,
    ):
        answer = await client.embed("vectors", ["a", "b"], options={"num_ctx": 64})
        assert answer.embeddings == [[0.5, 1.0], [2.0, 3.0]] and answer.prompt_eval_count == 4
        assert opened.peer.asked[0].json == {"model": "vectors", "input": ["a", "b"]}
        assert (await client.embeddings("vectors", "a")).embedding == [0.5, 1.0]
        assert (await opened.ask("/api/embed", {"model": "vectors", "input": []})).json["embeddings"] == []


# ------------------------------------------------------------------ failures


async def test_overload_is_503_with_a_text_and_a_time() -> None:
    """LANE-08: a full lane is 503 on this door."""
    async with open_gateway(catalog=CATALOG_HERE) as opened:
        opened.engine.gate.clear()
        lane = {"X-Watchbill-Lane": "tiny"}
        first = asyncio.create_task(opened.ask("/api/chat", CHAT, headers=lane))
        await opened.until_waiting()
        answer = await opened.ask("/api/chat", CHAT, headers=lane)
        assert answer.status == 503 and isinstance(answer.json["error"], str)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        opened.engine.gate.set()
        assert (await first).status == 200


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_a_stream_that_breaks_off_ends_with_an_error_line(in_good_order: bool) -> None:
    """R30: never a silent end."""
    events = sse(*chat_events("one two three"))
    async with open_gateway(stream_of(events[:400], end=in_good_order), catalog=CATALOG_HERE) as opened:
        answer = await opened.ask("/api/chat", CHAT)
        *said, last = [json.loads(each) for each in answer.body.splitlines()]
        assert said and not any(each["done"] for each in said)
        assert isinstance(last["error"], str)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_lane_with_a_fallback_answers_in_ollamas_shape(stream: bool) -> None:
    """LANE-04: 200, a whole answer, never a top-level error; a timeout is called so, another failure is not."""

    async def broken(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def silent(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    for talk, lane, name, text in (
        (broken, "kind", "engine_failed", "I am busy."),
        (silent, "brief", "timeout", "Later."),
    ):
        async with open_gateway(talk, catalog=CATALOG_HERE) as opened:
            headers = {"X-Watchbill-Lane": lane}
            answer = await opened.ask("/api/chat", {**CHAT, "stream": stream}, headers=headers)
            assert (answer.status, answer.headers["x-watchbill-fallback"]) == (200, name)
            said = json.loads(answer.body.splitlines()[-1])
            assert said["done"] and said["message"]["content"] == text
            assert said["watchbill"] == {"fallback": True, "error": name} and "error" not in said


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"num_ctx": -5}}, {"options": {"num_predict": 10**12}}, {"options": {"temperature": "hot"}},
        {"options": [1]}, {"options": {"top_k": 1.5}}, {"options": {"stop": 5}}, {"options": {"stop": [5]}},
        {"stream": "yes"}, {"think": "much"}, {"format": 7},
        {"messages": "hi"}, {"messages": [7]}, {"messages": [{"role": "user", "content": 3}]},
        {"messages": [{"role": "user", "images": [1]}]}, {"messages": [{"role": "a", "tool_calls": [1]}]},
        {"model": ""}, {"model": 3}, {"options": {"seed": 10**40}},
    ],
    ids=str,
)  # fmt: skip
async def test_nonsense_is_refused_with_a_text(fields: dict[str, object]) -> None:
    """R42, R47: 400 and a text, and nothing reaches the engine."""
    async with open_gateway(catalog=CATALOG_HERE) as opened:
        answer = await opened.ask("/api/chat", {**CHAT, **fields})
        assert answer.status == 400 and isinstance(answer.json["error"], str)
        assert opened.peer.asked == []


async def test_a_degree_of_thinking_switches_it_on() -> None:
    """LANE-01: also where a chat template has it off; `true` does."""
    async with open_gateway(catalog=CATALOG_HERE) as opened:
        assert (await opened.ask("/api/chat", {**CHAT, "think": "high", "stream": False})).status == 200
        sent = opened.peer.asked[-1].json
        assert (sent["reasoning_effort"], sent["chat_template_kwargs"]) == ("high", {"enable_thinking": True})


async def test_keys_are_asked_for_and_only_an_admin_forwards() -> None:
    """R44: refused before any door opens, in Ollama's shape."""
    keys = (ApiKey("me", "k" * 16), ApiKey("root", "r" * 16, admin=True))
    async with open_gateway(server=Server(keys=keys), catalog=CATALOG_HERE) as opened:
        assert (await opened.ask("/")).body == b"Ollama is running"
        answer = await opened.ask("/api/tags")
        assert answer.status == 401 and isinstance(answer.json["error"], str)
        for key, status in (("k", 403), ("r", 200)):
            headers = {"Authorization": f"Bearer {key * 16}"}
            answer = await opened.ask("/api/pull", {"model": "smol"}, headers=headers)
            assert answer.status == status


# ------------------------------------------------------------------ an Ollama behind us


async def test_an_ollama_behind_us_is_asked_in_its_own_words() -> None:
    """api.md: passed through; nothing in it makes that Ollama load the model anew or keep it otherwise."""
    lines = (FIXTURES / "chat_stream.http").read_text().partition("\n\n")[2].encode()
    cut = len(lines) // 2
    engines = {"peer": EngineRules("peer", "ollama")}
    catalog = replace(CATALOG_HERE, engines=engines)
    async with open_gateway(
        stream_of(lines[:cut], lines[cut:], content_type="application/x-ndjson"), catalog=catalog
    ) as opened:
        body = {**CHAT, "model": "smol:latest", "keep_alive": "1h", "options": {"num_ctx": 8192, "seed": 4}}
        answer = await opened.ask("/api/chat", body)
        told = [json.loads(each) for each in answer.body.splitlines()]
        theirs = [json.loads(each) for each in lines.splitlines()]
        assert told == [{**each, "model": "smol:latest"} for each in theirs]
        asked = opened.peer.asked[-1]
        assert asked.path == "/api/chat" and asked.json["options"] == {"seed": 4}
        assert "keep_alive" not in asked.json


async def test_pull_is_forwarded_to_an_ollama_behind_us() -> None:
    """api.md: what only Ollama can do goes to one, where there is one."""
    said = b'{"status":"pulling"}\n{"status":"success"}\n'
    async with peer_listening(stream_of(said, content_type="application/x-ndjson")) as theirs:
        url = f"http://127.0.0.1:{theirs.port}"
        engines = {**CATALOG_HERE.engines, "there": EngineRules("there", "ollama", url=url)}
        async with open_gateway(catalog=replace(CATALOG_HERE, engines=engines)) as opened:
            for address in ("/api/pull", "/lane/batch/api/pull", "/lane/a%0d%0ab/api/pull"):
                answer = await opened.ask(address, {"model": "tiny"})
                assert (answer.status, answer.body) == (200, said)
                asked = theirs.asked[-1]
                assert (asked.path, asked.json) == ("/api/pull", {"model": "tiny", "stream": True})
            assert opened.driver.catalog.models["tiny"].engine == "there"
