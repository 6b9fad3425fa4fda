"""Permits: what an agent may do on the board through the door. Pure.

An agent on a mount can touch whatever the mount lets it. One behind the door can do what the protocol gives an agent
and nothing else: claim slips that it may take, give its own back, report in its own result logs, show its own
heartbeat, obey its own signals. The heartbeats of others are readable, because an agent looks whether its card is
taken.
"""

import errno

from watchbill.fleet.folder import places
from watchbill.fleet.folder.slips import headline_of

__all__ = ["Permits"]

_HEARTBEAT = "heartbeat.json"


class Permits:
    """What one agent may do. Every question raises PermissionError where the answer is no."""

    def __init__(self, agent: str) -> None:
        """Raises OursError for a name that no agent has."""
        self.agent = places.check_agent_name(agent)
        self._held = places.processing_folder(agent)
        self._heartbeat = places.heartbeat_path(agent)

    def shown(self, folder: str, names: list[str]) -> list[str]:
        """What of a folder the agent sees."""
        if folder in (places.QUEUE, places.PROCESSING, self._held):
            return names
        if folder == places.SIGNALS:
            return [name for name in names if name.startswith(f"{self.agent}.")]
        if folder == places.RESULTS:
            return [name for name in names if self._is_own_log(name)]
        raise _refused(folder, "list")

    def may_read(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        is_slip = folder == self._held and headline_of(name) is not None
        is_heartbeat = name == _HEARTBEAT and folder.startswith(f"{places.GPUS}/") and _is_plain(folder)
        if not is_slip and not is_heartbeat and not self._is_own_signal(path):
            raise _refused(path, "read")

    def may_put(self, path: str) -> None:
        if path != self._heartbeat:
            raise _refused(path, "write")

    def may_remove(self, path: str) -> None:
        if not self._is_own_signal(path):
            raise _refused(path, "remove")

    def may_make_folder(self, path: str) -> None:
        if path not in (self._held, self._heartbeat.rpartition("/")[0]):
            raise _refused(path, "make")

    def may_move(self, source: str, target: str) -> None:
        """A claim of a slip that is not for another agent, or one's own slip back to the queue."""
        (here, _, name), (there, _, moved) = source.rpartition("/"), target.rpartition("/")
        headline = headline_of(name)
        is_board = (here, there) in ((places.QUEUE, self._held), (self._held, places.QUEUE))
        if headline is None or name != moved or not is_board or "/" in name:
            raise _refused(source, "move")
        if headline.addressee not in ("", self.agent):
            raise _refused(source, "claim")

    def may_log(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if folder != places.RESULTS or not self._is_own_log(name):
            raise _refused(path, "report in")

    def _is_own_log(self, name: str) -> bool:
        whose = places.whose_result_log(name)
        return whose is not None and whose[0] == self.agent

    def _is_own_signal(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return folder == places.SIGNALS and name.startswith(f"{self.agent}.") and "\0" not in name


def _is_plain(folder: str) -> bool:
    return folder.count("/") == 1 and not {".", ".."} & set(folder.split("/")) and "\0" not in folder


def _refused(path: str, verb: str) -> PermissionError:
    return PermissionError(errno.EACCES, f"an agent may not {verb} this", path)
