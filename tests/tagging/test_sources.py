"""Sources of evidence and their fusion: by hand, and against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

from scimult.inference import SciMult
from scimult.tagging import Tagger, Vocabulary
from scimult.tagging.evidence import find_evidence, sentences
from scimult.tagging.fusion import Fusion, FusionSample, Weights, fit_weights
from scimult.tagging.neighbours import NearVectors, NearWords, shares
from scimult.tagging.signals import SOURCES, Signals, similarities
from scimult.tagging.words import LinearHead, Words, fit_linear
from scimult.types import Similarity, Text
from tests.tagging.made_up import VOCABULARY, papers

TAGS = sparse.csr_array(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 0]], dtype=np.float32))


def test_shares_of_neighbours_by_hand() -> None:
    rows, scores = np.array([[2, 1], [0, -1], [-1, -1]]), np.array([[0.9, 0.8], [0.5, 0], [0, 0]])
    found = shares(rows, scores, TAGS).toarray()
    near = 1 / (1 + np.exp(-1))
    expected = [[1 - near, 1 - near, near], [1, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_neighbours_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((60, 20)).astype(np.float32) * (rng.random((60, 20)) < 0.4)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = NearestNeighbors(n_neighbors=7, metric="cosine", algorithm="brute").fit(rows)
    distances, expected = nearest.kneighbors(rows[:15])
    for search, query in (
        (NearVectors(rows, "cosine").search, rows[:15]),
        (NearWords(sparse.csr_array(rows)).search, sparse.csr_array(rows[:15])),
    ):
        found, scores = search(query, 7)  # type: ignore[operator]
        np.testing.assert_allclose(scores, 1 - distances, atol=1e-5)
        assert [set(x) for x in found.tolist()] == [set(x) for x in expected.tolist()]
    without, _ = NearVectors(rows, "cosine").search(rows[:15], 7, own_B=np.arange(15))
    assert all(row not in found for row, found in enumerate(without.tolist()))


def test_papers_that_share_no_word_are_no_neighbours() -> None:
    """Of equally distant papers some would be taken at random, and their tags with them."""
    words = np.eye(40, dtype=np.float32)
    query = sparse.csr_array([[0, 0.8, 0, 0.6, *[0] * 36], [0] * 40])
    rows, scores = NearWords(sparse.csr_array(words)).search(query)
    assert rows[:, :3].tolist() == [[1, 3, -1], [-1, -1, -1]]
    assert (rows[:, 2:] == -1).all()
    assert shares(rows, scores, sparse.csr_array(words)).toarray()[1].sum() == 0


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_similarities_in_float64(similarity: str) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(n, 8)).astype(np.float32) for n in (5, 9))
    if similarity == "l2":
        expected = -np.linalg.norm(x[:, None].astype(float) - y[None], axis=2)
    else:
        expected = x.astype(float) @ y.T
    np.testing.assert_allclose(similarities(x, y, similarity), expected, atol=1e-5)  # type: ignore[arg-type]


def test_distances_of_vectors_with_a_large_mean_are_scipys() -> None:
    rng = np.random.default_rng(2)
    mean_D = 30 * rng.normal(size=64)
    x, y = ((rng.normal(size=(n, 64)) + mean_D).astype(np.float32) for n in (7, 200))
    expected = -cdist(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(similarities(x, y, "l2"), expected, rtol=1e-6)
    # All are nearer than 1.
    x, y = 0.05 * (x - x.mean(0)), 0.05 * (y - x.mean(0))
    expected = -cdist(x.astype(np.float64), y.astype(np.float64))
    assert expected.min() > -0.9
    np.testing.assert_allclose(similarities(x, y, "l2"), expected, rtol=1e-5)
    assert similarities(x, y[:0], "l2").shape == (7, 0)


def test_a_linear_model_of_few_papers_is_the_regression_over_all() -> None:
    """With fewer than 1,000 papers nothing is sampled, and the fit is scikit-learn's."""
    texts = [Text("paper", paper["title"], paper["abstract"]) for paper in papers(150)]
    words = Words.of(texts)
    rows = words.rows(texts)
    tags = sparse.csr_array(
        np.array([[word in text.title for word in ("graph", "vision", "absent")] for text in texts])
        .astype(np.float32)
    )  # fmt: skip
    head = fit_linear(rows, tags, tags * 0, seed=0)
    for column in range(2):
        one = LogisticRegression(C=10, solver="liblinear", tol=0.05, max_iter=50)
        one.fit(sparse.csr_matrix(rows), tags.toarray()[:, column])
        kept = np.where(np.abs(one.coef_[0]) >= 0.05, one.coef_[0], 0)
        expected = rows @ kept + one.intercept_[0]
        # Both stop at a gradient tolerance of 0.05; log odds reach about ten.
        np.testing.assert_allclose(head.logits(rows)[:, column], expected, atol=0.2)
    assert (head.logits(rows)[:, 2] == 0).all()


def test_sampled_negatives_represent_all() -> None:
    rng = np.random.default_rng(2)
    rows = sparse.csr_array((rng.random((6000, 12)) < 0.2).astype(np.float32))
    right = (rng.random(6000) < 0.3 * rows.toarray()[:, 0] + 0.02).astype(np.float32)
    head = fit_linear(rows, sparse.csr_array(right[:, None]), sparse.csr_array((6000, 1)), seed=0)
    whole = LogisticRegression(C=10, solver="liblinear").fit(sparse.csr_matrix(rows), right)
    gap = head.logits(rows)[:, 0] - whole.decision_function(sparse.csr_matrix(rows))
    # The sample adds noise; without its weights the gap would be log 5 = 1.6.
    assert abs(gap.mean()) < 0.2


def test_words_survive_saving(tmp_path: Path) -> None:
    texts = [Text("paper", paper["title"], paper["abstract"]) for paper in papers(20)]
    words = Words.of(texts)
    words.save(tmp_path)
    again = Words.load(tmp_path).rows(texts)
    assert (again != words.rows(texts)).nnz == 0
    head = LinearHead(sparse.csr_array(np.eye(3, dtype=np.float32)), np.arange(3, dtype=np.float32))
    head.save(tmp_path / "h.npz")
    kept = LinearHead.load(tmp_path / "h.npz")
    assert (kept.weights_TC != head.weights_TC).nnz == 0
    assert (kept.bias_C == head.bias_C).all()


def test_fused_scores_by_hand() -> None:
    fusion = Fusion(
        Weights(-1.0, {"label": 0.5, "title": 2.0, "near": 0.25, "linear": 1.0}),
        Weights(-3.0, {"label": 1.5, "abstract": 4.0}),
    )
    signals = np.zeros((len(SOURCES), 1, 2), dtype=np.float32)
    for name, values in {
        "label": (1, -2), "title": (1, 1), "abstract": (2, 0.5), "near": (-4, 0), "linear": (3, 0)
    }.items():  # fmt: skip
        signals[SOURCES.index(name), 0] = values
    found = fusion.logits(signals, np.array([True, False]))
    # -1 + .5·1 + 2·1 + .25·(-4) + 3 and -3 + 1.5·(-2) + 4·.5
    np.testing.assert_allclose(found, [[3.5, -4.0]])
    zero_shot = fusion.logits(signals[:3], np.array([True, False]))
    np.testing.assert_allclose(zero_shot, [[1.5, -4.0]])


def test_weights_are_those_of_weighted_logistic_regression() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4000, 2)).astype(np.float32) * [1, 5]
    right = rng.random(4000) < 1 / (1 + np.exp(-(x @ [1.0, -0.3] - 1)))
    weight = rng.integers(1, 4, 4000).astype(float)
    found = fit_weights(x, right, weight, ("label", "title"))
    plain = LogisticRegression(C=np.inf, max_iter=1000).fit(x, right, sample_weight=weight)
    # Slight regularisation, on sources of unit spread.
    assert list(found.weights.values()) == pytest.approx(plain.coef_[0].tolist(), rel=0.01)
    assert found.bias == pytest.approx(plain.intercept_[0], rel=0.01)


@pytest.mark.parametrize("pairs", [500, 5000])
def test_a_source_that_never_varies_tells_nothing(pairs: int) -> None:
    """As if each concept had two papers: float32 gives their logarithms a spread."""
    rng = np.random.default_rng(0)
    varied = rng.normal(size=pairs).astype(np.float32)
    right = rng.random(pairs) < 1 / (1 + np.exp(1 - varied))
    weight = np.ones(pairs)
    x = np.column_stack([varied, np.full(pairs, np.log1p(np.float32(2)))])
    found = fit_weights(x, right, weight, ("label", "papers"))
    alone = fit_weights(x[:, :1], right, weight, ("label",))
    assert found.weights["papers"] == pytest.approx(0, abs=0.01)
    assert found.weights["label"] == pytest.approx(alone.weights["label"], rel=1e-3)
    assert found.bias == pytest.approx(alone.bias, rel=1e-2)


def test_the_sample_of_pairs_represents_all_of_them() -> None:
    """Weights sum to the number of pairs, and right pairs are always included."""
    rng = np.random.default_rng(4)
    signals = rng.normal(size=(len(SOURCES), 20, 500)).astype(np.float32)
    right = rng.random((20, 500)) < 0.01
    sample = FusionSample(np.arange(500) < 300, seed=0)
    sample.add(signals, right)
    ((_, sampled_right, _, weight),) = sample._parts
    assert weight.sum() == pytest.approx(20 * 500)
    assert sampled_right.sum() == right.sum()
    fusion = sample.fit()
    assert set(fusion.seen.weights) == set(SOURCES)
    assert set(fusion.unseen.weights) == set(SOURCES[:3])


def test_concepts_without_papers_have_weights_of_hidden_ones() -> None:
    """Where all have papers, the weights of new concepts come from some that are hidden."""
    rng = np.random.default_rng(6)
    signals = rng.normal(size=(len(SOURCES), 60, 40)).astype(np.float32)
    right = rng.random((60, 40)) < 1 / (1 + np.exp(2 - 3 * signals[0]))
    for seen in (40, 20):
        sample = FusionSample(np.arange(40) < seen, seed=0)
        sample.add(signals, right)
        fusion = sample.fit()
        for weights in (fusion.seen, fusion.unseen):
            assert weights.weights["label"] == pytest.approx(3, abs=1.2)
            assert weights.bias == pytest.approx(-2, abs=1.2)


def test_signals_of_a_paper_do_not_depend_on_its_block(tagger: Tagger, model: SciMult) -> None:
    texts = [Text("paper", paper["title"], paper["abstract"]) for paper in papers(9, seed=5)]
    vectors = model.encode(texts, task="classification")
    together = tagger._signals.of(texts, vectors)
    alone = [tagger._signals.of([t], vectors[i : i + 1]) for i, t in enumerate(texts)]
    # float32 products of other shapes.
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=1e-4)
    unseen = ~tagger.seen_C
    assert unseen.any()
    assert (together[3:, :, unseen] == 0).all()
    named = together[SOURCES.index("title")] > 0
    for row, text in enumerate(texts):
        words = text.title.lower().split()
        expected = {c.id for c in VOCABULARY if c.label.lower() in words}
        assert {VOCABULARY[i].id for i in np.flatnonzero(named[row])} == expected


def test_there_are_three_sources_without_tagged_papers(model: SciMult) -> None:
    labels = np.eye(len(VOCABULARY), 16, dtype=np.float32)
    signals = Signals(VOCABULARY, labels, np.zeros(len(VOCABULARY), np.float32), "cosine", None)
    assert len(signals.of([Text("paper", "x")], labels[:1])) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("As in Smith et al. Nature is e.g. Big.", ["As in Smith et al. Nature is e.g. Big."]),
        ("It is 0.5 or so. (Not more.)  Really.", ["It is 0.5 or so.", "(Not more.)", "Really."]),
        ("", []),
        ("See Fig. 3. Then J. Doe.", ["See Fig. 3.", "Then J. Doe."]),
        ("Это первое. Это второе! Да, т. е.", ["Это первое.", "Это второе!", "Да, т. е."]),
        ("É. Zola schrieb. Über ρ. Ça va?", ["É. Zola schrieb.", "Über ρ.", "Ça va?"]),
        ("这是心脏。结果很好！", ["这是心脏。", "结果很好！"]),
        ("هذا أول. هذا ثاني.", ["هذا أول.", "هذا ثاني."]),
        ("A “word.” «Next.»", ["A “word.”", "«Next.»"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("similarity", "label", "expected"),
    [
        # However close another sentence is: products of vectors of any length differ by any number.
        ("dot", "plasma", "It is plasma."),
        ("dot", "other", "So far away."),
        # Of vectors that keep their lengths, the angle counts.
        ("cosine", "other", "So near."),
        ("l2", "other", "So near."),
    ],
)
def test_evidence_is_a_sentence_that_names_the_concept_or_the_closest(
    similarity: Similarity, label: str, expected: str
) -> None:
    vectors_ND = np.array([[0, 1], [90, 90], [1, 0]], dtype=np.float32)
    model: Any = SimpleNamespace(encode=lambda *_, **__: vectors_ND)
    paper = Text("paper", "Of all", "It is plasma. So far away. So near.")
    labels_CD = np.array([[1, 0]], dtype=np.float32)
    vocabulary = Vocabulary([label])
    (found,) = find_evidence(model, "x", similarity, vocabulary, labels_CD, [paper], [[0]])
    assert found == {0: expected}


def test_lengths_of_vectors_are_ignored_by_cosine(model_folder: Path, tmp_path: Path) -> None:
    """Sentence-transformers folders without Normalize are compared so, and long names won."""
    new = papers(5, seed=3)
    found = []
    for normalise in (True, False):
        model = SciMult.from_pretrained(model_folder, normalise=normalise)
        tagger = Tagger.train(tmp_path / f"{normalise}", VOCABULARY, model=model)
        found.append(tagger.tag(new, k=None))
    for unit, raw in zip(*found, strict=True):
        assert [(tag.id, tag.evidence) for tag in raw] == [(t.id, t.evidence) for t in unit]
        assert [tag.score for tag in raw] == pytest.approx([tag.score for tag in unit], rel=1e-4)
