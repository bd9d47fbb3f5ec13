"""Clusters of signatures: B³ by its definition, and the chosen distance."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from scimult.errors import DataError
from scimult.evaluation.clustering import author_clustering, b_cubed, write_official_input
from scimult.evaluation.harness import LoadedSet, evaluate
from scimult.evaluation.results import SetFacts
from scimult.evaluation.suites import Suite
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Signatures
from scimult.types import FloatArray, Text
from tests.benchmark_sets import WordEncoder, benchmark

METRICS = ["b_cubed_f1", "b_cubed_precision", "b_cubed_recall"]
BENCHMARK = benchmark("s2and", "link_prediction", "author_clustering", METRICS, format="s2and")
CLUSTERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


@given(CLUSTERS)
def test_b_cubed_is_the_mean_over_items(items: list[tuple[int, int]]) -> None:
    precisions, recalls = [], []
    for person, cluster in items:
        together = {row for row, (_, other) in enumerate(items) if other == cluster}
        same = {row for row, (other, _) in enumerate(items) if other == person}
        precisions.append(len(together & same) / len(together))
        recalls.append(len(together & same) / len(same))
    precision, recall = np.mean(precisions), np.mean(recalls)
    found = b_cubed([person for person, _ in items], [cluster for _, cluster in items])
    wanted = (precision, recall, 2 * precision * recall / (precision + recall))
    assert found == pytest.approx(wanted)


def _signatures(
    gap: float, papers: Sequence[int] = (3, 3, 3, 3, 3, 3)
) -> tuple[Signatures, FloatArray]:
    """Blocks of two persons with ``papers`` each, ``gap`` apart; one person's are close.

    A person of a block with no papers is left out: such a block has one signature.
    """
    draw = np.random.default_rng(0)
    rows = [
        (block, person)
        for block, count in enumerate(papers)
        for person in range(2)
        for _ in range(count or 1 - person)
    ]
    places = [[gap * person, 0.0] for _, person in rows]
    ids = [f"s/{row}" for row in range(len(rows))]
    signatures = Signatures(
        "made",
        "link_prediction",
        ids,
        [f"s/p{row}" for row in range(len(rows))],
        [Text("paper", name) for name in ids],
        np.arange(len(rows)),
        [f"s/b{block}" for block, _ in rows],
        [f"{block}-{person}" for block, person in rows],
        files=[Path("made")],
    )
    return signatures, (np.array(places) + 0.1 * draw.normal(size=(len(rows), 2))).astype("f4")


def test_persons_far_apart_are_found_on_the_other_half_of_the_blocks() -> None:
    signatures, embeddings = _signatures(gap=5.0)
    outcome = author_clustering(BENCHMARK, signatures, embeddings)
    assert outcome.scores == {"b_cubed_f1": 1, "b_cubed_precision": 1, "b_cubed_recall": 1}
    assert 0.1 < outcome.details["distance"] < 5
    blocks = sorted(set(signatures.blocks), key=lambda name: hashlib.sha256(name.encode()).digest())
    scored = [bool(cluster) for cluster in outcome.per_query["predicted"]]
    assert scored == [block in blocks[3:] for block in signatures.blocks]


def test_blocks_of_one_and_two_signatures_are_clustered_like_others() -> None:
    """The same groups as scikit-learn's average linkage, which decides by heights, too."""
    signatures, embeddings = _signatures(gap=0.5, papers=[0, 1, 2, 3, 0, 1, 1, 2, 1, 0, 3, 1])
    outcome = author_clustering(BENCHMARK, signatures, embeddings)
    cut, predicted = outcome.details["distance"], np.array(outcome.per_query["predicted"])
    sizes = []
    for block in sorted(set(signatures.blocks)):
        rows = np.array([name == block for name in signatures.blocks])
        if not all(predicted[rows]):
            continue
        sizes.append(rows.sum())
        model = AgglomerativeClustering(None, linkage="average", distance_threshold=cut)
        theirs = model.fit_predict(embeddings[rows]) if rows.sum() > 1 else [0]
        assert len(set(zip(predicted[rows], theirs, strict=True))) == len(set(theirs))
        assert len(set(predicted[rows])) == len(set(theirs))
    assert {1, 2} < set(sizes)


def test_persons_in_one_place_cannot_be_told_apart() -> None:
    """The best guess is then one cluster per block: recall 1, precision 1/2."""
    signatures, embeddings = _signatures(gap=0.0)
    outcome = author_clustering(BENCHMARK, signatures, embeddings)
    assert outcome.scores["b_cubed_f1"] < 0.8


def test_the_official_input_is_a_matrix_and_the_ids_of_papers(tmp_path: Path) -> None:
    signatures, embeddings = _signatures(gap=1.0)
    write_official_input(tmp_path / "x.pickle", signatures, embeddings)
    with open(tmp_path / "x.pickle", "rb") as file:
        matrix, ids = pickle.load(file)
    assert np.array_equal(matrix, embeddings)
    assert ids[:2] == ["p0", "p1"]


def test_writing_the_official_input_does_not_hide_the_cost(tmp_path: Path) -> None:
    signatures, _ = _signatures(gap=1.0)
    facts = {"main_metric": "b_cubed_f1", "left_out": {}, "files": {}, "mode": "default"}
    made = SetFacts(
        task="link_prediction", protocol="author_clustering", counts=signatures.counts, **facts
    )
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"made": BENCHMARK})
    loaded = {"made": LoadedSet(BENCHMARK, signatures, made)}
    result = evaluate(DenseSystem(WordEncoder()), suite, loaded, tmp_path, save_runs=True)
    assert (tmp_path / result.system / "s2and" / "made.pickle").is_file()
    assert result.sets["made"].cost["texts"] == len(signatures.texts)


def test_what_cannot_be_clustered() -> None:
    signatures, embeddings = _signatures(gap=1.0)
    one = Signatures(**{**vars(signatures), "blocks": ["s/b"] * len(signatures.ids)})
    with pytest.raises(DataError, match="fewer than two blocks"):
        author_clustering(BENCHMARK, one, embeddings)
    with pytest.raises(DataError, match="not finite"):
        author_clustering(BENCHMARK, signatures, embeddings * np.float32("nan"))
