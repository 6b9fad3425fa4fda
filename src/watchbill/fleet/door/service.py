"""The door on a NATS broker: agents ask on SUBJECT.AGENT; SUBJECT.news.FOLDER tells them that something has arrived.

Requests are plain messages that nothing stores: a broker without JetStream will do, and a request that is lost is sent
again. Each agent has one of a few threads, so that one with slow files does not stop the others, and its requests are
answered in their order. News only save waiting: agents look by themselves, too.
"""

import logging
import queue
import threading
import time
import zlib
from pathlib import Path

from watchbill.errors import OursError
from watchbill.files.watch import Watch
from watchbill.fleet import limits
from watchbill.fleet.door.caller import refuse_small_messages
from watchbill.fleet.door.door import Door
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.spool.faults import SpoolBroken
from watchbill.spool.jetstream.link import Link, Received
from watchbill.spool.jetstream.reach import Reach

__all__ = ["DoorService"]

_LOG = logging.getLogger("watchbill.door")
#: What agents hear of.
_NEWS = (places.QUEUE, places.SIGNALS)


class DoorService:
    """Serves one shared folder until it is stopped."""

    def __init__(self, root: Path, reach: Reach, subject: str) -> None:
        """Raises OursError for a folder that is no fleet."""
        self.mount = places.probe(root)
        self._root, self._subject = root, subject
        self._door = Door(root, filled=not self.mount.is_network)
        self._link = Link(reach, f"watchbill door {subject}")
        self._waiting: list[queue.Queue[Received | None]] = [
            queue.Queue(limits.DOOR_WAITING_MAX) for _ in range(limits.DOOR_THREADS)
        ]
        self._watch = Watch(root, inotify=not self.mount.is_network)
        self._is_stopping = threading.Event()

    def run(self) -> None:
        """Serve until `stop`. Raises OursError when it must not start, SpoolBroken where there is no broker."""
        threads = [threading.Thread(target=self._work, args=(each,), daemon=True) for each in self._waiting]
        try:
            self._open()
            for thread in threads:
                thread.start()
            self._spread_news()
        finally:
            self._close(threads)

    def stop(self) -> None:
        """End `run`, from any thread."""
        self._is_stopping.set()
        self._watch.wake()

    # ------------------------------------------------------------ life

    def _open(self) -> None:
        self._link.call(self._link.connect, "open the door")
        refuse_small_messages(self._link)
        if self._link.call(lambda: self._link.is_answered(f"{self._subject}.door", b"{}"), "open the door"):
            raise OursError(
                f"another door answers at {self._subject}",
                hint="stop that one, or give this folder another subject in [fleet]",
            )
        self._link.call(lambda: self._link.listen(f"{self._subject}.*", self._hear), "open the door")
        _LOG.info("agents reach %s over %s at %s", self._root, self._link.reach.named, self._subject)

    def _close(self, threads: list[threading.Thread]) -> None:
        for waiting, thread in zip(self._waiting, threads, strict=True):
            if thread.is_alive():
                waiting.put(None)
                thread.join(limits.DOOR_LOOK_MS / 1000)
        self._link.close()
        self._door.close()
        self._watch.close()

    # ------------------------------------------------------------ requests

    def _hear(self, request: Received) -> None:
        """A request has come, on the thread of the connection."""
        agent = request.subject.rpartition(".")[2]
        try:
            self._waiting[zlib.crc32(agent.encode()) % len(self._waiting)].put_nowait(request)
        except queue.Full:  # its agent sends it again
            _LOG.warning("busy: a request of %s has to be sent again", agent)

    def _work(self, waiting: "queue.Queue[Received | None]") -> None:
        while (request := waiting.get()) is not None:
            try:
                answer = self._door.answer(request.subject.rpartition(".")[2], request.data)
            except Exception:  # noqa: BLE001  a mistake of ours ends one request, not the door
                _LOG.exception("a request to %s failed", request.subject)
                continue
            if answer is not None and request.reply:
                self._link.soon(lambda reply=request.reply, said=answer: self._link.tell(reply, said))

    # ------------------------------------------------------------ news

    def _spread_news(self) -> None:
        """Tell agents of arrivals until the door is stopped, and mind the connection."""
        self._watch.follow(_NEWS)
        disk, seen = FolderDisk(self._root), dict[str, list[str]]()
        looked_at = time.monotonic()
        while not self._is_stopping.is_set():
            wait_ms = limits.AGENT_POLL_BUSY_MS if self._watch.is_blind else limits.DOOR_LOOK_MS
            if self._watch.wait(wait_ms / 1000):
                time.sleep(limits.DOOR_NEWS_MS / 1000)
            for folder in _NEWS:
                self._look(disk, folder, seen)
            if time.monotonic() - looked_at > limits.DOOR_LOOK_MS / 1000:
                looked_at = time.monotonic()
                self._mind_the_connection()

    def _look(self, disk: FolderDisk, folder: str, seen: dict[str, list[str]]) -> None:
        try:
            names = disk.names(folder)
        except OSError as error:
            _LOG.warning("%s cannot be read: %s", folder, error)
            return
        if set(names) - set(seen.get(folder, ())):
            subject = f"{self._subject}.news.{folder.rpartition('/')[2]}"
            self._link.soon(lambda: self._link.tell(subject))
        seen[folder] = names

    def _mind_the_connection(self) -> None:
        """A connection that the broker has ended for good is made anew; the library mends all others."""
        try:
            self._link.call(self._link.connect, "reach agents")
        except SpoolBroken as error:
            _LOG.warning("%s", error)
