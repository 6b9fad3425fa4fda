"""A value of an item reaches its program byte for byte as one word, through real bash, whatever the value holds."""

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watchbill.errors import OursError
from watchbill.plans import limits
from watchbill.plans.bash_reader import parse_command, read_command
from watchbill.plans.check import check
from watchbill.plans.command import argv_of, argv_of_batch
from watchbill.plans.placeholders import Placeholder, fill

SNIPPETS = [
    ";",
    "`",
    "$(touch pwned)",
    "`touch pwned`",
    "'",
    '"',
    "\\",
    "\n",
    "\r\n",
    "\t",
    " ",
    "$",
    "${1}",
    "$1",
    "${watchbill_1}",
    "{ITEM.other}",
    "{ITEM}",
    "{BATCH_PATH}",
    "__class__",
    "{}",
    "*",
    "?",
    "[a]",
    "~",
    "!",
    "!!",
    "#",
    "&",
    "&&",
    "|",
    ">",
    "> pwned",
    "< /etc/passwd",
    "(",
    ")",
    "{",
    "}",
    "-",
    "--",
    "-n",
    "%s",
    "%n",
    "\\n",
    "\\x00",
    "\\'",
    '\\"',
    "';",
    '";',
    "$'",
    "a[$(touch pwned)]",
    "x=y",
    "=",
    ",",
    "EOF\n",
    "\x01",
    "\x1b[31m",
    "\x7f",
    "é",
    "\u2028",
    "\u202e",
    "😀",
    "\udcff\udc80",
    "<<EOF",
    "esac",
    ")\n",
    "; touch pwned;",
    "\n touch pwned \n",
]
LETTERS = st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")
VALUES = st.lists(
    st.sampled_from(SNIPPETS) | st.text(LETTERS, min_size=1, max_size=4), min_size=0, max_size=6
).map("".join)

KINDS = {
    "unquoted": "{ITEM.f%d}",
    "double": '"{ITEM.f%d}"',
    "single": "'{ITEM.f%d}'",
    "inside": "\"-{ITEM.f%d}-\"'={ITEM.f%d}='",
}


def run(argv: list[str], folder: Path) -> bytes:
    done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert done.stderr == b""
    return done.stdout


def bash(text: str, value_of: Callable[[Placeholder], str], folder: Path) -> bytes:
    command = parse_command(text)
    assert command.refusals == ()
    return run(argv_of(command, value_of), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def arrive(values: list[str], folder: Path) -> None:
    words = [form.replace("%d", str(at)) for at in range(len(values)) for form in KINDS.values()]
    printed = bash(
        "printf '%s\\0' " + " ".join(words), lambda place: values[int(place.fields[0][1:])], folder
    )
    expected = [word for value in values for word in (value, value, value, f"-{value}-={value}=")]
    assert printed == b"".join(os.fsencode(word) + b"\0" for word in expected)
    assert list(folder.iterdir()) == []


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_twenty_thousand_hostile_values_arrive_byte_for_byte_in_every_kind_of_quotes(
    folder: Path, seed: int
) -> None:
    """R51, R52, PLAN-04: each unquoted, in double quotes, in single quotes, and beside other text"""
    chance = random.Random(seed)
    letters = [chr(code) for code in (*range(1, 0xD800), *range(0xDC80, 0xDD00), 0x1F600, 0x10FFFF)]
    values = [
        "".join(
            chance.choice(SNIPPETS if chance.random() < 0.7 else letters) for _ in range(chance.randrange(8))
        )
        for _ in range(200)
    ]
    arrive(values, folder)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(VALUES, min_size=1, max_size=40))
def test_hostile_values_that_are_searched_for_arrive_byte_for_byte(folder: Path, values: list[str]) -> None:
    """R51, R52"""
    arrive(values, folder)


NASTY = "a'b\"c`touch pwned`$(touch pwned);\n\\ *{ITEM.other}${watchbill_1} é"

#: Places in which people write placeholders; each prints the value once, with a NUL behind it.
ACCEPTED = [
    "printf '%s\\0' {ITEM.x}",
    'printf "%s\\0" "{ITEM.x}"',
    "value={ITEM.x}; printf '%s\\0' \"$value\"",
    "export value='{ITEM.x}' && printf '%s\\0' \"$value\"",
    "value={ITEM.x} env bash -c 'printf \"%s\\0\" \"$value\"'",
    "bash -c 'printf \"%s\\0\" \"$1\"' _ {ITEM.x}",
    "python3 -c 'import os, sys; os.write(1, os.fsencode(sys.argv[1]) + bytes(1))' {ITEM.x}",
    "f() { printf '%s\\0' {ITEM.x}; }; f other arguments",
    "set -- a b c; printf '%s\\0' {ITEM.x}",
    "shift || shift || true; printf '%s\\0' {ITEM.x}",
    "( printf '%s\\0' {ITEM.x} )",
    "{ printf '%s\\0' {ITEM.x}; }",
    "if true; then printf '%s\\0' {ITEM.x}; fi",
    "for each in {ITEM.x}; do printf '%s\\0' \"$each\"; done",
    "list=( {ITEM.x} '{ITEM.x}' ); printf '%s\\0' \"${list[1]}\"",
    "case {ITEM.x} in a*) printf '%s\\0' '{ITEM.x}';; esac",
    "value=\"$(case x in x) printf '%s.' {ITEM.x};; esac)\"; printf '%s\\0' \"${value%.}\"",
    "value=\"$(printf '%s.' \"{ITEM.x}\")\"; printf '%s\\0' \"${value%.}\"",
    "cat < <(printf '%s\\0' {ITEM.x})",
    "[[ {ITEM.x} == {ITEM.x} ]] && printf '%s\\0' {ITEM.x}",
    "[ {ITEM.x} = '{ITEM.x}' ] && printf '%s\\0' {ITEM.x}",
    "printf '%s\\0' {ITEM.x} | cat",
    "printf '%s\\0' {ITEM.x} 2>&1 | sort -z",
    "cat <<'EOF' >/dev/null\n$( ' \" `\nEOF\nprintf '%s\\0' {ITEM.x}",
    "cat <<-EOF >/dev/null\n\t$(echo \"a)\")\n\tEOF\nprintf '%s\\0' {ITEM.x}",
    "cat <<A <<B >/dev/null\n'\nA\n\"\nB\nprintf '%s\\0' {ITEM.x}",
    "# it's a comment with {ITEM.y}\nprintf '%s\\0' {ITEM.x} # and 'one here",
    "printf '%s\\0' \\\n  {ITEM.x}",
    "echo $(( 1 << 2 )) >/dev/null; printf '%s\\0' {ITEM.x}",
    "echo \"it's ${HOME:-'}'}\" >/dev/null; printf '%s\\0' {ITEM.x}",
    "echo $'it\\'s' >/dev/null; printf '%s\\0' {ITEM.x}",
    "echo $#a ${#HOME} >/dev/null; printf '%s\\0' {ITEM.x}",
    "echo a#b >/dev/null; printf '%s\\0' {ITEM.x}",
    "echo `echo a` >/dev/null; printf '%s\\0' {ITEM.x}",
    "awk 'BEGIN { print 1 }' >/dev/null; printf '%s\\0' {ITEM.x}",
    "true && ! false || true; printf '%s\\0' {ITEM.x} &\nwait",
    "set -eu; printf '%s\\0' {ITEM.x}",
]  # fmt: skip


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_value_arrives_byte_for_byte_wherever_a_placeholder_is_accepted(text: str, tmp_path: Path) -> None:
    """R51, PLAN-02: bash as people write it"""
    assert bash(text, lambda _: NASTY, tmp_path) == os.fsencode(NASTY) + b"\0"
    assert list(tmp_path.iterdir()) == []


def test_a_backslash_before_a_placeholder_stays_a_backslash(tmp_path: Path) -> None:
    assert bash('printf %s "a\\{ITEM.x}"', lambda _: "$v", tmp_path) == b"a\\$v"
    assert bash("printf %s 'a\\{ITEM.x}'", lambda _: "$v", tmp_path) == b"a\\$v"


def test_a_brace_behind_a_backslash_is_no_placeholder(tmp_path: Path) -> None:
    """The way to write the text itself."""
    assert bash("printf %s \\{ITEM.x}", lambda _: "v", tmp_path) == b"{ITEM.x}"


@pytest.mark.parametrize(
    "text",
    [
        "echo {}",
        "echo {a,b}",
        "echo {1..3}",
        "awk '{ print $1 }'",
        "echo ${HOME}",
        "find . -exec ls {} +",
        "jq '{ id: .x }'",
    ],
)
def test_other_braces_of_the_shell_are_no_placeholders(text: str) -> None:
    command = parse_command(text)
    assert (command.script, command.parameters, command.refusals) == (text, (), ())


#: Where something would read the value a second time.
REFUSED = {
    "bash -c": [
        'bash -c "echo {ITEM.x}"',
        "sh -c 'echo {ITEM.x}'",
        "/bin/sh -ec 'ls {ITEM.x}'",
        "bash -o pipefail -c 'a {ITEM.x}'",
        'timeout 5 bash -lc "a {ITEM.x}"',
        "sudo -u bob sh -c 'a {ITEM.x}'",
        "find . -exec sh -c 'a {ITEM.x}' \\;",
        'bash -c "$(printf %s {ITEM.x})"',
        "zsh -c {ITEM.x}",
        "A=1 dash -c '{ITEM.x}'",
        "true && bash -c '{ITEM.x}'",
        'if true; then sh -c "{ITEM.x}"; fi',
        'echo $(bash -c "{ITEM.x}")',
        "bash -c -- 'a {ITEM.x}'",
        "bash -c $EMPTY {ITEM.x}",
    ],
    "eval": [
        "eval {ITEM.x}",
        "eval 'x={ITEM.x}'",
        "command eval {ITEM.x}",
        "eval a=( {ITEM.x} )",
        "eval a=( b ) {ITEM.x}",
        "f() { eval {ITEM.x}; }",
        "f() eval {ITEM.x}",
        "case a in (a) eval {ITEM.x};; esac",
        "true; eval {ITEM.x}",
        "cat <<E\n ;\nE\neval {ITEM.x}",
        "$RUNNER eval {ITEM.x}",
        "$(true)eval {ITEM.x}",
    ],
    "ssh": ["ssh host ls {ITEM.x}", 'ssh host "ls {ITEM.x}"', "nohup ssh host ls '{ITEM.x}'"],
    "su -c": ["su -c 'ls {ITEM.x}'", "su - bob -c 'ls {ITEM.x}'", "su bob --command='ls {ITEM.x}'"],
    "xargs": ["ls | xargs rm {ITEM.x}", "xargs -I_ sh -c 'a {ITEM.x}'"],
    "env -S": ["env -S 'a {ITEM.x}'", "env -iS{ITEM.x}", "env --split-string='a {ITEM.x}'"],
    "here-documents": [
        "cat <<EOF\n{ITEM.x}\nEOF",
        "cat <<'EOF'\n{ITEM.x}\nEOF",
        "cat <<-EOF\n\t{ITEM.x}\n\tEOF",
        "bash <<EOF\na {ITEM.x}\nEOF",
    ],
    "arithmetic": [
        "echo $(( {ITEM.x} + 1 ))",
        "(( n = {ITEM.x} ))",
        "echo $[ {ITEM.x} ]",
        "let n={ITEM.x}",
        "a[{ITEM.x}]=1",
        "a[ {ITEM.x} + 1 ]=1",
        "export a[{ITEM.x}]=1",
        "[[ {ITEM.x} -eq 3 ]]",
        "[[ -v {ITEM.x} ]]",
        "test -v {ITEM.x}",
        "declare -i n={ITEM.x}",
        'echo "$(( {ITEM.x} ))"',
        "for (( i = 0; i < {ITEM.x}; i++ )); do :; done",
        "printf -v {ITEM.x} a",
        "unset {ITEM.x}",
        "read {ITEM.x}",
    ],
    "${...}": [
        "echo ${V:-{ITEM.x}}",
        'echo "${V:-{ITEM.x}}"',
        "echo ${ITEM.x}",
        'echo "${ITEM}"',
        "echo ${V/{ITEM.x}/b}",
        "echo ${a[{ITEM.x}]}",
    ],
    "programs in other spellings": [
        "$'ba\\x73h' -c {ITEM.x}",
        "$'ba\\x{73}h' -c {ITEM.x}",
        "$'ba\\163h' -c {ITEM.x}",
        "$'ba\\563h' -c {ITEM.x}",
        "$'ba\\u0073h' -c {ITEM.x}",
        "$'ba\\U00000073h' -c {ITEM.x}",
        "$'bash\\0 and more' -c {ITEM.x}",
        "$'bash\\c@ and more' -c {ITEM.x}",
        "b$'a'\"s\"\\h -c {ITEM.x}",
        '"ba\\\nsh" -c {ITEM.x}',
        "true \\|& eval {ITEM.x}",
    ],
    "other quotes": ["echo `ls {ITEM.x}`", 'echo "`ls {ITEM.x}`"', "echo $'a {ITEM.x}'"],
    "other programs": [
        "python3 -c 'print({ITEM.x})'",
        "perl -ne 'print {ITEM.x}'",
        "ruby -e 'p {ITEM.x}'",
        "node -e '{ITEM.x}'",
        "php8.2 -r {ITEM.x}",
        "perl5.36.0 -e {ITEM.x}",
        "lua5.4 -e {ITEM.x}",
        "pypy3.10 -c {ITEM.x}",
        "bash-5.2 -c {ITEM.x}",
        "bun -e {ITEM.x}",
        "julia -e {ITEM.x}",
        "octave --eval {ITEM.x}",
        "tmux new -d 'run {ITEM.x}'",
        "gdb -ex {ITEM.x} program",
        "awk '{ print {ITEM.x} }' f",
        'awk -F, "/{ITEM.x}/" f',
        "sed -i 's/a/{ITEM.x}/' f",
        "sed -n -e p -e '{ITEM.x}' f",
        "trap 'rm {ITEM.x}' EXIT",
        "awk $EMPTY {ITEM.x}",
        "watch ls {ITEM.x}",
        "parallel echo {ITEM.x}",
        "flock l -c 'a {ITEM.x}'",
    ],
    "target of >&": ["ls >&{ITEM.x}", "ls 2>& {ITEM.x}"],
    "standard input of a shell": [
        "echo {ITEM.x} | bash",
        "echo {ITEM.x} |& bash",
        "echo {ITEM.x}|&bash",
        "echo {ITEM.x} | (bash)",
        "echo {ITEM.x} \\|| bash",
        "printf %s {ITEM.x} | sudo sh -s",
        "bash <<< {ITEM.x}",
    ],
}


@pytest.mark.parametrize(
    ("place", "text"), [(place, text) for place, texts in REFUSED.items() for text in texts]
)
def test_a_place_that_reads_the_value_again_is_refused_with_the_way_to_write_it(
    place: str, text: str
) -> None:
    """R51, PLAN-03"""
    refusals = parse_command(text).refusals
    assert refusals, place
    assert all("{ITEM" in each.text and each.hint for each in refusals)
    keys = "- **task_class**: cpu\n- **foreach**: a.json:b\n- **command**:"
    plan = f"# p\n## Tasks\n### t\n{keys}\n```bash\n{text}\n```\n"
    errors = check(plan).findings.errors
    assert errors and errors[0].line == 8 + text.count("\n", 0, refusals[0].offset)


@pytest.mark.parametrize(
    "text",
    ["echo $\\\n(( {ITEM.x} ))", "echo {ITEM.x} |\\\n& bash", "bash <\\\n<< {ITEM.x}", "(\\\n( {ITEM.x} ))"],
)
def test_an_operator_that_the_end_of_a_line_tears_apart_is_refused(text: str) -> None:
    """R51: bash puts it together before it looks"""
    (first, *_) = parse_command(text).refusals
    assert "tears an operator apart" in first.text and "on one line" in first.hint


#: Words as people write them, which bash takes the quotes off.
WORDS = [
    "$'\\x41\\x4a\\x{4b}b'", "$'a\\x{4b'", "$'\\101\\541x'", "$'\\u0041\\U00000042'", "$'a\\tb\\'c\\\\d\\\"e\\?'",
    "$'a\\0b'c", "$'a\\x00b'c", "$'a\\c@b'c", "$'a\\400b'c", "$'\\cZ'", '"a\\b\\\\c\\$d\\`e\\"f"', '"a\\\nb"', "a\\\nb",
    "a\\b", "'a\\b'",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_read_as_bash_reads_it(word: str, tmp_path: Path) -> None:
    ((_, _, read),) = read_command(f"printf %s {word}").simple
    assert read.text.encode() == bash(f"printf %s {word}", lambda _: "", tmp_path)


COMMANDS = {
    "a 1; b 2 && c || d & e": ["a 1", "b 2", "c", "d", "e"],
    "a | b |& c": ["a", "b", "c"],
    "a \\; b": ["a ; b"],
    "a $(b $(c)) `d \\`e\\``": ["c", "b \1", "e", "d \1", "a \1 \1"],
    'a "$(b)" <(c) > out 2>&1': ["b", "c", "a \1 \1 out 1"],
    "if a; then b; fi": ["if a", "then b", "fi"],
    "( a ) && { b; }": ["a", "{ b", "}"],
    "a # b; c": ["a"],
    "cat <<E\n$(a)\nE\nb": ["cat", "a", "b"],
    "cat <<'E'\n$(a)\nE\nb": ["cat", "b"],
    "echo $(( 1 + $(a) ))": ["a", "echo \1\1"],
}


@pytest.mark.parametrize("text", COMMANDS)
def test_every_simple_command_of_a_line_is_listed_wherever_it_stands(text: str) -> None:
    reading = read_command(text)
    assert sorted(" ".join(word.text for word in words) for words in reading.simple) == sorted(COMMANDS[text])
    assert reading.is_certain


@pytest.mark.parametrize(
    "text",
    [
        "f() { a; }",
        "list=( a b )",
        "case a in b) c;; esac",
        "a 'b",
        'a <<E"O"F\nEOF',
        "a )",
        "echo $(( (a) b) )",
    ],
)
def test_where_bash_may_see_another_structure_the_reading_is_not_certain(text: str) -> None:
    assert not read_command(text).is_certain


@pytest.mark.parametrize(
    "text",
    [
        "bash script.sh {ITEM.x}",
        "bash -e script.sh -c {ITEM.x}",
        "bash -c 'echo \"$1\"' _ {ITEM.x}",
        "python3 -m tool -c {ITEM.x}",
        "sed -n 1p {ITEM.x}",
        "sed -e p -e q {ITEM.x}",
        "sed -f s.sed {ITEM.x}",
        "awk '{ print $1 }' {ITEM.x}",
        "awk -v n={ITEM.x} '{ print n }'",
        "perl x.pl -e {ITEM.x}",
        "echo eval {ITEM.x}",
        "cat {ITEM.x} | sort",
        "cat <<< {ITEM.x}",
        "ssh-keygen -f {ITEM.x}",
        "env A={ITEM.x} prog",
        'source venv/bin/activate && export A="$HOME/x:$A" && python s.py --in {ITEM.x} > {BATCH_PATH}/log 2>&1',
        "bash -c 'cd {BATCH_PATH} && make'",
        "cat <<EOF\n{OUT}\nEOF",
        "echo $(( {COUNT} * 2 ))",
        'echo "${X:-{OUT}}"',
        "[[ -f {ITEM.x} ]]",
    ],
)
def test_a_place_that_reads_the_value_once_is_accepted(text: str) -> None:
    """R51: no more is refused than has to be; what the operator gives may stand in more places than items"""
    assert parse_command(text).refusals == ()


@pytest.mark.parametrize("text", ["echo 'a", 'echo "a', "echo $(a", "echo ${a", "echo `a", "echo $((1"])
def test_a_quote_that_is_not_closed_is_named_where_it_begins(text: str) -> None:
    refusals = parse_command(text).refusals
    assert "not closed" in refusals[0].text and refusals[0].offset == 5


PIECES = [*"'\"\\$(){}`<>|&;# \n\tab[]=", "{ITEM.x}", "<<E", "$((", "case ", "esac", "bash -c "]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_command_makes_the_reader_fail(text: str) -> None:
    """R53"""
    command = parse_command(text)
    assert all(0 <= each.offset <= len(text) for each in command.refusals)


ATTACKS = ["a[$(touch pwned)]", "x'\"; touch pwned; '\"", "$(touch pwned)`touch pwned`", ")\ntouch pwned\n("]
SHELL = [
    *(
        "'",
        '"',
        "\\",
        "$",
        "(",
        ")",
        "{",
        "}",
        "`",
        "<",
        ">",
        "|",
        "&",
        ";",
        "#",
        " ",
        " ",
        "\n",
        "\t",
        "a",
        "b",
        "=",
        "[",
    ),
    *(
        "{ITEM.x}",
        "{ITEM.x}",
        " {ITEM.x} ",
        '"{ITEM.x}"',
        "'{ITEM.x}'",
        "<<E\n",
        "\nE\n",
        "$((",
        "))",
        "$(",
        "${",
        "((",
        "echo ",
    ),
    *(
        "case a in a) ",
        " esac ",
        "bash -c ",
        "eval ",
        "[[ ",
        " -eq 1 ]]",
        "let ",
        "trap ",
        " EXIT",
        "sh ",
        "| bash",
        "<<<",
    ),
    *(
        "a=",
        "a[",
        "]=",
        "test -v ",
        "printf -v ",
        "declare -i ",
        "$'",
        "<(",
        "if ",
        "; then ",
        "; fi",
        "unset ",
        "xargs ",
        "-c ",
    ),
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(SHELL), min_size=2, max_size=25).map("".join), st.sampled_from(ATTACKS))
def test_no_accepted_command_runs_what_a_value_says(folder: Path, text: str, value: str) -> None:
    """R51: whatever the author's command is, even one that bash does not understand"""
    command = parse_command(text)
    if not command.parameters or command.refusals:
        return
    argv = argv_of(command, lambda _: value)
    subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    was_run = (folder / "pwned").exists()
    for made in folder.iterdir():
        made.unlink()
    assert not was_run


def test_a_command_of_any_size_is_read_in_bounded_time() -> None:
    """R53: nothing is read twice, however deep and however odd"""
    for piece in (
        "(",
        "$(",
        '"$(',
        "${",
        "$((",
        "{ITEM.x} ",
        "<<E ",
        "`",
        "'",
        "case a in ",
        "{" * 50,
        "\\",
        "[[ -eq ",
    ):
        began = time.thread_time()
        parse_command(piece * (100_000 // len(piece)))
        # A tenth of a second; reading it twice at each depth takes hours.
        assert time.thread_time() - began < 20, piece


def test_values_that_no_program_can_be_given_are_refused() -> None:
    """R51"""
    command = parse_command("echo {ITEM.x}")
    for value, word in (
        ("a\0b", "NUL"),
        ("x" * (limits.PLAN_VALUE_BYTES_MAX + 1), "bytes"),
        ("\ud800", "Unicode"),
    ):
        with pytest.raises(OursError, match=word):
            argv_of(command, lambda _, value=value: value)
    many = parse_command(" ".join(f"{{ITEM.f{at}}}" for at in range(20)))
    with pytest.raises(OursError, match="limit"):
        argv_of(many, lambda _: "x" * 100_000)


def test_the_largest_value_that_is_accepted_reaches_its_program(tmp_path: Path) -> None:
    value = "x" * limits.PLAN_VALUE_BYTES_MAX
    assert bash("printf %s {ITEM.x} | wc -c", lambda _: value, tmp_path).strip() == str(len(value)).encode()


def rows(*values: str) -> list[Callable[[Placeholder], str]]:
    return [lambda _, value=value: value for value in values]


def test_a_batch_of_items_runs_the_command_once_per_item_and_notes_each(tmp_path: Path) -> None:
    """PLAN-04: batch_size"""
    done = tmp_path / "done"
    command = parse_command("cd /; set -e; printf '%s\\0' {ITEM.x}; exit 0; echo never")
    assert run(argv_of_batch(command, rows(NASTY, "", "b c"), str(done)), tmp_path) == os.fsencode(
        f"{NASTY}\0\0b c\0"
    )
    assert done.read_text() == "\n\n\n"


def test_a_batch_ends_at_the_first_item_that_fails_and_notes_those_before(tmp_path: Path) -> None:
    """PLAN-04: a retry goes on behind the items done"""
    command = parse_command("set -e\nfalse {ITEM.x} || [ {ITEM.x} != bad ]\necho {ITEM.x}")
    argv = argv_of_batch(command, rows("a", "bad", "c"), str(tmp_path / "done"))
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"a\n")
    assert (tmp_path / "done").read_text() == "\n"


def test_a_batch_runs_a_command_without_placeholders_once_per_item(tmp_path: Path) -> None:
    argv = argv_of_batch(parse_command("echo a"), rows("", "", ""), str(tmp_path / "done"))
    assert run(argv, tmp_path) == b"a\na\na\n"


#: Commands, what they print, and whether they succeed.
STOPPING = [
    ("false\necho on", "", False),
    ("false; echo on", "", False),
    ("false | cat; echo on", "", False),
    ("cd no_such_folder\necho on", "", False),
    ("x=$(false); echo on", "", False),
    ("(false; echo within); echo on", "", False),
    ("false || true\necho on", "on\n", True),
    ("if grep -q x /dev/null; then echo yes; else echo no; fi", "no\n", True),
    ("! false\nfalse && echo never\nwhile false; do :; done\necho on", "on\n", True),
    ("set +e; false; echo on", "on\n", True),
    ("bash -c 'false; echo on'", "on\n", True),
]


@pytest.mark.parametrize(("text", "said", "succeeds"), STOPPING)
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_command_stops_at_the_first_line_that_fails(
    text: str, said: str, succeeds: bool, is_batch: bool, tmp_path: Path
) -> None:
    """PLAN-02: as `bash -eo pipefail` does it; programs that it starts have their own options."""
    command, note = parse_command(text), str(tmp_path / "done")
    argv = argv_of_batch(command, rows(""), note) if is_batch else argv_of(command, lambda _: "")
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode == 0) == (said, succeeds)


@settings(max_examples=200, deadline=None)
@given(VALUES, VALUES)
def test_a_value_in_a_prompt_is_put_in_once_and_never_read_again(first: str, second: str) -> None:
    """R52"""
    values = {"x": first, "y": second}
    text = 'Say {ITEM.x} and {ITEM.y}, {"a": 1}, \\{ITEM.x} and ${HOME}'
    expected = f'Say {first} and {second}, {{"a": 1}}, {{ITEM.x}} and ${{HOME}}'
    assert fill(text, lambda place: values[place.fields[0]]) == expected
