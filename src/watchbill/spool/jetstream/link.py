"""One connection to a NATS broker, used from ordinary threads.

Owns a thread with an event loop; everything of a JetStream spool happens on that loop, so nothing there needs a lock.
Every call has a bound. A request that gets no answer (the broker is away, a cluster elects a leader) is sent again
until the bound; its sender makes sure that a second copy does no harm. The connection mends itself.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from watchbill.blocking_http import reason_of
from watchbill.errors import ConfigError
from watchbill.packages import how_to_install
from watchbill.spool.faults import SpoolBroken, SpoolFull
from watchbill.spool.jetstream.reach import Reach
from watchbill.spool.limits import (
    BROKER_AGAIN_S,
    BROKER_CONNECT_S,
    BROKER_PING_S,
    BROKER_REPLY_S,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["NO_MESSAGE", "BrokerSays", "Link", "Received", "Reply"]

T = TypeVar("T")
Reply = dict[str, Any]

#: How the protocol begins the refusal of a client that did not identify itself.
_REFUSED = "authorization"
#: Numbers of the answer that there is no such message; the second is said where it goes at this moment.
NO_MESSAGE = frozenset({10037, 10043, 10057})
#: Answers of JetStream that pass by themselves: no leader yet, too busy.
_PASSING = frozenset({408, 503})
#: An earlier copy of the same message is still being stored: that one is acknowledged to whoever asks once more.
_STILL_STORED = 10158
#: Among those with such a status, the ones that do not pass: the stream's limits, a full store.
_STORE_FAILED, _NO_ROOM, _NO_RESOURCES = 10077, 10047, 10023
_LASTING = frozenset({_STORE_FAILED, _NO_ROOM, _NO_RESOURCES})


@dataclass(frozen=True, slots=True)
class Received:
    """One message. `status` is that of an answer without content, such as 404 for "no messages"."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str]

    @property
    def status(self) -> str:
        return self.headers.get("Status", "")


class BrokerSays(Exception):
    """JetStream refused a request."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.code = int(error.get("code", 0))
        self.number = int(error.get("err_code", 0))
        super().__init__(str(error.get("description", "refused")))

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed in a moment."""
        return self.number == _STILL_STORED or (self.code in _PASSING and self.number not in _LASTING)

    def as_fault(self, doing: str) -> SpoolFull | SpoolBroken:
        text = f"cannot {doing}: the broker says: {self}"
        if self.number in (_NO_ROOM, _NO_RESOURCES):
            text += (
                ": JetStream is at its limit (max_file_store, or that of an account), where nothing can be leased or "
                "finished either; raise it and restart the server, or shorten keep_done of the spool"
            )
        if self.number in _LASTING:
            return SpoolFull(f"{text}; nothing was stored")
        return SpoolBroken(f"{text}; nothing was acknowledged")


class Link:
    """A connection that is made with the first call. `call` is for any thread, all else for the loop's own."""

    def __init__(self, reach: Reach, label: str, inbox: str = "") -> None:
        """`inbox`: the subjects that answers come back on, where they are not to be those of every other client."""
        self.reach = reach
        self._label, self._inbox = label, inbox
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._inboxes: dict[str, Callable[[Received], None]] = {}
        self._trouble = ""
        #: Whether the broker answers, and the subject of the last request has no listener.
        self.has_nobody_there = False
        self.is_closed = False

    def call(self, act: Callable[[], Awaitable[T]], doing: str, *, more_s: float = 0.0) -> T:
        """Run a coroutine function on the loop and return its result, within the bound of the reach and `more_s`.

        Raises what it raises; SpoolBroken when the bound is over, SpoolFull or SpoolBroken for a refusal."""
        if self.is_closed:
            raise ValueError("the spool is closed")
        bound_s = self.reach.wait_s + more_s

        async def bounded() -> T:
            async with asyncio.timeout(bound_s):
                return await act()

        running: Future[T] = asyncio.run_coroutine_threadsafe(bounded(), self._running_loop())
        try:
            return running.result(bound_s + BROKER_CONNECT_S)
        except (TimeoutError, CancelledError) as error:
            running.cancel()
            raise self._away(doing) from error
        except BrokerSays as error:
            raise error.as_fault(doing) from error
        except Exception as error:
            if not _is_of_library(error):
                raise
            self._note_trouble(error)
            raise self._away(doing) from error

    def on_loop(self, act: Callable[[], object]) -> None:
        """Run a function on the loop, soon."""
        self._running_loop().call_soon_threadsafe(act)

    def soon(self, act: Callable[[], Awaitable[None]], after_s: float = 0.0) -> None:
        """Run a coroutine function later, on the loop; its failure is another try of the caller's."""

        async def later() -> None:
            await asyncio.sleep(after_s)
            try:
                async with asyncio.timeout(self.reach.wait_s):
                    await act()
            except (SpoolBroken, SpoolFull, BrokerSays, TimeoutError):
                return
            except Exception as error:
                if not _is_of_library(error):
                    raise

        loop = self._running_loop()
        loop.call_soon_threadsafe(lambda: _keep(loop.create_task(later())))

    async def request(
        self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Received:
        """Send until there is an answer. The caller's bound ends it."""
        while True:
            client = await self._connected()
            try:
                answer = await client.request(
                    subject, data, timeout=BROKER_REPLY_S, headers=dict(headers) if headers else None
                )
            except Exception as error:
                if type(error).__name__ == "MaxPayloadError":
                    raise
                self._trouble = self._trouble or _told(error)
                self.has_nobody_there = type(error).__name__ == "NoRespondersError"
                await asyncio.sleep(BROKER_AGAIN_S)
                continue
            self._trouble, self.has_nobody_there = "", False
            return _received(answer)

    async def is_answered(self, subject: str, data: bytes) -> bool:
        """Send once, and say whether there was an answer in time."""
        client = await self._connected()
        try:
            await client.request(subject, data, timeout=BROKER_REPLY_S)
        except Exception:  # noqa: BLE001  the library's own, which has many: whichever it is, no answer came
            return False
        return True

    async def ask(self, subject: str, data: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """A request that is answered in JSON. Raises BrokerSays for a refusal that does not pass."""
        while True:
            answer = await self.request(subject, data, headers)
            reply = cast("Reply", json.loads(answer.data or b"{}"))
            if "error" not in reply:
                return reply
            refused = BrokerSays(reply["error"])
            if not refused.passes:
                raise refused
            self._trouble = str(refused)
            await asyncio.sleep(BROKER_AGAIN_S)

    async def api(self, verb: str, body: Mapping[str, Any] | None = None) -> Reply:
        """A request of JetStream's own interface."""
        return await self.ask(f"$JS.API.{verb}", json.dumps(body or {}).encode())

    async def delete(self, stream: str, seq: int) -> None:
        """Delete one message; one that is gone is deleted."""
        try:
            await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True})
        except BrokerSays as error:
            if error.number not in NO_MESSAGE:
                raise

    async def connect(self) -> None:
        """Make the connection, if there is none. The caller's bound ends it."""
        await self._connected()

    async def tell(self, subject: str, data: bytes = b"", *, reply: str = "") -> None:
        """Send once, without an answer."""
        client = await self._connected()
        await client.publish(subject, data, reply=reply)

    async def listen(self, subject: str, hear: Callable[[Received], None]) -> None:
        """Call `hear` on the loop for every message of this subject, also after the connection was made anew."""
        client = await self._connected()
        self._inboxes[subject] = hear
        await _subscribe(client, subject, hear)

    async def collect(
        self, subject: str, body: Mapping[str, Any], *, until: frozenset[str]
    ) -> list[Received]:
        """The answers to a request that has several, up to one with such a status."""
        while True:
            try:
                return await self._collect(subject, body, until)
            except TimeoutError:
                self._trouble = "no answer"
            except BrokerSays as refused:
                if not refused.passes:
                    raise
                self._trouble = str(refused)
            await asyncio.sleep(BROKER_AGAIN_S)

    async def _collect(self, subject: str, body: Mapping[str, Any], until: frozenset[str]) -> list[Received]:
        client = await self._connected()
        inbox: asyncio.Queue[Received] = asyncio.Queue()
        address, found = client.new_inbox(), list[Received]()
        subscription = await _subscribe(client, address, inbox.put_nowait)
        try:
            await client.publish(subject, json.dumps(body).encode(), reply=address)
            while (answer := await asyncio.wait_for(inbox.get(), BROKER_REPLY_S)).status not in until:
                if answer.status:
                    told = answer.headers.get("Description") or "no responders"
                    raise BrokerSays({"code": int(answer.status), "description": told.partition("\n")[0]})
                found.append(answer)
        finally:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()
        return found

    @property
    def payload_bytes_max(self) -> int:
        """The largest message that the broker takes; known once there is a connection."""
        return int(self._client.max_payload) if self._client is not None else 0

    @property
    def is_refused(self) -> bool:
        """Whether the servers do not accept how this machine identifies itself."""
        return _REFUSED in self._trouble.lower()

    @property
    def trouble(self) -> str:
        """Why the last try failed, in the words of the server or the library; empty where none did."""
        return self._trouble

    @property
    def is_connected(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

    def close(self) -> None:
        """End the connection and the thread, within a bound."""
        if self.is_closed:
            return
        self.is_closed = True
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with contextlib.suppress(TimeoutError, CancelledError):
            asyncio.run_coroutine_threadsafe(self._leave(), loop).result(2 * BROKER_CONNECT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(BROKER_CONNECT_S)

    def abandon(self) -> None:
        """Forget everything without a word to the broker: for a forked child, whose parent has the connection."""
        self.is_closed = True

    async def _leave(self) -> None:
        if self._client is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._client.close(), BROKER_CONNECT_S)
        for task in asyncio.all_tasks() - {cast("asyncio.Task[None]", asyncio.current_task())}:
            task.cancel()
        await asyncio.sleep(0)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="watchbill-nats", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    async def _connected(self) -> "Client":
        client = self._client
        if client is not None and client.is_connected:
            return client
        async with self._connecting:
            while self._client is not None and not self._client.is_closed:
                if self._client.is_connected:
                    return self._client
                await asyncio.sleep(BROKER_AGAIN_S / 4)  # the library is connecting again
            return await self._connect()

    async def _connect(self) -> "Client":
        """Connect, server after server, until one answers; the caller's bound ends it."""
        options = self._options()
        if "tls" in options:
            logging.getLogger("asyncio").addFilter(_is_of_use)  # one filter, however often it is added
        make = _client_kind(is_encrypted="tls" in options, signs=bool(self.reach.credentials))
        while True:
            client: Client = make()
            try:
                await asyncio.wait_for(
                    client.connect(**options), BROKER_CONNECT_S * (1 + len(self.reach.servers))
                )
                # A server that refuses a client may say so after the connection is made.
                for subject, hear in self._inboxes.items():
                    await _subscribe(client, subject, hear)
            except BaseException as error:
                with contextlib.suppress(Exception):
                    await client.close()
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, TimeoutError):
                    self._note_trouble(error)
                await asyncio.sleep(BROKER_AGAIN_S)
                continue
            break
        self._client, self._trouble = client, ""
        return client

    def _options(self) -> dict[str, Any]:
        reach = self.reach

        async def note(error: Exception) -> None:
            self._note_trouble(error)

        options: dict[str, Any] = {
            "servers": list(reach.servers), "name": self._label, "error_cb": note, "connect_timeout": BROKER_CONNECT_S,
            "reconnect_time_wait": BROKER_AGAIN_S, "max_reconnect_attempts": -1, "ping_interval": BROKER_PING_S,
            "max_outstanding_pings": 2, "drain_timeout": BROKER_CONNECT_S,
        }  # fmt: skip
        named = {
            "user": reach.user, "password": reach.password, "token": reach.token, "user_credentials": reach.credentials,
            "tls": _tls(reach), "inbox_prefix": self._inbox.encode(),
        }  # fmt: skip
        return options | {key: value for key, value in named.items() if value}

    def _note_trouble(self, error: Exception) -> None:
        """Keep why there is no connection. A server that refuses a client then cuts it off, which says less."""
        if _REFUSED not in self._trouble.lower():
            self._trouble = _told(error)

    def _away(self, doing: str) -> SpoolBroken:
        why = f" ({self._trouble})" if self._trouble else ""
        return SpoolBroken(
            f"cannot {doing}: the broker at {self.reach.named} did not answer within {self.reach.wait_s:g} s{why}; "
            "nothing was acknowledged"
        )


_kept: set["asyncio.Task[None]"] = set()


def _keep(task: "asyncio.Task[None]") -> None:
    """Hold a task until it ends; the loop itself holds it only weakly."""
    _kept.add(task)
    task.add_done_callback(_kept.discard)


async def _subscribe(client: Any, subject: str, hear: Callable[[Received], None]) -> Any:
    async def on_message(message: "Msg") -> None:
        hear(_received(message))

    return await client.subscribe(subject, cb=on_message)


def _received(message: "Msg") -> Received:
    headers = {str(getattr(key, "value", key)): str(value) for key, value in (message.headers or {}).items()}
    return Received(message.subject, message.reply or "", message.data, headers)


def _is_of_library(error: Exception) -> bool:
    """Whether the client of NATS raised it: its connection ended between our look at it and its use."""
    return type(error).__module__.startswith("nats.")


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return reason_of(error)
    return str(error).removeprefix("nats: ") or type(error).__name__


def _tls(reach: Reach) -> ssl.SSLContext | None:
    """The context for brokers with TLS; None for a plain connection. Raises ConfigError for a file that is no key."""
    wanted = (
        reach.ca or reach.certificate or any(each.startswith(("tls://", "wss://")) for each in reach.servers)
    )
    if not wanted:
        return None
    try:
        context = ssl.create_default_context(cafile=reach.ca or None)
        if reach.certificate:
            context.load_cert_chain(reach.certificate, reach.key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[nats] the files of TLS cannot be used: {error}") from error
    return context


def _is_of_use(record: logging.LogRecord) -> bool:
    """asyncio's own streams answer the end of a TLS connection in a way that it warns of, on standard error."""
    return "eof_received" not in str(record.msg)


def _client_kind(*, is_encrypted: bool, signs: bool) -> "type[Client]":
    """The class of connections. An encrypted one ends before a word of ours where the server offers no TLS: the library
    would go on without, and send the password and every event in the clear."""
    try:
        import nats.aio.client
        import nats.errors

        if signs:  # the library needs it for credentials, and has it for nothing else
            importlib.import_module("nkeys")
    except ImportError as error:
        raise ConfigError(f"a spool on NATS needs a package: {how_to_install('nats')}") from error
    if not is_encrypted:
        return nats.aio.client.Client

    class Encrypted(nats.aio.client.Client):
        async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
            if initial_connection and not info.get("tls_required"):
                raise nats.errors.Error(
                    "the server offers no TLS, which [nats] asks for: nothing was sent to it"
                )
            await super()._process_info(info, initial_connection)

    return Encrypted
