"""Lookup: which config a command uses. The one place that decides it.

    1. the file named with --config
    2. $WATCHBILL_CONFIG
    3. the config of the root's daemon: of the one that runs or, where --root names the root, of the last one
    4. ./watchbill.toml
    5. ~/.config/watchbill/watchbill.toml ($XDG_CONFIG_HOME is honoured)
    6. the embedded default

`up` starts a daemon and skips step 3. Without --root the last daemon does not count: on the usual root it may have
served another project, and `config check` in this one means the file here. Never reads a config.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from watchbill.errors import ConfigError
from watchbill.root import Root

__all__ = ["VARIABLE", "find_config"]

VARIABLE = "WATCHBILL_CONFIG"


def find_config(
    named: Path | None, root: Root | None, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """The config to read; None is the embedded default. `root` is the root of a command that works beside its daemon.

    Raises ConfigError when the config of a root that was named cannot be told.
    """
    if named is not None:
        return named
    if chosen := environment.get(VARIABLE):
        return Path(chosen).expanduser()
    if root is not None and (running := _config_of_daemon(root)) is not None:
        return running
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    candidates = (Path("watchbill.toml"), home / "watchbill" / "watchbill.toml")
    # Whatever it is: a broken link or a pipe with that name is refused when it is read, not passed over in silence.
    return next((candidate for candidate in candidates if os.path.lexists(candidate)), None)


def _config_of_daemon(root: Root) -> Path | None:
    try:
        config = root.read_config_path()
        if config is None:
            return None
        record = root.read_daemon()
    except (OSError, ConfigError) as error:  # whichever errno: most often a root of another user
        if root.is_named:
            why = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"which config the root {root.path} uses cannot be told: {why}; name it with --config"
            ) from error
        return None
    if record is not None and record.is_alive():
        return config
    return config if root.is_named and os.path.lexists(config) else None
