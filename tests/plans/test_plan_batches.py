"""Items become tasks, inputs become a batch, and a batch becomes a summary and a picture."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchbill.errors import NameRefused, OursError
from watchbill.names import check_plain_name
from watchbill.plans import limits
from watchbill.plans.batch import (
    BelowRoot,
    ExecutePlan,
    batch_id,
    inputs_from_json,
    inputs_from_pairs,
    priority_of,
    settle_inputs,
    shared_inputs,
)
from watchbill.plans.check import check
from watchbill.plans.draw import mermaid
from watchbill.plans.expand import expand, items_at, values_of
from watchbill.plans.graph import Graph, Stage, nodes_of
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.summary import Outcome, TaskReport, summarize
from watchbill.plans.task import Place, Task

VIDEOS = Place("m.json", ("videos",))


def task(name: str = "work", **fields: object) -> Task:
    return replace(Task(name, 1), **fields)


def names(items: list[object], taken: frozenset[str] = frozenset(), **fields: object) -> list[str]:
    return [each.name for each in expand(task(**fields), items, taken)]


def no_input(place: Placeholder) -> str:
    raise AssertionError(place)


# ------------------------------------------------------------------ items


def test_a_task_is_named_by_the_id_of_its_item_where_that_is_safe_and_unique() -> None:
    """PLAN-04"""
    items = [
        {"id": "v1"},
        {"id": 7},
        {"id": "../x"},
        {"id": "twice"},
        {"id": "twice"},
        {"name": "none"},
        "text",
        {"id": "v2"},
    ]
    parsed = items_at(json.dumps({"videos": items}).encode(), VIDEOS)
    assert names(parsed) == [
        "work_v1",
        "work_7",
        "work_3",
        "work_4",
        "work_5",
        "work_6",
        "work_7-2",
        "work_v2",
    ]


def test_a_name_that_another_task_has_is_not_used_again() -> None:
    """PLAN-04"""
    assert names([{"id": "a"}, {"id": "b"}], frozenset({"work_a", "work_1"})) == ["work_1-2", "work_b"]


def test_tasks_of_several_items_are_numbered_and_cover_all_items() -> None:
    """PLAN-04: batch_size"""
    expanded = expand(task(batch_size=2), [{"id": str(at)} for at in range(5)], ())
    assert [(each.name, each.first, each.end) for each in expanded] == [
        ("work_1", 0, 2), ("work_2", 2, 4), ("work_3", 4, 5)
    ]  # fmt: skip


IDS = st.text(max_size=70) | st.sampled_from(["a", "1", "2", "1-2", "..", ".", "-", "a.", "é", "A", "_"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.fixed_dictionaries({"id": IDS}) | st.text() | st.integers(), max_size=20),
    st.integers(1, 4),
    st.sets(IDS, max_size=4),
)
def test_names_of_expanded_tasks_are_safe_unique_and_nobody_elses(
    items: list[object], size: int, ids: set[str]
) -> None:
    """PLAN-04, R49"""
    taken = {f"work_{each}" for each in ids}
    found = names(items, frozenset(taken), batch_size=size)
    assert len(set(found)) == len(found) == -(-len(items) // size)
    assert not taken & set(found)
    assert [check_plain_name(each) for each in found] == found


def test_values_arrive_as_exactly_the_text_of_the_manifest() -> None:
    """PLAN-04"""
    content = (
        b'[{"t": "a\\u00e9\\n{ITEM.x}", "n": 1.10, "big": 123456789012345678901, "b": true, "z": null, '
        b'"o": {"k": [1.0, "\xc3\xa9"]}}]'
    )
    (item,) = items_at(content, Place("m.json", ()))
    value_of = values_of(item, no_input)
    texts = {field: value_of(Placeholder("ITEM", (field,))) for field in ("t", "n", "big", "b", "z", "o")}
    assert texts == {
        "t": "aé\n{ITEM.x}",
        "n": "1.10",
        "big": "123456789012345678901",
        "b": "true",
        "z": "null",
        "o": '{"k":[1.0,"é"]}',
    }
    assert value_of(Placeholder("ITEM", ("o", "k"))) == '[1.0,"é"]'


@pytest.mark.parametrize("fields", [("path",), ("__class__",), ("id", "x"), ("get",)])
def test_a_field_that_the_item_does_not_have_is_an_error_that_names_those_it_has(
    fields: tuple[str, ...],
) -> None:
    """R52, PLAN-04"""
    value_of = values_of({"id": "a", "title": "b"}, no_input, where="item 3 of m.json:videos")
    with pytest.raises(OursError, match=r"item 3 of m\.json:videos has no field for"):
        value_of(Placeholder("ITEM", fields))


@pytest.mark.parametrize(
    ("content", "path", "said"),
    [
        (b"{", "videos", "line 1"),
        (b'{"videos": {}}', "videos", "an object, not an array"),
        (b'{"videos": "x"}', "videos", "a text, not an array"),
        (b'{"videos": 3}', "videos", "a number, not an array"),
        (b'{"movies": []}', "videos", "there are: movies"),
        (b'{"a": {"b": 1}}', "a.c", "no c at a"),
        (b'{"a": [1]}', "a.7", "an array at a"),
        (b"\xff", "videos", "UTF-8"),
        (b"[" * 100_000, "videos", "nests too deeply"),
    ],
)  # fmt: skip
def test_a_manifest_that_has_no_array_there_says_what_it_has(content: bytes, path: str, said: str) -> None:
    """PLAN-04, R53"""
    with pytest.raises(OursError, match=said):
        items_at(content, Place("m.json", tuple(path.split("."))))


def test_a_manifest_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """PLAN-04, R53"""
    content = json.dumps({"videos": list(range(100))}).encode()
    assert len(items_at(content, VIDEOS)) == 100
    monkeypatch.setattr(limits, "PLAN_ITEMS_MAX", 99)
    with pytest.raises(OursError, match="100 items"):
        items_at(content, VIDEOS)
    monkeypatch.setattr(limits, "PLAN_MANIFEST_BYTES_MAX", 10)
    with pytest.raises(OursError, match="larger than 10"):
        items_at(content, VIDEOS)


def test_twenty_thousand_items_of_a_plan_run_to_their_end() -> None:
    """R53"""
    text = (
        "# p\n## Tasks\n### a\n- command: ls {ITEM.id}\n- foreach: m.json:v\n"
        "### b\n- command: ls {ITEM.id}\n- foreach: m.json:v\n"
        "- depends_on: a_{ITEM.id}\n### sum\n- command: ls\n- depends_on: b\n"
    )
    tasks = {each.name: each for each in check(text).plan.tasks}
    items: list[object] = [{"id": f"v{at}"} for at in range(20_000)]
    graph = Graph(nodes_of(tasks.values()))
    (root,) = graph.start().expandable
    expanded = {name: [each.name for each in expand(tasks[name], items, graph)] for name in graph.group(root)}
    ready = graph.expand(expanded, len(items)).ready
    done = 0
    while ready:
        name = ready.pop()
        ready += graph.complete(name).ready
        done += 1
    assert (done, graph.has_ended) == (40_001, True)


# ------------------------------------------------------------------ inputs and the file that asks for a batch

PLAN = check(
    "# p\n## Inputs\n- `VIDEOS` (folder)\n- `MODEL` (default: small)\n- `NOTE` (optional)\n"
    "- `PRIORITY` (default: high)\n"
    "## Tasks\n### a\n- command: run {VIDEOS} {MODEL} {BATCH_PATH}\n"
).plan


def test_inputs_are_given_as_pairs_or_json_and_defaults_fill_the_rest() -> None:
    """PLAN-03"""
    given = inputs_from_pairs(["VIDEOS=/a=b", "NOTE="]) | inputs_from_json('{"MODEL": "large"}')
    assert settle_inputs(PLAN, given) == {"VIDEOS": "/a=b", "MODEL": "large", "NOTE": "", "PRIORITY": "high"}
    assert settle_inputs(PLAN, {"VIDEOS": "/v"}) == {"VIDEOS": "/v", "MODEL": "small", "PRIORITY": "high"}
    assert inputs_from_json('{"a": 1, "b": [1, "x"], "c": true}') == {"a": "1", "b": '[1,"x"]', "c": "true"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the input VIDEOS is missing; add --set VIDEOS=VALUE"),
        ({"VIDEOS": "x", "MODLE": "y"}, "did you mean MODEL?"),
        ({"VIDEOS": "x", "BATCH_ID": "y"}, "BATCH_ID is filled in by Watchbill"),
        ({"VIDEOS": "x\0"}, "cannot be an argument"),
    ],
)
def test_inputs_that_are_missing_or_unknown_are_named(given: dict[str, str], said: str) -> None:
    """PLAN-03"""
    with pytest.raises(OursError) as error:
        settle_inputs(PLAN, given)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{", "3", '"x"', "[" * 100_000])
def test_inputs_that_are_no_object_are_refused(text: str) -> None:
    """PLAN-03"""
    with pytest.raises(OursError, match="inputs"):
        inputs_from_json(text)


@pytest.mark.parametrize(
    ("word", "priority"),
    [("urgent", 1), ("High", 2), ("normal", 3), ("low", 4), ("5", 5), ("", 3), ("odd", 3)],
)
def test_the_input_priority_sets_the_priority_of_the_batch(word: str, priority: int) -> None:
    """PLAN-07"""
    assert priority_of({"PRIORITY": word}) == priority


def test_a_batch_id_is_a_plain_name_that_sorts_by_time() -> None:
    first = batch_id(datetime(2026, 2, 7, 10, 5, 0, tzinfo=UTC), "0a1b")
    assert first == check_plain_name("20260207-100500-0a1b")
    assert first < batch_id(datetime(2026, 2, 7, 10, 5, 1, tzinfo=UTC), "0000")
    with pytest.raises(NameRefused):
        batch_id(datetime(2026, 2, 7, tzinfo=UTC), "../x")


def test_the_execute_plan_file_says_the_same_when_it_is_read() -> None:
    """PLAN-03, FLEET-01: paths below the root travel without the submitter's mount point"""
    inputs = shared_inputs(
        {"VIDEOS": "/mnt/shared/videos", "MODEL": "small", "X": "/mnt/shared/../etc"},
        PurePosixPath("/mnt/shared"),
    )
    assert inputs == {"VIDEOS": BelowRoot("videos"), "MODEL": "small", "X": "/mnt/shared/../etc"}
    asked = ExecutePlan("20260207-100500-0a1b", "video", inputs, 2)
    assert ExecutePlan.decode(asked.encode()) == asked


@pytest.mark.parametrize(
    "change",
    [
        {"type": "other"},
        {"format": 2},
        {"batch": "../x"},
        {"plan": "a/b"},
        {"priority": 0},
        {"priority": True},
        {"inputs": []},
        {"inputs": {"A": 3}},
        {"inputs": {"A": {"below_root": "../x"}}},
        {"inputs": {"A": {"below_root": "/x"}}},
        {"batch": None},
    ],
)
def test_an_execute_plan_file_that_somebody_made_up_is_refused(change: dict[str, object]) -> None:
    """R49"""
    fields = json.loads(ExecutePlan("b", "p", {}).encode()) | change
    with pytest.raises((OursError, NameRefused)):
        ExecutePlan.decode(json.dumps(fields).encode())
    with pytest.raises(OursError):
        ExecutePlan.decode(b"{")


# ------------------------------------------------------------------ summary and picture


def test_a_summary_says_outcome_counts_failures_and_who_did_what() -> None:
    """PLAN-06"""
    reports = [
        TaskReport("init", Stage.COMPLETE, 1, "brain", 100, 0),
        TaskReport("work_a", Stage.COMPLETE, 2, "gpu-1", 60_000, 0, peak_vram_mb=800, retries=1),
        TaskReport(
            "work_b", Stage.FAILED, 3, "gpu-2", 5_000, 1, why="Traceback | **boom**\nline 2", retries=2
        ),
        TaskReport("next_b", Stage.SKIPPED, culprit="work_b"),
        TaskReport("sum", Stage.COMPLETE, 1, "brain", 10, 0, missing=("work_b",)),
    ]
    summary = summarize("b1", "video", reports, 61_000)
    assert summary.outcome is Outcome.PARTIAL
    told = json.loads(summary.to_json())
    assert told["counts"] == {
        "waiting": 0, "ready": 0, "manual": 0, "complete": 3, "failed": 1, "skipped": 1, "cancelled": 0
    }  # fmt: skip
    work = {"complete": 1, "failed": 0, "run_ms": 60_000, "peak_vram_mb": 800, "peak_rss_mb": 0}
    assert told["agents"]["gpu-1"] == work
    assert (told["retries"], told["peak_vram_mb"], told["elapsed_ms"]) == (3, 800, 61_000)
    page = summary.to_markdown()
    assert "# video: partial" in page
    assert "| work\\_b | 3 | 1 | gpu-2 | Traceback \\| \\*\\*boom\\*\\* line 2 |" in page
    assert "## Complete without all they depend on" in page


@pytest.mark.parametrize(
    ("stages", "outcome"),
    [
        ([], "complete"),
        (["COMPLETE"], "complete"),
        (["COMPLETE", "FAILED"], "partial"),
        (["FAILED", "SKIPPED"], "failed"),
        (["COMPLETE", "READY"], "running"),
        (["MANUAL", "COMPLETE"], "partial"),
        (["CANCELLED"], "failed"),
    ],
)
def test_the_outcome_follows_from_the_ends_of_all_tasks(stages: list[str], outcome: str) -> None:
    """PLAN-06"""
    reports = [TaskReport(f"t{at}", Stage[stage]) for at, stage in enumerate(stages)]
    assert summarize("b", "p", reports, 0).outcome.value == outcome


def test_a_summary_of_many_failures_stays_readable() -> None:
    """PLAN-06, R53"""
    reports = [TaskReport(f"t{at}", Stage.FAILED, 3, "gpu-1", 5, 1, "x" * 10_000) for at in range(1000)]
    reports += [TaskReport(f"s{at}", Stage.SKIPPED, culprit="t1") for at in range(20_000)]
    page = summarize("b", "p", reports, 1).to_markdown()
    assert len(page) < 100_000 and "950 more failed." in page
    assert len(summarize("b", "p", reports, 1).to_json()) < 1_000_000


def test_a_picture_has_every_task_and_every_dependency() -> None:
    text = (
        "# p\n## Tasks\n### a\n- command: ls\n### b\n- foreach: {BATCH_PATH}/m.json:x\n- depends_on: a\n- command: ls\n"
        "### c\n- foreach: {BATCH_PATH}/m.json:x\n- depends_on: b_{ITEM.id}\n- prompt: hi\n"
        "### d\n- depends_on: c\n- needs: done\n- command: ls\n"
    )
    assert mermaid(check(text).plan.tasks).splitlines() == [
        "flowchart TD",
        '    t0["a<br/>cpu"]',
        '    t1[["b<br/>cpu<br/>for each of #123;BATCH_PATH#125;/m.json:x"]]',
        '    t2[["c<br/>llm<br/>for each of #123;BATCH_PATH#125;/m.json:x"]]',
        '    t3["d<br/>cpu"]',
        "    t0 --> t1",
        "    t1 -. per item .-> t2",
        "    t2 -- done --> t3",
    ]


# ------------------------------------------------------------------ the package


def test_the_package_needs_the_standard_library_and_the_foundation_alone() -> None:
    """FLEET-12, FLEET-13: the machine that submits plans may have no compiled packages at all"""
    folder = Path(__file__).parents[2] / "src" / "watchbill" / "plans"
    modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.split('.')[0]\n"
        "        if top not in sys.stdlib_module_names and top != 'watchbill':\n"
        "            raise ImportError(f'{name} is not there')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"for name in {modules!r}:\n"
        "    __import__(f'watchbill.plans.{name}')\n"
        "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('watchbill.')}))\n"
    )
    source = str(folder.parents[1])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {source!r})\n{program}"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert found <= {"errors", "limits", "names", "packages", "plans", "quoting", "suggest", "units"}
