"""Knowledge about a model before it is loaded: from its declaration, its file, and earlier runs.

Size: the declared one, else the size measured under exactly these circumstances, else the prediction from the file's
header. The floor counts once the model is loaded, even when the machine shows less: the declared size, or weights and
cache, whose pages may not all be touched yet. A model still grows after it is warm, because the first long prompt
touches its compute buffers: until it was seen larger, they are added to a measured size. The size right after its last
load is recalled, too: a model that grew beyond its device is tried again with it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from watchbill.catalog import Catalog, Model
from watchbill.core.messages import Footprint, Knowledge
from watchbill.errors import WatchbillError
from watchbill.footprint import Prediction, predict_model
from watchbill.gguf import read_header
from watchbill.probes.pagecache import is_cached
from watchbill.sizes import Facts, Learned, Sizes, facts_of

__all__ = ["LearnedSizes", "ModelFiles", "read_files"]

_LOG = logging.getLogger("watchbill.knowledge")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files of a catalog's models say."""

    catalog: Catalog
    facts: dict[str, Facts]
    predictions: dict[str, tuple[Prediction | None, str | None]]  # or why a model can never be loaded


def read_files(catalog: Catalog) -> ModelFiles:
    """Looks at the file of every model. Blocks on disks, which may be slow or hang: a running daemon calls it in a
    thread."""
    return ModelFiles(
        catalog,
        {name: _facts_of(model, catalog) for name, model in catalog.models.items()},
        {name: _predict(model, catalog) for name, model in catalog.models.items()},
    )


def _facts_of(model: Model, catalog: Catalog) -> Facts:
    driver = catalog.engines[model.engine].driver
    variables = (f"{name}={value}" for name, value in sorted(model.env.items()))
    return facts_of(
        model.name,
        model.source,
        context=model.context,
        slots=model.concurrency,
        engine=f"{driver} mmap={model.mmap} cache={model.prompt_cache} embedding={model.embedding}",
        command=(model.command or model.image or "", *model.arguments, *variables),
        devices=model.devices,
    )


def _predict(model: Model, catalog: Catalog) -> tuple[Prediction | None, str | None]:
    if catalog.engines[model.engine].driver != "llamacpp" or model.source is None:
        return None, None
    try:
        header = read_header(Path(model.source))
    except WatchbillError as error:
        # The daemon itself warns the person who started it.
        _LOG.info("model=%s cannot be loaded: %s", model.name, error)
        return None, str(error)
    return predict_model(model, header), None


class LearnedSizes:
    """Recalls and records learned figures about the models of a catalog."""

    def __init__(self, catalog: Catalog, sizes: Sizes) -> None:
        self._sizes = sizes
        self.reconfigure(read_files(catalog))

    def reconfigure(self, files: "ModelFiles") -> None:
        """Takes a new catalog over, with what the files of its models say."""
        self._catalog, self._files = files.catalog, files
        self._facts = files.facts
        self._was_cached: dict[str, bool] = {}

    def recall(self) -> dict[str, Knowledge]:
        """All knowledge, for the core."""
        return {name: self._know(model) for name, model in self._catalog.models.items()}

    def _know(self, model: Model) -> Knowledge:
        learned = self._sizes.recall(self._facts[model.name])
        predicted, failure = self._files.predictions[model.name]
        footprint = _footprint(model, learned, predicted)
        if learned is None:
            return Knowledge(footprint, failure=failure)
        return Knowledge(
            footprint,
            learned.load_cached_ms or learned.load_cold_ms,
            learned.service_ms,
            failure,
            learned.wake_ms,
            learned.asleep,
            learned.load_cold_ms,
        )

    # ------------------------------------------------------------------ learning

    async def before_load(self, name: str) -> None:
        """Notes whether the file is in the page cache: loads with and without it differ tenfold. Looks in a thread: the
        file may be on a mount that hangs."""
        model = self._catalog.models.get(name)  # None: a reload has just taken it away
        source = None if model is None else model.source
        self._was_cached[name] = source is not None and await asyncio.to_thread(is_cached, Path(source))

    def was_cached(self, name: str) -> bool:
        """Whether the last load found its file in the page cache."""
        return self._was_cached.get(name, False)

    def loaded(self, name: str, ms: int, memory: Mapping[str, int]) -> None:
        """Records a successful load."""
        if name in self._facts:
            self._sizes.record_load(self._facts[name], ms, memory, cached=self.was_cached(name))

    def measured(self, name: str, memory: Mapping[str, int]) -> None:
        """Records a new measurement of a warm model."""
        if name in self._facts and memory:
            self._sizes.record_memory(self._facts[name], memory)

    def woke(self, name: str, ms: int) -> None:
        """Records the waking of a sleeping model."""
        if name in self._facts:
            self._sizes.record_wake(self._facts[name], ms)

    def slept(self, name: str, memory: Mapping[str, int]) -> None:
        """Records a measurement of a sleeping model."""
        if name in self._facts and memory:
            self._sizes.record_asleep(self._facts[name], memory)

    def served(self, name: str, taken_ms: Sequence[int]) -> None:
        """Records the service times of complete answers, in this order."""
        if name in self._facts:
            self._sizes.record_services(self._facts[name], taken_ms)

    async def save(self) -> None:
        """Saves everything, in a thread: a disk may be slow."""
        await asyncio.to_thread(self._sizes.save)


def _footprint(model: Model, learned: Learned | None, predicted: Prediction | None) -> Footprint:
    grown = _expected(model, learned.memory if learned else {}, predicted)
    if learned is None or not learned.fresh:
        return grown
    fresh = _expected(model, learned.fresh, predicted).expected
    return replace(grown, fresh=fresh) if fresh != grown.expected else grown


def _expected(model: Model, measured: Mapping[str, int], predicted: Prediction | None) -> Footprint:
    if model.memory:
        declared = {device: int(size) for device, size in model.memory.items()}
        return Footprint({d: max(size, measured.get(d, 0)) for d, size in declared.items()}, declared)
    if predicted is None:
        return Footprint(dict(measured) or dict.fromkeys(model.devices, 0), {})
    parts = len(model.devices)  # layers are split evenly over the devices of one model
    floor = dict.fromkeys(model.devices, -(-(predicted.weights + predicted.kv_cache) // parts))
    whole = -(-predicted.total // parts)
    room_to_grow = -(-predicted.compute // parts)
    grown = {d: min(whole, size + room_to_grow) if size < whole else size for d, size in measured.items()}
    floor = {d: max(floor[d], grown.get(d, whole)) for d in model.devices}
    return Footprint(dict(floor), floor)
