"""The small raw data set of ``tests.raw_corpus``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raw_corpus import write_raw


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write the raw data set; return its folder."""
    return write_raw(tmp_path / "raw")
