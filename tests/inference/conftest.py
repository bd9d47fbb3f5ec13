"""A tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.inference import SciMult
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with experts for three tasks."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> SciMult:
    return SciMult.from_pretrained(folder, device="cpu")
