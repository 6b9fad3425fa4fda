"""What a newcomer can try next; the daemon prints it once it is up, before its ready line."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from watchbill.errors import ConfigError
from watchbill.root import find_root

__all__ = ["command_line", "next_steps"]


def next_steps(url: str, model: str, command: str) -> tuple[str, str, str]:
    """Three commands that work as they stand here."""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f'{command} chat "Why is the sky blue?"',
        f"{command} status",
    )


def command_line(
    root: Path, started_as: Sequence[str] = sys.argv, environment: Mapping[str, str] = os.environ
) -> str:
    """How to call Watchbill in another terminal so that it finds the daemon of this root.

    `make up` starts a program that is on nobody's PATH, and a root that was named once must be named again.
    """
    on_path = shutil.which("watchbill", path=environment.get("PATH"))
    program = started_as[0] if on_path is None and Path(started_as[0]).name == "watchbill" else "watchbill"
    try:
        is_usual = find_root(None, environment).path == root
    except ConfigError:  # nobody knows a home here
        is_usual = False
    return shlex.join([program] if is_usual else [program, "--root", str(root)])
