"""The documents tell the truth: configs load, commands run, links lead somewhere, every module is listed.

A `console`, `bash` or `python` block is run in a fresh folder with a fresh root. What a console block prints is
compared with what it says it prints: figures match any figures, `...` matches anything. The line above a block may
hold a marker:

    <!-- not-run: REASON -->    it is not run; the reasons are listed here, so that nobody adds one in passing
    <!-- with-daemon -->        it is run beside a daemon whose model `smollm2` is scripted
    <!-- permissions.toml -->   it holds rules of a fleet, and no config
"""

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from watchbill.core.messages import AlertKind

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = {"console", "bash", "sh"}

NOT_RUN = {
    "fetches 800 MB",
    "needs a config of llama-swap",
    "needs an Ollama",
    "runs the whole test suite, which runs this page",
    "starts a daemon in the foreground and stays",
    "stays until it is told to leave",
    "starts processes that stay",
    "needs a batch that waits",
}

#: The marker of a block with rules.
RULES = "permissions.toml"
#: Files that the reader makes.
MADE_BY_READERS = {
    "plan.md",
    "RUN_SUMMARY.md",
    "brain/escalations/BATCH.md",
    "watchbill.toml",
    "permissions.toml",
    "queue_log.md",
    "./watchbill.toml",
    "src/watchbill/engines/NAME.py",
}

DAEMON = """
[models.smollm2]
engine = "scripted"
script = { load = "10ms", service = "10ms", memory = "1MiB" }
"""
START_S_MAX = 30


class Block(NamedTuple):
    """A fenced block of a document."""

    place: str
    language: str
    text: str
    marker: str

    @property
    def not_run(self) -> str | None:
        return self.marker.removeprefix("not-run:").strip() if self.marker.startswith("not-run:") else None


class Command(NamedTuple):
    """A command of a console block, and what it is said to print."""

    line: str
    prints: str


def blocks_of(document: Path) -> Iterator[Block]:
    lines = document.read_text().splitlines()
    number = 0
    while number < len(lines):
        if fence := re.match(r"```+", lines[number]):
            end = lines.index(fence[0], number + 1)  # a longer fence may hold a shorter one
            above = lines[number - 1] if number else ""
            marker = re.fullmatch(r"<!-- (.*) -->", above)
            place = f"{document.relative_to(ROOT)}:{number + 1}"
            text = "\n".join(lines[number + 1 : end])
            yield Block(place, lines[number].removeprefix(fence[0]), text, marker[1] if marker else "")
            number = end
        number += 1


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
SHELL_BLOCKS = [block for block in BLOCKS if block.language in SHELLS]


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block (`$ ` begins one, indented lines continue it), or a script as a whole."""
    if block.language != "console":
        return [Command(block.text, "...")]
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], ""))
        elif line.startswith("    ") and not commands[-1].prints:
            commands[-1] = commands[-1]._replace(line=f"{commands[-1].line}\n{line}")
        else:
            commands[-1] = commands[-1]._replace(prints=f"{commands[-1].prints}{line}\n")
    return commands


def masked(expected: str) -> re.Pattern[str]:
    """What a command is said to print, as a pattern: any figure for a figure, anything for three dots."""
    pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*")
    return re.compile(re.sub(r"\d+", r"\\d+", pattern), re.DOTALL)


def run(command: Command, folder: Path, environment: dict[str, str]) -> None:
    printed = printed_by(["bash", "-c", command.line], folder, environment)
    assert masked(command.prints).fullmatch(printed.strip()), f"$ {command.line}\n{printed}"


def printed_by(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a program prints, which has to succeed."""
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"$ {words[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def fresh(tmp_path: Path) -> dict[str, str]:
    """The environment of a newcomer: an empty home, an empty root, our commands first."""
    return newcomer(tmp_path)


def newcomer(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
    home = folder / "home"
    home.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"HOME": str(home), "PATH": path, "WATCHBILL_HOME": str(folder / "root"), "NO_COLOR": "1"}


class Daemon(NamedTuple):
    """A daemon with one scripted model, and the environment of those who find it."""

    url: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all blocks: each says what it wants beside a daemon that serves others, too."""
    folder = tmp_path_factory.mktemp("daemon")
    environment, config = newcomer(folder), folder / "daemon.toml"
    config.write_text(DAEMON)
    argv = [sys.executable, "-m", "watchbill", "up", "--port", "0", "--config", str(config)]
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield Daemon(wait_until_ready(process), environment)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_S_MAX)


def wait_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready "):
            return line.removeprefix("ready ").strip()
    raise AssertionError("".join(said))


@pytest.mark.parametrize("block", [b for b in SHELL_BLOCKS if not b.marker], ids=lambda block: block.place)
def test_a_command_of_the_documents_does_what_they_say(
    block: Block, tmp_path: Path, fresh: dict[str, str]
) -> None:
    for command in commands_of(block):
        run(command, tmp_path, fresh)


@pytest.mark.parametrize(
    "block", [b for b in SHELL_BLOCKS if b.marker == "with-daemon"], ids=lambda block: block.place
)
def test_a_command_beside_a_daemon_does_what_the_documents_say(
    block: Block, tmp_path: Path, daemon: Daemon
) -> None:
    for command in commands_of(block):
        here = command.line.replace("http://127.0.0.1:8470", daemon.url)
        run(command._replace(line=here), tmp_path, daemon.environment)


PYTHON_BLOCKS = [block for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize("block", [b for b in PYTHON_BLOCKS if not b.marker], ids=lambda block: block.place)
def test_a_program_of_the_documents_runs(block: Block, tmp_path: Path, fresh: dict[str, str]) -> None:
    run_program(block.text, tmp_path, fresh)


@pytest.mark.parametrize(
    "block", [b for b in PYTHON_BLOCKS if b.marker == "with-daemon"], ids=lambda block: block.place
)
def test_a_program_beside_a_daemon_runs(block: Block, tmp_path: Path, daemon: Daemon) -> None:
    text = block.text.replace("http://127.0.0.1:8470", daemon.url)
    assert run_program(text, tmp_path, daemon.environment)


def run_program(text: str, folder: Path, environment: dict[str, str]) -> str:
    return printed_by([sys.executable, "-c", text], folder, environment)


def test_every_block_that_is_not_run_has_a_known_reason() -> None:
    strange = [
        block.place
        for block in SHELL_BLOCKS
        if block.marker not in ("", "with-daemon") and block.not_run is None
    ]
    assert not strange, "these markers mean nothing"
    assert {block.not_run for block in SHELL_BLOCKS if block.not_run is not None} == NOT_RUN


CONFIGS = [block for block in BLOCKS if block.language == "toml" and block.marker != RULES]


@pytest.mark.parametrize("block", CONFIGS, ids=lambda block: block.place)
def test_a_config_of_the_documents_loads(block: Block, tmp_path: Path) -> None:
    from watchbill.config import parse

    # No two keys may be equal.
    secrets = {name: f"{name:k<32}" for name in re.findall(r"env:(\w+)", block.text)}
    assert parse(block.text, base=tmp_path, environment=secrets).models


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.marker == RULES], ids=lambda block: block.place)
def test_rules_of_the_documents_are_read_and_pass_their_tests(block: Block) -> None:
    from watchbill.fleet.permissions.ruling import read_rules

    assert read_rules(block.text, RULES).tests


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|toml|md|lock))`", document.read_text())) - MADE_BY_READERS
    places = (ROOT, ROOT / "src" / "watchbill", document.parent)
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_every_module_is_listed_with_its_own_first_sentence() -> None:
    structure = runpy.run_path(str(ROOT / "tools" / "structure.py"))
    text = (ROOT / "docs" / "structure.md").read_text()
    assert text == structure["with_listing"](text), "docs/structure.md is behind the modules; run: make docs"


def test_every_module_says_what_it_is() -> None:
    structure = runpy.run_path(str(ROOT / "tools" / "structure.py"))
    files = [path for path in (ROOT / "src").rglob("*.py") if path.read_text().strip()]
    silent = [str(path.relative_to(ROOT)) for path in files if not structure["first_sentence"](path)]
    assert silent == []


def test_every_kind_of_alert_is_explained() -> None:
    """A person who gets an alert finds out what it means."""
    table = (ROOT / "docs" / "residency.md").read_text().partition("## Alerts")[2]
    assert [kind.value for kind in AlertKind if f"`{kind.value}`" not in table] == []
