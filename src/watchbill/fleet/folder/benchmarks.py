"""Benchmarks of cards: what `gpus --bench` measured, in the shared folder beside the heartbeat of the agent.

    gpus/AGENT_WITH_UNDERSCORES/bench.json     written by the command alone, each time whole

A card without an agent has a folder of its own, named after its host and device.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.heartbeat import Heartbeat
from watchbill.fleet.folder.values import Fields, encode, fields_at
from watchbill.names import file_stem

__all__ = ["Benchmark", "keep_benchmark", "read_benchmarks"]

_FILE = "bench.json"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One device, measured with one model."""

    host: str
    devices: tuple[str, ...]
    model: str
    load_ms: int | None  # None where the model was in use, so that it could not be loaded anew
    first_token_ms: int
    tokens_per_s: float
    read_bytes_per_s: int  # an answer reads the whole model for each token
    model_bytes: int
    at: str

    @classmethod
    def of(cls, fields: Fields) -> "Benchmark":
        rate = fields.all().get("tokens_per_s")
        return cls(
            fields.text("host"), fields.texts("devices"), fields.text("model"), fields.optional_whole("load_ms"),
            fields.whole("first_token_ms"), float(rate) if isinstance(rate, int | float) else 0.0,
            fields.whole("read_bytes_per_s"), fields.whole("model_bytes"), fields.text("at"),
        )  # fmt: skip

    def fields(self) -> dict[str, object]:
        """The JSON of the file, and of `gpus --json`."""
        return {**asdict(self), "devices": list(self.devices)}


def keep_benchmark(disk: Disk, found: Benchmark, agents: Mapping[str, Heartbeat]) -> str:
    """Keep a benchmark beside the agent that has the device, and return the name under which it is shown."""
    owner = next((name for name, beat in agents.items() if _owns(beat, found)), "")
    name = owner or file_stem(f"{found.host}-{'-'.join(found.devices)}").replace("_", "-")
    folder = places.heartbeat_path(name).rpartition("/")[0]
    disk.make_folder(folder)
    disk.put(f"{folder}/{_FILE}", encode(found.fields()) + b"\n")
    return name


def _owns(beat: Heartbeat, found: Benchmark) -> bool:
    return beat.report.host == found.host and set(beat.report.devices) == set(found.devices)


def read_benchmarks(disk: Disk) -> dict[str, Benchmark]:
    """The last benchmark of each card, by the name of its agent. A file that makes no sense is passed over."""
    found: dict[str, Benchmark] = {}
    for folder in disk.names(places.GPUS):
        fields = fields_at(disk, f"{places.GPUS}/{folder}/{_FILE}")
        if fields is not None:
            found[folder.replace("_", "-")] = Benchmark.of(fields)
    return found
