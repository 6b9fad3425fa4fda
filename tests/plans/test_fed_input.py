"""Values of items that reach the input of an interpreter: refused, whatever stands between. Texts are only parsed."""

import time

import pytest

from watchbill.plans.bash_reader import parse_command

#: An interpreter would read the value as its program.
REFUSED = [
    # through groups, subshells and compound commands
    "echo {ITEM.x} | { true; bash; }",
    "echo {ITEM.x} | { bash; }",
    "echo {ITEM.x} | { true && bash; }",
    "echo {ITEM.x} | { { true; }; bash; }",
    "echo {ITEM.x} | { true\nbash\n}",
    "echo {ITEM.x} | ( true; bash )",
    "echo {ITEM.x} | ( { true; ( bash ) } )",
    "echo {ITEM.x} | if true; then bash; fi",
    "echo {ITEM.x} | if bash; then true; fi",
    "echo {ITEM.x} | if false; then true; else sh; fi",
    "echo {ITEM.x} | while true; do bash; break; done",
    "echo {ITEM.x} | until false; do bash; done",
    "echo {ITEM.x} | for a in b; do bash; done",
    "echo {ITEM.x} | case a in a) bash;; esac",
    "echo {ITEM.x} | case a in (a) true; bash;; esac",
    "echo {ITEM.x} | ! bash",
    "echo {ITEM.x} | time bash",
    "echo {ITEM.x} | { true; } | { true; bash; }",
    "echo {ITEM.x} | tee log | { cat; } | bash",
    "{ echo {ITEM.x}; } | bash",
    "{ true; echo {ITEM.x}; true; } | bash",
    "( true; echo {ITEM.x} ) | bash",
    "( ( echo {ITEM.x} ) ) | { bash; }",
    "for a in b; do echo {ITEM.x}; done | bash",
    "while true; do echo {ITEM.x}; done | bash",
    "if true; then echo {ITEM.x}; fi | bash",
    "if true; then echo {ITEM.x} | bash; fi",
    "for a in b; do printf %s {ITEM.x} | sh; done",
    "case a in a) echo {ITEM.x};; esac | bash",
    "true; { echo {ITEM.x} | cat; } | cat | ( cat | bash )",
    # through functions
    "f() { bash; }; echo {ITEM.x} | f",
    "f() { true; bash; }; echo {ITEM.x} | { true; f; }",
    "f () ( bash ); echo {ITEM.x} | f",
    "function f { bash; }; echo {ITEM.x} | f",
    "function f() { cat | bash; }; echo {ITEM.x} | f",
    "g() { f; }; f() { bash; }; echo {ITEM.x} | g",
    "f() { echo {ITEM.x}; }; f | bash",
    "f() { echo \"$1\"; }; f {ITEM.x} | bash",
    "f() { bash; }; f <<< {ITEM.x}",
    "f() { echo {ITEM.x} | bash; }; f",
    # here-strings and process substitutions
    "{ bash; } <<< {ITEM.x}",
    "{ true; bash; } <<< {ITEM.x}",
    "( bash ) <<< {ITEM.x}",
    "while true; do bash; done <<< {ITEM.x}",
    "if true; then bash; fi <<< {ITEM.x}",
    "cat <<< {ITEM.x} | bash",
    "tr a b <<< {ITEM.x} | { true; bash; }",
    "bash < <(echo {ITEM.x})",
    "{ bash; } < <(echo {ITEM.x})",
    "bash <(echo {ITEM.x})",
    "source <(echo {ITEM.x})",
    ". <(printf %s {ITEM.x})",
    "python3 <(echo {ITEM.x})",
    "echo {ITEM.x} > >(bash)",
    "echo {ITEM.x} | tee >(bash)",
    "echo {ITEM.x} | tee >(true; bash) > /dev/null",
    "tee >(bash) <<< {ITEM.x}",
    "exec <<< {ITEM.x}; bash",
    "exec < <(echo {ITEM.x})\ntrue\nbash",
    "echo {ITEM.x} | echo \"$(bash)\"",
    "echo {ITEM.x} | a=$(bash)",
    "echo {ITEM.x} | cat <(bash)",
    "echo {ITEM.x} | echo `bash`",
    # through variables
    "a={ITEM.x}; echo \"$a\" | bash",
    "a={ITEM.x}; bash <<< \"$a\"",
    "a={ITEM.x}; b=$a; printf %s \"$b\" | { true; sh; }",
    "export a={ITEM.x}; echo $a | bash",
    "set -- {ITEM.x}; echo \"$1\" | bash",
    "for a in {ITEM.x}; do echo \"$a\"; done | bash",
    "read -r a <<< {ITEM.x}; echo \"$a\" | bash",
    "a={ITEM.x}; cat <<E | bash\n$a\nE",
    "a={ITEM.x}; bash <<E\n$a\nE",
    "a={ITEM.x}; eval \"$a\"",
    "a={ITEM.x}; bash -c \"$a\"",
    "a={ITEM.x}; ssh host \"process $a\"",
    "a={ITEM.x}; python3 -c \"print($a)\"",
    "echo {ITEM.x} | { read -r a; eval \"$a\"; }",
    "echo {ITEM.x} | while read -r a; do bash -c \"$a\"; done",
    "echo {ITEM.x} | bash -c \"$(cat)\"",
    "echo {ITEM.x} | eval \"$(cat)\"",
    # other ways to say it, and to start the interpreter
    "/bin/echo {ITEM.x} | bash",
    "command echo {ITEM.x} | bash",
    "env printf %s {ITEM.x} | bash",
    "! echo {ITEM.x} | bash",
    "yes {ITEM.x} | bash",
    "basename {ITEM.x} | bash",
    "jq -n --arg a {ITEM.x} '$a' | bash",
    "python3 -c 'import sys; print(sys.argv[1])' {ITEM.x} | bash",
    "A={ITEM.x} printenv A | bash",
    "echo {ITEM.x} | sudo bash",
    "echo {ITEM.x} | env A=1 timeout 5 bash",
    "echo {ITEM.x} | bash -",
    "echo {ITEM.x} | bash -x",
    "echo {ITEM.x} | bash -s a",
    "echo {ITEM.x} | bash /dev/stdin",
    "echo {ITEM.x} | bash /dev/fd/0 a",
    "echo {ITEM.x} | source /dev/stdin",
    "echo {ITEM.x} | . /proc/self/fd/0",
    "echo {ITEM.x} | bash -c 'bash'",
    "echo {ITEM.x} | python3",
    "echo {ITEM.x} | python3 -",
    "echo {ITEM.x} | python3 -u -",
    "echo {ITEM.x} | python3.11",
    "echo {ITEM.x} | python3 -i script.py",
    "echo {ITEM.x} | perl",
    "echo {ITEM.x} | perl -w",
    "echo {ITEM.x} | ruby -",
    "echo {ITEM.x} | node",
    "echo {ITEM.x} | php",
    "echo {ITEM.x} | php8.2",
    "echo {ITEM.x} | perl5.36.0",
    "echo {ITEM.x} | lua -",
    "echo {ITEM.x} | tclsh",
    "echo {ITEM.x} | R --no-save",
    "echo {ITEM.x} | ssh host",
    "echo {ITEM.x} | ssh host bash",
    "echo {ITEM.x} | ssh host bash -s",
    "echo {ITEM.x} | docker exec -i box sh",
    "echo {ITEM.x} | su user",
    "echo {ITEM.x} | sudo -s",
    "echo {ITEM.x} | at now",
    "echo {ITEM.x} | crontab -",
    "echo {ITEM.x} | parallel",
    "echo {ITEM.x} | xargs -I_ sh -c '_'",
    "echo {ITEM.x} | xargs -0 bash -c",
    "echo {ITEM.x} | psql db",
    "echo {ITEM.x} | sqlite3 db",
    "echo {ITEM.x} | awk -f -",
    "echo {ITEM.x} | awk -f /dev/stdin file",
    "echo {ITEM.x} | sed -f - file",
    "echo {ITEM.x} | make -f -",
    "echo {ITEM.x} | $SHELL",
    "echo {ITEM.x} | \"$SHELL\" -s",
]  # fmt: skip

#: The value is data, or the interpreter reads something else.
ACCEPTED = [
    "echo {ITEM.x} | { true; cat; }",
    "echo {ITEM.x}; bash script.sh",
    "echo {ITEM.x}; { true; bash script.sh; }",
    "{ echo {ITEM.x}; bash script.sh; }",
    "echo {ITEM.x} | python3 scripts/a.py",
    "echo {ITEM.x} | { read -r line; python3 scripts/a.py \"$line\"; }",
    "echo {ITEM.x} | python3 -c 'import sys; print(sys.stdin.read())'",
    "echo {ITEM.x} | python3 -m json.tool",
    "echo {ITEM.x} | bash scripts/a.sh",
    "echo {ITEM.x} | bash -c 'cat > out'",
    "echo {ITEM.x} | perl -ne 'print'",
    "echo {ITEM.x} | ruby scripts/a.rb",
    "echo {ITEM.x} | node scripts/a.js",
    "printf '%s' {ITEM.x} | ssh host 'value=$(cat); process \"$value\"'",
    "printf '%s' {ITEM.x} | ssh host 'process \"$(cat)\"'",
    "python3 - {ITEM.x} <<'E'\nprint(1)\nE",
    "echo {ITEM.x} > {BATCH_PATH}/x; python3 - <<'E'\nprint(1)\nE",
    "while read -r line; do python3 - \"$line\" <<'E'\nprint(1)\nE\ndone <<< {ITEM.x}",
    "f() { bash scripts/a.sh \"$1\"; }; f {ITEM.x}",
    "f() { cat; }; echo {ITEM.x} | f",
    "echo start {ITEM.x}; cat a | bash",
    "{ echo {ITEM.x}; } > log; cat a | bash",
    "cat {ITEM.x} | python3 -c 'import sys; print(len(sys.stdin.read()))'",
    "cat {ITEM.x} | psql db",
    "zcat {ITEM.x} | sqlite3 db",
    "a={ITEM.x}; bash -c 'echo \"$1\"' _ \"$a\"",
    "a={ITEM.x}; python3 scripts/a.py \"$a\" | tee log",
    "a={ITEM.x}; echo \"$a\" | sort",
    "export a={ITEM.x}; bash -c 'echo \"$a\"'",
    "echo {ITEM.x} | xargs -n 1 basename",
    "echo {ITEM.x} | awk '{ print $1 }'",
    "echo {ITEM.x} | sed s/a/b/",
    "echo {ITEM.x} | jq .",
    "echo bash {ITEM.x} | sort",
    "tool --shell bash {ITEM.x}",
    "echo {NAME} | bash",
    "source venv/bin/activate && python s.py {ITEM.x} | tee log",
    "for a in {ITEM.x}; do bash scripts/a.sh \"$a\"; done",
    "bash scripts/a.sh < {ITEM.x}",
    "( cd sub && bash run.sh {ITEM.x} ) | tee log",
    "if [ {ITEM.x} = a ]; then bash a.sh; else bash b.sh; fi",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_a_value_that_reaches_the_input_of_an_interpreter_is_refused(text: str) -> None:
    """R51, R52: with the place of the value and the way to write it instead."""
    refusals = parse_command(text).refusals
    assert any("{ITEM.x}" in each.text and each.hint for each in refusals), refusals
    assert all(text[each.offset :].startswith("{ITEM.x}") for each in refusals if "{ITEM.x}" in each.text)


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_value_that_is_data_is_accepted(text: str) -> None:
    """R51: no more is refused than has to be."""
    assert parse_command(text).refusals == ()


@pytest.mark.parametrize(
    "around", ["{ true; %s; }", "( %s )", "if true; then %s; fi", "f() { %s; }; f", "%s; true"]
)
@pytest.mark.parametrize("text", REFUSED[:30])
def test_what_is_refused_stays_so_inside_another_command(text: str, around: str) -> None:
    assert parse_command(around % text).refusals


MANY = 96 * 1024 // 4
LARGE = {
    "words behind a starter": "echo {ITEM.x} | env " + "sh x " * (MANY // 2),
    "machines": "echo {ITEM.x} | env " + "ssh x env " * (MANY // 4),
    "marks": "echo {ITEM.x} | xargs " + "-I_ " * (MANY // 2) + "sh " + "x " * MANY,
    "here-documents": "a={ITEM.x}; cat " + "<<E " * (MANY // 2) + "\n" + "x\n" * MANY,
    "functions": "function " * (MANY // 3) + "; echo {ITEM.x} | function",
    "groups": "echo {ITEM.x} | " + "{ " * MANY,
    "pipes": "echo {ITEM.x} | " * (MANY // 4) + "cat",
}


@pytest.mark.parametrize("what", LARGE)
def test_a_command_of_any_size_is_followed_in_bounded_time(what: str) -> None:
    """R53: by processor time, with a generous bound."""
    began = time.process_time()
    parse_command(LARGE[what])
    assert time.process_time() - began < 10
