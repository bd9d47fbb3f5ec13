"""Our models in MTEB: routes, and scores equal to ours on an MTEB task."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mteb
import numpy as np
import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError, UnknownNameError
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.rankings import search
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset
from scimult.inference import SciMult
from scimult.inference.mteb_model import MtebEncoder
from scimult.types import Role, Similarity, Text
from tests.benchmark_sets import write_search
from tests.local_mteb import ranking_task
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SciMult:
    folder = save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    return SciMult.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    ("kind", "side", "wanted"),
    [
        ("Retrieval", "query", ("search", "query")),
        ("Retrieval", "document", ("search", "candidate")),
        ("Classification", None, ("classification", "query")),
        ("Regression", None, ("classification", "query")),
        ("Clustering", None, ("classification", "query")),
        ("Reranking", "document", ("search", "candidate")),
        ("InstructionReranking", "query", ("search", "query")),
        ("STS", None, ("link_prediction", "query")),
    ],
)
def test_routes(model: SciMult, kind: str, side: str | None, wanted: tuple[str, Role]) -> None:
    metadata = SimpleNamespace(type=kind, name="SomeTask")
    prompt = None if side is None else mteb.types.PromptType(side)
    assert MtebEncoder(model).route(metadata, prompt) == wanted


def test_papers_for_a_paper_are_reranked_as_links(model: SciMult) -> None:
    """MTEB's own metadata: all its clusters are topics, and only SciDocs reranks papers for one."""
    chosen = ("SciDocsRR", "AskUbuntuDupQuestions", "BiorxivClusteringP2P.v2", "SCIDOCS")
    routes = [
        MtebEncoder(model).route(task.metadata)[0] for task in mteb.get_tasks(tasks=list(chosen))
    ]
    assert sorted(routes) == ["classification", "link_prediction", "search", "search"]


def test_a_task_by_name_counts_before_its_type(model: SciMult) -> None:
    encoder = MtebEncoder(model, {"SCIDOCS": "link_prediction"})
    metadata = SimpleNamespace(type="Retrieval", name="SCIDOCS")
    assert encoder.route(metadata) == ("link_prediction", "query")
    with pytest.raises(UnknownNameError):
        MtebEncoder(model, {"SCIDOCS": "citation"})


def test_another_route_or_similarity_has_scores_of_its_own_in_mtebs_cache(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")

    def revision(routes: dict[str, str], similarity: Similarity) -> str:
        loaded = SciMult.from_pretrained(folder, device="cpu", similarity=similarity)
        return str(MtebEncoder(loaded, routes).mteb_model_meta.revision)

    options: list[tuple[dict[str, str], Similarity]] = [
        ({}, "dot"),
        ({"SCIDOCS": "link_prediction"}, "dot"),
        ({}, "l2"),
    ]
    found = [revision(*option) for option in options]
    assert len(set(found)) == 3
    assert revision({}, "dot") == found[0]


def test_the_work_of_a_task_is_counted(model: SciMult) -> None:
    encoder, task = MtebEncoder(model), SimpleNamespace(type="Classification", name="x")
    model.encode(["earlier texts of others"], task="search")
    before = model.tokens_encoded
    for texts in (["a graph", " "], ["speech"]):
        encoder.encode([{"text": texts}], task_metadata=task)
    work = encoder.work["x"]
    assert (work.texts, work.empty) == (3, 1)
    assert work.tokens == model.tokens_encoded - before > 0
    assert 0 < work.encode_seconds < 60


def test_documents_keep_title_and_body_apart(model: SciMult) -> None:
    batch = {"text": ["T B", "U"], "title": ["T", "U"], "body": ["B", ""]}
    found = MtebEncoder(model).encode(
        [batch],
        task_metadata=SimpleNamespace(type="Retrieval", name="x"),
        prompt_type=mteb.types.PromptType("document"),
    )
    texts = [Text("paper", "T", "B"), Text("paper", "U")]
    assert np.array_equal(found, model.encode(texts, task="search", role="candidate"))
    with pytest.raises(DataError, match="MTEB batch has no text"):
        MtebEncoder(model).encode(
            [{"image": []}], task_metadata=SimpleNamespace(type="STS", name="x")
        )


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_similarity(tmp_path: Path, similarity: Similarity) -> None:
    folder = save_tiny_model(tmp_path / "tiny", similarity=similarity)
    encoder = MtebEncoder(SciMult.from_pretrained(folder, device="cpu"))
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(3, 4)), draw.normal(size=(3, 4))
    literal: dict[str, Any] = {
        "dot": lambda a, b: a @ b,
        "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
        "l2": lambda a, b: -np.linalg.norm(a - b),
    }
    wanted = np.array([[literal[similarity](a, b) for b in y] for a in x])
    assert np.allclose(encoder.similarity(x, y).numpy(), wanted, atol=1e-5)
    assert np.allclose(encoder.similarity_pairwise(x, y).numpy(), np.diag(wanted), atol=1e-5)
    assert encoder.mteb_model_meta.similarity_fn_name is not None
    # Long vectors that differ little, in a batch for which torch multiplies.
    x = draw.normal(size=(40, 64)).astype(np.float32) * 2
    y = x + draw.normal(size=x.shape).astype(np.float32) * 1e-3
    found = np.diag(encoder.similarity(x, y).numpy())
    exact = [literal[similarity](a.astype(np.float64), b) for a, b in zip(x, y, strict=True)]
    assert np.allclose(found, exact, rtol=1e-4)


def test_mteb_scores_a_task_as_we_do(tmp_path: Path, model: SciMult) -> None:
    """MTEB rounds scores to five places."""
    benchmark = write_search(tmp_path).model_copy(
        update={"metrics": ["ndcg@10", "recall@3", "map"]}
    )
    data = read_dataset("search", benchmark, tmp_path, "", Rejects())
    assert isinstance(data, Dataset)
    ours = search(benchmark, data, DenseSystem(model).ranker(data)).scores
    results = mteb.evaluate(
        MtebEncoder(model),
        ranking_task(data)(),
        cache=None,
        show_progress_bar=False,
        encode_kwargs={},
    )
    theirs = results.task_results[0].scores["test"][0]
    assert theirs["ndcg_at_10"] == pytest.approx(ours["ndcg@10"], abs=1e-5)
    assert theirs["recall_at_3"] == pytest.approx(ours["recall@3"], abs=1e-5)
    assert theirs["map_at_1000"] == pytest.approx(ours["map"], abs=1e-5)


_TOPICS = ("proteins fold", "graphs are drawn", "stars explode", "markets crash", "cells divide")
_FRAMES = ("why {} when {}", "a model of how {} and {}", "{}: measured where {}", "do {} like {}")


def _labelled(kind: str) -> Any:
    """Build an MTEB task of made-up titles, each about one topic and a little about another."""
    import datasets
    from mteb.abstasks.classification import AbsTaskClassification
    from mteb.abstasks.clustering import AbsTaskClustering
    from mteb.abstasks.regression import AbsTaskRegression

    draw = np.random.default_rng(0)
    rows = [
        (_FRAMES[draw.integers(4)].format(first, _TOPICS[draw.integers(5)]), number)
        for number, first in enumerate(_TOPICS)
        for _ in range(24)
    ]
    column = {"Classification": "label", "Clustering": "labels", "Regression": "value"}[kind]
    scale = float if kind == "Regression" else int
    texts = [{_COLUMN[kind]: text, column: scale(number)} for text, number in rows]
    base: Any = {
        "Classification": AbsTaskClassification,
        "Clustering": AbsTaskClustering,
        "Regression": AbsTaskRegression,
    }[kind]

    class Local(base):  # type: ignore[misc]
        metadata = mteb.TaskMetadata(
            name=f"Local{kind}",
            description="made for a test",
            dataset={"path": "local/labelled", "revision": "1"},
            type=kind,
            category="t2c",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score=_MAIN[kind],
        )

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            half = {"train": texts[::2], "test": texts[1::2]}
            self.dataset = datasets.DatasetDict(
                {name: datasets.Dataset.from_list(part) for name, part in half.items()}
            )
            self.data_loaded = True

    task = Local()
    if kind == "Clustering":
        task.max_fraction_of_documents_to_embed = None
    return task


_MAIN = {"Classification": "accuracy", "Clustering": "v_measure", "Regression": "kendalltau"}
_COLUMN = {"Classification": "text", "Clustering": "sentences", "Regression": "text"}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Classification", "Clustering", "Regression"])
def test_a_folder_of_sentence_transformers_scores_as_mtebs_own_wrapper(
    minilm: Path, kind: str
) -> None:
    """Scale matters to all three. Solvers stop before the last digit: 2e-3 for tau."""
    from sentence_transformers import SentenceTransformer

    def score(model: Any) -> float:
        results = mteb.evaluate(
            model, _labelled(kind), cache=None, show_progress_bar=False, encode_kwargs={}
        )
        return float(results.task_results[0].scores["test"][0]["main_score"])

    theirs = score(SentenceTransformer(str(minilm), device="cpu"))
    ours = score(MtebEncoder(SciMult.from_pretrained(minilm, device="cpu")))
    assert ours == pytest.approx(theirs, abs=2e-3)
