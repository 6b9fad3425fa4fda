"""Which shared folder: --root, else $WATCHBILL_FLEET, else `[fleet] root` of the config, else ROOT/fleet of the daemon.

Reads the config with the standard library alone: the machine that submits plans may have nothing else.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from watchbill.errors import OursError
from watchbill.files.given import read_given
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.limits import CONFIG_FILE_BYTES_MAX
from watchbill.root import find_root

__all__ = ["FLEET_VARIABLE", "find_fleet", "open_fleet"]

FLEET_VARIABLE = "WATCHBILL_FLEET"


def find_fleet(root: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The shared folder; it need not exist. Opens nothing but the config. What is made in it by this process is its
    group's."""
    folder = _named(root, environment)
    places.share_with_group(folder)
    return folder


def _named(root: Path | None, environment: Mapping[str, str]) -> Path:
    if root is not None:
        return root.absolute()
    if named := environment.get(FLEET_VARIABLE):
        return Path(named).absolute()
    return _configured(environment) or find_root(None).path / "fleet"


def open_fleet(root: Path | None) -> tuple[Path, FolderDisk]:
    """The shared folder, which must be there, and the way to read it. Raises OursError."""
    folder = find_fleet(root)
    places.check_root(folder)
    return folder, FolderDisk(folder)


def _configured(environment: Mapping[str, str]) -> Path | None:
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for file in (Path("watchbill.toml"), home / "watchbill" / "watchbill.toml"):
        try:
            content = tomllib.loads(read_given(file, CONFIG_FILE_BYTES_MAX).decode("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise OursError(
                f"{file} cannot be read: {error}", hint="correct it, or name the folder with --root"
            ) from None
        table: object = content.get("fleet")
        named: object = cast("dict[str, object]", table).get("root") if isinstance(table, dict) else None
        return (
            (file.absolute().parent / Path(named).expanduser()) if isinstance(named, str) and named else None
        )
    return None
