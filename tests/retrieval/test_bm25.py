"""BM25 against its formula."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.retrieval import bm25
from scimult.retrieval.analysis import Analyser
from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.runs import Ranking

DOCUMENTS = {
    "d1": "Exact search of papers, and of papers only",
    "d2": "Approximate search",
    "d3": "A b c",
    "d4": "Citation of papers",
    "d5": "approximate SEARCH",
    "d6": "Papers cite papers; papers search for papers",
}
QUERIES = ["papers search papers", "nothing known", "", "approximate"]


def _formula(query: str) -> dict[str, float]:
    """Lucene's BM25 (Kamphuis et al. 2020), k1 = 0.9, b = 0.4, a query term per occurrence."""
    tokens = {name: re.findall(r"\w\w+", text.lower()) for name, text in DOCUMENTS.items()}
    mean = sum(map(len, tokens.values())) / len(tokens)
    scores = dict.fromkeys(DOCUMENTS, 0.0)
    for term in re.findall(r"\w\w+", query.lower()):
        frequency = sum(term in words for words in tokens.values())
        idf = math.log(1 + (len(tokens) - frequency + 0.5) / (frequency + 0.5))
        for name, words in tokens.items():
            count = words.count(term)
            norm = 0.9 * (1 - 0.4 + 0.4 * len(words) / mean)
            scores[name] += idf * count / (count + norm)
    return scores


def _named(ranking: Ranking) -> list[dict[str, float]]:
    names = list(DOCUMENTS)
    return [
        {names[row]: score for row, score in zip(rows, scores, strict=True) if row >= 0}
        for rows, scores in zip(ranking.rows_QK, ranking.scores_QK, strict=True)
    ]


@pytest.fixture
def index() -> BM25Index:
    return BM25Index(list(DOCUMENTS), list(DOCUMENTS.values()))


def test_scores_are_those_of_the_formula_and_only_matches_are_listed(index: BM25Index) -> None:
    for query, found in zip(QUERIES, _named(index.search(QUERIES, 10)), strict=True):
        wanted = {name: score for name, score in _formula(query).items() if score > 0}
        assert found == pytest.approx(wanted, rel=1e-5)
        assert list(found) == sorted(found, key=lambda name: (found[name], name), reverse=True)


def test_blocks_of_queries_change_nothing(
    index: BM25Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = index.search(QUERIES, 10, exclude_Q=np.array([5, -1, -1, 1]))
    # One query per block, however many candidates there are.
    monkeypatch.setattr(bm25, "_MOST_SCORES", 1)
    cut = index.search(QUERIES, 10, exclude_Q=np.array([5, -1, -1, 1]))
    np.testing.assert_array_equal(cut.rows_QK, whole.rows_QK)
    np.testing.assert_array_equal(cut.scores_QK, whole.scores_QK)


def test_equal_scores_come_by_descending_id(index: BM25Index) -> None:
    (found,) = _named(index.search(["approximate"], 10))
    assert list(found) == ["d5", "d2"]
    (cut,) = _named(index.search(["approximate"], 1))
    assert list(cut) == ["d5"]


def test_the_query_itself_is_left_out(index: BM25Index) -> None:
    ranking = index.search(["approximate", "approximate"], 10, exclude_Q=np.array([4, -1]))
    assert [list(found) for found in _named(ranking)] == [["d2"], ["d5", "d2"]]


def test_listed_candidates_are_all_ranked(index: BM25Index) -> None:
    lists = Ragged.from_lists([[2, 3, 0], [5], [], [0, 1, 4]])
    found = _named(index.rank_listed(QUERIES, lists))
    assert [list(names) for names in found] == [["d1", "d4", "d3"], ["d6"], [], ["d5", "d2", "d1"]]
    assert found[0]["d3"] == 0.0


def test_a_single_text_is_no_list_of_its_letters(index: BM25Index) -> None:
    with pytest.raises(DataError, match="single text.*'papers'.*Fix: pass a list"):
        index.search("papers", 3)
    with pytest.raises(DataError, match="single text"):
        BM25Index(list("abc"), "xyz")


def test_texts_without_a_token() -> None:
    with pytest.raises(DataError, match="no candidate has a token"):
        BM25Index(["a", "b"], ["", "x y"])
    with pytest.raises(DataError, match="2 candidate ids for 1 texts"):
        BM25Index(["a", "b"], ["some text"])


def test_an_index_with_an_analyser_equals_bm25s_with_the_same_tokenizer_and_stemmer() -> None:
    """Scores to float32 (relative 1e-5: sums of as many terms as a query has)."""
    import bm25s
    import Stemmer

    texts = list(DOCUMENTS.values())
    settings = {"stopwords": "english", "stemmer": Stemmer.Stemmer("english")}
    peer = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    peer.index(bm25s.tokenize(texts, **settings, show_progress=False), show_progress=False)
    analyser = Analyser(stop_words="english", stemmer="english")
    ours = BM25Index(list(DOCUMENTS), texts, analyser, k1=1.2, b=0.75)
    queries = ["the searching of a paper", "citations", "approximately"]
    for query, found in zip(queries, _named(ours.search(queries, 10)), strict=True):
        tokens = bm25s.tokenize(query, **settings, show_progress=False)
        rows, scores = (x[0] for x in peer.retrieve(tokens, k=len(texts), show_progress=False))
        expected = {
            list(DOCUMENTS)[row]: score for row, score in zip(rows, scores, strict=True) if score
        }
        assert found == pytest.approx(expected, rel=1e-5)
        assert found
