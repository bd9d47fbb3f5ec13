"""The default of ``batch.chunk_tokens`` on CPUs, in whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.training import passes
from scimult.training.config import PretrainConfig
from scimult.training.run import pretrain
from tests.training.corpus import assert_same_run, metrics, prepare_corpus, run_config


@pytest.mark.long
def test_a_large_step_is_clipped_and_a_small_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_corpus(tmp_path)

    def losses(name: str, **batch: int | None) -> list[float]:
        config: PretrainConfig = run_config(
            tmp_path, name, batch=batch, schedule={"steps": 2}, dev={"every": 0}
        )
        pretrain(config)
        return [line["loss"] for line in metrics(tmp_path / name)]

    whole = losses("whole", chunk_tokens=None)
    assert losses("fits") == whole
    assert_same_run(tmp_path / "fits", tmp_path / "whole")
    # Chunks draw their own dropout masks.
    chunks = losses("chunks", chunk_tokens=40)
    assert chunks != whole
    blocks, hidden = 2, 16
    monkeypatch.setattr(passes, "_ACTIVATION_BYTES", 40 * 4 * 20 * blocks * hidden)
    assert losses("cut") == chunks
    assert_same_run(tmp_path / "cut", tmp_path / "chunks")
