"""What a run will see of its sources, counted before it starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.config import load_config, validate
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.mining.dataset import DatasetConfig, build_dataset
from scimult.training.config import PretrainConfig
from scimult.training.plan import build_sampler, plan_run
from tests.tiny import tiny_tokenizer
from tests.training.corpus import prepare_corpus


def pairs_seen(prepared: Path, tokenizer: TextTokenizer, **batch: Any) -> dict[str, Counter[int]]:
    """Return how often each number of visits to a pair occurs in one epoch, by source."""
    config = validate(
        PretrainConfig,
        {
            "output": "never",
            "data": {"prepared": str(prepared), "max_length": 128},
            "model": {"base": "never"},
            "schedule": {"epochs": 1},
            "batch": batch,
        },
    )
    plan = plan_run(config)
    lengths_N = PreparedData.open(prepared).tokens(tokenizer, 128).lengths_N
    sampler, _ = build_sampler(config, plan, lengths_N)
    visits = [Counter[tuple[int, int]]() for _ in plan.sources]
    for unit in range(len(sampler)):
        for part in sampler.plan(unit):
            pairs = np.stack([part.rows.queries_R, part.rows.positives_R], 1).tolist()
            visits[part.source].update(map(tuple, pairs))
    seen = {}
    for source, counts in zip(plan.sources, visits, strict=True):
        seen[source.name] = Counter(counts.values())
        if absent := len(source.positives.values) - len(counts):
            seen[source.name][0] = absent
    return seen


def test_an_epoch_by_tokens_sees_every_pair_once(tmp_path: Path) -> None:
    prepared = prepare_corpus(tmp_path)
    seen = pairs_seen(prepared, tiny_tokenizer(), max_tokens=1000)
    assert len(seen) == 3
    assert all(set(times) == {1} for times in seen.values()), seen


@pytest.mark.data
def test_an_epoch_of_the_shared_data_sees_every_pair_once(
    repository: Path,
    scimult_data: Path,
    minilm: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By shares of passes in place of pairs, acl was seen 1.40 times and vis 0.50 times."""
    monkeypatch.setenv("SCIMULT_DATA", str(scimult_data))
    config = load_config(DatasetConfig, repository / "configs" / "data" / "scholarly.yaml")
    build_dataset(config, tmp_path / "prepared")
    tokenizer = TextTokenizer.from_folder(minilm)
    seen = pairs_seen(tmp_path / "prepared", tokenizer, max_tokens=8192)
    assert len(seen) == 5
    assert all(set(times) == {1} for times in seen.values()), seen
