"""`doctor`: looks at everything Watchbill depends on and says what to do about what is wrong."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from watchbill.cli.checks import Finding, Health, check_all
from watchbill.cli.options import Common
from watchbill.cli.session import open_for_doctor
from watchbill.cli.terminal import Terminal, plain

__all__ = ["doctor"]

_DEFAULTS = Common()
_SIGNS = {Health.OK: ("✓", "green"), Health.WARN: ("!", "yellow"), Health.FAIL: ("✗", "red")}


def doctor(
    *,
    config: Annotated[
        Path | None, Parameter(help="The config file to look at. Default: the one `up` would take.")
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print the findings as JSON.")
    ] = False,
    common: Common = _DEFAULTS,
) -> int:
    """Check everything Watchbill depends on.

    Environment, root, disk, memory, config, model files and daemon. Exit code 1 when something is broken.
    """
    root, client, terminal = open_for_doctor(common.url, common.root, quiet=common.quiet)
    findings = check_all(root, client, config)
    if json:
        terminal.show(jsonlib.dumps({"findings": [finding._asdict() for finding in findings]}))
    else:
        for finding in findings:
            terminal.show(*_draw(finding, terminal))
    return 1 if any(finding.health is Health.FAIL for finding in findings) else 0


def _draw(finding: Finding, terminal: Terminal) -> list[str]:
    sign, style = _SIGNS[finding.health]
    name = finding.name.ljust(12)
    first, *rest = terminal.wrapped(plain(finding.text), 16)
    lines = [f"{terminal.mark(sign, style)} {terminal.mark(name, 'bold')}  {first.strip()}", *rest]
    if finding.advice:
        lines += [terminal.mark(each, "dim") for each in terminal.wrapped(f"→ {plain(finding.advice)}", 16)]
    return lines
