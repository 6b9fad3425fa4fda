"""Looks the locked packages up in the list of known vulnerabilities: the last step of `make check`.

Fails on a known vulnerability only. Where the list cannot be reached the check says so and passes: a machine
without network must be able to run `make check`, and a lock does not become worse by being offline.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-setup.lock", "requirements-clients.lock")
TIMEOUT_S = 180


def main() -> int:
    worst = 0
    for lock in LOCKS:
        text, status = verdict(lock)
        print(f"{lock}: {text}")
        worst = max(worst, status)
    return worst


def verdict(lock: str) -> tuple[str, int]:
    """Says in one line what is known about a lock's packages, and whether that is a failure."""
    packages = audit(lock)
    if isinstance(packages, str):
        return f"known vulnerabilities not checked: {packages}", 0
    vulnerable = [
        f"{package['name']} {package['version']}: {', '.join(found['id'] for found in package['vulns'])}"
        for package in packages
        if package.get("vulns")
    ]
    if vulnerable:
        return "\n  ".join([f"{len(vulnerable)} packages with known vulnerabilities", *vulnerable]), 1
    unknown = sum(1 for package in packages if "skip_reason" in package)
    if unknown == len(packages):
        return f"known vulnerabilities not checked: no data for any of {unknown} packages", 0
    return f"no known vulnerability in {len(packages) - unknown} packages, no data for {unknown}", 0


def audit(lock: str) -> list[dict[str, Any]] | str:
    """Asks pip-audit. Gives the packages with what is known of each, or the reason why nothing is known."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--disable-pip", "--require-hashes", "--requirement", lock]
    try:
        done = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} s"
    try:
        return json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or [f"pip-audit exit {done.returncode}"])[-1]


if __name__ == "__main__":
    sys.exit(main())
