"""Rules of permissions.toml: what is allowed, asked about and denied. Command lines are only parsed here, never run."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchbill.errors import ConfigError
from watchbill.fleet.permissions.rules import Action, RuleBook, parse_rules
from watchbill.fleet.permissions.ruling import Line, Ruling, Why, decide, load_book, read_rules, told
from watchbill.fleet.permissions.shellparts import Doubt, Kind, split
from watchbill.plans.placeholders import Placeholder

ALLOW, ASK, DENY = Action.ALLOW, Action.ASK, Action.DENY

RULES = """\
default = "ask"
allow = ["python3 scripts/*.py *", "ffmpeg *", "ls", "cat *", "Write(/data/out/**)", "Line(make -C tools all)"]
ask = ["pip install *", "git push *"]
deny = [
    "sudo *",
    "rm -rf /*",
    "Write(/etc/**)",
    "Line(curl example.org)",
]
"""

#: Command lines and what the rules above say about them.
CORPUS: list[tuple[str, Action]] = [
    # allowed, word by word
    ("python3 scripts/a.py", ALLOW),
    ("python3 scripts/a.py --in x --out y", ALLOW),
    ("python3 scripts/a.py 'two words' \"$HOME\"", ALLOW),
    ("ffmpeg -i a.mp4 b.wav", ALLOW),
    ("ls", ALLOW),
    ("ls -l", ASK),
    ("make -C tools all", ALLOW),
    ("make -C tools clean", ASK),
    ("python3 scripts/a.py && ffmpeg -i a b", ALLOW),
    ("echo begin; python3 scripts/a.py; echo end", ALLOW),
    ("if test -f a; then cat a; fi", ALLOW),
    ("if [ -f a ] || [[ b = c ]]; then cat a; fi", ALLOW),
    ("cat a | cat -", ALLOW),
    ("( cat a )", ALLOW),
    ("timeout 5 cat a", ALLOW),
    ("nice -n 5 timeout -s TERM 5 cat a", ALLOW),
    ("env A=1 cat a", ALLOW),
    ("A=1 cat a", ALLOW),
    ("bash -c 'cat a'", ALLOW),
    ("bash -c 'cat a; ls'", ALLOW),
    ("cat a > /dev/null 2>&1", ALLOW),
    ("cat a > /data/out/x/y.txt", ALLOW),
    ("cat a # sudo ls", ALLOW),
    ("cat 'sudo ls'", ALLOW),
    ("echo sudo ls", ALLOW),
    # asked about: nothing allows it
    ("python3 other/a.py", ASK),
    ("python3 scripts/../other/a.py", ASK),
    ("python3 scripts/sub/a.py", ASK),
    ("/opt/python3 scripts/a.py", ASK),
    ("curl example.com", ASK),
    ("cat a | curl example.com", ASK),
    ("cat a > /home/x", ASK),
    ("cat a > /data/out/../x", ASK),
    ("pip install x", ASK),
    ("/usr/bin/pip install x", ASK),
    ("timeout 5 pip install x", ASK),
    ("cat a && git push", ASK),
    # asked about: the text does not tell
    ("$TOOL a", ASK),
    ("$(cat a) b", ASK),
    ("cat a | bash", ASK),
    ("bash", ASK),
    ("bash -c \"$CODE\"", ASK),
    ("PATH=/x cat a", ASK),
    ("LD_PRELOAD=x cat a", ASK),
    ("alias cat=x; cat a", ASK),
    ("cat() { curl x; }; cat a", ASK),
    ("case a in a) cat a;; esac", ASK),
    ("cat 'a", ASK),
    ("find . -exec $X {} +", ASK),
    ("source /x/y", ASK),
    ("trap 'cat a' EXIT", ASK),
    ("awk 'BEGIN { system(\"x\") }'", ASK),
    # denied, wherever it stands
    ("sudo ls", DENY),
    ("sudo", DENY),
    ("/usr/bin/sudo ls", DENY),
    ("'su'\"do\" ls", DENY),
    ("s\\udo ls", DENY),
    ("$'su\\x64o' ls", DENY),
    ("cat a; sudo ls", DENY),
    ("cat a && sudo ls || true", DENY),
    ("cat a | sudo tee b", DENY),
    ("cat a |& sudo tee b", DENY),
    ("cat a & sudo ls", DENY),
    ("cat $(sudo ls)", DENY),
    ("cat `sudo ls`", DENY),
    ("cat \"$(sudo ls)\"", DENY),
    ("cat <(sudo ls)", DENY),
    ("cat <<E\n$(sudo ls)\nE", DENY),
    ("( sudo ls )", DENY),
    ("{ sudo ls; }", DENY),
    ("if sudo ls; then cat a; fi", DENY),
    ("while sudo ls; do cat a; done", DENY),
    ("for f in a b; do sudo cat $f; done", DENY),
    ("! sudo ls", DENY),
    ("time sudo ls", DENY),
    ("A=1 sudo ls", DENY),
    ("A=$(sudo ls)", DENY),
    ("env A=1 sudo ls", DENY),
    ("timeout 5 sudo ls", DENY),
    ("nohup nice sudo ls", DENY),
    ("exec sudo ls", DENY),
    ("command sudo ls", DENY),
    ("xargs sudo", DENY),
    ("cat a | xargs -n 1 sudo cat", DENY),
    ("cat a | xargs -I_ sudo cat _", DENY),
    ("find . -exec sudo cat {} +", DENY),
    ("bash -c 'sudo ls'", DENY),
    ("bash -c \"bash -c 'sudo ls'\"", DENY),
    ("eval 'sudo ls'", DENY),
    ("eval sudo ls", DENY),
    ("[s]udo ls", ASK),
    ("[ -f a ] && sudo ls", DENY),
    ("sudo $ANY", DENY),
    ("$X; sudo ls", DENY),
    ("f() { sudo ls; }; f", DENY),
    ("case a in a) sudo ls;; esac", DENY),
    ("echo $(( 1 + $(sudo ls) ))", DENY),
    ("rm -rf /x", DENY),
    ("rm -fr /x", DENY),
    ("rm -r -f /x", DENY),
    ("rm -f -v -r /x", DENY),
    ("rm -rf //x", DENY),
    ("/bin/rm -rf /x", DENY),
    ("rm -rf x", ASK),
    ("rm -rf $X", ASK),
    ("cat a > /etc/x", DENY),
    ("cat a >> /etc/x", DENY),
    ("cat a >| /etc/x", DENY),
    ("cat a &> /etc/x", DENY),
    ("cat a > /data/out/../../etc/x", DENY),
    ("curl example.org", DENY),
]  # fmt: skip


def ruling(command: str, rules: str = RULES, plan: str | None = None, **given: str) -> Ruling:
    def value_of(place: Placeholder) -> str:
        return given.get("_".join((place.name, *place.fields)), "other")

    root = read_rules(rules, "permissions.toml") if rules else None
    own = None if plan is None else read_rules(plan, "plans/p/permissions.toml")
    line = Line(command, value_of, {}, "/fleet/plans/p", "/fleet/plans/p/batches/b")
    return decide(line, RuleBook(root, own))


@pytest.mark.parametrize(("command", "expected"), CORPUS)
def test_a_command_line_is_ruled_by_the_worst_of_its_parts(command: str, expected: Action) -> None:
    """FLEET-10"""
    assert len(CORPUS) > 60
    found = ruling(command)
    assert found.action is expected, str(found)


@pytest.mark.parametrize("command", [command for command, expected in CORPUS if expected is DENY])
def test_a_denied_command_names_the_rule_with_its_file_and_line(command: str) -> None:
    """FLEET-10"""
    found = ruling(command)
    assert found.why is Why.RULE and found.rule is not None
    assert found.rule.file == "permissions.toml" and 5 <= found.rule.line <= 8
    assert f"permissions.toml:{found.rule.line}: deny" in str(found)


def test_an_allowed_command_names_the_rule_that_allowed_it() -> None:
    found = ruling("echo begin; python3 scripts/a.py")
    assert (found.why, found.rule and found.rule.text) == (Why.RULE, "python3 scripts/*.py *")
    assert "permissions.toml:2: allow" in str(found) and "plan.md" not in str(found)


def test_a_program_that_a_variable_names_is_a_doubt_and_about_no_rule() -> None:
    found = ruling("$TOOL a")
    assert (found.why, found.doubt, found.rule) == (Why.DOUBT, Doubt.PROGRAM, None)
    assert "known only when it runs" in str(found)


# ------------------------------------------------------------------ without rules

#: Commands as plans have them: they run without any permissions.toml.
LITERAL = [
    "python3 scripts/a.py {ITEM.x} > {BATCH_PATH}/{ITEM.x}.json",
    "source venv/bin/activate && export A=\"$HOME/x:$A\" && python s.py --in {ITEM.x}",
    "$PYTHON s.py {ITEM.x}",
    "\"$VENV/bin/python\" s.py {ITEM.x}",
    "python3 - {ITEM.x} <<'E'\nprint(1)\nE",
    "cat a | bash",
    "list=( {ITEM.x} b ); cat \"${list[@]}\"",
    "case {ITEM.x} in a*) cat a;; esac",
    "f() { cat \"$1\"; }; f {ITEM.x}",
    "total=0; for each in {BATCH_PATH}/out/*; do total=$((total + $(cat $each))); done",
    "sudo ls",
    "{PLAN_PATH}/scripts/a.sh {ITEM.x}",
    "true",
    "# nothing",
    "find . -name {ITEM.x} -exec cat {} +",
    "xargs cat < {ITEM.x}",
    "bash scripts/a.sh {ITEM.x}",
    "bash -c 'cat \"$1\"' _ {ITEM.x}",
    "echo x > out/{ITEM.x}.txt",
    "echo x >> /data/{ITEM.x}.txt",
    "echo x &> {OUT}/{ITEM.x}.txt",
    "cd /data && echo x > {ITEM.x}.cd",
    "echo x > \"{ITEM.x}\"",
    "echo x 2> ../logs/{ITEM.x}",
]  # fmt: skip

#: A value of an item, not plan.md, says what is run.
FROM_VALUES = [
    "{ITEM.x}",
    "{ITEM.x} a",
    "true; {ITEM.x}",
    "timeout 5 {ITEM.x}",
    "python3 {ITEM.x}",
    "bash {ITEM.x}",
    "source {ITEM.x}",
    "find . -exec {ITEM.x} {} +",
    "tool={ITEM.x}; $tool a",
    "set -- {ITEM.x}; \"$1\"",
    "bash -c '\"$1\"' _ {ITEM.x}",
    "$EMPTY {ITEM.x}",
    "echo {ITEM.x} | python3 -",
    "f() { {ITEM.x}; }; f",
    "case a in a) {ITEM.x};; esac",
]  # fmt: skip

PLACES = {"BATCH_PATH": "/fleet/plans/p/batches/b", "PLAN_PATH": "/fleet/plans/p", "OUT": "/srv/out/../x"}


@pytest.mark.parametrize("command", LITERAL)
def test_what_stands_literally_in_a_plan_runs_without_rules(command: str) -> None:
    """FLEET-10"""
    found = ruling(command, "", ITEM_x="a b", **PLACES)
    assert found.action is ALLOW, str(found)


@pytest.mark.parametrize("command", FROM_VALUES)
def test_what_a_value_of_an_item_names_is_asked_about_without_rules(command: str) -> None:
    """FLEET-10"""
    found = ruling(command, "", ITEM_x="tool", **PLACES)
    assert found.action is ASK, str(found)


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("out/{ITEM.x}", "../a"), ("{BATCH_PATH}/{ITEM.x}", "../../a"), ("{ITEM.x}", "/etc/a"),
        ("/data/{ITEM.x}", ".."), ("{OUT}/{ITEM.x}", "b/../../.."), ("out/.{ITEM.x}", "./a"),
        ("{ITEM.x}", "../p/scripts/a.sh"),
    ],
)  # fmt: skip
def test_a_file_that_a_value_leads_elsewhere_is_asked_about_without_rules(target: str, value: str) -> None:
    """FLEET-10: a redirection is data, and stays in the folder that the plan names; the reason says so."""
    found = ruling(f"echo x > {target}", "", ITEM_x=value, **PLACES)
    assert (found.action, found.why) == (ASK, Why.LEADS_OUT)
    assert "out of the folder that plan.md names" in str(found)


def test_a_redirection_in_program_text_from_a_value_is_asked_about_without_rules() -> None:
    """FLEET-10"""
    assert ruling("bash -c {ITEM.x}", "", ITEM_x="> out/a", **PLACES).action is ASK


@pytest.mark.parametrize(
    ("value", "expected"), [("scripts/a.py", ALLOW), ("scripts/../a.py", ASK), ("/x/scripts/a.py", ASK), ("a", ASK)]
)  # fmt: skip
def test_a_value_may_name_one_of_the_plans_own_scripts(value: str, expected: Action) -> None:
    """FLEET-10"""
    assert ruling("python3 {ITEM.x}", "", ITEM_x=value).action is expected


@pytest.mark.parametrize("value", ["sudo", "/usr/bin/sudo"])
def test_a_program_that_a_value_names_is_denied_as_if_it_stood_in_the_plan(value: str) -> None:
    assert ruling("{ITEM.x} ls", ITEM_x=value).action is DENY
    assert ruling("cat {ITEM.x}", ITEM_x=f"{value} ls").action is ALLOW


# ------------------------------------------------------------------ two files


def test_a_plan_cannot_allow_what_the_root_denies_or_asks_about() -> None:
    plan = 'allow = ["sudo *", "pip install *", "curl *"]\n'
    assert ruling("sudo ls", plan=plan).action is DENY
    assert ruling("pip install x", plan=plan).action is ASK
    assert ruling("curl x", plan=plan).action is ASK
    assert ruling("curl x", 'deny = ["sudo *"]\n', plan=plan).action is ALLOW


def test_a_plan_can_deny_what_the_root_allows() -> None:
    found = ruling("ffmpeg -i a", plan='deny = ["ffmpeg *"]\n')
    assert found.action is DENY and "plans/p/permissions.toml:1: deny" in str(found)


def test_files_that_a_batch_writes_into_its_own_folder_are_allowed() -> None:
    assert ruling("cat a > {BATCH_PATH}/x", **PLACES).action is ALLOW
    assert ruling("cat a > {BATCH_PATH}/../x", **PLACES).action is ASK


# ------------------------------------------------------------------ the file

WRONG = {
    'defualt = "ask"\n': (1, "default"),
    'allow = ["ls"]\ndefault = "asks"\n': (2, "ask"),
    'allow = [\n  "ls",\n  3,\n]\n': (3, "quotes"),
    'deny = ["Wirte(/x)"]\n': (1, "Write"),
    'deny = ["ls \'a"]\n': (1, "quote"),
    'deny = ["ls | cat"]\n': (1, "one rule for each"),
    'deny = [""]\n': (1, "empty"),
    'deny = "ls"\n': (1, "no list"),
    'deny = ["ls"]\n[[test]]\ncommand = "ls"\nexpect = "allow"\n': (2, "expects allow"),
    '[[test]]\ncommand = "ls"\nexpect = "denied"\n': (3, "deny"),
    '[[test]]\ncomand = "ls"\nexpect = "deny"\n': (2, "command"),
    '[sandbx]\nlevel = "strict"\n': (1, "sandbox"),
    "deny = [\n": (1, "TOML"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_in_the_rules_is_named_with_its_line_and_the_way_to_write_it(text: str) -> None:
    line, word = WRONG[text]
    with pytest.raises(ConfigError) as caught:
        read_rules(text, "permissions.toml")
    assert any(each.line == line and word in str(each) for each in caught.value.problems), str(caught.value)


def test_rules_that_pass_their_own_tests_are_read() -> None:
    tests = '[[test]]\ncommand = "sudo ls"\nexpect = "deny"\n[[test]]\ncommand = "ls"\nexpect = "allow"\n'
    assert len(read_rules(RULES + tests, "permissions.toml").tests) == 2


@pytest.mark.parametrize(
    ("word", "command"), [("BLOCKED", "sudo ls"), ("allowed", "ls"), ("Needs_Approval", "x")]
)
def test_what_a_test_expects_may_be_written_as_an_outcome(word: str, command: str) -> None:
    tests = f'[[test]]\ncommand = "{command}"\nexpect = "{word}"\n'
    assert len(read_rules(RULES + tests, "permissions.toml").tests) == 1


def test_a_broken_file_allows_nothing_and_says_where_it_is_broken(tmp_path: Path) -> None:
    """FLEET-10"""
    (tmp_path / "plans/p").mkdir(parents=True)
    assert decide(Line("ls"), load_book(tmp_path, "p")).action is ALLOW
    for content in (b'allow = ["ls"]\ndefault = "no"\n', b"\xff"):
        (tmp_path / "plans/p/permissions.toml").write_bytes(content)
        found = decide(Line("ls"), load_book(tmp_path, "p"))
        assert (found.action, found.why) == (ASK, Why.BROKEN)
        assert "plans/p/permissions.toml" in str(found)
    (tmp_path / "plans/p/permissions.toml").unlink()
    (tmp_path / "permissions.toml").mkdir()
    assert decide(Line("ls"), load_book(tmp_path, "p")).why is Why.BROKEN


@pytest.mark.parametrize("command", ["curl example.com", "$TOOL 'a b' \"c\"", "cat a\ncurl \\\n  b"])
def test_the_rule_that_a_question_proposes_answers_it(command: str) -> None:
    text = told(ruling(command), command, "b1", "t")
    assert "watchbill plan retry t --batch b1" in text
    proposed = text.partition("add ")[2].partition(" to the list allow")[0]
    assert ruling(command, RULES.replace("allow = [", f"allow = [{proposed}, ")).action is ALLOW


# ------------------------------------------------------------------ parts


def test_programs_and_files_are_parts_of_their_own() -> None:
    found = split("A=1 timeout 5 cat a > out | tee 'b c'", str)
    assert [(part.kind, part.words) for part in found.parts if not part.starts_another] == [
        (Kind.WRITE, ("out",)),
        (Kind.RUN, ("cat", "a")),
        (Kind.RUN, ("tee", "b c")),
    ]
    assert found.doubts == ()


PIECES = [
    *("'", '"', "\\", "$", "(", ")", "{", "}", "`", "<", ">", "|", "&", ";", "#", " ", "\n", "a", "=", "["),
    *(
        "{ITEM.x}",
        "<<E\n",
        "\nE\n",
        "$((",
        "))",
        "bash -c ",
        "eval ",
        "xargs ",
        "env ",
        "sudo ",
        "find . -exec ",
        "$'",
    ),
    *(
        "case a in a) ",
        " esac ",
        "for a in ",
        "; do ",
        "; done",
        "timeout 5 ",
        "cat ",
        "ls",
        "-",
        "*",
        "\0",
        "\1",
    ),
]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.sampled_from(["a", "$(b)", "", "\n", "\0\1"]),
)
def test_no_command_and_no_value_makes_a_decision_fail(command: str, value: str) -> None:
    """R53"""
    for rules in (RULES, ""):
        assert isinstance(ruling(command, rules, ITEM_x=value), Ruling)


@pytest.mark.parametrize("joint", ["; ", " && ", " || ", " | ", " |& ", " & ", "\n"])
@pytest.mark.parametrize(
    "command", [command for command, expected in CORPUS if expected is DENY and "\n" not in command][:60]
)
def test_a_denied_part_stays_denied_beside_others(command: str, joint: str) -> None:
    if "example.org" not in command:
        assert ruling(f"cat a{joint}{command}").action is DENY


def test_limits_that_are_none_are_named_with_their_line() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_rules('[sandbox]\nmemory = "much"\nprocesses = 0\n', "permissions.toml")
    assert [(each.line, each.hint) for each in raised.value.problems] == [
        (2, 'write "4GiB"'),
        (3, "write 200"),
    ]
