"""Files that a person names on the command line: a device has no end, and is refused by name."""

import os
import threading
from pathlib import Path

import pytest

from watchbill.cli import run
from watchbill.files.given import OddFile, open_given, read_given

ZERO = "/dev/zero"
COMMANDS = {
    "simulate": ["simulate", ZERO],
    "corpus read": ["corpus", "read", ZERO],
    "corpus check": ["corpus", "check", ZERO],
    "corpus count": ["corpus", "count", ZERO],
    "corpus tail": ["corpus", "tail", ZERO],
    "corpus tail --follow": ["corpus", "tail", "--follow", ZERO],
    "spool enqueue": ["spool", "enqueue", "--spool", "spool", ZERO],
    "spool requeue": ["spool", "requeue", "--spool", "spool", "x", "--content", ZERO],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_device(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """R42: `simulate /dev/zero` took all memory, `corpus read /dev/zero` did not end."""
    monkeypatch.chdir(tmp_path)
    assert run(COMMANDS[command]) != 0
    told = capfd.readouterr().err
    assert ZERO in told and "neither a file nor a pipe" in told, told


def test_a_file_and_a_pipe_are_read_as_far_as_the_bound(tmp_path: Path) -> None:
    """R42: also what a shell's <(...) gives; a link is followed, because the person chose it."""
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_bytes(b"12345")
    link.symlink_to(file)
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"54321",))
    writer.start()
    assert [read_given(each, 5) for each in (file, link, pipe)] == [b"12345", b"12345", b"54321"]
    writer.join(10)
    with pytest.raises(OddFile, match="larger than 4 bytes"):
        read_given(file, 4)
    with pytest.raises(IsADirectoryError):
        open_given(tmp_path)
