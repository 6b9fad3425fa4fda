"""What bash says about a script that it only parses (`bash -n`). Nothing of the script is run."""

import os
import subprocess

__all__ = ["parse_only"]


def parse_only(script: str, timeout_s: float) -> str:
    """The complaint of bash about a script; "" where it can parse it.

    Raises FileNotFoundError where there is no bash, and TimeoutError.
    """
    # Neither start files nor functions of the environment; messages in English.
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    words = ["bash", "--noprofile", "--norc", "-n", "-c", script, "watchbill"]
    try:
        asked = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, check=False,
            timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeoutError("bash took too long to parse a script") from None
    if asked.returncode == 0:
        return ""
    return asked.stderr.decode("utf-8", "replace") or "bash cannot parse it"
