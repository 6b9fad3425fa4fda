"""The Ollama engine: models in the memory of an Ollama server that was there before us and stays after us.

A load is an empty prompt with `keep_alive: -1`, so that the model leaves when we say so and not five minutes after its
last answer; an unload is the same with 0, and ends when `/api/ps` no longer lists the model. A model that another
client loaded is taken over when we are asked for it; all the others in `/api/ps` belong to other clients and are never
touched. Ollama may drop a model by itself, when another client unloads it or needs its room: the model is lost, through
no fault of its own.

Silence is not a death. An Ollama that does not answer may be stopped, swapped out or busy, and still hold everything;
what it holds is read anew from `/api/ps` when it answers again, and nothing is forgotten before. Only an address where
no program listens proves that its models are gone.

Ollama holds only so many models at once (OLLAMA_MAX_LOADED_MODELS, by default three per card) and does not tell how
many. A load for which it drops another of our models teaches it. The dropped model must be let go: Ollama waits until
its answers have ended and loads nothing else meanwhile, and a request with a `keep_alive` calls the unload off without
ending that wait. So a model that is about to leave is not held anew, and none is while a load of ours is under way.

What we hold is written down in `ROOT/run`: Ollama would keep the models of a killed daemon, so the next start
gives them back.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from watchbill.catalog import RAM, EngineRules, Model
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, Endpoint, HostState, LoadError, Warm, endpoint_of
from watchbill.engines.foreign import ForeignHold, Gone, HeldRecord
from watchbill.engines.ollama_api import NO_LIMIT, Loaded, OllamaApi, OllamaSaid, full_name
from watchbill.engines.readiness import warm_up
from watchbill.engines.upstream import UpstreamFailed
from watchbill.errors import EngineFailed
from watchbill.names import file_stem
from watchbill.units import format_millis

__all__ = ["DEFAULT_URL", "OllamaHost"]

DEFAULT_URL = "http://127.0.0.1:11434"
_LOG = logging.getLogger("watchbill.engines")
_DROPPED = "it left Ollama's memory: another client unloaded it or needed the room"


class OllamaHost:
    """One Ollama server, and what we hold in it."""

    # Ollama stops working on an answer when its client leaves.
    capabilities = Capabilities(owned=True, measures_memory=True, stops_generation=True)
    leaves_remains = False  # what is not listed is not there; to unload it might hit another client's

    def __init__(self, rules: EngineRules, root: Path) -> None:
        self._rules = rules
        self._url = rules.url or DEFAULT_URL
        self._api = OllamaApi(endpoint_of(self._url))
        self._before: dict[ForeignHold, Loaded | None] = {}  # asked for -> what was there before us
        self._turns: dict[ForeignHold, asyncio.Lock] = {}  # a renewal must not overtake an unload
        self._pending = 0  # loads under way: Ollama may be waiting for one of our models to become idle
        self._sent_away: set[str] = set()  # full names that we told to go: their leaving proves nothing
        self._dropped: set[str] = set()  # full names that Ollama drops, or has dropped, for a load of ours
        self._made_room_until = 0.0  # a model of ours that goes before this went for a load that has ended
        self._silence: str | None = None
        self._leaving: frozenset[str] = frozenset()
        self._places = _Places()
        self._record = HeldRecord(root / "run" / f"ollama-{file_stem(f'{rules.name} {self._url}')}.json")
        self._owed = set(self._record.read())  # what a killed daemon held
        self._clearing = asyncio.Lock()

    @property
    def look_ms(self) -> int:
        """The time between two looks at what is warm."""
        return limits.OLLAMA_LOOK_MS

    @property
    def state(self) -> HostState:
        """What is known of this Ollama now."""
        return HostState(self._silence, self._places.ours, self._leaving)

    @property
    def is_awaited(self) -> bool:
        """Whether it is silent, or has something of ours that must be given back."""
        return self._silence is not None or bool(self._owed)

    # ------------------------------------------------------------------ up

    async def bring_up(self, hold: ForeignHold) -> Warm:
        """Loads or takes over. Raises LoadError with Ollama's own words and what to do about them."""
        try:
            await self._give_back()
            return await self._bring_up(hold)
        except UpstreamFailed as failure:
            self._silence = self._no_answer(failure)
            advice = f"start it with `ollama serve`, or correct the url of the engine {self._rules.name}"
            raise LoadError(f"{self._silence}; {advice}", blame=Blame.HOST) from failure
        except OllamaSaid as said:
            raise _refusal(hold.model, said) from said

    async def _bring_up(self, hold: ForeignHold) -> Warm:
        model, name = hold.model, full_name(_source(hold.model))
        hold.progress.text = "Ollama had not said what it has loaded"
        listed = await self._api.loaded()
        self._before[hold], self._turns[hold] = listed.get(name), asyncio.Lock()
        self._sent_away.discard(name)
        self._dropped.discard(name)
        self._write_record()
        hold.progress.text = "Ollama was still loading it"
        ours = self._ours() - {name}
        await self._load(hold)
        after = await self._api.loaded()
        self._dropped |= {other for other in ours - self._sent_away if other in listed and other not in after}
        self._learn_places(after)
        endpoint = endpoint_of(self._url, upstream_model=_source(model))
        probe = model.probe or ("embed" if model.embedding else "chat")
        await self._warm_up(hold, endpoint, probe)
        loaded = (await self._api.loaded()).get(name)
        if loaded is None:
            text = "left Ollama's memory as soon as it was there; another client needs the room"
            raise LoadError(text, blame=Blame.HOST)
        await self._renew(hold, loaded)
        return Warm(endpoint, None, _split(loaded, model), probe, health="/api/version")

    async def _warm_up(self, hold: ForeignHold, endpoint: Endpoint, probe: str) -> None:
        """Raises LoadError; UpstreamFailed when it is Ollama itself that does not answer any more."""
        try:
            async with asyncio.timeout((limits.PROBE_MS_MAX + limits.HEALTH_MS_MAX) / 1000):
                await warm_up(endpoint, "/api/version", probe, hold.progress)
        except TimeoutError:
            await self._api.loaded()
            raise LoadError(f"was loaded, but {hold.progress.text}") from None
        except LoadError:
            await self._api.loaded()
            raise

    async def _load(self, hold: ForeignHold) -> None:
        self._pending += 1
        try:
            await self._pin(hold, limits.LOAD_MS_MAX)
        finally:
            self._pending -= 1
            self._made_room_until = asyncio.get_running_loop().time() + limits.OLLAMA_EVICTION_MS / 1000

    async def _pin(self, hold: ForeignHold, timeout_ms: int, keep_alive: int | str = NO_LIMIT) -> None:
        await self._api.load(
            _source(hold.model), keep_alive, embedding=hold.model.embedding, timeout_ms=timeout_ms
        )

    async def _renew(self, hold: ForeignHold, loaded: Loaded) -> None:
        """Holds it without a time limit again, after a request with a `keep_alive` has set one."""
        if self._pending or not limits.OLLAMA_LEAVING_MS < _left_ms(loaded) < limits.OLLAMA_HELD_MS_MIN:
            return
        async with self._turns[hold]:
            if not hold.stop_asked:
                await self._pin(hold, limits.OLLAMA_ASK_MS)

    def _ours(self) -> set[str]:
        return {full_name(_source(hold.model)) for hold in self._before}

    def _see_leaving(self, name: str) -> None:
        """A model of ours that was held without a time limit is gone or about to go, and we did not ask for it."""
        is_for_us = self._pending or asyncio.get_running_loop().time() < self._made_room_until
        if is_for_us and name not in self._sent_away:
            self._dropped.add(name)

    def _learn_places(self, loaded: Mapping[str, Loaded]) -> None:
        """Models that had to make room for a load of ours show how many there is room for. While a load is under way
        they may be gone and the new one not there yet."""
        gone = sorted(self._dropped - loaded.keys())
        if self._pending or not gone:
            return
        self._dropped.clear()
        _LOG.info("Ollama at %s dropped %s: it holds %d models", self._url, ", ".join(gone), len(loaded))
        self._places.learn(len(loaded))

    async def blame_for_delay(self, hold: ForeignHold) -> Blame:
        """Ollama's fault, if it does not answer, or has not begun the load because it has no place for the model."""
        try:
            listed = await self._api.loaded()
        except (UpstreamFailed, OllamaSaid) as failure:
            self._silence = self._no_answer(failure)
            return Blame.HOST
        if not listed or full_name(_source(hold.model)) in listed or hold.is_ready:
            return Blame.MODEL
        self._places.learn(len(listed))
        return Blame.HOST

    # ------------------------------------------------------------------ down

    async def undo(self, hold: ForeignHold) -> None:
        """Unloads what we loaded; what was there before us stays, for as long as it would have stayed. Raises
        EngineFailed when Ollama does not say that it is so."""
        if hold not in self._before:
            return
        before = self._before[hold]
        try:
            if before is None:
                await self._unload(hold)
            else:
                left_s = _left_ms(before) // 1000
                keep_alive = NO_LIMIT if left_s * 1000 >= limits.OLLAMA_HELD_MS_MIN else max(1, left_s)
                await self._pin(hold, limits.OLLAMA_ASK_MS, keep_alive)
        except UpstreamFailed as failure:
            if not failure.refused:
                raise
        except OllamaSaid as said:
            _LOG.warning("model=%s may still be in the memory of Ollama: %s", hold.model.name, said)
        self._release(hold)

    async def take_down(self, hold: ForeignHold) -> None:
        """Unloads and waits until it is gone."""
        if hold not in self._before:
            return
        if (
            not hold.is_ready
        ):  # a load that could not be undone: what was there before us is not ours to unload
            await self.undo(hold)
            return
        async with self._turns[hold]:
            await self._unload(hold)
        self._release(hold)

    async def _unload(self, hold: ForeignHold) -> None:
        """Tells Ollama, more than once if need be, until the model is not listed any more."""
        clock = asyncio.get_running_loop().time
        deadline, again = clock() + limits.OLLAMA_UNLOAD_MS / 1000, 0.0
        pause_ms = float(limits.OLLAMA_UNLOAD_POLL_MS)
        why = "another client is using it"
        self._sent_away.add(full_name(_source(hold.model)))
        while clock() < deadline:
            tell = clock() >= again
            again = clock() + limits.OLLAMA_UNLOAD_AGAIN_MS / 1000 if tell else again
            try:
                if await self._is_gone(_source(hold.model), tell=tell):
                    return
                why = "another client is using it"
            except UpstreamFailed as failure:
                if failure.refused:
                    return  # no Ollama, no model
                why = self._silence = self._no_answer(failure)  # it may only be slow, or stopped for a while
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

    def _release(self, hold: ForeignHold) -> None:
        self._before.pop(hold, None)
        self._turns.pop(hold, None)
        self._write_record()

    async def close(self) -> None:
        """Ends every connection. What could not be given back is named, and stays written down for the next start."""
        left = sorted({*(_source(hold.model) for hold in self._before), *self._owed})
        if left:
            _LOG.warning(
                "still in the memory of Ollama at %s, which did not let go of it: %s; free it with: %s; the next"
                " start of Watchbill does so, too",
                self._url,
                ", ".join(left),
                "; ".join(f"ollama stop {name}" for name in left),
            )
        await self._api.close()

    # ------------------------------------------------------------------ the watch

    async def look(self, holds: list[ForeignHold]) -> Mapping[str, Gone]:
        """Reads /api/ps once for all of them."""
        try:
            await self._give_back()
            loaded = await self._api.loaded()
        except (UpstreamFailed, OllamaSaid) as failure:
            return self._missed(holds, failure)
        self._silence = None
        self._places.see(loaded, self._ours())
        gone: dict[str, Gone] = {}
        leaving: set[str] = set()
        for hold in holds:
            name = full_name(_source(hold.model))
            mine = loaded.get(name)
            if mine is None:
                self._see_leaving(name)
                gone[hold.model.name] = Gone(_DROPPED, Blame.HOST)
                continue
            hold.memory = _split(mine, hold.model)
            if _left_ms(mine) <= limits.OLLAMA_LEAVING_MS and not hold.stop_asked:
                self._see_leaving(name)
                leaving.add(hold.model.name)
            else:
                await self._renew_quietly(hold, mine)
        self._leaving = frozenset(leaving)
        self._learn_places(loaded)
        self._let_go(hold for hold in holds if hold.model.name in gone and not hold.stop_asked)
        return gone

    def _missed(self, holds: list[ForeignHold], failure: Exception) -> Mapping[str, Gone]:
        """Ollama did not answer. Its models are gone only if no program listens there any more."""
        self._silence = self._no_answer(failure)
        if not (isinstance(failure, UpstreamFailed) and failure.refused):
            return {}
        self._places.forget()
        self._owed.clear()
        self._dropped.clear()
        self._let_go(hold for hold in holds if not hold.stop_asked)
        self._write_record()
        return {hold.model.name: Gone(self._silence, Blame.HOST) for hold in holds}

    def _no_answer(self, failure: Exception) -> str:
        return f"Ollama does not answer at {self._url}: {failure}"

    async def _renew_quietly(self, hold: ForeignHold, loaded: Loaded) -> None:
        try:
            if hold in self._turns:
                await self._renew(hold, loaded)
        except (UpstreamFailed, OllamaSaid) as failure:
            # The next look tells whether it is gone.
            _LOG.info("model=%s has a time limit in Ollama: %s", hold.model.name, failure)

    def _let_go(self, holds: Iterable[ForeignHold]) -> None:
        for hold in holds:
            self._release(hold)

    # ------------------------------------------------------------------ after a crash

    def _write_record(self) -> None:
        self._record.write([*(_source(hold.model) for hold in self._before), *self._owed])

    async def _give_back(self) -> None:
        """Unloads what a killed daemon left, unless another client has set a time limit since. Raises
        UpstreamFailed or OllamaSaid, and then tries again at the next look and before the next load."""
        async with self._clearing:
            if not self._owed:
                return
            loaded = await self._api.loaded()
            for name in sorted(self._owed):
                mine = loaded.get(full_name(name))
                if mine is not None and _left_ms(mine) >= limits.OLLAMA_HELD_MS_MIN:
                    _LOG.info("a dead daemon left %s in the memory of Ollama; it is unloaded", name)
                    await self._api.unload(name)
                self._owed.discard(name)
                self._write_record()


class _Places:
    """How many models this Ollama holds at once, as far as that was noticed."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._until = 0.0
        self._foreign = 0  # models that other clients hold without a time limit

    @property
    def ours(self) -> int | None:
        """How many of its models can be ours; None where no limit is known."""
        return None if self._total is None else max(1, self._total - self._foreign)

    def learn(self, total: int) -> None:
        """Ollama dropped one model for another, or found no place for one, and held this many then."""
        self._total = max(1, total)
        self._until = asyncio.get_running_loop().time() + limits.OLLAMA_PLACES_MS / 1000

    def see(self, loaded: Mapping[str, Loaded], ours: set[str]) -> None:
        """Takes in what Ollama holds now. More models than the limit, or a long time, end the limit."""
        others = (model for name, model in loaded.items() if name not in ours)
        self._foreign = sum(1 for model in others if _left_ms(model) >= limits.OLLAMA_HELD_MS_MIN)
        is_old = asyncio.get_running_loop().time() >= self._until
        if self._total is not None and (is_old or len(loaded) > self._total):
            self.forget()

    def forget(self) -> None:
        """Another Ollama may have another limit."""
        self._total = None


def _source(model: Model) -> str:
    return model.source or model.name


def _refusal(model: Model, said: OllamaSaid) -> LoadError:
    source = _source(model)
    if said.status == 404:
        text = f"Ollama has no model {source}; fetch it with: ollama pull {source}"
        return LoadError(text, hopeless=True)
    if "does not support" in str(said):
        hint = "remove embedding = true" if model.embedding else "set embedding = true if it makes embeddings"
        return LoadError(f"{said}; {hint}", hopeless=True)
    blame = Blame.HOST if said.status == 503 else Blame.MODEL  # 503: it has too much to do
    return LoadError(f"Ollama answered with status {said.status}: {said}", blame=blame)


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
