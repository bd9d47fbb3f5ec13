"""A corpus to train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.corpus import prepare_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with prepared data and a tiny base model."""
    path = tmp_path_factory.mktemp("corpus")
    prepare_corpus(path)
    return path
