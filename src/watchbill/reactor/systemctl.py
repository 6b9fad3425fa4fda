"""systemctl: the one program the reactor runs, word by word, without a shell."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from watchbill.processes.command import run_to_end
from watchbill.reactor import limits

__all__ = ["Systemctl", "UnitState"]

#: All that systemctl needs to find its bus; nothing else of our environment reaches it.
_PASSED_ON = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd says about a unit."""

    active: str = ""  # active, activating, deactivating, inactive, failed; empty when it does not say
    result: str = ""
    has_job: bool = False  # something is still to be done with it


class Systemctl:
    """Runs systemctl and waits for it. Blocks: call it in a thread."""

    def __init__(self, program: str = "systemctl", *, user: bool = False) -> None:
        self._words = (program, "--user") if user else (program,)

    def act(self, verb: str, unit: str, *, wait: bool = True) -> tuple[bool, str]:
        """Whether `systemctl VERB UNIT` succeeded, and what it said."""
        block = () if wait else ("--no-block",)
        code, output = self._run(verb, *block, "--", unit)
        if code is None:
            return False, f"systemctl {verb} did not end within {limits.SYSTEMCTL_MS_MAX // 1000} s"
        return code == 0, output

    def state(self, unit: str) -> UnitState:
        """What the unit is doing."""
        _, output = self._run("show", "--property=ActiveState,Result,Job", "--", unit)
        fields = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        has_job = fields.get("Job", "") not in ("", "0")
        return UnitState(fields.get("ActiveState", ""), fields.get("Result", ""), has_job)

    def _run(self, *words: str) -> tuple[int | None, str]:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        with tempfile.TemporaryDirectory(prefix="watchbill-reactor-") as folder:
            output = Path(folder) / "output"
            try:
                code = run_to_end(
                    (*self._words, *words),
                    log=output,
                    env={**env, "LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"},
                    seconds_max=limits.SYSTEMCTL_MS_MAX / 1000,
                    on_tick=lambda: None,
                    tick_s=_TICK_S,
                )
            except OSError as error:  # whatever keeps it from running, the asker must learn it
                return 127, f"{self._words[0]} cannot be run: {error.strerror}"
            with output.open("rb") as file:
                said = file.read(limits.SYSTEMCTL_OUTPUT_BYTES_MAX)
        return code, said.decode("utf-8", "replace").strip()
