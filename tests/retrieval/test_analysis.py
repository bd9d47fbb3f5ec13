"""Tokens against Lucene's own English analyser, and bm25s."""

from __future__ import annotations

import bm25s
import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from scimult.errors import UnknownNameError
from scimult.retrieval.analysis import PRESETS, WORDS, Analyser

# What EnglishAnalyzer of Lucene 9.5.0 prints for these texts.
LUCENE = [
    (
        ("The technologies of biology, geology and possibly morphology were assembled flexibly"),
        "technolog biologi geologi possibl morpholog were assembl flexibl",
    ),
    (
        (
            "It's the authors' method: Bayes's rule isn't a \"state-of-the-art\" one, e.g. in "
            "U.S. patents v2.0"
        ),
        "author method bay rule isn't state art on e.g u. patent v2.0",
    ),
    (
        (
            "BERT-base reaches 93.5% (1,024 tokens; p<0.05) on e-mail from a_b@c.org at 10:30 "
            "vs. GPT_4"
        ),
        "bert base reach 93.5 1,024 token p 0.05 e mail from a_b c.org 10 30 vs gpt_4",
    ),
    (
        ("Relational databases, ponies, caresses, hopping, conflated, vietnamization, us, as, ts"),
        "relat databas poni caress hop conflat vietnam us ts",
    ),
    (
        "研究 of Schrödinger’s equation and naïve café Ångström I/O 3D x1y 1.2.3 α-helices",
        "研 究 schrödinger equat naïv café ångström i o 3d x1y 1.2.3 α helic",
    ),
    (
        "nobly bubbles doubly ably tribal terribly is was were been the these those",
        "nobli bubbl doubli abli tribal terribl were been those",
    ),
    (
        (
            "Graph neural networks (GNNs) are generalisations; generalizations, operators, "
            "electricity"
        ),
        "graph neural network gnn generalis gener oper electr",
    ),
]


@pytest.mark.parametrize(("text", "tokens"), LUCENE)
def test_beir_tokens_are_lucenes(text: str, tokens: str) -> None:
    (found,) = Analyser(**PRESETS["beir"])([text])
    assert found == tokens.split()


@given(st.lists(st.text(alphabet="abcgilnostuy' -.", max_size=30), min_size=1, max_size=5))
def test_words_stop_words_and_stems_are_those_of_bm25s(texts: list[str]) -> None:
    stemmer = Stemmer.Stemmer("porter")
    expected = bm25s.tokenize(
        texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
    )
    assert Analyser(stop_words="english", stemmer="porter")(texts) == expected


def test_by_default_nothing_is_dropped_or_stemmed() -> None:
    assert WORDS(["The Searching of a PAPER", ""]) == [["the", "searching", "of", "paper"], []]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stemmer": "englsh"}, "did you mean 'english'"),
        ({"stop_words": "klingon"}, "unknown stop words"),
        ({"tokens": "chars"}, "use one of lucene, words"),
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        Analyser(**settings)
