"""The table of programs: whatever a record says is code is refused to values, asked about and named. Nothing is run."""

import pytest

from watchbill.fleet.permissions.network import hosts_of
from watchbill.fleet.permissions.rules import Action, RuleBook
from watchbill.fleet.permissions.ruling import Line, decide, read_rules
from watchbill.fleet.permissions.shellparts import Doubt, split
from watchbill.plans.bash_reader import parse_command
from watchbill.plans.programs import PROGRAMS, Hides, Kind, Program, program_named, unversioned

ITEM = "{ITEM.x}"
RULES = 'default = "ask"\nallow = ["Bash(*)"]\n'


def refusals(text: str) -> tuple[object, ...]:
    return parse_command(text).refusals


def code_lines() -> list[str]:
    """For every option of every record a line in which a value is program text."""
    lines: list[str] = []
    for name, program in PROGRAMS.items():
        code, text = program.code, program.text
        if code is not None:
            lines += [f"{name} -{letter} {ITEM}" for letter in code.letters + code.also]
            lines += [f"{name} {each} {ITEM}" for each in (*code.long, *code.also_long)]
            lines += [f"{name} {each}={ITEM}" for each in (*code.long, *code.also_long)]
            lines += [f"{name} {each[:-2]}={ITEM}" for each in code.long if len(each) > 7]
            lines += [f"{name} {verb} a {ITEM}" for verb in code.verbs]
            lines += [f"{name} a {ITEM}"] if code.operands is not None else []
        if text is not None:
            lines += [f"{name} {ITEM} file", f"{name} -- {ITEM}"]
            lines += [f"{name} -{letter} {ITEM} file" for letter in text.scripts]
            lines += [f"{name} {each}={ITEM} file" for each in text.long]
            lines += [f"{name} {each} {ITEM} file" for each in text.long]
        if program.again is not None:
            lines += [f"{name} {ITEM}", f"{name} a {ITEM}"]
    return lines


def input_lines() -> list[str]:
    """For every record a line in which a value is on the input that the program takes commands from."""
    lines: list[str] = []
    for name, program in PROGRAMS.items():
        if program.is_interpreter:
            lines += [
                f"echo {ITEM} | {name}",
                f"echo {ITEM} | {name} -",
                f"echo {ITEM} | {name} /dev/stdin a",
            ]
            lines += [f"echo {ITEM} | {name} {verb} -" for verb in program.verbs]
        if program.input is not None:
            lines += [f"echo {ITEM} | {name}"] if program.input.unless is not None else []
            lines += [f"echo {ITEM} | {name} {option} -" for option in program.input.files]
            lines += [f"echo {ITEM} | {name} {option}" for option in program.input.asks]
    return lines


@pytest.mark.parametrize("text", code_lines())
def test_a_value_in_a_word_that_a_program_runs_is_refused(text: str) -> None:
    """R51: also behind a program that starts others."""
    for line in (text, f"sudo {text}", f"timeout 5 env A=1 {text}", f"true && /usr/bin/{text}"):
        assert refusals(line), line


@pytest.mark.parametrize("text", input_lines())
def test_a_value_on_the_input_that_a_program_takes_commands_from_is_refused(text: str) -> None:
    """R51, R52"""
    assert refusals(text)


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.wraps is not None])
def test_a_program_behind_one_that_starts_others_is_found(name: str) -> None:
    """R51"""
    assert refusals(f"{name} a bash -c {ITEM}") and refusals(f"{name} a awk {ITEM} file")


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.reach is not None])
def test_a_program_that_uses_the_network_is_asked_for_its_host(name: str) -> None:
    """FLEET-10"""
    reach = PROGRAMS[name].reach
    assert reach is not None
    verb = [*reach.verbs[:1]]
    assert hosts_of([name, *verb, "https://a.example.org/x"])[0] == "a.example.org"
    assert hosts_of([f"/usr/bin/{name}", *verb, "\1"])


def is_opaque(program: Program) -> bool:
    return (program.wraps is not None and not program.wraps.is_followed) or program.hides is not Hides.NOTHING


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if is_opaque(program)])
def test_a_program_that_hides_what_it_starts_needs_a_rule_of_its_own(name: str) -> None:
    """FLEET-10"""
    book = RuleBook(read_rules('default = "allow"\ndeny = ["sudo *"]\n', "permissions.toml"))
    assert decide(Line(f"{name} a b"), book).action is Action.ASK


#: Ways to run text that a reader of manual pages finds, one by one.
RUN_TEXT = [
    f"deno eval {ITEM}",
    f"deno eval -p {ITEM}",
    f"deno repl --eval {ITEM}",
    f"tar -xf a.tar --to-command={ITEM}",
    f"tar -xf a.tar --to-command {ITEM}",
    f"tar -xf a.tar --to-com={ITEM}",
    f"tar -cf a.tar --checkpoint=1 --checkpoint-action=exec={ITEM} dir",
    f"tar -cf a.tar --checkpoint-action 'exec=run {ITEM}' dir",
    f"tar -I {ITEM} -cf a.tar dir",
    f"tar cfI a.tar {ITEM} dir",
    f"tar --use-compress-program={ITEM} -cf a.tar dir",
    f"make --eval={ITEM}",
    f"make NAME={ITEM} all",
    f"make 'CC=gcc {ITEM}'",
    f"gawk -e {ITEM} file",
    f"gawk --source {ITEM} file",
    f"sed --expr=s/a/{ITEM}/ file",
    f"sed -- s/a/{ITEM}/ file",
    f"sqlite3 a.db '.shell {ITEM}'",
    f"sqlite3 a.db \"select {ITEM}\"",
    f"sqlite3 -cmd {ITEM} a.db",
    f"duckdb -c {ITEM}",
    f"psql -c 'select {ITEM}' db",
    f"mysql --execute={ITEM} db",
    f"ed {ITEM}",
    f"vim -c {ITEM} file",
    f"vim +{ITEM} file",
    f"nvim --cmd {ITEM} file",
    f"emacs --batch --eval {ITEM}",
    f"git -c alias.x={ITEM} x",
    f"git -C dir -c core.pager={ITEM} log",
    f"git clone -c core.sshCommand={ITEM} url",
    f"git config alias.x {ITEM}",
    f"git submodule foreach {ITEM}",
    f"git rebase --exec {ITEM} main",
    f"git ls-remote ext::{ITEM}",
    f"rsync -e {ITEM} a b",
    f"rsync -ave {ITEM} a b",
    f"rsync --rsh={ITEM} a b",
    f"scp -o ProxyCommand={ITEM} a b:",
    f"perl -M{ITEM} script.pl",
    f"perl -pi -e s/a/{ITEM}/ file",
    f"ruby -ne {ITEM} file",
    f"lua -l json -e {ITEM}",
    f"node --eval {ITEM}",
    f"node --import={ITEM} script.js",
    f"node -p {ITEM}",
    f"php -d memory_limit=1G -r {ITEM}",
    f"php -B {ITEM} script.php",
    f"Rscript -e {ITEM}",
    f"julia -t 4 -e {ITEM}",
    f"busybox sh -c {ITEM}",
    f"busybox awk {ITEM} file",
    f"toybox sed {ITEM} file",
    f"split --filter={ITEM} file",
    f"sort --compress-program={ITEM} file",
    f"man -P {ITEM} ls",
    f"install --strip-program={ITEM} -s a b",
    f"wget -e use_askpass={ITEM} url",
    f"wget --use-askpass={ITEM} url",
    f"nc -e {ITEM} host 1",
    f"ncat --sh-exec {ITEM} host 1",
    f"socat - EXEC:{ITEM}",
    f"env --split={ITEM}",
    f"npx -c {ITEM}",
    f"m4 -Dname={ITEM} file",
    f"dc -e {ITEM}",
    f"sg group -c {ITEM}",
    f"pwsh -Command {ITEM}",
    f"expect -c {ITEM}",
    f"hyperfine {ITEM}",
    f"uv run awk {ITEM} file",
    f"fd -x sh -c {ITEM}",
    f"rg --pre {ITEM} x",
    f"tcpdump -z {ITEM}",
    f"zip -T -TT {ITEM} a.zip b",
    f"echo {ITEM} | deno run -",
    f"echo {ITEM} | deno",
    f"echo {ITEM} | gmake -f -",
    f"echo {ITEM} | make --file=-",
    f"echo {ITEM} | duckdb",
    f"echo {ITEM} | sftp host",
    f"echo {ITEM} | lftp host",
    f"echo {ITEM} | julia -",
    f"echo {ITEM} | ocaml",
    f"echo {ITEM} | ruby -rjson",
    f"a={ITEM}; tar -xf a.tar --to-command=\"$a\"",
    f"a={ITEM}; deno eval \"$a\"",
]  # fmt: skip


@pytest.mark.parametrize("text", RUN_TEXT)
def test_every_known_way_to_run_text_is_refused_to_values(text: str) -> None:
    """R51"""
    assert refusals(text)


#: The same programs with values that they only use.
USE_TEXT = [
    f"tar -xzf {ITEM} -C dir",
    f"tar --create --file={ITEM} --exclude={ITEM} dir",
    f"tar xf {ITEM}",
    f"tar cvzf out.tgz {ITEM}",
    f"git commit -m {ITEM}",
    f"git commit -m 'done! {ITEM}'",
    f"git switch -c {ITEM}",
    f"git add core.py {ITEM}",
    f"git config user.name {ITEM}",
    f"git clone {ITEM} dir",
    f"git -C {ITEM} log --oneline",
    f"make -C {ITEM} all",
    f"make -f other.mk {ITEM}",
    f"rsync -av {ITEM} dir/",
    f"sort -k2 {ITEM}",
    f"split -b 1M {ITEM}",
    f"sqlite3 {ITEM} 'select 1'",
    f"psql -f script.sql -v name={ITEM} db",
    f"mysql -psecret {ITEM} -h host",
    f"deno run script.ts {ITEM}",
    f"deno run --allow-read script.ts --eval {ITEM}",
    f"bun run script.ts {ITEM}",
    f"node script.js -e {ITEM}",
    f"ruby -I lib script.rb {ITEM}",
    f"php -d memory_limit=1G script.php {ITEM}",
    f"julia -t 4 script.jl {ITEM}",
    f"perl -w script.pl {ITEM}",
    f"wget -Pmodels {ITEM}",
    f"wget -O {ITEM} url",
    f"curl -o {ITEM} url",
    f"vim -es {ITEM}",
    f"env -u A tool {ITEM}",
    f"fd {ITEM} dir",
    f"find . -name {ITEM}",
    f"uv run tool {ITEM}",
    f"docker run image tool {ITEM}",
    f"awk -vname={ITEM} '{{ print name }}' file",
    f"gawk -f prog.awk {ITEM}",
    f"sed -n 5p {ITEM}",
    f"zip -r a.zip {ITEM}",
    f"install -m 644 {ITEM} dir",
    f"ffmpeg -i {ITEM} -f null -",
    f"echo {ITEM} | deno run script.ts",
    f"echo {ITEM} | tclsh script.tcl",
    f"echo {ITEM} | make -f other.mk",
]  # fmt: skip


@pytest.mark.parametrize("text", USE_TEXT)
def test_no_more_is_refused_than_has_to_be(text: str) -> None:
    """R51"""
    assert refusals(text) == ()


@pytest.mark.parametrize(
    ("command", "item"),
    [
        ("deno eval {ITEM.x}", "code"),
        ("python3 -c {ITEM.x}", "code"),
        ("node --eval={ITEM.x}", "code"),
        ("julia -e {ITEM.x}", "code"),
        ("deno run {ITEM.x}", "other.ts"),
    ],
)
def test_program_text_from_a_value_is_asked_about_without_rules(command: str, item: str) -> None:
    """FLEET-10: the permissions find the same words as the plan's check."""
    assert decide(Line(command, lambda _: item), RuleBook()).action is Action.ASK


@pytest.mark.parametrize(
    "command",
    [
        "tar -xf a.tar --to-command=\"$X\"", "git -c \"alias.x=$X\" x", "split --filter=\"$X\" a",
        "rsync -e \"$X\" a b", "wget -e \"$X\" url", "install --strip-program=\"$X\" a b",
    ],
)  # fmt: skip
def test_an_option_that_starts_a_program_is_a_doubt(command: str) -> None:
    """FLEET-10"""
    assert Doubt.CODE in {part.doubt for part in split(command, str).parts}
    assert decide(Line(command), RuleBook(read_rules(RULES, "permissions.toml"))).action is Action.ASK


def test_a_version_behind_the_name_changes_nothing() -> None:
    names = {
        "python3.11": "python",
        "php8.2": "php",
        "bash-5.2": "bash",
        "pip3": "pip",
        "lua5.4": "lua",
        "run0": "run0",
    }
    assert {name: unversioned(name) for name in names} == names
    assert program_named("python3").kind is Kind.PYTHON
    assert program_named("sqlite3") is PROGRAMS["sqlite3"] and program_named("tool7") == Program()
