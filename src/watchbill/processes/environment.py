"""The environment of engines: the daemon's own, without what is the daemon's alone.

An engine runs other people's code on other people's weights: it gets neither the gateway's API keys nor the means to
speak to systemd in the daemon's name. Everything else stays (PATH, HOME, CUDA_*, LD_LIBRARY_PATH, locale, proxies,
HF_TOKEN), and what a model's own `env` says wins.
"""

from collections.abc import Iterable, Mapping

__all__ = ["Withheld"]

#: Our own variables: the command line's key and address, switches of the daemon, whatever comes later.
_OURS = "WATCHBILL_"
#: What an init system hands to the one process that it started.
_OF_THE_SERVICE = frozenset(
    {
        "CREDENTIALS_DIRECTORY", "FDSTORE", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDNAMES", "LISTEN_FDS",
        "LISTEN_PID", "MAINPID", "MANAGERPID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC",
    }
)  # fmt: skip


class Withheld:
    """Which variables no engine gets. The names that hold API keys change with the config."""

    def __init__(self, key_variables: Iterable[str] = ()) -> None:
        self.key_variables = frozenset(key_variables)

    def rest_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment that an engine inherits."""
        hidden = self.key_variables | _OF_THE_SERVICE
        return {
            name: value
            for name, value in environment.items()
            if name not in hidden and not name.startswith(_OURS)
        }
