"""The Ollama engine: models in the memory of an Ollama server that was there before us and stays after us.

A load is an empty prompt with `keep_alive: -1`, so that the model leaves when we say so and not five minutes after its
last answer; an unload is the same with 0, and ends when `/api/ps` no longer lists the model. A model that somebody
else loaded is taken over when we are asked for it; all the others in `/api/ps` belong to other clients and are never
touched. Ollama may drop a model by itself, when another client unloads it or needs its room: that is a death, and so
is an Ollama that does not answer any more.

What we hold is written down in `ROOT/run`: Ollama would keep the models of a killed daemon for ever, so the next
start gives them back.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from watchbill import limits
from watchbill.catalog import RAM, EngineRules, Model
from watchbill.engines.address import endpoint_of
from watchbill.engines.base import Capabilities, LoadError, Warm
from watchbill.engines.foreign import Hold
from watchbill.engines.ollama_api import FOR_EVER, Loaded, OllamaApi, OllamaSaid, full_name
from watchbill.engines.upstream import UpstreamFailed
from watchbill.engines.warmup import warm_up
from watchbill.errors import EngineFailed
from watchbill.names import file_stem
from watchbill.units import format_millis

__all__ = ["DEFAULT_URL", "OllamaHost"]

DEFAULT_URL = "http://127.0.0.1:11434"
_LOG = logging.getLogger("watchbill.engines")


class OllamaHost:
    """One Ollama server, and what we hold in it."""

    # Ollama stops working on an answer when its client leaves.
    capabilities = Capabilities(owned=True, measures_memory=True, stops_generation=True)
    leaves_remains = False  # what is not listed is not there; to unload it might hit another client's

    def __init__(self, rules: EngineRules, root: Path) -> None:
        self._rules = rules
        self._url = rules.url or DEFAULT_URL
        self._api = OllamaApi(endpoint_of(self._url))
        self._before: dict[Hold, Loaded | None] = {}  # asked for -> what was there before us
        self._turns: dict[Hold, asyncio.Lock] = {}  # a renewal must not overtake an unload
        self._misses = 0
        self._record = root / "run" / f"ollama-{file_stem(f'{rules.name} {self._url}')}.json"
        self._clearing: asyncio.Task[None] | None = None
        if left := _read_record(self._record):
            self._clearing = asyncio.get_running_loop().create_task(self._give_back(left))

    @property
    def look_ms(self) -> int:
        """The time between two looks at what is warm."""
        return limits.OLLAMA_LOOK_MS

    # ------------------------------------------------------------------ up

    async def bring_up(self, hold: Hold) -> Warm:
        """Loads or takes over. Raises LoadError with Ollama's own words and what to do about them."""
        if self._clearing is not None:
            await asyncio.wait([self._clearing])
        try:
            return await self._bring_up(hold)
        except UpstreamFailed as failure:
            advice = f"start it with `ollama serve`, or correct the url of the engine {self._rules.name}"
            text = f"{hold.model.name}: Ollama does not answer at {self._url}: {failure}; {advice}"
            raise LoadError(text) from failure
        except OllamaSaid as said:
            raise _refusal(hold.model, said) from said

    async def _bring_up(self, hold: Hold) -> Warm:
        model, name = hold.model, full_name(_source(hold.model))
        hold.progress.text = "Ollama had not said what it has loaded"
        there = (await self._api.loaded()).get(name)
        self._before[hold], self._turns[hold] = there, asyncio.Lock()
        self._write_record()
        hold.progress.text = "Ollama was still loading it"
        await self._pin(hold, limits.LOAD_MS_MAX)
        endpoint = endpoint_of(self._url, upstream_model=_source(model))
        probe = model.probe or ("embed" if model.embedding else "chat")
        try:
            async with asyncio.timeout((limits.PROBE_MS_MAX + limits.HEALTH_MS_MAX) / 1000):
                await warm_up(endpoint, "/api/version", probe, hold.progress)
        except TimeoutError:
            raise LoadError(f"{model.name} was loaded, but {hold.progress.text}") from None
        loaded = (await self._api.loaded()).get(name)
        if loaded is None:
            text = f"{model.name} left Ollama's memory as soon as it was there; another client needs the room"
            raise LoadError(text)
        await self._renew(hold, loaded)
        return Warm(endpoint, None, _split(loaded, model), probe)

    async def _pin(self, hold: Hold, timeout_ms: int, keep_alive: int | str = FOR_EVER) -> None:
        await self._api.load(
            _source(hold.model), keep_alive, embedding=hold.model.embedding, timeout_ms=timeout_ms
        )

    async def _renew(self, hold: Hold, loaded: Loaded) -> None:
        """Holds it for ever again when a request with a `keep_alive` of its own made it leave sooner."""
        if _left_ms(loaded) >= limits.OLLAMA_HELD_MS_MIN:
            return
        async with self._turns[hold]:
            if not hold.stop_asked:
                await self._pin(hold, limits.OLLAMA_ASK_MS)

    # ------------------------------------------------------------------ down

    async def undo(self, hold: Hold) -> None:
        """Unloads what we loaded; what was there before us stays, for as long as it would have stayed."""
        if hold not in self._before:
            return
        before = self._before[hold]
        try:
            if before is None:
                await self._unload(hold)
            else:
                left_s = _left_ms(before) // 1000
                keep_alive = FOR_EVER if left_s * 1000 >= limits.OLLAMA_HELD_MS_MIN else max(1, left_s)
                await self._pin(hold, limits.OLLAMA_ASK_MS, keep_alive)
        except (EngineFailed, OllamaSaid) as error:
            _LOG.warning("model=%s may still be in the memory of Ollama: %s", hold.model.name, error)
        self._release(hold)

    async def take_down(self, hold: Hold) -> None:
        """Unloads and waits until it is gone."""
        async with self._turns[hold]:
            await self._unload(hold)
        self._release(hold)

    async def _unload(self, hold: Hold) -> None:
        """Tells Ollama, more than once if need be, until the model is not listed any more."""
        clock = asyncio.get_running_loop().time
        deadline, again = clock() + limits.OLLAMA_UNLOAD_MS / 1000, 0.0
        pause_ms = float(limits.OLLAMA_UNLOAD_POLL_MS)
        why = "somebody is using it"
        while clock() < deadline:
            tell = clock() >= again
            again = clock() + limits.OLLAMA_UNLOAD_AGAIN_MS / 1000 if tell else again
            try:
                if await self._is_gone(_source(hold.model), tell=tell):
                    return
            except UpstreamFailed as failure:
                if failure.kind == "connect":
                    return  # no Ollama, no model
                why = str(failure)  # it may only be slow: a large load keeps it busy
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 1.2, limits.HEALTH_POLL_MS_MAX)
        bound = format_millis(limits.OLLAMA_UNLOAD_MS)
        raise EngineFailed(f"{hold.model.name} is still in Ollama's memory after {bound}: {why}")

    async def _is_gone(self, source: str, *, tell: bool) -> bool:
        try:
            if tell:
                await self._api.unload(source)
            return full_name(source) not in await self._api.loaded()
        except OllamaSaid as said:
            if said.status == 404:
                return True  # it was removed from the disk, too
            raise EngineFailed(f"Ollama does not unload {source}: {said}") from said

    def _release(self, hold: Hold) -> None:
        self._before.pop(hold, None)
        self._turns.pop(hold, None)
        self._write_record()

    async def close(self) -> None:
        """Ends every connection."""
        if self._clearing is not None:
            self._clearing.cancel()
            await asyncio.wait([self._clearing])
        await self._api.close()

    # ------------------------------------------------------------------ the watch

    async def look(self, holds: list[Hold]) -> Mapping[str, str]:
        """Reads /api/ps once for all of them."""
        try:
            loaded = await self._api.loaded()
        except (UpstreamFailed, OllamaSaid) as failure:
            return self._missed(holds, failure)
        self._misses = 0
        gone: dict[str, str] = {}
        for hold in holds:
            mine = loaded.get(full_name(_source(hold.model)))
            if mine is None:
                gone[hold.model.name] = (
                    "it left Ollama's memory: another client unloaded it or needed the room"
                )
            else:
                hold.memory = _split(mine, hold.model)
                await self._renew_quietly(hold, mine)
        self._let_go(hold for hold in holds if hold.model.name in gone and not hold.stop_asked)
        return gone

    def _missed(self, holds: list[Hold], failure: Exception) -> Mapping[str, str]:
        self._misses += 1
        is_certain = isinstance(failure, UpstreamFailed) and failure.kind == "connect"
        if not is_certain and self._misses < limits.FOREIGN_MISSES_MAX:
            return {}
        self._misses = 0
        self._let_go(hold for hold in holds if not hold.stop_asked)
        return {hold.model.name: f"Ollama does not answer at {self._url}: {failure}" for hold in holds}

    async def _renew_quietly(self, hold: Hold, loaded: Loaded) -> None:
        try:
            if hold in self._turns:
                await self._renew(hold, loaded)
        except (UpstreamFailed, OllamaSaid) as failure:
            # The next look tells whether it is gone.
            _LOG.info("model=%s is not held for ever: %s", hold.model.name, failure)

    def _let_go(self, holds: Iterable[Hold]) -> None:
        for hold in holds:
            self._release(hold)

    # ------------------------------------------------------------------ after a crash

    def _write_record(self) -> None:
        names = [_source(hold.model) for hold in self._before]
        if not names:
            self._record.unlink(missing_ok=True)
            return
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._record.with_name(f".{self._record.name}")
        draft.write_bytes(msgspec.json.encode(names))
        draft.replace(self._record)

    async def _give_back(self, names: list[str]) -> None:
        """Unloads what a killed daemon left, unless another client has used it with a time of its own since."""
        try:
            loaded = await self._api.loaded()
            for name in names:
                mine = loaded.get(full_name(name))
                if mine is not None and _left_ms(mine) >= limits.OLLAMA_HELD_MS_MIN:
                    _LOG.info("a dead daemon left %s in the memory of Ollama; it is unloaded", name)
                    await self._api.unload(name)
            self._record.unlink(missing_ok=True)
        except (UpstreamFailed, OllamaSaid) as failure:
            # An Ollama that is gone holds nothing; one that is only slow is asked at the next start.
            _LOG.info("what a dead daemon left in Ollama could not be given back: %s", failure)


def _source(model: Model) -> str:
    return model.source or model.name


def _refusal(model: Model, said: OllamaSaid) -> LoadError:
    source = _source(model)
    if said.status == 404:
        text = f"{model.name}: Ollama has no model {source}; fetch it with: ollama pull {source}"
        return LoadError(text, hopeless=True)
    if "does not support" in str(said):
        hint = "remove embedding = true" if model.embedding else "set embedding = true if it makes embeddings"
        return LoadError(f"{model.name}: {said}; {hint}", hopeless=True)
    return LoadError(f"{model.name}: Ollama answered with status {said.status}: {said}")


def _split(loaded: Loaded, model: Model) -> dict[str, int]:
    """What Ollama says the model occupies, on the devices that the model has.

    Ollama does not say which card holds how much, so its part on cards is spread evenly. Without a card among the
    model's devices all of it counts as host memory, which it is where both are one.
    """
    cards = [device for device in model.devices if device != RAM]
    if not cards:
        return {RAM: loaded.size}
    on_cards = min(loaded.size_vram, loaded.size)
    shares = {card: -(-on_cards // len(cards)) for card in cards}
    rest = loaded.size - on_cards
    return shares | {RAM: rest} if rest or RAM in model.devices else shares


def _left_ms(loaded: Loaded) -> int:
    """How long it would still stay."""
    if loaded.expires_at is None:
        return 0
    expires = loaded.expires_at if loaded.expires_at.tzinfo else loaded.expires_at.replace(tzinfo=UTC)
    return int((expires - datetime.now(UTC)).total_seconds() * 1000)


def _read_record(path: Path) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        try:
            return msgspec.json.decode(file.read(limits.OLLAMA_RECORD_BYTES_MAX), type=list[str])
        except msgspec.DecodeError:
            return []  # torn by a power cut, which emptied Ollama as well
