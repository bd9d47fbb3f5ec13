"""Tokens against Lucene's own English analyser, bm25s, and Unicode's words as in ``regex``."""

from __future__ import annotations

import sys
import unicodedata

import bm25s
import pytest
import regex
import Stemmer
from hypothesis import example, given
from hypothesis import strategies as st

from scimult.data.marks import MARK, with_marks
from scimult.errors import UnknownNameError
from scimult.retrieval.analysis import PATTERNS, PRESETS, WORDS, Analyser

# What EnglishAnalyzer of Lucene 9.5.0, for the last three of 9.9.1, prints for these texts.
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
    (
        "The 1970's: Bethe's and GPT-3’s papers, a user‘s F1_s's",
        "1970 s beth gpt 3 s paper user‘ f1_",
    ),
    ("a _ b __ c _x x_ _1 © 2014 Acme® and Foo™", "b c _x x_ _1 © 2014 acm ® foo ™"),
    ("L’ontologie et la méthodologie établie", "l’ontologi et la méthodologi établi"),
]


@pytest.mark.parametrize(("text", "tokens"), LUCENE)
def test_beir_tokens_are_lucenes(text: str, tokens: str) -> None:
    (found,) = Analyser(**PRESETS["beir"])([text])
    assert found == tokens.split()


@pytest.mark.parametrize("stop_words", ["none", "english"])
@pytest.mark.parametrize("stemmer", ["none", "porter"])
@given(st.lists(st.text(alphabet="abcgilnostuy' -.", max_size=30), min_size=1, max_size=5))
@example(["On singing songs", "a goblin sits"])
def test_words_stop_words_and_stems_are_those_of_bm25s(
    stop_words: str, stemmer: str, texts: list[str]
) -> None:
    expected = bm25s.tokenize(
        texts,
        stopwords="en" if stop_words == "english" else None,
        stemmer=Stemmer.Stemmer(stemmer) if stemmer != "none" else None,
        return_ids=False,
        show_progress=False,
    )
    assert Analyser(stop_words=stop_words, stemmer=stemmer)(texts) == expected


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


# Letters and marks of scripts that write vowels, tones or accents as marks.
SCRIPTS = {
    "Hindi": "मशीनी शिक्षा के लिए हिन्दी में तंत्रिका जालतंत्र क़लम",
    "Arabic": "التَّعَلُّمُ الآليّ فِي الطِّبّ",
    "Hebrew": "בְּרֵאשִׁית בָּרָא",
    "Vietnamese": unicodedata.normalize("NFD", "Học máy với dữ liệu tiếng Việt"),
    "Lithuanian": "la\u0304\u0301 me\u0304\u0303s x\u0304 ir J\u030co",
    "Tamil": "இயந்திர கற்றல்",
}
THAI = "การเรียนรู้ของเครื่อง ที่ดีที่สุด"
analysers = st.sampled_from([Analyser(), Analyser(tokens="lucene")])
marked = st.text(
    st.one_of(
        st.characters(categories=["L", "M", "N", "P", "Zs"]),
        st.sampled_from("aeJI'’.,_ \u0301\u0304\u0307\u030c\u093f\u0345"),
    ),
    max_size=30,
)


@pytest.mark.long
def test_marks_are_all_that_unicode_calls_so() -> None:
    is_mark = with_marks(rf"[{MARK}]").fullmatch
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        assert bool(is_mark(character)) == unicodedata.category(character).startswith("M")


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_words_with_marks_are_those_of_unicode(text: str) -> None:
    composed = unicodedata.normalize("NFC", text.lower())
    segments = regex.split(r"(?wV1)\b", composed)
    words = [segment for segment in segments if regex.search(r"\w", segment)]
    assert len(words) == len(text.split())
    assert WORDS([text]) == [words]
    assert Analyser(tokens="lucene")([text]) == [words]


@given(st.text(st.sampled_from("ab1é中国々𠀀ひらカナーｶ한글 .,'-"), max_size=12))
@example("BERTモデルは3つ、v1.2中文")
@example("a.b中")
def test_scripts_of_east_asia_are_split_as_unicode_says(text: str) -> None:
    """Ideographs and Hiragana each, Katakana in runs, Hangul as letters; ``regex`` knows them."""
    segments = regex.split(r"(?wV1)\b", text.lower())
    # The last versions for Python 3.10 leave an apostrophe before a first letter.
    expected = [segment.lstrip("'") for segment in segments if regex.search(r"\w", segment)]
    assert Analyser(tokens="lucene")([text]) == [expected]


def test_thai_is_runs_of_letters_and_marks() -> None:
    runs = regex.findall(r"\p{L}[\p{L}\p{M}]*", THAI)
    assert WORDS([THAI]) == Analyser(tokens="lucene")([THAI]) == [runs]


@given(analysers, marked)
@example(Analyser(), "caf\u00e9 J\u030c \u0130x")
@example(Analyser(tokens="lucene"), "ren\u00e9's gar\u00e7on")
def test_one_letter_with_an_accent_is_as_two_characters(analyser: Analyser, text: str) -> None:
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    composed, decomposed = analyser(forms)
    assert composed == decomposed


@given(st.lists(st.text(st.characters(exclude_categories=["M"]), max_size=30), max_size=4))
def test_without_marks_words_are_those_of_bm25s(texts: list[str]) -> None:
    texts = [unicodedata.normalize("NFC", text.lower()) for text in texts]
    texts = [regex.sub(r"\p{M}", "", text) for text in texts]
    expected = bm25s.tokenize(texts, stopwords=None, return_ids=False, show_progress=False)
    assert WORDS(texts) == expected


@given(st.text(st.sampled_from("ab1_'.,: sS-"), max_size=20))
def test_ascii_is_split_as_other_text(text: str) -> None:
    """The last word makes the text take the path for all of Unicode."""
    for analyser in (WORDS, Analyser(tokens="lucene")):
        assert analyser([f"{text} éé"]) == [[*analyser([text])[0], "éé"]]


def test_what_is_recorded_is_a_pattern_of_regex() -> None:
    for text in (*SCRIPTS.values(), "plain words, v1.2"):
        lowered = unicodedata.normalize("NFC", text.lower())
        for tokens, pattern in PATTERNS.items():
            assert Analyser(tokens=tokens)([text]) == [regex.findall(pattern, lowered)]
