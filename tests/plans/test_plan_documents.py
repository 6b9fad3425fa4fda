"""Plans as people write them are read, and what is wrong in them is said with its line and the nearest word."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchbill.plans import limits
from watchbill.plans.check import Checked, check, read_plan
from watchbill.plans.findings import Finding
from watchbill.plans.keys import KEYS
from watchbill.plans.task import (
    Dependency,
    Executor,
    Needs,
    Place,
    Sandbox,
    Task,
    TaskClass,
    TaskType,
    VramPolicy,
)


def plan_of(tasks: str, before: str = "") -> str:
    return f"# A plan\n\n{before}\n## Tasks\n\n{tasks}\n"


def right(text: str) -> dict[str, Task]:
    checked = check(text)
    assert checked.findings.errors == []
    return {task.name: task for task in checked.plan.tasks}


def only_error(text: str) -> Finding:
    errors = check(text).findings.errors
    assert len(errors) == 1, errors
    return errors[0]


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def command_of(task: Task) -> str:
    assert task.command is not None
    return task.command.text


# ------------------------------------------------------------------ the whole of a plan as people write it

RIG = Path(__file__).parent / "corpus" / "transcribe" / "plan.md"


def test_a_plan_with_everything_people_write_is_read_without_an_error() -> None:
    """PLAN-01, PLAN-02"""
    checked = read_plan(RIG)
    assert checked.findings.errors == []
    assert [task.name for task in checked.plan.tasks] == [
        "init",
        "load_model",
        "transcribe",
        "summarize",
        "verify",
        "extract",
        "rank",
        "embed",
        "aggregate",
        "report",
    ]
    assert {each.name: each.default for each in checked.plan.inputs} == {
        "VIDEO_DIR": None,
        "OUT": "/srv/out",
        "MODEL": "small",
        "RUN_MODE": "full",
        "RESUME_BATCH_ID": "",
        "PRIORITY": "normal",
        "PREEMPTIBLE": None,
    }


@pytest.fixture(scope="module")
def rig() -> dict[str, Task]:
    return {task.name: task for task in read_plan(RIG).plan.tasks}


def test_item_by_item_dependencies_name_the_other_foreach(rig: dict[str, Task]) -> None:
    """PLAN-02: depends_on: init, transcribe_{ITEM.id}"""
    dependencies = {(each.name, each.per_item) for each in rig["summarize"].depends_on}
    assert dependencies == {("init", False), ("transcribe", True)}


def test_a_brain_task_with_a_shell_command_is_of_class_cpu(rig: dict[str, Task]) -> None:
    """PLAN-02: executor: brain, task_class: brain"""
    for name in ("init", "aggregate"):
        task = rig[name]
        assert (task.executor, task.task_class, task.type) == (Executor.BRAIN, TaskClass.CPU, TaskType.SHELL)


def test_a_line_of_bash_is_taken_as_it_stands(rig: dict[str, Task]) -> None:
    """PLAN-02: source ... && export A="$HOME/...:$A" && python ..."""
    assert command_of(rig["transcribe"]) == (
        'source ~/venv/bin/activate && export LD_LIBRARY_PATH="$HOME/cuda/lib:$LD_LIBRARY_PATH" && '
        "python scripts/transcribe.py {ITEM.path} --model {MODEL} --output {BATCH_PATH}/results/"
    )


def test_placeholders_stand_in_foreach_requires_produces_and_output(rig: dict[str, Task]) -> None:
    """PLAN-02"""
    assert rig["transcribe"].foreach == Place("{PLAN_PATH}/history/{BATCH_ID}/manifest.json", ("videos",))
    assert [each.text for each in rig["aggregate"].requires] == ["{BATCH_PATH}/results/*.json"]
    assert [each.text for each in rig["transcribe"].produces] == ["{BATCH_PATH}/results/{ITEM.id}.json"]
    assert rig["extract"].output is not None
    assert rig["extract"].output.text == "{BATCH_PATH}/facts.json"


def test_keys_that_are_noted_and_keys_that_choose_an_agent(rig: dict[str, Task]) -> None:
    """PLAN-02: vram_policy, llm_model, llm_min_tier, llm_placement"""
    assert (rig["transcribe"].vram_policy, rig["transcribe"].vram_mb) == (VramPolicy.INFER, 2048)
    assert rig["rank"].model is not None
    assert (rig["rank"].model.text, rig["rank"].needs_pair) == ("qwen14b", True)
    notes = [each.text for each in read_plan(RIG).findings.notes]
    assert "llm_min_tier is noted, not acted on" in notes


def test_meta_tasks_and_batches_of_items(rig: dict[str, Task]) -> None:
    """PLAN-02: task_class: meta with command: load_llm; batch_size with {ITEM.x}"""
    assert rig["load_model"].task_class is TaskClass.META
    assert (rig["embed"].batch_size, rig["embed"].task_class) == (16, TaskClass.SCRIPT)


def test_an_aggregating_task_goes_on_although_some_failed(rig: dict[str, Task]) -> None:
    """PLAN-05: needs: done"""
    assert (rig["aggregate"].needs, rig["report"].needs) == (Needs.DONE, Needs.DONE)


def test_types_of_tasks_and_their_classes(rig: dict[str, Task]) -> None:
    """PLAN-08, PLAN-02: an unwritten class is inferred and noted"""
    kinds = {name: (task.type.value, task.task_class.value) for name, task in rig.items()}
    assert kinds["summarize"] == ("generate", "llm")
    assert kinds["extract"] == ("parse", "llm")
    assert kinds["rank"] == ("decide", "llm")
    assert kinds["verify"] == ("shell", "cpu")
    assert rig["rank"].executor is Executor.BRAIN
    notes = [each for each in read_plan(RIG).findings.notes if "verify" in each.text]
    assert [each.line for each in notes] == [rig["verify"].line]
    assert "taken as cpu" in notes[0].text


def test_every_key_is_used_by_the_corpus() -> None:
    """PLAN-02"""
    text = RIG.read_text()
    assert [
        key.name for key in KEYS if not any(f"{name}**" in text for name in (key.name, *key.aliases))
    ] == []


def test_a_goal_driven_plan_is_refused_by_its_name() -> None:
    goal = "## Objective\nFind hazards.\n## Goal\n- **type**: target_count\n- **target**: 50\n"
    text = f"# p\n{goal}## Tasks\n### a\n- command: ls\n"
    error = only_error(text)
    assert error.line == 5 and "goal-driven" in error.text and "target_count" in error.text


# ------------------------------------------------------------------ forms

FORMS = {
    "bold": "### a\n- **command**: `ls`",
    "bold with the colon inside": "### a\n- **command:** `ls`",
    "plain": "### a\n- command: ls",
    "italic": "### a\n- *command*: ls",
    "underscores": "### a\n- __command__: ls",
    "back-ticked key": "### a\n- `command`: ls",
    "star": "### a\n* **command**: ls",
    "plus": "### a\n+ command: ls",
    "dash of a word processor": "### a\n– **command**: ls",
    "box": "### a\n- [ ] **command**: ls",
    "ticked box in the heading": "### [x] a\n- command: ls",
    "no bullet": "### a\n**command**: ls",
    "no bullet and plain": "### a\ncommand: ls",
    "capitals": "### a\n- **Command**: ls",
    "no blank": "### a\n- **command**:ls",
    "two back-ticks": "### a\n- **command**: ``ls``",
    "remark": "### a\n- **command**: `ls` (quick)",
    "fence below the key": "### a\n- **command**:\n  ```bash\n  ls\n  ```",
    "fence with blank lines": "### a\n- **command**:\n\n```\nls\n```",
    "fence of tildes": "### a\n- **command**:\n~~~sh\nls\n~~~",
    "fence without a key": "### a\n\nLists files.\n\n```bash\nls\n```",
    "fence beside prose": "### a\n- **command**: ls\n\nPrints:\n```\nx\n```",
    "task prefix": "### Task: a\n- command: ls",
    "numbered task": "### Task 1: a\n- command: ls",
    "number": "### 1. a\n- command: ls",
    "step": "### Step 3: a\n- command: ls",
    "closed heading": "### a ###\n- command: ls",
    "no blank in the heading": "###a\n- command: ls",
    "bold heading": "### **a**\n- command: ls",
    "back-ticked heading": "### `a`\n- command: ls",
    "remark in the heading": "### a (optional long run)\n- command: ls",
    "remark in the numbered heading": "### Task: `a` (slow)\n- command: ls",
    "comment": "### a\n<!-- - **command**: rm\n### b\n-->\n- command: ls",
    "deeper heading": "### a\n- command: ls\n#### Details\nText.",
    "prose": "### a\nLists files: all of them.\n\n- command: ls\n\nMore prose.",
    "windows": "### a\r\n- **command**: `ls`\r\n",
    "old mac": "### a\r- **command**: `ls`\r",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_command_is_found_in_every_form_people_write(form: str) -> None:
    """PLAN-01"""
    tasks = right(plan_of(FORMS[form]))
    assert {name: command_of(task) for name, task in tasks.items()} == {"a": "ls"}


@pytest.mark.parametrize("before", ["\ufeff", "---\nauthor: me\n---\n", "Some prose.\n\n"])
def test_what_stands_before_the_title_does_not_matter(before: str) -> None:
    """PLAN-01"""
    checked = check(before + plan_of("### a\n- command: ls"))
    assert (checked.findings.errors, checked.plan.title) == ([], "A plan")


@pytest.mark.parametrize(
    "value",
    [
        "b, c",
        "`b`, `c`",
        "`b, c`",
        '["b", "c"]',
        "[b, c]",
        "**b**, c",
        "b , c (both)",
        "\n  - b\n  - c",
        "\n    - `b`\n    - c",
        "\n  1. b\n  2. c",
        "b,\n  c",
    ],
)
def test_a_list_is_read_in_every_form_people_write(value: str) -> None:
    """PLAN-01"""
    text = plan_of(
        f"### b\n- command: ls\n### c\n- command: ls\n### a\n- **depends_on**: {value}\n- command: ls"
    )
    assert [each.name for each in right(text)["a"].depends_on] == ["b", "c"]


@pytest.mark.parametrize("value", ["none", "None", "[]", "", "-", "n/a", "`none`", "null"])
def test_nothing_is_written_in_many_ways(value: str) -> None:
    """PLAN-01"""
    task = right(
        plan_of(
            f"### a\n- **depends_on**: {value}\n- **timeout**: {value}\n- **requires**: {value}\n- command: ls"
        )
    )
    assert (task["a"].depends_on, task["a"].timeout_ms, task["a"].requires) == ((), None, ())


def test_a_command_may_go_on_over_several_lines() -> None:
    """PLAN-01"""
    text = plan_of(
        "### a\n- **command**: `python x.py \\\n    --one`\n"
        "### b\n- **command**: python x.py\n  --one\n"
        "### c\n- **command**:\n  ```bash\n  if true; then\n    ls\n  fi\n  ```\n"
    )
    commands = {name: command_of(task) for name, task in right(text).items()}
    assert commands == {
        "a": "python x.py \\\n    --one",
        "b": "python x.py --one",
        "c": "if true; then\n  ls\nfi",
    }


def test_only_headings_below_tasks_are_tasks() -> None:
    """PLAN-01"""
    scripts = "## Available Scripts\n### scripts/x.py\nRun: `python scripts/x.py {VIDEO_ID}`\n- **input**: {hazard}\n"
    text = plan_of("### a\n- command: ls\n\n## Notes\n### Memory\n- **foo**: {BAR}\n", scripts)
    assert list(right(text)) == ["a"]


def test_workflow_is_another_word_for_tasks() -> None:
    """PLAN-01"""
    assert list(right("# p\n## Workflow\n### a\n- command: ls\n")) == ["a"]
    both = "# p\n## Workflow\n### 1. First\nWe list.\n## Tasks\n### a\n- command: ls\n"
    assert list(right(both)) == ["a"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1. `A` (path of the videos)", ("A", None, False)),
        ("2) `A` in back-ticks (text)", ("A", None, False)),
        ("- **A**: text", ("A", None, False)),
        ("- **A:** text", ("A", None, False)),
        ("* A - text", ("A", None, False)),
        ("- A", ("A", None, False)),
        ("- `{A}`: text", ("A", None, False)),
        ("- **`A`** (optional)", ("A", None, True)),
        ("| `A` | text |", ("A", None, False)),
        ("- `A`: text (default: small)", ("A", "small", True)),
        ("- `A`: text (default: `a b, c`)", ("A", "a b, c", True)),
        ("- **A**: text, defaults to /srv/x.", ("A", "/srv/x", True)),
        ("- **A**: defaults to v1.5, the fast one", ("A", "v1.5", True)),
        ('- **A**: text. Default: "x y". More.', ("A", "x y", True)),
        ("- `A` (default = 3)", ("A", "3", True)),
        ("- `A` (default is 3; at most 9)", ("A", "3", True)),
        ("- `A` (optional, default: none)", ("A", "", True)),
        ("- `A`: text, no default", ("A", None, False)),
        ("- `A`\n  - default: 7", ("A", "7", True)),
    ],
)
def test_an_input_is_read_in_every_form_people_write(
    line: str, expected: tuple[str, str | None, bool]
) -> None:
    """PLAN-01, PLAN-03: (default: X), defaults to X"""
    checked = check(plan_of("### a\n- command: echo {A}", f"## Inputs\n{line}\n"))
    assert checked.findings.errors == []
    assert [(each.name, each.default, each.is_optional) for each in checked.plan.inputs] == [expected]


def test_prose_and_built_ins_among_the_inputs_are_no_inputs() -> None:
    """PLAN-03"""
    built_in = "- `BATCH_ID`\n- `BATCH_PATH`: filled in\n"
    inputs = f"## Inputs\nWhat you give:\n{built_in}- a folder with videos\n- `A`, `B` (two)\n"
    checked = check(plan_of("### a\n- command: ls {BATCH_PATH} {BATCH_ID} {PLAN_PATH} {A} {B}", inputs))
    assert checked.findings.errors == []
    assert [each.name for each in checked.plan.inputs] == ["A", "B"]


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("timeout", "30m", "timeout_ms", 1_800_000),
        ("timeout", "90", "timeout_ms", 90_000),
        ("timeout", "20 min", "timeout_ms", 1_200_000),
        ("timeout", "1 hour 30 minutes", "timeout_ms", 5_400_000),
        ("retries", "0", "retries", 0),
        ("priority", "urgent", "priority", 1),
        ("priority", "5", "priority", 5),
        ("vram_estimate_mb", "2048", "vram_mb", 2048),
        ("vram_estimate_mb", "4 GB", "vram_mb", 4096),
        ("vram", "`512` (small)", "vram_mb", 512),
        ("soft_stop", "yes", "soft_stop", True),
        ("sandbox", "strict", "sandbox", Sandbox.STRICT),
        ("continue on failure", "true", "needs", Needs.DONE),
        ("batch size", "1", "batch_size", 1),
    ],
)
def test_a_value_is_read_as_people_write_it(key: str, value: str, field: str, expected: object) -> None:
    """PLAN-02"""
    assert getattr(right(plan_of(f"### a\n- **{key}**: {value}\n- command: ls"))["a"], field) == expected


@pytest.mark.parametrize(
    "value",
    [
        "A=1, B=x y",
        "`A=1`, `B=x y`",
        '{"A": "1", "B": "x y"}',
        "\n  - A=1\n  - B=x y",
        "\n  - A: 1\n  - `B: x y`",
    ],
)
def test_variables_are_read_in_every_form_people_write(value: str) -> None:
    """PLAN-02"""
    env = right(plan_of(f"### a\n- **env**: {value}\n- command: ls"))["a"].env
    assert {name: text.text for name, text in env} == {"A": "1", "B": "x y"}


# ------------------------------------------------------------------ what is wrong, its line, and the nearest word

WRONG = {
    "unknown key": ("### a\n- **comand**: ls\n- command: ls", "comand", "did you mean command?"),
    "unknown key with blanks": (
        "### a\n- **depends upon**: b\n- command: ls",
        "depends upon",
        "did you mean depends_on?",
    ),
    "far from any key": ("### a\n- **zzz**: b\n- command: ls", "zzz", "known are type, command"),
    "unknown word": ("### a\n- **task_class**: scirpt\n- command: ls", "scirpt", "did you mean script?"),
    "unknown type": ("### a\n- **type**: shel\n- command: ls", "shel", "did you mean shell?"),
    "execute_plan": ("### a\n- **type**: execute_plan\n- command: ls", "execute_plan", "known are shell"),
    "key twice": ("### a\n- **command**: ls\n- **run**: pwd", "run", "also on line 7"),
    "no colon": ("### a\n- command: ls\n- **depends_on** b", "depends_on", "write - **depends_on**:"),
    "no colon, plain": ("### a\n- command: ls\n- depends_on b", "depends_on", "write - **depends_on**:"),
    "no command": ("### a\n- **task_class**: cpu", "### a", "add - **command**:"),
    "command and prompt": ("### a\n- **command**: ls\n- **prompt**: hi", "prompt", "keep one"),
    "no prompt": ("### a\n- **type**: generate\n", "type", "add - **prompt**:"),
    "number": ("### a\n- **batch_size**: many\n- command: ls", "batch_size", "whole number from 1"),
    "too large": ("### a\n- **retries**: 99999\n- command: ls", "retries", "from 0 to 100"),
    "duration": ("### a\n- **timeout**: soon\n- command: ls", "timeout", "write for example 30s"),
    "size": ("### a\n- **vram_estimate_mb**: lots\n- command: ls", "vram", "for example 2GB"),
    "evaluate": ("### a\n- **evaluate**: short\n- command: ls", "evaluate", "ask a model with a prompt"),
    "switch": ("### a\n- **soft_stop**: maybe\n- command: ls", "soft_stop", "write yes or no"),
    "variable": ("### a\n- **env**: just words\n- command: ls", "env", "write NAME=value"),
    "foreach": ("### a\n- **foreach**: :x\n- command: ls", "foreach", "FILE.json:path.to.array"),
    "schema": (
        '### a\n- **schema**: {"a": }\n- **type**: parse\n- **prompt**: x',
        "schema",
        "Expecting value",
    ),
    "name with signs": ("### Do it; all\n- command: ls", "### Do", "write ### do_it_all"),
    "name with an item": ("### a_{ITEM.id}\n- **foreach**: x.json:y\n- command: ls", "### a_", "write ### a"),
    "name like a path": ("### ../../etc\n- command: ls", "### ..", "write ### etc"),
    "summary": ("### batch_summary\n- command: ls", "### batch", "another name"),
    "two fences": ("### a\n```\nls\n```\n```\npwd\n```", "```\npwd", "write - **command**: above"),
    "text behind back-ticks": ("### a\n- **command**: `ls` && `pwd`", "command", "one pair of back-ticks"),
    "open back-tick": ("### a\n- **command**: `ls\n", "command", "add `"),
    "open fence": ("### a\n- **command**: ls\n```bash\nls", "```bash", "end it with a line ```"),
    "open comment": ("### a\n- **command**: ls\n<!-- a", "<!--", "end it with -->"),
    "same name": (
        "### a\n- command: ls\n### b\n- command: ls\n### a\n- command: pwd",
        "### a\n- command: pwd",
        "on line 6",
    ),
    "unknown dependency": (
        "### scan\n- command: ls\n### a\n- **depends_on**: sacn\n- command: ls",
        "- **dep",
        "did you mean scan?",
    ),
    "no commas": (
        "### b\n- command: ls\n### c\n- command: ls\n### a\n- **depends_on**: b c\n- command: ls",
        "- **dep",
        "commas",
    ),
    "questions in batches": (
        "### a\n- **prompt**: Go.\n- **foreach**: f.json\n- **batch_size**: 4",
        "- **batch_size",
        "remove batch_size",
    ),
    "itself": ("### a\n- **depends_on**: a\n- command: ls", "- **dep", "remove it"),
    "circle": (
        "### a\n- **depends_on**: b\n- command: ls\n### b\n- **depends_on**: a\n- command: ls",
        "- **dep",
        "remove one",
    ),
    "unknown place": ("### a\n- command: ls {BATCH_PAHT}", "- command", "did you mean {BATCH_PATH}?"),
    "unlisted place": ("### a\n- command: ls {QQQ}", "- command", "list `QQQ` under ## Inputs"),
    "place in the third line": ("### a\n- command:\n```\nls\n\necho {QQQ}\n```", "echo", "list `QQQ`"),
    "place in requires": ("### a\n- **requires**: {QQQ}/a\n- command: ls", "- **req", "list `QQQ`"),
    "place in a prompt": ("### a\n- **prompt**: say {QQQ}", "- **prompt", "list `QQQ`"),
    "place in foreach": ("### a\n- **foreach**: {QQQ}/m.json:x\n- command: ls", "- **foreach", "list `QQQ`"),
    "item in foreach": (
        "### a\n- **foreach**: {ITEM.x}/m.json:x\n- command: ls",
        "- **foreach",
        "name the file",
    ),
    "item without foreach": ("### a\n- command: ls {ITEM.x}", "- command", "add - **foreach**"),
    "small item": (
        "### a\n- **foreach**: m.json:x\n- command: ls {item.x}",
        "- command",
        "{ITEM} in capitals",
    ),
    "field of an input": ("### a\n- command: ls {BATCH_PATH.x}", "- command", "write {BATCH_PATH}"),
    "batch without foreach": ("### a\n- **batch_size**: 4\n- command: ls", "- **batch", "add foreach"),
    "item of another list": (
        "### b\n- **foreach**: x.json:a\n- command: ls\n"
        "### a\n- **foreach**: x.json:b\n- **depends_on**: b_{ITEM.id}\n- command: ls",
        "- **dep",
        "the same foreach",
    ),
    "item of no foreach": (
        "### b\n- command: ls\n### a\n- **foreach**: x.json:b\n- **depends_on**: b_{ITEM.id}\n- command: ls",
        "- **dep",
        "write b",
    ),
    "item of another field": (
        "### a\n- **foreach**: x.json:b\n- **depends_on**: b_{ITEM.name}\n- command: ls",
        "- **dep",
        "NAME_{ITEM.id}",
    ),
    "meta": ("### a\n- **task_class**: meta\n- **command**: reboot", "- **command", "load_llm or unload_llm"),
    "NUL": ("### a\n- **command**: `ls \0`", "- **command", "remove it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_said_with_its_line_and_what_to_write(case: str) -> None:
    """PLAN-01, PLAN-03"""
    tasks, part, hint = WRONG[case]
    text = plan_of(tasks)
    errors = check(text).findings.errors
    assert errors, case
    found = [each for each in errors if each.line == line_of(text, part) and hint in each.hint]
    assert found, errors


def test_the_lines_are_the_same_with_any_line_ends() -> None:
    """PLAN-01"""
    text = plan_of("### a\n- **comand**: ls\n- command: ls")
    lines = {only_error(text.replace("\n", end)).line for end in ("\n", "\r\n", "\r")}
    assert lines == {line_of(text, "comand")}


def test_a_plan_without_tasks_is_refused() -> None:
    """PLAN-03"""
    for text in ("", "# p\n", "# p\n## Tasks\n", "# p\n## Tasks\n1. do it\n", "# p\n### a\n- command: ls\n"):
        assert "there are no tasks" in check(text).findings.errors[0].text


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    """PLAN-03"""
    (tmp_path / "plan.md").write_bytes(b"# p\n\n## Tasks \xff\n")
    assert read_plan(tmp_path / "plan.md").findings.errors[0].line == 3


def test_scripts_and_prompts_that_are_not_there_are_named(tmp_path: Path) -> None:
    """PLAN-03"""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "there.py").touch()
    text = plan_of(
        "### a\n- command: python scripts/there.py && python {PLAN_PATH}/scripts/there.py && cat other/scripts/x.py\n"
        "### b\n- command: python scripts/gone.py\n"
        "### c\n- **prompt**: file:ask.md\n"
        "### d\n- command: cd {BATCH_PATH} && python scripts/made_there.py\n"
        "### e\n- command: python {PLAN_PATH}/../../outside.py\n"
    )
    (tmp_path / "plan.md").write_text(text)
    errors = read_plan(tmp_path / "plan.md").findings.errors
    assert [(each.line, each.text.split()[0]) for each in errors] == [
        (line_of(text, "python scripts/gone.py"), "scripts/gone.py"),
        (line_of(text, "- **prompt**"), "ask.md"),
        (line_of(text, "python {PLAN_PATH}/../"), "../../outside.py"),
    ]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("trap 'rm -rf {BATCH_PATH}/tmp' EXIT", 'use "$value"'),
        ("bash -c 'echo x > {BATCH_PATH}/output/x'", """bash -c '... "$1" ...' _ {BATCH_PATH}"""),
        ('nice sh -c "cat {PLAN_PATH}/a"', """sh -c '... "$1" ...' _ {PLAN_PATH}"""),
        ("eval echo x '>' {ROOT}/x", "leave out eval"),
    ],
)
def test_a_path_that_a_shell_reads_again_is_noted_with_what_to_write(line: str, hint: str) -> None:
    """PLAN-03: with a blank in the path it was several words, and a redirection wrote outside the batch."""
    text = plan_of(f"### t\n- **command**: `{line}`\n- **task_class**: cpu\n")
    right(text)
    [note] = check(text).findings.notes
    assert note.line == line_of(text, line) and hint in note.hint and "with blanks" in note.text


@pytest.mark.parametrize(
    "line",
    [
        """bash -c 'echo x > "$1"' _ {BATCH_PATH}/x""",
        """bash -c 'echo x > "{BATCH_PATH}/x"'""",
        """trap "rm -rf '{TASK_PATH}/tmp'" EXIT""",
        "bash {PLAN_PATH}/scripts/run.sh {BATCH_PATH}",
        "bash -c 'echo {BATCH_ID}'",
        "echo trap {BATCH_PATH} > {BATCH_PATH}/x",
    ],
)
def test_a_path_that_is_one_word_everywhere_is_not_noted(line: str) -> None:
    """PLAN-03."""
    assert check(plan_of(f"### t\n- **command**: `{line}`\n- **task_class**: cpu\n")).findings.notes == []


def test_circles_are_told_as_people_can_follow_them() -> None:
    """PLAN-03"""
    text = plan_of("".join(f"### t{at}\n- command: ls\n- depends_on: t{(at + 1) % 3}\n" for at in range(3)))
    error = only_error(text)
    assert error.text.endswith("t0 -> t1 -> t2 -> t0")
    assert error.line == line_of(text, "- depends_on")


# ------------------------------------------------------------------ bounds


def many(count: int, dependency: str = "task_{before}") -> str:
    tasks = (
        f"### task_{at}\n- **executor**: worker\n- **task_class**: cpu\n- **timeout**: 30m\n"
        f"- **command**: `python x.py {{BATCH_PATH}} {at}`\n- **depends_on**: {dependency.format(before=at - 1)}\n\n"
        for at in range(1, count + 1)
    )
    return plan_of("### task_0\n- command: ls\n" + "".join(tasks))


def test_ten_thousand_tasks_are_read_and_checked() -> None:
    """PLAN-01, R53"""
    text = many(10_000)
    began = time.process_time()
    checked = check(text)
    assert time.process_time() - began < 20  # about one second; the point is that it is not minutes
    assert (checked.findings.errors, len(checked.plan.tasks)) == ([], 10_001)


def test_a_circle_of_ten_thousand_tasks_is_found() -> None:
    """R53"""
    text = many(10_000) + "### last\n- command: ls\n- depends_on: task_0\n"
    text = text.replace(
        "### task_0\n- command: ls\n", "### task_0\n- command: ls\n- depends_on: task_10000\n"
    )
    error = only_error(text)
    assert "circle" in error.text and len(error.text) < 500


def test_ten_thousand_mistakes_are_counted_and_the_first_are_listed() -> None:
    """R53: looking for the nearest of 10,000 names 10,000 times would take hours"""
    findings = check(many(10_000, "taks_{before}")).findings
    assert len(findings.errors) == limits.PLAN_FINDINGS_MAX
    assert findings.errors_unlisted == 10_000 - limits.PLAN_FINDINGS_MAX


def test_more_tasks_than_a_plan_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """R53"""
    monkeypatch.setattr(limits, "PLAN_TASKS_MAX", 10)
    errors = check(many(20)).findings.errors
    assert "more than 10 tasks" in errors[-1].text


def test_a_plan_file_beyond_its_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R53"""
    monkeypatch.setattr(limits, "PLAN_FILE_BYTES_MAX", 100)
    (tmp_path / "plan.md").write_text("# p\n" * 100)
    assert "larger than 100" in read_plan(tmp_path / "plan.md").findings.errors[0].text


@pytest.mark.parametrize(
    "piece",
    [
        "### a\n",
        "- **a**: `x\n",
        "- **command**: ``x\n",
        "```\n",
        "<!--\n",
        "#",
        " ",
        "(",
        "### (((((\n",
        "- a_" + "_" * 50,
        "*",
        "`",
        "- **depends_on**: a\n  - b\n",
        "{",
        "{A",
        "- A (default: \n",
        "default: ",
        "## Inputs\n- `A`\n",
        "\t",
        "|",
        "- **x**: y (",
    ],
)
def test_odd_text_of_any_size_is_read_in_bounded_time(piece: str) -> None:
    """R53: nothing is looked at twice"""
    text = (
        "# p\n## Inputs\n"
        + piece * (20_000 // len(piece))
        + "\n## Tasks\n### a\n- **command**: "
        + piece * (20_000 // len(piece))
    )
    began = time.process_time()
    check(text)
    assert time.process_time() - began < 20


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "#",
                "##",
                "### ",
                "\n",
                "\r",
                "- ",
                "**",
                "`",
                "```",
                "~~~",
                ": ",
                "command",
                "depends_on",
                "{ITEM.id}",
                "a",
                "(",
                ")",
                "[",
                "]",
                '"',
                "Tasks",
                "Inputs",
                "Goal",
                "foreach",
                "x.json:y",
                ",",
                " ",
                "\t",
                "<!--",
                "-->",
                "|",
                "none",
            ]
        )
        | st.text(max_size=3),
        max_size=60,
    ).map("".join)
)
def test_no_text_makes_the_reader_fail(text: str) -> None:
    """R53"""
    checked: Checked = check("# p\n## Tasks\n### t\n" + text)
    lines = text.count("\n") + text.count("\r") + 4
    assert all(1 <= each.line <= lines for each in (*checked.findings.errors, *checked.findings.notes))


def test_a_dependency_keeps_the_line_it_was_written_on() -> None:
    text = plan_of("### b\n- command: ls\n### a\n- command: ls\n- **depends_on**:\n  - b\n  - c")
    assert right(text.replace("  - c", ""))["a"].depends_on == (Dependency("b", line_of(text, "  - b")),)
    assert only_error(text).line == line_of(text, "  - c")


@pytest.mark.parametrize("key", ["requires", "produces"])
@pytest.mark.parametrize("path", ["~/out.txt", "$HOME/out.txt", "${OUT}/x"])
def test_a_path_that_only_a_shell_could_read_is_refused(key: str, path: str) -> None:
    """PLAN-02: nothing expands it, so that its task failed at every attempt, and the check had found nothing."""
    plan = f"# p\n## Tasks\n### t\n- **command**: `echo x`\n- **{key}**: here.txt, {path}\n"
    (error,) = [each for each in check(plan).findings.errors if "only a shell" in each.text]
    assert error.line == 5 and path in error.text and "{PLAN_PATH}" in error.hint


@pytest.mark.parametrize(
    ("command", "is_noted"),
    [
        ("python3 a.py “two words”", True),
        ("a --name=‘x’ && echo ok", True),
        ("echo \"she said “hello”\" 'and “so”'", False),
        ("echo it’s late", False),
        ("cat <<END > x\n  “text”\n  END", False),
    ],
)
def test_typographic_quotes_that_quote_nothing_are_noted(command: str, is_noted: bool) -> None:
    """PLAN-01: a word processor made them of real ones; the program got two words with the quotes in them."""
    checked = check(f"## Tasks\n### a\n- **command**:\n  ```bash\n  {command}\n  ```\n")
    assert checked.is_right
    noted = [each for each in checked.findings.notes if "typographic" in each.text]
    assert [each.line for each in noted] == ([5] if is_noted else [])


@pytest.mark.parametrize("sign", ["–", "—", "- [ ]", "* [x]", "1."])
def test_a_dependency_is_read_behind_any_sign_of_a_list(sign: str) -> None:
    """PLAN-01: behind a dash of a word processor, or a box to tick, it was taken for prose: the task did not wait."""
    checked = check(f"## Tasks\n### a\n- command: ls\n### b\n- command: ls\n{sign} **depends_on**: a\n")
    assert checked.is_right
    assert [each.name for each in checked.plan.tasks[1].depends_on] == ["a"]
