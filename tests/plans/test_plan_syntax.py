"""Commands that bash cannot parse, and forms of writing one that people take from YAML."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.fleet_folder import shared_folder
from watchbill.cli.plan_checking import find_plan, read_with_bash
from watchbill.errors import ConfigError
from watchbill.plans.bash_parse import parse_only
from watchbill.plans.bash_reader import parse_command
from watchbill.plans.check import check, read_plan
from watchbill.plans.command import argv_of_batch
from watchbill.plans.expand import items_at
from watchbill.plans.syntax import BashSyntax, Mistake, Unchecked
from watchbill.plans.task import Place, Text

WRONG = {
    "an open if": "if true; then echo hi",
    "two ands": "echo a && && echo b",
    "brackets": "echo (hello)",
    "a pipe first": "| wc -l",
    "a pipe last": "echo a |",
    "a lonely done": "echo a; done",
    "an open brace": "{ echo a;",
    "an open subshell": "(echo a",
    "a for without do": "for i in 1 2 3; echo $i; done",
    "an open case": "case x in x) echo y",
    "an open array": "a=(1 2",
    "redirection to nothing": "echo a >",
    "two semicolons": "echo a ;; echo b",
    "a placeholder in brackets": "echo ({BATCH_ID})",
}


def plan_of(tmp_path: Path, tasks: str, name: str = "p") -> Path:
    folder = tmp_path / "plans" / name
    folder.mkdir(parents=True)
    (folder / "plan.md").write_text(f"# Plan\n\n## Tasks\n\n{tasks}")
    return folder / "plan.md"


@pytest.mark.parametrize("command", WRONG.values(), ids=WRONG)
def test_a_command_that_bash_cannot_parse_is_an_error_with_its_line(tmp_path: Path, command: str) -> None:
    """PLAN-03: said in the author's words, without anything that Watchbill adds."""
    checked = read_with_bash(
        plan_of(tmp_path, f"### fine\n- command: `true`\n\n### t\n- command: `{command}`\n")
    )
    [error] = checked.findings.errors
    assert (error.line, "t" in error.text) == (9, True)
    assert "watchbill" not in error.text and "oom" not in error.text
    assert error.hint


def test_the_line_of_a_mistake_is_that_of_the_document(tmp_path: Path) -> None:
    """PLAN-03."""
    block = "### t\n```bash\necho one {BATCH_ID}\necho two\nif true; fi\necho four\n```\n"
    [error] = read_with_bash(plan_of(tmp_path, block)).findings.errors
    assert error.line == 9
    assert "fi" in error.text


@pytest.mark.parametrize(
    "command",
    [
        "for f in *; do echo \"$f\"; done", "[[ a == a ]] && echo yes", "cat <<< {BATCH_ID}", "x=(1 2); echo ${x[@]}",
        "echo $((1+2))", "diff <(echo a) <(echo b)", "case x in x) true;; esac", "echo '(' \")\"",
        "function f { true; }; f",
    ],
)  # fmt: skip
def test_what_bash_can_parse_is_right(tmp_path: Path, command: str) -> None:
    assert read_with_bash(plan_of(tmp_path, f"### t\n- command: `{command}`\n")).findings.errors == []


def test_nothing_of_a_command_runs_while_it_is_checked(tmp_path: Path) -> None:
    """PLAN-03: neither the command nor what the environment would have bash run."""
    ran = tmp_path / "ran"
    plan = plan_of(tmp_path, f"### t\n- command: `touch {ran}; echo $(touch {ran})`\n")
    start = tmp_path / "start"
    start.write_text(f"touch {ran}\n")
    env = {**os.environ, "BASH_ENV": str(start), "BASH_FUNC_echo%%": f"() {{ touch {ran}; }}"}
    words = [sys.executable, "-m", "watchbill", "plan", "check", str(plan.parent)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, ran.exists()) == (0, False), done.stderr


def test_a_machine_without_bash_says_that_the_syntax_was_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-13."""
    monkeypatch.setenv("PATH", str(tmp_path))
    checked = read_with_bash(
        plan_of(tmp_path, "### t\n- command: `a && && b`\n### u\n- command: `if true`\n")
    )
    assert checked.is_right
    told = [note.text for note in checked.findings.notes if "not checked" in note.text]
    assert told == [f"the syntax of the tasks t, u was not checked: {Unchecked.NO_BASH.value}"]


def test_the_time_for_checking_is_bounded() -> None:
    syntax = BashSyntax(parse_only, 0)
    assert syntax.look_at(parse_command("echo (")) is Unchecked.NO_TIME


def test_one_command_of_many_tasks_is_asked_about_once(tmp_path: Path) -> None:
    tasks = "".join(f"### t{number}\n- command: `echo (`\n" for number in range(300))
    assert len(check("# P\n## Tasks\n" + tasks, None, BashSyntax(parse_only)).findings.errors) == 100


def test_lines_are_counted_from_the_authors_first_also_with_batch_size(tmp_path: Path) -> None:
    """PLAN-04."""
    command = parse_command("true {ITEM}\nno_such_program_here {ITEM}")
    argv = argv_of_batch(command, [lambda _: "x"], str(tmp_path / "done"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert "line 2: no_such_program_here" in done.stderr
    assert isinstance(BashSyntax(parse_only).look_at(parse_command("true\necho (")), Mistake)


# ------------------------------------------------------------------ quotes and blocks


@pytest.mark.parametrize(
    ("written", "meant", "is_noted"),
    [
        ('"echo {BATCH_ID} two"', "echo {BATCH_ID} two", True),
        ("'echo one two'", "echo one two", True),
        ('`"echo one"`', "echo one", True),
        (r'"echo \"one two\""', 'echo "one two"', True),
        ('"true"', '"true"', False),
        ('"a b" c', '"a b" c', False),
        ('"a" "b"', '"a" "b"', False),
    ],
)
def test_quotes_around_a_whole_command_are_left_out_with_a_note(
    written: str, meant: str, is_noted: bool
) -> None:
    """PLAN-01."""
    checked = check(f"# P\n## Tasks\n### t\n- command: {written}\n")
    [task] = checked.plan.tasks
    assert task.command is not None
    assert task.command.text == meant
    assert any("quotes" in note.text for note in checked.findings.notes) is is_noted


def test_a_quoted_path_with_a_blank_may_mean_two_things_and_is_refused() -> None:
    [error] = check('# P\n## Tasks\n### t\n- command: "scripts/my tool.sh"\n').findings.errors
    assert (error.line, "quotes" in error.text) == (4, True)


@pytest.mark.parametrize("mark", ["|", "|-", "|+", "|2"])
def test_a_block_as_yaml_writes_it_is_the_command(mark: str) -> None:
    """PLAN-01."""
    lines = "    # first\n    for i in 1 2; do\n      - echo $i\n\n    done\n"
    checked = check(f"# P\n## Tasks\n### t\n- **command**: {mark}\n{lines}- timeout: 3s\n")
    [task] = checked.plan.tasks
    assert task.command is not None
    assert task.command.text == "# first\nfor i in 1 2; do\n  - echo $i\n\ndone"
    assert (task.command.line, task.timeout_ms) == (5, 3_000)


def test_a_folded_block_is_one_line() -> None:
    [task] = check("# P\n## Tasks\n### t\n- command: >-\n    python3\n    -c 'print(1)'\n").plan.tasks
    assert task.command is not None
    assert task.command.text == "python3 -c 'print(1)'"


def test_a_block_without_lines_is_named() -> None:
    errors = check("# P\n## Tasks\n### t\n- command: |\necho not indented\n").findings.errors
    assert 4 in [error.line for error in errors if "indent" in error.hint]


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("grep -c CUDA build.log", "cpu"), ("dmesg | grep -i 'nvidia|cuda' | wc -l", "cpu"),
        ("echo 'no cuda here'; true", "cpu"), ("python3 train.py --device cuda", "script"),
        ("echo start; nvidia-smi", "script"), ("grep x y && python3 a.py --gpu", "script"), ("whisper a.mp4", "script"),
        ("echo $WATCHBILL_MODEL", "cpu"), ("curl $WATCHBILL_MODEL_URL", "llm"),
    ],
)  # fmt: skip
def test_a_word_that_a_command_only_searches_for_or_shows_makes_no_gpu_task(command: str, word: str) -> None:
    """PLAN-02."""
    [task] = check(f"# P\n## Tasks\n### t\n- command: `{command}`\n").plan.tasks
    assert task.task_class.value == word


def test_inferred_classes_are_one_note_for_each_reason() -> None:
    """PLAN-02."""
    tasks = "".join(f"### t{number}\n- command: `true`\n" for number in range(40))
    notes = check(f"# P\n## Tasks\n{tasks}### g\n- command: `nvidia-smi`\n").findings.notes
    assert [(note.line, "taken as" in note.text) for note in notes] == [(3, True), (83, True)]
    assert "t0" in notes[0].text and "35 more" in notes[0].text


# ------------------------------------------------------------------ a fleet


def test_a_command_that_cannot_be_parsed_fails_once_with_the_authors_line(tmp_path: Path) -> None:
    """FLEET-08: where nobody could check it before, as on a manager without bash."""
    with shared_folder(tmp_path) as fleet:
        fleet.write_plan(
            "p", "### t\n```\ntrue\necho (hello) {BATCH_ID}\n```\n### u\n- command: `echo ) {BATCH_ID}`\n"
        )
        fleet.start_coordinator()
        fleet.start_agent("cpu-1")
        no_bash = tmp_path / "bin"
        no_bash.mkdir()
        words = [sys.executable, "-m", "watchbill", "plan", "submit", "p", "--root", str(fleet.root)]
        done = subprocess.run(
            words,
            env={**fleet.environment(), "PATH": str(no_bash)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        batch = done.stdout.strip()
        assert fleet.wait(batch) == 1
        assert {task["id"]: (task["attempt"], task["why"]) for task in fleet.status(batch)["tasks"]} == {
            "t": (1, "unparsable"), "u": (1, "unparsable"),
        }  # fmt: skip
        for task, line in (("t", 2), ("u", 1)):
            said = fleet.plan("logs", task, "--batch", batch)
            told = said.stdout + said.stderr + (fleet.batch("p", batch) / "RUN_SUMMARY.md").read_text()
            assert f"line {line}: syntax error" in told, told
            assert "oom_score_adj" not in told


# ------------------------------------------------------------------ titles and programs in other languages


def test_a_title_in_words_is_a_name_and_dependencies_may_use_it() -> None:
    """PLAN-01: numbered, in phases, with letters of any language; a dependency on an item, too."""
    found = check(
        "# P\n## Tasks\n### 1. Split Chapters\n- command: ls\n"
        "### Phase 2: index chapter (slow)\n- command: `ls {ITEM.x}`\n- foreach: a.json\n- depends_on: Split Chapters\n"
        "### Stage 3: Prüfen & Zählen\n- command: `ls {ITEM.x}`\n- foreach: a.json\n"
        "- depends_on: Index chapter_{ITEM.id}\n"
        "### end\n- command: ls\n- depends_on: Prüfen & Zählen, split_chapters\n"
    )
    assert found.is_right, found.findings.errors
    wanted = {
        "split_chapters": [], "index_chapter": ["split_chapters"], "prufen_zahlen": ["index_chapter"],
        "end": ["prufen_zahlen", "split_chapters"],
    }  # fmt: skip
    assert {task.name: [each.name for each in task.depends_on] for task in found.plan.tasks} == wanted
    assert sum("is called" in note.text for note in found.findings.notes) == 3


HERE = "# P\n## Inputs\n- `day` (default: x)\n## Tasks\n### t\n- command:\n```bash\npython3 - <<'E'\n{TEXT}\nE\n```\n"


def test_a_program_in_a_quoted_here_document_keeps_its_own_braces() -> None:
    """PLAN-02: f-strings are no placeholders; what an input or Watchbill could fill is refused there."""
    found = check(HERE.replace("{TEXT}", 'print(f"{n} {name}", {"a": 1})'))
    assert found.is_right, found.findings.errors
    assert 'print(f"{n} {name}"' in found.plan.commands["t"].script
    for text in ('f"{day}"', 'f"{BATCH_PATH}"', 'f"{ITEM}"'):
        [error] = check(HERE.replace("{TEXT}", text)).findings.errors
        assert error.line == 9 and "quoted end word" in error.text


# ------------------------------------------------------------------ dependencies in other words

WAITS = (
    "# P\n## Tasks\n### a\n- command: ls\n### b\n- command: `ls {{ITEM}}`\n- foreach: m.json\n"
    "### Split Chapters\n- command: ls\n### last\n- command: ls\n- depends_on: {words}\n"
)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("all of b", ["b"]), ("every b", ["b"]), ("all b tasks", ["b"]), ("b (all items)", ["b"]), ("b_*", ["b"]),
        ("all of `b`", ["b"]), ("task b", ["b"]), ("b tasks completed", ["b"]), ("a and b", ["a", "b"]),
        ("a, all of b and Split Chapters", ["a", "b", "split_chapters"]), ("a; b", ["a", "b"]),
        ("a, a and b", ["a", "b"]),
    ],
)  # fmt: skip
def test_dependencies_may_be_named_in_words(words: str, names: list[str]) -> None:
    """PLAN-01: as people write that a task waits for all tasks of a foreach, or for several."""
    checked = check(WAITS.format(words=words))
    assert checked.findings.errors == []
    assert [each.name for each in checked.plan.tasks[-1].depends_on] == names


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("all", "name them: a, b, split_chapters"), ("all previous tasks", "name them: a, b, split_chapters"),
        ("any of b", "name a task"), ("a and nothing_like_it", ""), ("all of c", ""),
    ],
)  # fmt: skip
def test_words_that_name_no_task_are_an_error_with_its_line(words: str, hint: str) -> None:
    """PLAN-03: nothing is guessed."""
    (error,) = check(WAITS.format(words=words)).findings.errors
    assert error.line == 12 and hint in error.hint


# ------------------------------------------------------------------ what newcomers write


@pytest.mark.parametrize(
    ("tasks", "line", "says", "hint"),
    [
        ("## scan\n- command: ls\n", 2, "this section has no ### headings", "### NAME"),
        ("1. Scan: `ls`\n", 2, "this section has no ### headings", "### NAME"),
        ("### a\n- command: `ls {ITEM}`\n- foreach: data/*.mp4\n", 5, "is a pattern", "{BATCH_PATH}/items.json"),
        ("### a\n- command: `ls {ITEM}`\n- foreach: [1, 2]\n", 5, "not the items themselves", "items.json"),
        ("### a\n- command: ls\n- task_class: gpu\n", 5, "gpu is not a task_class", "write script"),
        ("### a\n- command: ls\n- executor: gpu-1\n", 5, "gpu-1 is not an executor", "worker"),
        ("### a\n- command: `ls {{ BATCH_ID }}`\n", 4, "is no placeholder", "write {BATCH_ID}"),
        ("### a\n- command: `ls {{ITEM.id}}`\n- foreach: m.json\n", 4, "is no placeholder", "write {ITEM.id}"),
    ],
)  # fmt: skip
def test_what_newcomers_write_is_answered_with_the_line_and_what_to_write(
    tasks: str, line: int, says: str, hint: str
) -> None:
    """PLAN-01, PLAN-03: one error each, and none that only follows from it."""
    (error,) = check(f"# P\n## Tasks\n{tasks}").findings.errors
    assert error.line == line and says in error.text and hint in error.hint


def test_what_may_be_meant_otherwise_is_a_note() -> None:
    """PLAN-03: a variable with the name of an input, a manifest that is not there yet, or never at the start."""

    def content_of(path: str, _: int) -> bytes:
        raise FileNotFoundError(path)

    plan = (
        "# P\n## Inputs\n- `SRC` (default: x)\n- `OUT` (default: y)\n## Tasks\n"
        "### a\n- command: `OUT=1; ls $SRC $OUT $HOME {ITEM}`\n- foreach: m.json\n- depends_on: b\n"
        "### b\n- command: `ls {ITEM}`\n- foreach: {BATCH_PATH}/m.json\n"
        "### c\n- command: `ls {ITEM}`\n- foreach: {PLAN_PATH}/history/{BATCH_ID}/m.json\n"
        "### d\n- command: `ls {ITEM}`\n- foreach: {BATCH_PATH}/m.json\n- depends_on: a\n"
    )
    found = check(plan, content_of=content_of)
    notes = [(note.line, note.text) for note in found.findings.notes]
    assert found.is_right
    assert [line for line, text in notes if "variable of the shell" in text] == [7]
    assert [line for line, text in notes if "is not in the plan's folder yet" in text] == [8]
    assert [line for line, text in notes if "is not there when a batch begins" in text] == [12, 15]


# ------------------------------------------------------------------ the files of a foreach


#: What foreach names, the files of the plan's folder, the placeholder that is used, and what is said about it.
WRONG_FILES = [
    ("items.json", {}, "{ITEM}", 5, "items.json is not in the plan's folder", "depends_on"),
    ("o.json:itms", {"o.json": '{"items": []}'}, "{ITEM}", 5, "has no itms at its top; there are: items", ""),
    ("o.json", {"o.json": "[1,"}, "{ITEM}", 5, "o.json is not valid JSON: line 1", ""),
    ("o.json", {"o.json": '[{"name": "a"}]'}, "{ITEM.nam}", 4, "item 1 of o.json has no field for {ITEM.nam}",
     "did you mean {ITEM.name}?"),
    ("o.json", {"o.json": '[{"a": {"b": 1}}, {"a": {}}]'}, "{ITEM.a.b}", 4, "item 2 of o.json has no field", ""),
    ("l.txt", {"l.txt": "one\n"}, "{ITEM.name}", 4, "item 1 of l.txt has no field", "write {ITEM}"),
    ("t.csv", {"t.csv": "id,name\na\n"}, "{ITEM.id}", 5, "t.csv:2: this row has 1 values", "quotes"),
    ("t.csv", {"t.csv": "id,id\na,b\n"}, "{ITEM.id}", 5, "t.csv:1: the first line names id twice", ""),
    ("t.csv:rows", {"t.csv": "id\na\n"}, "{ITEM.id}", 5, "has rows, and no path of keys", "t.csv"),
    ("x.jsonl", {"x.jsonl": '{"id": 1}\n{"id": }\n'}, "{ITEM.id}", 5, "x.jsonl:2: this line is no JSON value", ""),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG_FILES)
def test_the_file_of_a_foreach_is_looked_at_before_the_start(
    case: tuple[str, dict[str, str], str, int, str, str], tmp_path: Path
) -> None:
    """PLAN-03, PLAN-04: with the line; a task that may still write the file makes a note of it."""
    named, files, place, line, says, hint = case
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    plan = tmp_path / "plan.md"
    plan.write_text(f"# P\n## Tasks\n### a\n- command: `echo {place}`\n- foreach: {named}\n")
    (error,) = read_plan(plan).findings.errors
    assert error.line == line and says in error.text and hint in error.hint, error
    plan.write_text(plan.read_text() + "- depends_on: b\n### b\n- command: `true`\n")
    assert read_plan(plan).is_right
    plan.write_text(plan.read_text().replace("true", f"cat > {named.partition(':')[0]}"))
    assert not [note for note in read_plan(plan).findings.notes if named[:5] in note.text]


@pytest.mark.parametrize("case", [each for each in WRONG_FILES if ":" not in each[0]])
def test_the_file_that_an_input_names_is_looked_at_too(
    case: tuple[str, dict[str, str], str, int, str, str], tmp_path: Path
) -> None:
    """PLAN-03: a default may be replaced, and makes a note; the inputs of a submission are certain."""
    named, files, place, line, says, hint = case
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "good.json").write_text('[{"name": "x", "nam": "y", "id": "z", "a": {"b": 1}}]')
    plan = tmp_path / "plan.md"
    tasks = f"### a\n- command: `echo {place}`\n- foreach: {{FILE}}\n"
    plan.write_text(f"# P\n## Tasks\n{tasks}## Inputs\n- `FILE` (default: {named})\n")
    found = read_plan(plan)
    (note,) = [each for each in found.findings.notes if says in each.text]
    assert found.is_right and note.line == line, note
    assert note.text.startswith("with the default of FILE, ") or note.text.endswith("unless FILE is set"), (
        note
    )
    for given in ({}, {"FILE": named}):
        (error,) = read_plan(plan, given=given).findings.errors
        assert error.line == line and says in error.text and hint in error.hint, error
    for good in ("good.json", str(tmp_path / "good.json")):
        assert read_plan(plan, given={"FILE": good}).is_right
    (error,) = read_plan(plan, given={"FILE": "/no/such.csv"}).findings.errors
    assert "such.csv is not there" in error.text


@pytest.mark.parametrize(
    ("named", "says", "hint"),
    [
        ("/elsewhere/x.txt", "outside of the shared folder", "below {ROOT}"),
        ("../x.txt", "leads upwards", "below {ROOT}"),
        ("~/x.txt", "only a shell knows", "the plan's folder"),
        ("$HOME/x.txt", "only a shell knows", "the plan's folder"),
    ],
)
@pytest.mark.parametrize("after", ["", "- depends_on: b\n### b\n- command: `true`\n"])
def test_a_foreach_over_a_file_that_no_coordinator_reads_is_refused(
    named: str, says: str, hint: str, after: str, tmp_path: Path
) -> None:
    """PLAN-03: it was submitted, also after its table had been read and found right, and failed when it ran."""
    plan = tmp_path / "plans" / "p" / "plan.md"
    plan.parent.mkdir(parents=True)
    plan.write_text(f"# P\n## Tasks\n### a\n- command: `echo {{ITEM}}`\n- foreach: {named}\n{after}")
    (error,) = read_plan(plan, root=tmp_path).findings.errors
    assert error.line == 5 and says in error.text and hint in error.hint, error
    plan.write_text(plan.read_text().replace(named, "{FILE}") + "## Inputs\n- `FILE`\n")
    (error,) = read_plan(plan, given={"FILE": named}, root=tmp_path).findings.errors
    assert error.line == 5 and says in error.text and hint in error.hint, error
    (error,) = read_plan(plan, given={"FILE": ""}, root=tmp_path).findings.errors
    assert "names no file" in error.text
    (tmp_path / "x.txt").write_text("one\n")
    assert read_plan(plan, given={"FILE": f"{tmp_path}/x.txt"}, root=tmp_path).is_right


def test_a_foreach_names_no_path_of_one_machine(tmp_path: Path) -> None:
    """FLEET-01: other machines mount the shared folder elsewhere."""
    plan = tmp_path / "plan.md"
    plan.write_text(f"# P\n## Tasks\n### a\n- command: `echo {{ITEM}}`\n- foreach: {tmp_path}/data/x.txt\n")
    (error,) = read_plan(plan, root=tmp_path).findings.errors
    assert error.hint == "write {ROOT}/data/x.txt"
    (error,) = read_plan(plan).findings.errors  # no shared folder is known here
    assert "may be elsewhere on other machines" in error.text and "below {ROOT}" in error.hint, error


@pytest.mark.parametrize("key", ["requires", "produces"])
@pytest.mark.parametrize(
    "paths",
    [
        "{BATCH_PATH}/*.{jpg,png}",
        "{BATCH_PATH}/{a,b}/x",
        '["out/{a,b}.txt"]',
        "\n  - out/x.{a,b}",
        "x, {ITEM}.{a,b}",
    ],
)
def test_braces_of_a_shell_in_paths_are_refused(key: str, paths: str) -> None:
    """PLAN-03: the list was cut at the comma within them, and the task failed when it ran."""
    found = check(f"# P\n## Tasks\n### a\n- command: `true {{ITEM}}`\n- foreach: x.txt\n- {key}: {paths}\n")
    assert any("braces" in error.text and "in full" in error.hint for error in found.findings.errors)


def test_placeholders_in_lists_of_paths_are_no_braces_of_a_shell() -> None:
    paths = "{BATCH_PATH}/{ITEM.a}.{ITEM.b}, out/{ITEM}, \\{x}"
    assert check(f"# P\n## Tasks\n### a\n- command: `true`\n- foreach: x.txt\n- produces: {paths}\n").is_right


@pytest.mark.parametrize(
    ("default", "hint"),
    [
        ("{PLAN_PATH}/data", "leave it out: a relative path is below the plan's folder"),
        ("{BATCH_PATH}/data", "write {BATCH_PATH} in the tasks, before {DATA} or in its place"),
        ("{OTHER}/data", "write {OTHER} in the tasks, before {DATA} or in its place"),
        ("{{n}}", ""),
    ],
)
def test_a_placeholder_in_a_default_is_told_before_a_task_fails_of_it(
    default: str, hint: str, tmp_path: Path
) -> None:
    """PLAN-03: `{PLAN_PATH}/data: no such file`, three times. A default that does not count is nobody's business."""
    plan = tmp_path / "plan.md"
    inputs = f"- `DATA` (default: {default})\n- `OTHER` (default: x)\n"
    text = f"# P\n## Inputs\n{inputs}## Tasks\n### t\n- **command**: `ls {{DATA}}`\n"
    plan.write_text(text)
    found = [(each.line, each.hint) for each in read_plan(plan).findings.errors]
    assert found == ([(3, hint)] if hint else [])
    assert read_plan(plan, given={"DATA": "data"}).findings.errors == []
    plan.write_text(text.replace("ls {DATA}", "ls"))
    assert read_plan(plan).findings.errors == []


@pytest.mark.timeout(10)
@pytest.mark.parametrize("value", ["pipe", "a\0b", "../x.csv", "~/x.csv", "", "/", "folder"])
def test_an_input_that_names_no_file_hangs_and_breaks_nothing(value: str, tmp_path: Path) -> None:
    """R53: whatever --set says, the plan is checked or refused."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    plan = tmp_path / "plan.md"
    plan.write_text(
        "# P\n## Inputs\n- `FILE`\n## Tasks\n### a\n- command: `echo {ITEM}`\n- foreach: {FILE}\n"
    )
    assert len(read_plan(plan, given={"FILE": value}).findings.errors) <= 1


@pytest.mark.parametrize(
    ("file", "text", "items"),
    [
        ("a.jsonl", '\ufeff{"id": "a"}\r\n\n[1.10]\n', [{"id": "a"}, ["1.10"]]),
        ("a.NDJSON", '"x"\n', ["x"]),
        ("a.csv", 'id,name\r\na,"x, ""y""\nz"\r\n\r\nb,$(touch no)\r\n',
         [{"id": "a", "name": 'x, "y"\nz'}, {"id": "b", "name": "$(touch no)"}]),
        ("a.csv", "", []),
        ("a.tsv", "id\tname\n1\ta,b\n", [{"id": "1", "name": "a,b"}]),
        ("a.txt", " one two \r\n\n$(touch no)\n", ["one two", "$(touch no)"]),
        ("a.txt", '["a", "b"]', ["a", "b"]),
    ],
)  # fmt: skip
def test_items_are_read_from_tables_and_lines(file: str, text: str, items: list[object]) -> None:
    """PLAN-04."""
    assert items_at(text.encode(), Place(file, ())) == items


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("heading", "written", "name"),
    [
        ("fetch_data", "fetch-data", "fetch_data"),
        ("fetch-data", "Fetch Data", "fetch-data"),
        ("Fetch Data", "fetch_data", "fetch_data"),
        ("FetchData", "all of fetch data", "FetchData"),
        ("Step 1: Fetch", "Step 1", "Fetch"),
        ("1. Fetch", "1", "Fetch"),
        ("準備\n- id: prepare", "準備", "prepare"),
        ("Prüfe Kapitel", "Prüfe Kapitel", "prufe_kapitel"),
    ],
)
def test_a_dependency_is_found_in_any_spelling_that_means_one_task(
    heading: str, written: str, name: str
) -> None:
    """PLAN-01."""
    plan = f"# P\n## Tasks\n### {heading}\n- command: `true`\n### last\n- command: `true`\n- depends_on: {written}\n"
    checked = check(plan)
    assert checked.is_right, checked.findings.errors
    assert [each.name for each in checked.plan.tasks[-1].depends_on] == [name]


def test_a_dependency_that_may_mean_two_tasks_and_a_heading_that_is_no_name_are_errors() -> None:
    """PLAN-01: with the name as it is written, and what is allowed."""
    twice = (
        "# P\n## Tasks\n### a-b\n- command: `true`\n### a_b\n- command: `true`\n### c\n- command: `true`\n"
    )
    (error,) = check(f"{twice}- depends_on: A B\n").findings.errors
    assert "A B, which is not a task" in error.text
    (error,) = check("# P\n## Tasks\n### 準備\n- command: `true`\n").findings.errors
    assert "準備 cannot be the name" in error.text and "a to z" in error.hint and "**id**" in error.hint
    (error,) = check("# P\n## Tasks\n### 準備\n- id: 準\n- command: `true`\n").findings.errors
    assert error.line == 4


# ------------------------------------------------------------------ fenced blocks and values


def test_what_was_copied_from_a_terminal_is_run_without_its_prompts() -> None:
    """PLAN-01: with a note; what the commands said is left out, and lines are counted as before."""
    plan = "# P\n## Tasks\n### a\n```console\n$ echo one\none\n$ echo {NOBODY}\n```\n"
    checked = check(plan)
    assert checked.plan.tasks[0].command == Text(5, "echo one\n\necho {NOBODY}")
    assert [error.line for error in checked.findings.errors] == [7]
    assert any("begin with $" in note.text for note in checked.findings.notes)


def test_a_block_that_is_not_run_is_named() -> None:
    """PLAN-01: one in another language, and one beside a command."""
    (error,) = check("# P\n## Tasks\n### a\n```python\nprint(1)\n```\n").findings.errors
    assert "has no command" in error.text and "is python" in error.hint and "scripts/" in error.hint
    notes = check("# P\n## Tasks\n### a\n- command: `true`\n\n```bash\nfalse\n```\n").findings.notes
    assert [note.line for note in notes if "is not run" in note.text] == [6]


def test_values_in_quotes_keep_their_commas_and_a_wrong_time_is_quoted_as_it_is_written() -> None:
    """PLAN-01."""
    task = "# P\n## Tasks\n### a\n- command: `true`\n"
    env = check(f"{task}- env: A=1, B=\"a, b\", C='x,y'\n").plan.tasks[0].env
    assert {name: text.text for name, text in env} == {"A": "1", "B": "a, b", "C": "x,y"}
    (error,) = check(f"{task}- timeout: five minutes\n").findings.errors
    assert "five minutes" in error.text and error.hint


def test_of_two_tasks_with_one_name_each_error_is_on_its_own_line() -> None:
    """PLAN-03."""
    plan = "# P\n## Tasks\n### a\n- command: `true`\n### a\n\n- command: `echo {NOBODY}`\n"
    assert [(error.line, "two tasks" in error.text) for error in check(plan).findings.errors] == [(5, True)]


def test_a_root_that_is_named_is_the_only_one_that_is_looked_into(tmp_path: Path) -> None:
    """FLEET-13."""
    other = tmp_path / "other" / "plans" / "p"
    other.mkdir(parents=True)
    (other / "plan.md").write_text("# P\n")
    variables = {"WATCHBILL_FLEET": str(tmp_path / "other")}
    assert find_plan("p", None, variables) == other / "plan.md"
    with pytest.raises(ConfigError) as told:
        find_plan("p", tmp_path / "root", variables)
    assert "other" not in str(told.value)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ('{"type": "banana"}', "its type cannot be banana; known are object"),
        ('{"type": "object", "properties": {"n": {"type": "int"}}}', "n type cannot be int"),
        ('{"required": "n"}', "required is not a list"),
        ('{"properties": ["n"]}', "properties is not an object"),
        ('{"type": ["object", "null"], "items": {"anyOf": [{"enum": [1]}, true]}, "x": 1}', ""),
        ('{"type": "{KIND}"}', ""),
    ],
)
def test_a_schema_that_nobody_could_use_is_found_before_the_start(schema: str, told: str) -> None:
    """PLAN-02, PLAN-03."""
    plan = f"# P\n## Inputs\n- `KIND`\n## Tasks\n### a\n- prompt: Go.\n- type: parse\n- schema: {schema}\n"
    errors = [(each.line, each.text) for each in check(plan).findings.errors]
    assert [line for line, _ in errors] == ([8] if told else [])
    assert all(told in text for _, text in errors)


@pytest.mark.parametrize(
    ("key", "told"), [("shell", "command"), ("Input", "requires"), ("threads", "--cpu-slots")]
)
def test_keys_of_other_tools_are_told_what_to_write(key: str, told: str) -> None:
    """PLAN-01."""
    plan = f"# P\n## Tasks\n### a\n- command: ls\n- {key}: x\n"
    [found] = check(plan).findings.errors
    assert found.line == 5 and told in found.hint


def test_the_longest_answer_is_a_number_of_a_task_that_asks_a_model() -> None:
    """PLAN-02."""
    plan = "# P\n## Tasks\n### a\n- prompt: Go.\n- max_tokens: 60\n### b\n- command: ls\n- max_tokens: 60\n"
    found = check(plan)
    assert [each.line for each in found.findings.errors] == [8]
    assert found.plan.tasks[0].tokens_max == 60
