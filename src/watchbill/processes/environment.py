"""The environment of engines: the daemon's own, without the daemon's private variables.

An engine runs third-party code on third-party weights. It gets neither the gateway's API keys, under whatever name, nor
the means to speak to systemd in the daemon's name. Everything else stays (PATH, HOME, CUDA_*, LD_LIBRARY_PATH, locale,
proxies, HF_TOKEN), and a model's own `env` wins.
"""

from collections.abc import Iterable, Mapping

__all__ = ["Withheld"]

#: Prefix of our own variables: the command line's key and address, switches of the daemon, and future ones.
_OURS = "WATCHBILL_"
#: Variables that an init system hands to the one process that it started.
_OF_THE_SERVICE = frozenset(
    {
        "CREDENTIALS_DIRECTORY", "FDSTORE", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDNAMES", "LISTEN_FDS",
        "LISTEN_PID", "MAINPID", "MANAGERPID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC",
    }
)  # fmt: skip


class Withheld:
    """The variables that no engine gets. The names that hold API keys change with the config."""

    def __init__(self, key_variables: Iterable[str] = ()) -> None:
        self.key_variables = frozenset(key_variables)

    def rest_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment that an engine inherits."""
        hidden = self.key_variables | _OF_THE_SERVICE
        keys = {environment.get(name, "") for name in self.key_variables} - {""}
        return {
            name: value
            for name, value in environment.items()
            if name not in hidden and not name.startswith(_OURS) and value not in keys
        }
