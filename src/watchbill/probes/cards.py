"""The probe of this machine's cards: a test's file, NVIDIA's library, or none."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from watchbill.packages import how_to_install
from watchbill.probes import Probe, ProbeError, Reading
from watchbill.probes.fake import FAKE_GPUS, FakeGpuProbe
from watchbill.probes.nvml import NvmlProbe, load_nvml

__all__ = ["find_cards"]


def find_cards(only: Collection[str] | None = None) -> tuple[Probe | None, str]:
    """The probe of the cards, all or `only` these; None where there is none, with the reason and what to do."""
    probe, why = _probe_of_all()
    return (probe if probe is None or only is None else _Some(probe, only)), why


class _Some:
    """Some cards of a machine: the others count as absent."""

    def __init__(self, probe: Probe, only: Collection[str]) -> None:
        self._probe, self._only = probe, frozenset(only)

    def read(self) -> Mapping[str, Reading]:
        """The readings of these cards."""
        return {name: reading for name, reading in self._probe.read().items() if name in self._only}


def _probe_of_all() -> tuple[Probe | None, str]:
    if fake := os.environ.get(FAKE_GPUS):
        return FakeGpuProbe(Path(fake)), ""
    nvml = load_nvml()
    if nvml is None:
        return None, f"NVIDIA's library for Python is not installed: {how_to_install('gpu')}"
    try:
        return NvmlProbe(nvml), ""
    except ProbeError as error:
        return None, f"{error}; does nvidia-smi work?"
