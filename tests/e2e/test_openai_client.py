"""The real `openai` client against the real llama.cpp, through the real daemon."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import openai
import pytest

from e2e.place import Daemon, Place, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until

CONFIG = """
[devices.ram]
reserve = "200MB"

[server.keys.person]
key = "person-key-0001"

[server.keys.operator]
key = "operator-key-0001"
admin = true

[models.chatty]
engine = "llamacpp"
source = "{chat}"
aliases = ["talker"]
context = 512
threads = 1

[models.vectors]
engine = "llamacpp"
source = "{embedding}"
embedding = true
context = 256
threads = 1

[models.absentee]
engine = "llamacpp"
source = "there-is-no-such-file.gguf"

[lanes.narrow]
queue_max = 1

[lanes.hasty]
max_wait = "300ms"
"""
PERSON = {"Authorization": "Bearer person-key-0001"}
MESSAGES = [{"role": "user", "content": "Tell me."}]


class Counter(httpx.HTTPTransport):
    """The client's own transport, counting what the client really sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request.headers.get("x-stainless-retry-count", ""))
        return super().handle_request(request)


class Client(openai.OpenAI):
    """The SDK with a count of its requests, and one retry instead of two to save time."""

    def __init__(self, daemon: Daemon, key: str = "person-key-0001") -> None:
        self.counter = Counter()
        super().__init__(
            base_url=f"{daemon.url}/v1", api_key=key, max_retries=1, timeout=60,
            http_client=httpx.Client(transport=self.counter, timeout=60),
        )  # fmt: skip


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the SDK wanted to sleep between two attempts, which it need not do here."""
    asked: list[float] = []
    clock = SimpleNamespace(sleep=asked.append, time=time.time)
    monkeypatch.setattr("openai._base_client.time", clock)
    return asked


@pytest.fixture(scope="module")
def daemon(shared_place: Place, gguf_files: GgufFiles) -> Daemon:
    paths = {"chat": gguf_files.chat("5MB"), "embedding": gguf_files.embedding()}
    slow = scripted("slow", 'service = "20s", tokens = 200', "concurrency = 1")
    shared_place.config.write_text(CONFIG.format(**paths) + slow)
    return shared_place.up()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon) as client:
        yield client


def test_a_chat_is_answered_whole_and_in_pieces(client: Client) -> None:
    """RES-10, LANE-01, LANE-09: the same answer both ways; role first, then text, then the reason, then usage."""
    ask = {"model": "chatty", "messages": MESSAGES, "max_tokens": 12, "seed": 7, "temperature": 0}
    whole = client.chat.completions.with_raw_response.create(**ask)
    assert whole.headers["x-watchbill-model"] == "chatty"
    assert whole.headers["x-watchbill-lane"] == "default"
    assert int(whole.headers["x-watchbill-wait-ms"]) >= int(whole.headers["x-watchbill-load-ms"]) >= 0
    answer = whole.parse()
    assert (answer.object, answer.model) == ("chat.completion", "chatty")
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content and len(choice.message.content) == 12  # a letter a token
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12

    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    *parts, last, usage = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert all(part.choices[0].delta.role is None for part in parts[1:])
    assert all(part.choices[0].finish_reason is None for part in parts)
    assert last.choices[0].finish_reason == "length"
    assert (usage.choices, usage.usage.completion_tokens) == ([], 12)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == choice.message.content

    without = list(client.chat.completions.create(**ask, stream=True))
    assert all(chunk.usage is None for chunk in without)
    assert client.counter.sent == ["0", "0", "0"]


def test_a_plain_completion_is_answered_whole_and_in_pieces(client: Client) -> None:
    """LANE-01, LANE-09: /v1/completions, by the model's alias."""
    ask = {"model": "talker", "prompt": "Once upon", "max_tokens": 8, "seed": 7, "temperature": 0}
    answer = client.completions.create(**ask)
    (choice,) = answer.choices
    assert (answer.object, choice.finish_reason, len(choice.text)) == ("text_completion", "length", 8)
    assert answer.usage.completion_tokens == 8
    chunks = list(client.completions.create(**ask, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == choice.text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert (set(reasons[:-1]), reasons[-1]) == ({None}, "length")


def test_a_text_that_is_too_long_for_an_encoder_is_the_callers_fault(client: Client) -> None:
    """RES-20, LANE-09: llama.cpp answers 500; the client is told 400, tries no more, and the model stays."""
    for _ in range(4):
        with pytest.raises(openai.BadRequestError, match="too large"):
            client.embeddings.create(model="vectors", input="a ship " * 3_000)
    assert client.counter.sent == ["0"] * 4
    answer = client.embeddings.with_raw_response.create(model="vectors", input="a ship")
    assert answer.headers["x-watchbill-load-ms"] == "0"


def test_texts_become_vectors(client: Client) -> None:
    """LANE-01: embeddings from a real encoder; the same text gives the same vector, another text another one."""
    answer = client.embeddings.create(model="vectors", input=["a ship", "a watch", "a ship"])
    one, other, same = (item.embedding for item in answer.data)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert len(one) == 128
    assert one == pytest.approx(same, abs=1e-4)
    assert one != pytest.approx(other, abs=1e-2)
    assert answer.usage.prompt_tokens > 0
    assert answer.model == "vectors"


def test_models_are_listed_with_what_they_are_doing(client: Client) -> None:
    """LANE-01: /v1/models."""
    listed = {model.id: model for model in client.models.list()}
    assert set(listed) == {"chatty", "vectors", "absentee", "slow"}
    assert listed["absentee"].status["value"] == "failed"
    assert listed["chatty"].aliases == ["talker"]
    assert listed["chatty"].meta["n_ctx"] == 512
    assert client.models.retrieve("talker").id == "chatty"


def test_what_is_wrong_for_good_is_said_once(daemon: Daemon, client: Client) -> None:
    """LANE-01: 400, 401 and 404 are errors of their own class, with a code, and are not tried again."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="chatty", messages=MESSAGES, temperature="hot")  # pyright: ignore
    assert (bad.value.code, bad.value.type) == ("invalid_request", "invalid_request_error")
    assert "temperature" in bad.value.message

    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="chatty", messages=[{"role": "user", "content": "word " * 500}])
    assert long.value.code == "context_length_exceeded"

    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.type) == ("model_not_found", "invalid_request_error")
    assert client.counter.sent == ["0", "0", "0"]

    with Client(daemon, key="nobody's") as stranger:
        with pytest.raises(openai.AuthenticationError) as denied:
            stranger.chat.completions.create(model="chatty", messages=MESSAGES)
        assert (denied.value.code, denied.value.type) == ("authentication_failed", "authentication_error")
        assert stranger.counter.sent == ["0"]


def test_what_may_pass_is_tried_again(daemon: Daemon, client: Client, pauses: list[float]) -> None:
    """LANE-01, LANE-08, R30: 429 and 503 come with Retry-After, and the SDK tries again, once as it was told."""
    ask = {"model": "slow", "messages": MESSAGES}
    narrow = {"X-Watchbill-Lane": "narrow"}
    running = client.chat.completions.create(**ask, stream=True, extra_headers=narrow)
    next(iter(running))
    with ThreadPoolExecutor(1) as aside, Client(daemon) as other, Client(daemon) as third:
        queued = aside.submit(other.chat.completions.create, **ask, stream=True, extra_headers=narrow)
        lanes = lambda: daemon.ask("/wb/v1/status", headers=PERSON)  # noqa: E731
        wait_until(lambda: b'"narrow":{"class":"interactive","queued":1' in lanes()[2])
        with pytest.raises(openai.RateLimitError) as full:
            third.chat.completions.create(**ask, extra_headers=narrow)
        assert (full.value.code, full.value.type) == ("lane_full", "rate_limit_error")
        assert pauses == [float(full.value.response.headers["retry-after"])]
        assert third.counter.sent == ["0", "1"]

        with pytest.raises(openai.InternalServerError) as late:
            client.chat.completions.create(**ask, extra_headers={"X-Watchbill-Lane": "hasty"})
        assert (late.value.status_code, late.value.code) == (503, "wait_exceeded")
        assert 1 <= pauses[1] <= 60
        assert late.value.response.json()["loading"]["state"] == "ready"
        assert client.counter.sent == ["0", "0", "1"]
        running.close()
        queued.result(20).close()

    with pytest.raises(openai.InternalServerError) as broken:
        client.chat.completions.create(model="absentee", messages=MESSAGES)
    assert (broken.value.status_code, broken.value.code) == (503, "model_failed")
    assert "there-is-no-such-file.gguf" in broken.value.message
