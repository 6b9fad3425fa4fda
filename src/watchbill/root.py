"""The state root: the one folder under which a Watchbill keeps all its state.

It owns the location of the root, its folders, the VERSION file with the number of their layout, and `run/daemon.json`,
by which the command line finds the daemon. It promises that only its owner can read the root, and that a root written
by a newer Watchbill is refused instead of misread. It never takes the daemon's lock and never starts or signals a
process; it only checks whether the recorded one still lives.

    ROOT/VERSION            the layout's number
    ROOT/run/daemon.json    pid, start time, boot id and address of the running daemon, and the identity of its folder
    ROOT/run/daemon.lock    held by the daemon for as long as it lives
    ROOT/config.path        the config file that the daemon was started with, also after its end
    ROOT/logs/              the daemon's log, and one file per engine
    ROOT/models/            model files that `pull` fetched, and the library of names that callers made
    ROOT/responses/         responses of /v1/responses, kept for a day
    ROOT/batches/           uploaded files and batches, a folder per key
"""

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from watchbill import __version__
from watchbill.errors import ConfigError
from watchbill.files.atomic import replace_file
from watchbill.files.host import boot_id, start_time
from watchbill.limits import CONFIG_PATH_BYTES_MAX, DAEMON_RECORD_BYTES_MAX
from watchbill.quoting import quoted

__all__ = [
    "LAYOUT_VERSION",
    "DaemonRecord",
    "Root",
    "command_for",
    "find_root",
]

#: The layout this Watchbill reads and writes. Raise it with a step in MIGRATIONS.
LAYOUT_VERSION = 1

#: From a layout's number to the step that turns it into the next one. 0 is a root without a VERSION file.
MIGRATIONS: Mapping[int, Callable[["Root"], None]] = {0: lambda _: None}

#: Errors that an operator can fix; any other one is unexpected and stays a traceback.
_OPERATORS_ERRNO = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOSPC, errno.EDQUOT,
     errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT}
)  # fmt: skip


class DaemonRecord(NamedTuple):
    """The daemon's record of itself. A pid alone proves nothing: pids are reused."""

    pid: int
    start_time: int
    boot_id: str
    url: str
    version: str
    folder: str = ""  # identity of its root folder, also after a move; empty in records of older versions

    def is_alive(self) -> bool:
        """Whether this very process still runs: same boot, same pid, same start time."""
        return self.boot_id == boot_id() and start_time(self.pid) == self.start_time


class Root:
    """One state root and the places in it."""

    __slots__ = ("is_named", "path")

    def __init__(self, path: Path, *, is_named: bool = False) -> None:
        self.path = path
        self.is_named = is_named  # by the command itself; a variable or a default holds for many commands

    @property
    def run(self) -> Path:
        """Files that are valid only while the daemon lives."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        """The daemon's log and the engines' logs."""
        return self.path / "logs"

    @property
    def models(self) -> Path:
        """Model files that were pulled."""
        return self.path / "models"

    @property
    def responses(self) -> Path:
        """Responses that are kept for their callers."""
        return self.path / "responses"

    @property
    def batches(self) -> Path:
        """Uploaded files, and batches with their results."""
        return self.path / "batches"

    @property
    def traffic(self) -> Path:
        """Arrivals, waits and loads of the last day."""
        return self.path / "traffic"

    @property
    def lock_file(self) -> Path:
        """The lock that makes one daemon per root."""
        return self.run / "daemon.lock"

    @property
    def daemon_file(self) -> Path:
        """The file of the daemon's record."""
        return self.run / "daemon.json"

    @property
    def config_path_file(self) -> Path:
        """The file that names the config of the daemon."""
        return self.path / "config.path"

    @property
    def daemon_log(self) -> Path:
        """The daemon's own log."""
        return self.logs / "daemon.log"

    @property
    def version_file(self) -> Path:
        """The number of the layout."""
        return self.path / "VERSION"

    def command(self, *words: str) -> str:
        """A command for a person to paste that names this root: it works unchanged, spaces included."""
        return command_for(self.path, *words)

    def command_to_start(self) -> str:
        """The command that starts a daemon here, with the config that the last one had."""
        try:
            config = self.read_config_path()
        except OSError:  # whichever errno: a hint goes without it
            config = None
        named = [] if config is None or not config.exists() else ["--config", str(config)]
        return self.command("up", *named)

    def create(self) -> None:
        """Makes the folders that are missing, for their owner only. Raises ConfigError when it cannot."""
        for folder in (self.path, self.run, self.logs, self.models):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                if error.errno in _OPERATORS_ERRNO:
                    # Only a folder may exist already: something else is in its place.
                    why = "is not a folder" if error.errno == errno.EEXIST else (error.strerror or "").lower()
                    raise ConfigError(
                        f"cannot use {self.path} as root: {folder}: {why}; name another with --root"
                    ) from error
                raise

    def settle_version(self) -> int:
        """Brings the layout up to date and returns the number it had. Call it with the daemon's lock held.

        Raises ConfigError when the root was written by a newer Watchbill.
        """
        found = self.read_version()
        if found > LAYOUT_VERSION:
            raise ConfigError(
                f"{self.path} has layout {found}, written by a newer Watchbill; this one ({__version__}) "
                f"reads up to {LAYOUT_VERSION}: upgrade it or name another root with --root"
            )
        for number in range(found, LAYOUT_VERSION):
            MIGRATIONS[number](self)
            replace_file(self.version_file, f"{number + 1}\n".encode())
        return found

    def read_version(self) -> int:
        """The layout's number; 0 when none is written. Raises ConfigError when it is not a number."""
        try:
            text = self.version_file.read_text(encoding="ascii", errors="replace")[:64].strip()
        except FileNotFoundError:
            return 0
        if not text.isdecimal():
            raise ConfigError(f"{self.version_file} should hold a number and holds {quoted(text)}")
        return int(text)

    def write_daemon(self, url: str) -> DaemonRecord:
        """Records this process as the daemon that answers at `url`."""
        pid = os.getpid()
        record = DaemonRecord(pid, start_time(pid) or 0, boot_id(), url, __version__, _identity(self.path))
        replace_file(self.daemon_file, json.dumps(record._asdict()).encode() + b"\n")
        return record

    def read_daemon(self) -> DaemonRecord | None:
        """The daemon's record, or None when there is none. Raises ConfigError for a root of another user.

        A record that came with a copy of another root does not count: it describes that root's daemon.
        """
        try:
            with self.daemon_file.open("rb") as file:
                record = _parse_record(file.read(DAEMON_RECORD_BYTES_MAX))
            is_ours = record is not None and record.folder in {"", _identity(self.path)}
            return record if is_ours else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise ConfigError(
                f"the root {self.path} belongs to another user; name the daemon's address with --url, "
                "or another root with --root"
            ) from error

    def write_config_path(self, config: Path | None) -> None:
        """Records the config that the daemon runs with; None is the embedded one."""
        path = "" if config is None else os.path.abspath(config)
        replace_file(self.config_path_file, os.fsencode(path) + b"\n")

    def read_config_path(self) -> Path | None:
        """The config that the daemon of this root runs with, or that the last one ran with.

        None where there was no daemon, or one without a config file. Raises OSError when it cannot be read.
        """
        try:
            with self.config_path_file.open("rb") as file:
                path = file.read(CONFIG_PATH_BYTES_MAX).removesuffix(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Path(os.fsdecode(path)) if path.startswith(b"/") and b"\0" not in path else None

    def forget_daemon(self) -> None:
        """Removes the daemon's record; does nothing when there is none."""
        self.daemon_file.unlink(missing_ok=True)


def find_root(chosen: Path | None = None, environment: Mapping[str, str] = os.environ) -> Root:
    """The root: the one chosen on the command line, else $WATCHBILL_HOME, else ~/.local/share/watchbill."""
    named = chosen or environment.get("WATCHBILL_HOME") or "~/.local/share/watchbill"
    try:
        return Root(Path(os.path.abspath(Path(named).expanduser())), is_named=chosen is not None)
    except RuntimeError as error:  # no home directory to expand ~ with
        raise ConfigError(f"cannot tell where {named} is: {error}; name the root with --root") from error


def command_for(
    root: Path,
    *words: str,
    started_as: Sequence[str] = sys.argv,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The Watchbill command that uses this root.

    `make up` starts a program that is not on the PATH, and a root that was named once must be named again.
    """
    import shlex  # only for hints: `status` has no time for it
    import shutil

    program = ["watchbill"]
    if shutil.which(program[0], path=environment.get("PATH")) is None:
        is_script = Path(started_as[0]).name == "watchbill"
        program = [started_as[0]] if is_script else [sys.executable, "-m", "watchbill"]
    return shlex.join([*program, *_naming(root, environment), *words])


def _naming(root: Path, environment: Mapping[str, str]) -> list[str]:
    """The option that names this root, unless every terminal finds it without.

    $WATCHBILL_HOME is of no help: it may be set in this terminal and not in the one that the command is pasted into.
    """
    try:
        usual = {find_root(None, environment).path, find_root(None, {}).path}
    except ConfigError:  # without a home folder there is no usual root
        usual = set[Path]()
    return [] if usual == {root} else ["--root", str(root)]


def _parse_record(text: bytes) -> DaemonRecord | None:
    try:
        found = cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fields = cast("dict[str, object]", found)
    pid, started = fields.get("pid"), fields.get("start_time")
    texts = [fields.get(name) for name in ("boot_id", "url", "version", "folder")]
    if not (isinstance(pid, int) and pid > 0 and isinstance(started, int)):
        return None
    boot, url, version, folder = (text if isinstance(text, str) else "" for text in texts)
    return DaemonRecord(pid, started, boot, url, version, folder)


def _identity(folder: Path) -> str:
    """The identity of a folder: a copy has another one, a moved or mounted folder has the same."""
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"
