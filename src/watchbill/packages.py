"""Optional packages: the command that installs one into the environment that Watchbill runs in."""

import shlex
import sys
from importlib import metadata

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """The command for one extra of Watchbill. It names the packages themselves: a clone is on no package index."""
    try:
        listed = metadata.requires("watchbill") or []
    except metadata.PackageNotFoundError:  # run from its sources
        listed = []
    spellings = (f"extra == '{extra}'", f'extra == "{extra}"')
    wanted = [line.partition(";")[0].strip() for line in listed if line.endswith(spellings)]
    return shlex.join([sys.executable, "-m", "pip", "install", *(wanted or [f"watchbill[{extra}]"])])
