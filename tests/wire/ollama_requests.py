"""Requests to every address of Ollama's API, each with the status and the shape of Ollama's own answer.

From Ollama's documented API, the recorded answers of a real server (tests/fixtures/ollama), and its handlers: which
field is checked, in which order, with which status. `DIFFERS` names the few in which Watchbill answers otherwise, with
the reason; a test compares every other one.

The models: `smol` completes and can nothing else, `thinker` has tools, thoughts and eyes, `vectors` embeds. `mine` and
`mario` are made by the requests themselves, which are sent in this order.
"""

import hashlib
from typing import Any, NamedTuple

__all__ = ["BLOB", "BLOB_NAME", "DIFFERS", "GGUF_NAME", "REQUESTS", "Asked"]

BLOB = b"no model at all"
BLOB_NAME = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"
#: The test puts the digest of a small model here.
GGUF_NAME = "sha256:GGUF"
MISSING = f"sha256:{'0' * 64}"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Asked(NamedTuple):
    """A request, and what Ollama answers: its status, the kind of body, the keys of the (last) object."""

    name: str
    method: str
    path: str
    body: Any
    status: int
    kind: str = "json"  # json, lines, text, empty
    keys: tuple[str, ...] = ()


TIMES = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
GENERATED = ("model", "created_at", "response", "done", "done_reason", *TIMES)
CHATTED = ("model", "created_at", "message", "done", "done_reason", *TIMES)
ONLY_LOADED = ("model", "created_at", "response", "done", "done_reason")
ERROR = ("error",)
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}},
}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
SHOWN = ("modelfile", "parameters", "template", "details", "model_info", "capabilities", "modified_at")


def get(
    name: str, path: str, status: int, kind: str = "json", *, keys: tuple[str, ...] = (), method: str = "GET"
) -> Asked:
    return Asked(name, method, path, None, status, kind, keys)


def refused(name: str, path: str, body: Any, status: int = 400, method: str = "POST") -> Asked:
    return Asked(name, method, path, body, status, "json", ERROR)


def wrong(name: str, path: str) -> list[Asked]:
    """What every address with a body refuses."""
    return [
        refused(f"{name}: no body", path, b""),
        refused(f"{name}: no JSON", path, b"{bad"),
        refused(f"{name}: a list", path, []),
        get(f"{name}: GET", path, 405, "text"),
    ]


def generate(name: str, status: int = 200, kind: str | None = None, **fields: Any) -> Asked:
    body = {"model": "smol", "prompt": "The sky is", **fields}
    if status != 200:
        return refused(f"generate: {name}", "/api/generate", body, status)
    shape = kind or ("json" if fields.get("stream") is False else "lines")
    keys = GENERATED if body["prompt"] else ONLY_LOADED
    if body["prompt"] and not body.get("raw"):
        keys = (*keys, "context")
    return Asked(f"generate: {name}", "POST", "/api/generate", body, 200, shape, keys)


def chat(name: str, status: int = 200, kind: str | None = None, **fields: Any) -> Asked:
    body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], **fields}
    if status != 200:
        return refused(f"chat: {name}", "/api/chat", body, status)
    shape = kind or ("json" if fields.get("stream") is False else "lines")
    keys = CHATTED if body["messages"] else CHATTED[:5]
    return Asked(f"chat: {name}", "POST", "/api/chat", body, 200, shape, keys)


def embed(name: str, status: int = 200, **fields: Any) -> Asked:
    body = {"model": "vectors", "input": "hi", **fields}
    if status != 200:
        return refused(f"embed: {name}", "/api/embed", body, status)
    keys = ("model", "embeddings") if not body["input"] else ("model", "embeddings", *TIMES[:3])
    return Asked(f"embed: {name}", "POST", "/api/embed", body, 200, "json", keys)


def said(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return list(messages)


LISTS = [
    get("root", "/", 200, "text"),
    get("root: HEAD", "/", 200, "empty", method="HEAD"),
    get("root: POST", "/", 405, "text", method="POST"),
    get("version", "/api/version", 200, keys=("version",)),
    get("version: HEAD", "/api/version", 200, "empty", method="HEAD"),
    get("version: POST", "/api/version", 405, "text", method="POST"),
    get("status", "/api/status", 200, keys=("cloud",)),
    get("tags", "/api/tags", 200, keys=("models",)),
    get("tags: HEAD", "/api/tags", 200, "empty", method="HEAD"),
    get("tags: POST", "/api/tags", 405, "text", method="POST"),
    get("ps", "/api/ps", 200, keys=("models",)),
    get("ps: DELETE", "/api/ps", 405, "text", method="DELETE"),
    get("an unknown address", "/api/nothing", 404, "text"),
]

SHOW = [
    Asked("show", "POST", "/api/show", {"model": "smol"}, 200, "json", SHOWN),
    Asked("show: by name", "POST", "/api/show", {"name": "smol"}, 200, "json", SHOWN),
    Asked("show: an empty model beside a name", "POST", "/api/show", {"model": "", "name": "smol"}, 200, "json", SHOWN),
    Asked("show: with its tag", "POST", "/api/show", {"model": "smol:latest"}, 200, "json", SHOWN),
    Asked("show: in capitals", "POST", "/api/show", {"model": "SMOL"}, 200, "json", SHOWN),
    Asked("show: with its namespace", "POST", "/api/show", {"model": "library/smol"}, 200, "json", SHOWN),
    Asked(
        "show: with its registry", "POST", "/api/show",
        {"model": "registry.ollama.ai/library/smol:latest"}, 200, "json", SHOWN,
    ),
    Asked("show: verbose", "POST", "/api/show", {"model": "smol", "verbose": True}, 200, "json", SHOWN),
    refused("show: unknown", "/api/show", {"model": "nope"}, 404),
    refused("show: another tag", "/api/show", {"model": "smol:other"}, 404),
    refused("show: nothing", "/api/show", {}),
    refused("show: a number", "/api/show", {"model": 5}),
    refused("show: an invalid name", "/api/show", {"model": "a b"}),
    *wrong("show", "/api/show"),
]  # fmt: skip

GENERATE = [
    generate("streamed"),
    generate("whole", stream=False),
    generate("stream null", stream=None),
    generate("an empty prompt loads", prompt="", kind="json"),
    generate("no prompt loads", prompt=None, kind="json"),
    generate("keep_alive -1", prompt="", keep_alive=-1, kind="json"),
    generate("keep_alive 5m", keep_alive="5m", stream=False),
    generate("keep_alive -1s", keep_alive="-1s", stream=False),
    generate("keep_alive as a number", keep_alive=300, stream=False),
    generate("keep_alive 0 unloads", prompt="", keep_alive=0, kind="json"),
    generate("keep_alive in words", 400, keep_alive="a while"),
    generate("keep_alive true", 400, keep_alive=True),
    generate("with its tag", model="smol:latest", stream=False),
    generate("in capitals", model="SMOL", stream=False),
    generate("a system text", system="Be brief.", stream=False),
    generate("raw", raw=True, stream=False),
    generate("raw and a system text", 400, raw=True, system="x"),
    generate("raw and a template", 400, raw=True, template="{{ .Prompt }}"),
    generate("raw and a context", 400, raw=True, context=[1, 2]),
    generate("an empty context", context=[], stream=False),
    generate("a context in words", 400, context="abc"),
    generate("a context of another server", context=[1, 4093, 198], stream=False),
    generate("a template", template="{{ .Prompt }}", stream=False),
    generate(
        "options", options={"temperature": 0.5, "num_predict": 3, "seed": 1, "stop": ["\n"]}, stream=False
    ),
    generate("an unknown option", options={"wonder": 1}, stream=False),
    generate("num_ctx", options={"num_ctx": 2048}, stream=False),
    generate("a larger num_ctx", options={"num_ctx": 100_000}, stream=False),
    generate("options as a list", 400, options=[1]),
    generate("an option of the wrong kind", 500, options={"temperature": "hot"}),
    generate("format json", format="json", stream=False),
    generate("a schema", format=SCHEMA, stream=False),
    generate("an empty format", format="", stream=False),
    generate("think of a model that cannot", 400, think=True),
    generate("think not", think=False, stream=False),
    generate("think", model="thinker", think=True, stream=False),
    generate("think hard", model="thinker", think="high", stream=False),
    generate("think loudly", 400, think="loud"),
    generate("think 5", 400, think=5),
    generate("a suffix of a model that cannot", 400, suffix="the end"),
    generate("an image", model="thinker", images=[PIXEL], stream=False),
    generate("an image that is none", 400, images=["%%%"]),
    generate("images as a text", 400, images="abc"),
    generate("a prompt that is a number", 400, prompt=5),
    generate("stream in words", 400, stream="yes"),
    generate("truncate and shift", truncate=False, shift=False, stream=False),
    generate("logprobs", logprobs=True, top_logprobs=3, stream=False),
    generate("too many logprobs", 400, top_logprobs=21),
    generate("an unknown field", wonder=1, stream=False),
    generate("an unknown model", 404, model="nope"),
    generate("no model", 404, model=""),
    generate("model null", 404, model=None),
    generate("an invalid model", 400, model="a b"),
    generate("a model that is a number", 400, model=5),
    generate("a model that embeds", 400, model="vectors"),
    *wrong("generate", "/api/generate"),
]

CHAT = [
    chat("streamed"),
    chat("whole", stream=False),
    chat("no messages load", messages=[], kind="json"),
    chat("messages null load", messages=None, kind="json"),
    chat("keep_alive 0 unloads", messages=[], keep_alive=0, kind="json"),
    chat("a system text", messages=said({"role": "system", "content": "x"}, {"role": "user", "content": "y"})),
    chat("an answer to go on", messages=said({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})),
    chat("a role in capitals", messages=said({"role": "USER", "content": "x"}), stream=False),
    chat("a content that is null", messages=said({"role": "user", "content": None}), stream=False),
    chat("a content that is a number", 400, messages=said({"role": "user", "content": 5})),
    chat("messages as a text", 400, messages="hi"),
    chat("a message that is a text", 400, messages=["hi"]),
    chat("tools", model="thinker", tools=[TOOL], stream=False),
    chat("tools of a model that has none", 400, tools=[TOOL]),
    chat("tools as a text", 400, model="thinker", tools="look"),
    chat(
        "a tool's result", model="thinker", tools=[TOOL], stream=False,
        messages=said(
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
            {"role": "tool", "tool_name": "look", "content": "a cow"},
        ),
    ),
    chat("an image", model="thinker", messages=said({"role": "user", "content": "x", "images": [PIXEL]}), stream=False),
    chat("an image that is none", 400, messages=said({"role": "user", "content": "x", "images": ["%%%"]})),
    chat("format json", format="json", stream=False),
    chat("a schema", format=SCHEMA, stream=False),
    chat("options", options={"temperature": 0, "num_predict": 2}, stream=False),
    chat("think", model="thinker", think=True),
    chat("think of a model that cannot", 400, think=True),
    chat("keep_alive in words", 400, keep_alive="long"),
    chat("logprobs", logprobs=True, stream=False),
    chat("fewer logprobs than none", 400, top_logprobs=-1),
    chat("truncate", truncate=True, stream=False),
    chat("stream in words", 400, stream="no"),
    chat("an unknown model", 404, model="nope"),
    chat("no model", 400, model=""),
    chat("an invalid model", 400, model="a b"),
    chat("a model that embeds", 400, model="vectors"),
    *wrong("chat", "/api/chat"),
]  # fmt: skip

EMBED = [
    embed("a text"),
    embed("texts", input=["a", "b"]),
    embed("an empty text", input=""),
    embed("no texts", input=[]),
    embed("input null", input=None),
    embed("fewer dimensions", dimensions=2),
    embed("dimensions 0", dimensions=0),
    embed("dimensions in words", 400, dimensions="two"),
    embed("truncate", truncate=True),
    embed("truncate not", truncate=False),
    embed("options and keep_alive", options={"num_ctx": 512}, keep_alive="1m"),
    embed("a number", 400, input=5),
    embed("numbers", 400, input=[1]),
    embed("an unknown model", 404, model="nope"),
    embed("no model", 404, model=""),
    embed("a model that completes", 501, model="smol"),
    *wrong("embed", "/api/embed"),
    Asked(
        "embeddings",
        "POST",
        "/api/embeddings",
        {"model": "vectors", "prompt": "hi"},
        200,
        "json",
        ("embedding",),
    ),
    Asked("embeddings: empty", "POST", "/api/embeddings", {"model": "vectors"}, 200, "json", ("embedding",)),
    refused("embeddings: a number", "/api/embeddings", {"model": "vectors", "prompt": 5}),
    refused("embeddings: no model", "/api/embeddings", {"prompt": "hi"}),
    refused("embeddings: unknown", "/api/embeddings", {"model": "nope", "prompt": "hi"}, 404),
]

DONE = ("status",)
LIBRARY = [
    Asked("pull", "POST", "/api/pull", {"model": "smol"}, 200, "lines", DONE),
    Asked("pull: whole", "POST", "/api/pull", {"model": "smol", "stream": False}, 200, "json", DONE),
    Asked("pull: by name", "POST", "/api/pull", {"model": "", "name": "smol"}, 200, "lines", DONE),
    Asked("pull: insecure", "POST", "/api/pull", {"model": "smol", "insecure": True}, 200, "lines", DONE),
    Asked("pull: unknown", "POST", "/api/pull", {"model": "nope"}, 200, "lines", ERROR),
    refused("pull: unknown, whole", "/api/pull", {"model": "nope", "stream": False}, 500),
    refused("pull: nothing", "/api/pull", {}),
    refused("pull: an invalid name", "/api/pull", {"model": "a b"}),
    *wrong("pull", "/api/pull"),
    Asked("push", "POST", "/api/push", {"model": "smol"}, 200, "lines", ERROR),
    refused("push: whole", "/api/push", {"model": "smol", "stream": False}, 500),
    refused("push: nothing", "/api/push", {}),
    Asked("copy", "POST", "/api/copy", {"source": "smol", "destination": "mine"}, 200, "empty"),
    Asked("copy: shown", "POST", "/api/show", {"model": "mine"}, 200, "json", SHOWN),
    generate("a copy", model="mine", stream=False),
    Asked("copy: a copy", "POST", "/api/copy", {"source": "Mine:latest", "destination": "team/b:v2"}, 200, "empty"),
    Asked("copy: over itself", "POST", "/api/copy", {"source": "smol", "destination": "smol"}, 200, "empty"),
    refused("copy: unknown", "/api/copy", {"source": "nope", "destination": "x"}, 404),
    refused("copy: no source", "/api/copy", {"destination": "x"}),
    refused("copy: no destination", "/api/copy", {"source": "smol"}),
    refused("copy: an invalid destination", "/api/copy", {"source": "smol", "destination": "a b"}),
    *wrong("copy", "/api/copy"),
    Asked("delete", "DELETE", "/api/delete", {"model": "mine"}, 200, "empty"),
    refused("delete: shown no more", "/api/show", {"model": "mine"}, 404),
    generate("a copy of what was deleted", model="team/b:v2", stream=False),
    Asked("delete: by name", "DELETE", "/api/delete", {"name": "team/b:v2"}, 200, "empty"),
    refused("delete: unknown", "/api/delete", {"model": "nope"}, 404, "DELETE"),
    refused("delete: nothing", "/api/delete", {}, 400, "DELETE"),
    refused("delete: no body", "/api/delete", b"", 400, "DELETE"),
    refused("delete: an invalid name", "/api/delete", {"model": "a b"}, 400, "DELETE"),
    get("delete: POST", "/api/delete", 405, "text", method="POST"),
    Asked("create", "POST", "/api/create", {"model": "mario", "from": "smol", "system": "Mario"}, 200, "lines", DONE),
    generate("what was created", model="mario", stream=False),
    Asked(
        "create: everything", "POST", "/api/create",
        {
            "model": "mario:2", "from": "mario", "parameters": {"temperature": 0.1, "stop": ["x"]}, "license": ["free"],
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "me"}], "stream": False,
        }, 200, "json", DONE,
    ),
    refused("create: from an unknown model", "/api/create", {"model": "x", "from": "nope", "stream": False}, 500),
    refused("create: from nothing", "/api/create", {"model": "x"}),
    refused("create: no name", "/api/create", {"from": "smol"}),
    refused("create: an invalid name", "/api/create", {"model": "a b", "from": "smol"}),
    refused("create: adapters", "/api/create", {"model": "x", "from": "smol", "adapters": {"a": MISSING}}),
    refused("create: a missing blob", "/api/create", {"model": "x", "files": {"a.gguf": MISSING}}),
    refused("create: an invalid digest", "/api/create", {"model": "x", "files": {"a.gguf": "sha256:5"}}),
    *wrong("create", "/api/create"),
    get("blobs: missing", f"/api/blobs/{MISSING}", 404, "empty", method="HEAD"),
    get("blobs: an invalid digest", "/api/blobs/sha256:5", 400, "empty", method="HEAD"),
    Asked("blobs: upload", "POST", f"/api/blobs/{BLOB_NAME}", BLOB, 201, "empty"),
    Asked("blobs: again", "POST", f"/api/blobs/{BLOB_NAME}", BLOB, 200, "empty"),
    get("blobs: there", f"/api/blobs/{BLOB_NAME}", 200, "empty", method="HEAD"),
    refused("blobs: another content", f"/api/blobs/{MISSING}", b"something else"),
    refused("blobs: upload to nowhere", "/api/blobs/md5:5", b"x"),
    get("blobs: GET", f"/api/blobs/{BLOB_NAME}", 405, "text"),
    refused("create: of what is no model", "/api/create", {"model": "x", "files": {"a.gguf": BLOB_NAME}}),
    Asked("create: of a file", "POST", "/api/create", {"model": "own", "files": {"a": GGUF_NAME}}, 200, "lines", DONE),
    Asked("create: of a file, shown", "POST", "/api/show", {"model": "own"}, 200, "json", SHOWN),
    Asked("delete: a file", "DELETE", "/api/delete", {"model": "own"}, 200, "empty"),
    Asked("delete: of the config", "DELETE", "/api/delete", {"model": "smol"}, 200, "empty"),
]  # fmt: skip

OPENAI = [
    get("v1 models", "/v1/models", 200, keys=("object", "data")),
    get("v1 model", "/v1/models/smol", 200, keys=("id", "object", "created", "owned_by")),
    get("v1 model: unknown", "/v1/models/nope", 404, keys=ERROR),
    Asked(
        "v1 chat", "POST", "/v1/chat/completions",
        {"model": "smol", "messages": said({"role": "user", "content": "x"})}, 200,
        "json", ("id", "object", "created", "model", "choices", "usage"),
    ),
    refused("v1 chat: unknown", "/v1/chat/completions", {"model": "nope", "messages": []}, 404),
]  # fmt: skip

REQUESTS = [*LISTS, *SHOW, *GENERATE, *CHAT, *EMBED, *OPENAI, *LIBRARY]

#: Where Watchbill answers otherwise, and why.
DIFFERS = {
    "generate: a context of another server": "400: no engine behind us reads another server's token ids",
    "generate: a template": "400: templates are the engine's own; `raw` takes a whole prompt",
    "generate: an option of the wrong kind": "400 where Ollama says 500: it is the caller's mistake",
    "push: whole": "501 where Ollama says 500: nothing is pushed from here",
    "delete: of the config": "400: only the config takes a model of the config away",
}
