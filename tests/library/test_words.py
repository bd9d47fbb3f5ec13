"""BM25 in a library: fused with vectors, its share tuned, its index kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval

from scimult.errors import BusyError, ConfigError, DataError
from scimult.files import only_writer
from scimult.inference import SciMult
from scimult.library import Library, fusing, searching
from scimult.library.fusing import RULES
from scimult.library.tuning import Question
from scimult.library.words import WordIndex
from scimult.locks import temporary_name
from scimult.retrieval.bm25 import BM25Index
from tests.library.conftest import PAPERS, WORDS, paper, scores_of
from tests.tiny import save_tiny_model


@pytest.fixture
def library(dated_library: Library) -> Library:
    return dated_library


def test_words_and_vectors_together(library: Library, model: SciMult) -> None:
    query = "graph speech study"
    texts = [f"{row['title']} {row['abstract']}".strip() for row in PAPERS]
    ids = [row["id"] for row in PAPERS]
    ranking = BM25Index(ids, texts).search([query], 40)
    listed = [
        (ids[row], s) for row, s in zip(ranking.rows_QK[0], ranking.scores_QK[0], strict=True)
    ]
    words = dict(pair for pair in listed if pair[1] > 0)
    vectors = scores_of(model, query)
    assert library.search(query, words=1.0, k=3).ids == _ties_down(words, 3)
    places = {name: place for place, name in enumerate(_ties_down(words, len(words)), start=1)}
    order = sorted(vectors, key=lambda name: -vectors[name])
    points = {
        name: 1 / (60 + place) + (1 / (60 + places[name]) if name in places else 0)
        for place, name in enumerate(order, start=1)
    }
    found = library.search(query, words="rank", k=40)
    assert found.scores == pytest.approx(sorted(points.values(), reverse=True), abs=1e-7)
    assert dict(zip(found.ids, found.scores, strict=True)) == pytest.approx(points, abs=1e-7)
    assert found.score == "reciprocal ranks"
    least, most = min(vectors.values()), max(vectors.values())
    for share in (0.0, 0.3, 0.8):
        points = {
            name: (1 - share) * (score - least) / (most - least)
            + share * words.get(name, 0) / max(words.values())
            for name, score in vectors.items()
        }
        found = library.search(query, words=share, k=40)
        assert found.scores == pytest.approx(sorted(points.values(), reverse=True), abs=1e-5)
        assert dict(zip(found.ids, found.scores, strict=True)) == pytest.approx(points, abs=1e-5)


def test_the_last_paper_with_a_word_ranks_before_those_without(
    make: Callable[..., Library],
) -> None:
    """Of two papers with a rare word, the longer one had the points of those that lack it."""
    papers = [{"id": f"p{i}", "title": f"graph {i}"} for i in range(20)]
    papers[3]["title"] += " yttrium"
    papers[4]["title"] += " of much yttrium"
    library = make(papers)
    assert library.search("yttrium", words=1, k=2).ids == ["p3", "p4"]
    hits = library.search("yttrium", words=1, k=20)
    assert hits.scores[0] == 1 > hits.scores[1] > 0.5
    # By words alone, papers without any of them were listed, too: by id, with a score of 0.
    assert hits.ids == ["p3", "p4"]
    assert not library.search("unheard", words=1)


@pytest.mark.parametrize("words", [0.7, "rank"])
def test_pages_beyond_the_fused_lists_repeat_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch, words: Any
) -> None:
    for module in (searching, fusing):
        monkeypatch.setattr(module, "FUSED", 9)
    first = library.search("graph speech study", words=words, k=12)
    pages = [
        library.search("graph speech study", words=words, k=4, offset=start)
        for start in range(0, 44, 4)
    ]
    ids = [name for page in pages for name in page.ids]
    scores = [score for page in pages for score in page.scores]
    assert sorted(ids) == sorted(row["id"] for row in PAPERS)
    assert (ids[:12], scores[:12]) == (first.ids, first.scores)
    assert scores == sorted(scores, reverse=True)


def _ties_down(scores: dict[str, float], k: int) -> list[str]:
    by_id = sorted(scores, reverse=True)
    return sorted(by_id, key=lambda name: -np.float32(scores[name]))[:k]


def test_the_index_of_words_is_built_once(
    make: Callable[..., Library], model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = make(PAPERS[:5])
    wanted = library.search("graph", words=0.5).as_dicts()
    monkeypatch.setattr(WordIndex, "_build", None)
    assert Library.open(library.path, model=model).search("graph", words=0.5).as_dicts() == wanted


def test_a_query_without_words_is_compared_by_vectors_alone(library: Library) -> None:
    assert library.search("?!", words=0.5, k=40).ids == library.search("?!", k=40).ids
    assert not library.search("?!", words=1)


@pytest.mark.parametrize("file", ["data.csc.index.npy", "params.index.json"])
def test_a_damaged_word_index_is_made_again(make: Callable[..., Library], file: str) -> None:
    library = make(PAPERS[:5])
    wanted = library.search("graph", words=0.5)
    (damaged,) = (library.path / "words").rglob(file)
    (library.path / "words" / temporary_name(Path("former")).name).mkdir()
    for content in (damaged.read_bytes()[:50], b"{"):
        damaged.write_bytes(content)
        library.refresh()
        assert library.search("graph", words=0.5).as_dicts() == wanted.as_dicts()
    # A killed process's half-written index of other papers goes, too.
    assert len(list((library.path / "words").iterdir())) == 1


def test_a_word_index_of_an_older_analysis_is_made_again(make: Callable[..., Library]) -> None:
    library = make([{**paper(1), "title": "शिक्षा"}, paper(2)])
    library.search("शिक्षा", words=1.0)
    (stored,) = (library.path / "words").iterdir()
    # As versions did that named no analysis, and split this title into three words.
    older = stored.rename(stored.with_suffix(""))
    library.refresh()
    assert library.search("शिक्षा", words=1.0).ids[0] == "p001"
    assert [entry.name for entry in (library.path / "words").iterdir()] == [stored.name]
    assert not older.exists()


@pytest.mark.long
def test_the_share_of_words_is_chosen_on_queries(make: Callable[..., Library]) -> None:
    papers = [{**paper(i), "title": f"{WORDS[i % 10]} code{i}"} for i in range(60)]
    library = make(papers, tasks=["search"])
    with pytest.raises(ConfigError, match=r"no BM25 share has been tuned.*scimult library tune"):
        library.search("graph", words="tuned")
    # Only BM25 can match the codes; one paper of the fourth query is not in the library.
    questions = [Question(f"code{i}", [f"p{i:03d}"]) for i in range(0, 60, 3)]
    questions[3] = Question(questions[3].words, [*questions[3].ids, "elsewhere"])
    tuned = library.tune_words(iter(questions))
    assert tuned.queries == 20
    assert tuned.scores[tuned.share] == max(tuned.scores.values())
    assert tuned.scores[1.0] > tuned.scores[0.0]
    for share, score in tuned.scores.items():
        assert score == pytest.approx(_ndcg(library, questions, share)), share
    wanted = library.search("code7 graph", words=tuned.share)
    for opened in (library, Library.open(library.path, model=library.model)):
        found = opened.search("code7 graph", words="tuned")
        assert (found.ids, found.scores, found.score) == (wanted.ids, wanted.scores, wanted.score)
    with pytest.raises(DataError, match="too few queries: 0 of 30 have papers of the library"):
        library.tune_words([Question("graph", ["elsewhere"])] * 30)
    # A share tuned with other vectors does not apply to a new model's.
    newer = save_tiny_model(library.path.parent / "newer", similarity="cosine", seed=4)
    library.migrate(newer, dtype="float32")
    with pytest.raises(ConfigError, match="no BM25 share has been tuned"):
        library.search("graph", words="tuned")


def test_a_second_tuning_is_refused_before_it_begins(make: Callable[..., Library]) -> None:
    """The later one won in silence."""
    library = make(PAPERS[:12], tasks=["search"])
    questions = iter([Question("graph", ["p001"])] * 10)
    with only_writer(library.path), pytest.raises(BusyError, match="another process is writing"):
        library.tune_words(questions)
    assert library.tune_words(questions).queries == 10


def test_a_share_that_an_earlier_version_tuned_is_told(
    make: Callable[..., Library], caplog: pytest.LogCaptureFixture
) -> None:
    library = make(PAPERS[:12], tasks=["search"])
    library.tune_words([Question("graph", ["p001"])] * 10)
    library.search("graph", words="tuned")
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
    manifest = json.loads((library.path / "library.json").read_text())
    assert manifest.pop("words_rules") == {"search": RULES}
    (library.path / "library.json").write_text(json.dumps(manifest))
    older = Library.open(library.path, model=library.model)
    found = [older.search("graph", words="tuned") for _ in range(2)]
    assert found[0].ids == library.search("graph", words=manifest["words"]["search"]).ids
    (message,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "tune it again with scimult library tune" in message


def _ndcg(library: Library, questions: list[Question], share: float | str) -> float:
    """Return pytrec_eval's nDCG@10 of searches with this share."""
    run = {
        str(i): {hit.id: float(hit.score) for hit in library.search(one.words, words=share)}
        for i, one in enumerate(questions)
    }
    qrels = {str(i): dict.fromkeys(one.ids, 1) for i, one in enumerate(questions)}
    scored = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(run)
    return float(np.mean([scored[str(i)]["ndcg_cut_10"] for i in range(len(questions))]))


def test_words_follow_papers_that_a_rewrite_renumbers(make: Callable[..., Library]) -> None:
    library = make(PAPERS[:9])
    wanted = library.search("network 7", words=1.0)
    library.remove(["p000"])
    library.add(PAPERS[:1])
    library.compact()
    assert library.search("network 7", words=1.0).as_dicts() == wanted.as_dicts()
