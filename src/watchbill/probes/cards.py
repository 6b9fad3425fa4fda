"""The probe of this machine's cards: a test's file, NVIDIA's library, or none."""

import os
from pathlib import Path

from watchbill.packages import how_to_install
from watchbill.probes import Probe, ProbeError
from watchbill.probes.fake import FAKE_GPUS, FakeGpuProbe
from watchbill.probes.nvml import NvmlProbe, load_nvml

__all__ = ["find_cards"]


def find_cards() -> tuple[Probe | None, str]:
    """The probe of the cards; None where there is none, with the reason and what to do about it."""
    if fake := os.environ.get(FAKE_GPUS):
        return FakeGpuProbe(Path(fake)), ""
    nvml = load_nvml()
    if nvml is None:
        return None, f"NVIDIA's library for Python is not installed: {how_to_install('gpu')}"
    try:
        return NvmlProbe(nvml), ""
    except ProbeError as error:
        return None, f"{error}; does nvidia-smi work?"
