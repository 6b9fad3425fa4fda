"""Background answers that make room for somebody in the middle, and go on where they stopped."""

import json
import threading

from e2e.place import Daemon, Place, Stream, chat_body, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until

LANES = """
[lanes.chat]
class = "interactive"
max_wait = "30s"
[lanes.batch]
class = "background"
max_wait = "60s"
[devices.ram]
capacity = "100MB"
reserve = "0MB"
"""
#: Sixteen words in four sentences, eight times over.
TEXT = "One two three four. Five six seven eight. Nine ten eleven twelve. Thirteen fourteen fifteen sixteen."
WORDS = 128


def two_models(service: str = "6s") -> str:
    """Two models of which one fits: a slow one with a long answer, and a quick one."""
    slow = f'text = "{TEXT}", tokens = {WORDS}, service = "{service}", load = "200ms"'
    return (
        LANES
        + scripted("slow", slow, 'priority = 5\nmemory = "80MB"').replace('memory = "30MB"\n', "")
        + scripted("quick", 'load = "200ms"', 'memory = "80MB"').replace('memory = "30MB"\n', "")
    )


def stream(daemon: Daemon, model: str, tokens: int, **fields: object) -> Stream:
    connection = daemon.connect()
    body = chat_body(model, tokens) | {"stream": True, "stream_options": {"include_usage": True}} | fields
    reply = daemon.send(connection, "/v1/chat/completions", body, headers={"X-Watchbill-Lane": "batch"})
    assert reply.status == 200, reply.read()
    return Stream(connection, reply)


def words_of(events: list[dict]) -> list[str]:
    pieces = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    return "".join(pieces).split()


def loaded(place: Place) -> list[str]:
    """The models that were loaded, in order."""
    return [event["model"] for event in place.events("loaded")]


def test_a_background_stream_yields_at_a_sentence_and_is_continued(place: Place) -> None:
    """RES-12, RES-17: a person's request for another model does not wait for the end of a background answer; the answer
    stops at the end of a sentence, waits, and goes on from its own words: one stream, one id, nothing twice."""
    place.config.write_text(two_models())
    daemon = place.up()
    answer = stream(daemon, "slow", 500)
    first = json.loads(answer.event())
    status, _, _ = daemon.chat("quick", lane="chat")
    assert status == 200
    assert daemon.model("slow")["evictions"] == 1, "the quick model came while the answer was under way"
    *events, done = answer.rest()
    assert done == "[DONE]"
    told = [first, *map(json.loads, events)]

    assert words_of(told) == (TEXT.split() * 8)[:WORDS]
    assert {event["id"] for event in told} == {first["id"]}
    roles = [
        choice["delta"]["role"] for event in told for choice in event["choices"] if "role" in choice["delta"]
    ]
    assert roles == ["assistant"]
    usage = told[-1]["usage"]
    assert usage["completion_tokens"] == WORDS
    wait_until(lambda: loaded(place) == ["slow", "quick", "slow"])  # the journal may be a sync behind
    assert place.events("evict")[0]["model"] == "slow"


def test_a_whole_background_answer_keeps_what_it_has(place: Place) -> None:
    """RES-12: nothing was sent to the caller yet, so the work stops at once; its words so far are not made twice."""
    place.config.write_text(two_models())
    daemon = place.up()
    said: list[tuple[int, dict, dict]] = []
    asking = threading.Thread(target=lambda: said.append(daemon.chat("slow", 500, lane="batch")))
    asking.start()
    wait_until(lambda: daemon.model("slow")["in_flight"] == 1)
    assert daemon.chat("quick", lane="chat")[0] == 200
    asking.join(60)
    ((status, _, answer),) = said
    assert status == 200
    assert answer["choices"][0]["message"]["content"].split() == (TEXT.split() * 8)[:WORDS]
    assert answer["usage"]["completion_tokens"] == WORDS
    assert daemon.model("slow")["evictions"] == 1


def test_an_engine_that_hangs_in_a_background_answer_keeps_nobody_out(place: Place) -> None:
    """RES-12, RES-20: no boundary comes any more; the answer stops where it is, makes room, and its lane's time limit
    ends it like any other."""
    hangs = 'text = "one two", tokens = 64, service = "500ms", load = "200ms", fail = "hang-late-in-stream"'
    place.config.write_text(
        LANES.replace('max_wait = "60s"', 'max_wait = "60s"\ntimeout = "8s"')
        + scripted("slow", hangs, 'memory = "80MB"').replace('memory = "30MB"\n', "")
        + scripted("quick", 'load = "200ms"', 'memory = "80MB"').replace('memory = "30MB"\n', "")
    )
    daemon = place.up()
    answer = stream(daemon, "slow", 64)
    answer.event()
    assert daemon.chat("quick", lane="chat")[0] == 200
    *_, last = answer.rest()
    assert json.loads(last)["error"]["code"] == "run_timeout"
    assert not place.events("stranded")
    wait_until(lambda: not json.loads(daemon.ask("/wb/v1/requests")[2])["requests"])


def test_a_person_is_served_at_the_next_sentence_of_a_background_answer_of_the_same_model(
    place: Place,
) -> None:
    """RES-12, LANE-01: a model that answers one at a time; the background answer goes on afterwards, in one stream."""
    place.config.write_text(two_models("8s"))
    daemon = place.up()
    answer = stream(daemon, "slow", 500)
    first = json.loads(answer.event())
    status, _, told = daemon.chat("slow", 3, lane="chat")
    assert status == 200 and told["usage"]["completion_tokens"] == 3
    assert daemon.model("slow")["in_flight"] == 1, (
        "the background answer was over before the person was served"
    )
    *events, done = answer.rest()
    assert done == "[DONE]"
    assert words_of([first, *map(json.loads, events)]) == (TEXT.split() * 8)[:WORDS]


def test_an_answer_that_cannot_be_continued_runs_to_its_end(place: Place) -> None:
    """RES-12: with stop words the next request would begin anew, so the safe boundary is the answer's end."""
    place.config.write_text(two_models("2s"))
    daemon = place.up()
    answer = stream(daemon, "slow", 500, stop=["never said"])
    answer.event()
    assert daemon.chat("quick", lane="chat")[0] == 200
    *events, done = answer.rest()
    assert done == "[DONE]"
    assert len(words_of([json.loads(event) for event in events])) == WORDS - 1
    wait_until(lambda: loaded(place) == ["slow", "quick"])


def test_llama_cpp_goes_on_with_its_own_words(place: Place, gguf_files: GgufFiles) -> None:
    """RES-12: the same on a real engine: the answer has the length that was asked for, in one stream."""
    place.config.write_text(
        LANES.replace("100MB", "500MB")
        + f'[models.slow]\nengine = "llamacpp"\nsource = "{gguf_files.chat("100MB")}"\ncontext = 1024\nthreads = 1\n'
        + 'memory = "300MB"\n'
        + scripted("quick", 'load = "200ms"', 'memory = "300MB"').replace('memory = "30MB"\n', "")
    )
    daemon = place.up()
    answer = stream(daemon, "slow", 300, temperature=0, ignore_eos=True)
    first = json.loads(answer.event())
    assert daemon.chat("quick", lane="chat")[0] == 200
    *events, done = answer.rest()
    assert done == "[DONE]"
    told = [first, *map(json.loads, events)]
    assert {event["id"] for event in told} == {first["id"]}
    wait_until(lambda: loaded(place)[:3] == ["slow", "quick", "slow"])
    reasons = [
        choice["finish_reason"] for event in told for choice in event["choices"] if choice["finish_reason"]
    ]
    assert reasons == ["length"]
    assert told[-1]["usage"]["completion_tokens"] in range(290, 311)  # tokens are counted by event
