"""Folders whose names the locale cannot spell: everything works in them, and paths come out byte for byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOCALES = {
    "C": {"LC_ALL": "C"},
    "ascii": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"LC_ALL": "C.UTF-8"},
}
NAMES = {"utf-8": "mü dir".encode(), "latin-1": b"latin \xfc"}
#: Each name in ASCII, and in one of the two locales in which Python speaks UTF-8.
CASES = [("utf-8", "C"), ("utf-8", "ascii"), ("latin-1", "ascii"), ("latin-1", "utf-8")]
CONFIG = b'[models.alpha]\nengine = "scripted"\nmemory = "20MB"\nscript = {}\n'
EVENT = b'{"id": "1", "kind": "note", "ts": 0}\n'


@pytest.mark.parametrize(("named", "locale"), CASES)
def test_a_root_a_config_and_a_spool_may_have_any_name(tmp_path: Path, named: str, locale: str) -> None:
    """pitfalls: no locale and no file name ends in a traceback, and a script can work with each path it is told."""
    name = NAMES[named]
    home, is_text = os.path.join(os.fsencode(tmp_path), name), named == "utf-8"
    os.mkdir(home)
    root, config, events = (os.path.join(home, name + each) for each in (b"", b".toml", b".jsonl"))
    Path(os.fsdecode(config)).write_bytes(CONFIG)
    Path(os.fsdecode(events)).write_bytes(EVENT)
    environment = {"PATH": os.environ["PATH"], "HOME": os.fsdecode(home)} | LOCALES[locale]

    def run(*words: str | bytes) -> tuple[int, bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "watchbill", *words, b"--root", root], env=environment, cwd=home,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr
        done.stderr.decode()  # a message is text, whatever it speaks of
        return done.returncode, done.stdout + done.stderr

    code, said = run("up", "--detach", "--port", "0", "--config", config)
    assert code == 0, said
    try:
        assert not is_text or os.path.join(root, b"logs") in said
        for words in (["status"], ["models"], ["config", "show"], ["config", "show", "--json"], ["doctor"]):
            assert run(*words)[0] == 0, words
        assert config in run("config", "check")[1]
        spool = os.path.join(home, b"spool " + name)
        assert run("spool", "enqueue", events, "--spool", spool)[0] == 0
        for words in (["list"], ["list", "--json"], ["stats"]):
            assert run("spool", *words, "--spool", spool)[0] == 0
        code, leased = run("spool", "dequeue", "--spool", spool, "--quiet")
        assert (code, Path(os.fsdecode(leased.rstrip(b"\n"))).read_bytes()) == (0, EVENT)
        assert run("spool", "done", leased.rstrip(b"\n"), "--spool", spool)[0] == 0
        assert not is_text or events in run("spool", "enqueue", events + b"x", "--spool", spool)[1]
        units = run("systemd", "units", "--self", "--user", "--dir", os.path.join(home, b"units"))
        assert units[0] == 0 or b"cannot be written into a unit file" in units[1]  # which is UTF-8 text
    finally:
        code, said = run("down")
    assert code == 0, said
    assert not is_text or root in run("status")[1]


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    """pitfalls: `| head -1` shows no traceback, and a script's `pipefail` sees 0."""
    for words in (
        "--help",
        "simulate",
        "config reference",
        "config schema",
        "spool --help",
        "completion bash",
    ):
        done = subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$0" -m watchbill {words} | head -1 > first', sys.executable],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C"}, cwd=tmp_path,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (words, done.returncode, done.stderr) == (words, 0, "")
