"""A limit on the pairs per query, as a run plans it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scimult.training.plan import plan_run
from tests.training.corpus import plan_micro_batches, prepare_corpus, run_config


@pytest.mark.parametrize("batch", [{"pairs_per_step": 8}, {"max_tokens": 96 * 8}])
def test_an_epoch_has_a_limited_number_of_pairs_per_query(
    tmp_path: Path, batch: dict[str, int]
) -> None:
    prepare_corpus(tmp_path)
    data = {"sampling": "proportional", "sources": ["world.link_prediction", "world.search"]}
    whole = plan_run(run_config(tmp_path, "whole", data=data))
    config = run_config(
        tmp_path,
        "capped",
        data={**data, "pairs_per_query": 2},
        schedule={"steps": None, "epochs": 1},
        batch={"pairs_per_step": None, **batch},
    )
    plan = plan_run(config)
    # Every paper cites at most three others; a query has one answer.
    for stream, all_pairs in zip(plan.streams, whole.streams, strict=True):
        queries = all_pairs.rows(0, len(all_pairs)).queries_R
        _, counts = np.unique(queries, return_counts=True)
        assert len(stream) == np.minimum(counts, 2).sum()
    assert len(plan.streams[0]) < len(whole.streams[0])
    # Proportional rates follow the pairs of an epoch.
    sizes = np.array([len(stream) for stream in plan.streams])
    np.testing.assert_allclose(plan.rates, sizes / sizes.sum())
    first_epoch: Counter[int] = Counter()
    sampler = plan_micro_batches(config)
    for micro_batch in range(len(sampler)):
        for part in sampler.plan(micro_batch):
            rows = part.rows
            first_epoch.update(rows.queries_R[rows.epochs_R == 0].tolist())
    assert max(first_epoch.values()) == 2
