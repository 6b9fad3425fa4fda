"""Which probe tells about this machine's cards: a test's file, NVIDIA's library, or none."""

import os
from pathlib import Path

from watchbill.probes import Probe
from watchbill.probes.fake import FAKE_GPUS, FakeGpuProbe
from watchbill.probes.nvml import NvmlProbe, load_nvml

__all__ = ["card_probe"]


def card_probe() -> Probe | None:
    """The probe of the cards; None where nothing can tell about any."""
    if fake := os.environ.get(FAKE_GPUS):
        return FakeGpuProbe(Path(fake))
    nvml = load_nvml()
    return None if nvml is None else NvmlProbe(nvml)
