"""The keeper: starts processes for one root and keeps a record of each, so that none is ever lost.

Everything Watchbill starts goes through here: engines, stop commands, a `--help` that is read once.
"""

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from watchbill.files.host import boot_id
from watchbill.processes import limits
from watchbill.processes.environment import Withheld
from watchbill.processes.logs import open_log
from watchbill.processes.owned import Command, OwnedProcess, shielded
from watchbill.processes.ports import claim_port, release_port
from watchbill.processes.registry import ROOT_MARK, TOKEN_MARK, Record, Registry, root_id

__all__ = ["Finished", "Keeper"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A short command that ran to its end, or was stopped at its bound (`code` is then negative)."""

    code: int | None
    output: str


class Keeper:
    """Starts all operating system processes of one root."""

    def __init__(
        self,
        root: Path,
        *,
        log_bytes_max: int = limits.LOG_FILE_BYTES_MAX,
        withheld: Withheld | None = None,
    ) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root = root
        self._log_bytes_max = log_bytes_max
        self._withheld = withheld or Withheld()
        self._mark = root_id(root)
        self._registry = Registry(root)
        self._ports = root / "run" / "ports"

    def claim_port(self) -> int:
        """A free port that no other process of this root has been given."""
        return claim_port(self._ports)

    def release_port(self, port: int) -> None:
        """Gives a port back."""
        release_port(self._ports, port)

    async def start(
        self,
        label: str,
        argv: tuple[str, ...],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> OwnedProcess:
        """Starts a command behind a guard, its output in `log`. Raises OSError when it cannot be started."""
        bounds = (self._log_bytes_max, limits.LOG_FILES_MAX)
        return await self._start(label, argv, log=log, log_bounds=bounds, env=env or {}, cwd=cwd)

    async def _start(
        self,
        label: str,
        argv: tuple[str, ...],
        *,
        log: Path,
        log_bounds: tuple[int, int],  # bytes of a file, files
        env: Mapping[str, str],
        cwd: Path | None = None,
    ) -> OwnedProcess:
        record = Record(secrets.token_hex(8), label, boot_id())
        self._registry.write(record)
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        descriptor, tail = open_log(log, f"{when} {label}: {' '.join(argv)}", log_bounds[0])
        command = Command(argv, self._environment(record, env), descriptor, *log_bounds, cwd=cwd)
        process = OwnedProcess(record, self._registry, tail)
        try:
            await process.start(command)
        finally:
            os.close(descriptor)
        return process

    async def run(
        self,
        label: str,
        argv: tuple[str, ...],
        *,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> Finished:
        """Runs a short command and returns the first mebibyte of its output. Bounded in time."""
        output = self.root / "run" / f"output-{secrets.token_hex(8)}"
        try:
            # One file of that size: the guard drops the rest.
            bounds = (limits.COMMAND_OUTPUT_BYTES_MAX, 1)
            process = await self._start(label, argv, log=output, log_bounds=bounds, env=env or {})
            try:
                await process.ends_within(timeout_ms or limits.COMMAND_MS_MAX)
            finally:
                await shielded(process.stop(hard=True))
            ending = await process.ended()
            with output.open("rb") as file:
                file.seek(process.log.begin)
                text = file.read(limits.COMMAND_OUTPUT_BYTES_MAX).decode("utf-8", "replace")
            return Finished(ending.code, text)
        finally:
            output.unlink(missing_ok=True)

    def _environment(self, record: Record, env: Mapping[str, str]) -> dict[str, str]:
        # The marks come first: /proc/PID/environ is only read as far as necessary.
        marks = {ROOT_MARK: self._mark, TOKEN_MARK: record.token}
        return marks | self._withheld.rest_of(os.environ) | dict(env) | marks
