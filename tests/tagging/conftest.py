"""A tiny model, and a tagger trained with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.inference import SciMult
from scimult.tagging import Tagger
from tests.tagging.made_up import VOCABULARY, papers
from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", similarity="cosine")


@pytest.fixture(scope="session")
def model(model_folder: Path) -> SciMult:
    return SciMult.from_pretrained(model_folder)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """Return the folder of a tagger trained on 400 papers."""
    path = tmp_path_factory.mktemp("taggers") / "flat"
    Tagger.train(path, VOCABULARY, papers(400), model=model_folder, dtype="float32")
    return path


@pytest.fixture(scope="session")
def tagger(folder: Path) -> Tagger:
    return Tagger.open(folder)
