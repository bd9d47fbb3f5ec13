"""Turn text into the tokens that BM25 counts: splitting, stop words, stemming.

``words`` is the toolkit's default. ``beir`` is Lucene's English analyser, which Anserini, and so
BEIR's published BM25, applies to documents and queries: Unicode words without possessives and 33
stop words, stemmed by Porter's algorithm (Program 14(3), 1980) with the later changes that Lucene
adopted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from scimult.data.marks import lowered, with_marks
from scimult.errors import one_of

# Increase this when the words of a text change, so that stored indexes of older ones are rebuilt.
VERSION = "2"
NONE, LUCENE = "none", "lucene"
_IDEOGRAPHS = (
    r"\u3006\u3007\u3021-\u3029\u3038-\u303a\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U000323af"
)
_KATAKANA = r"\u3031-\u3035\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
_APART = _IDEOGRAPHS + _KATAKANA
# A mark (``\p{M}``, see `with_marks`) belongs to the letter before it.
PATTERNS = {
    "words": r"\w[\w\p{M}]+",
    # Unicode's word rules (UAX 29): some punctuation joins letters, some joins digits, underscores
    # join both but are no words, and each ideograph is a word, as are these signs, and a run of
    # Katakana. 255 is Lucene's longest word; each of a ruled line's underscores would be followed
    # to its end.
    LUCENE: rf"[©®™]|[{_IDEOGRAPHS}][\p{{M}}]*|[{_KATAKANA}][{_KATAKANA}\p{{M}}]*"
    rf"|_{{0,255}}[^\W_{_APART}][^\W{_APART}]*(?:[\p{{M}}]+[^\W{_APART}]*)*"
    rf"(?:(?:(?<=[^\W\d_]|[\p{{M}}])['‘’.:·](?=[^\W\d_{_APART}])|(?<=\d)[,;.'‘’](?=\d))"
    rf"(?:[^\W{_APART}]|[\p{{M}}])+)*",
}
# The same words where all is ASCII, as most text is, in two thirds of the time.
_ASCII = {
    "words": re.compile(r"\w\w+", re.ASCII),
    LUCENE: re.compile(
        r"_{0,255}[^\W_]\w*(?:(?:(?<=[^\W\d_])['.:](?=[^\W\d_])|(?<=\d)[,;.'](?=\d))\w+)*",
        re.ASCII,
    ),
}
# Where Lucene's Porter departs from the paper: after a vowel and a consonant (Porter's measure
# above 0), -logi loses its i and -bli becomes -ble.
_MEASURED = re.compile("(?:[aeiou]|[^aeiou]y)[^aeiou]")
Stems = Callable[[Sequence[str]], list[str]]
# After letters: in "the 1970's" a word ends before the apostrophe. Begins with the apostrophe,
# which is found faster than what is before it.
_POSSESSIVE = rf"['’＇](?<=(?:[^\W\d_{_APART}]|[\p{{M}}]).)s(?![^\W{_APART}]|[\p{{M}}])"
_ASCII_POSSESSIVE = re.compile(r"'(?<=[^\W\d_].)s(?!\w)", re.ASCII)


@dataclass(frozen=True)
class Analyser:
    """How BM25 splits and normalises text.

    Parameters
    ----------
    tokens : {"words", "lucene"}
        Runs of two or more word characters, or Lucene's words without possessive ``'s``.
    stop_words : str
        Language of the stop words to drop, under bm25s's names (``english`` is Lucene's list),
        or ``none``.
    stemmer : str
        ``none``, a Snowball algorithm such as ``english`` or ``porter``, or ``lucene``: Lucene's
        version of Porter. Needs PyStemmer.

    Raises
    ------
    UnknownNameError
        If a rule, list or algorithm is unknown.
    """

    tokens: str = "words"
    stop_words: str = NONE
    stemmer: str = NONE

    def __post_init__(self) -> None:
        one_of("tokens", self.tokens, PATTERNS)
        if self.stop_words != NONE:
            one_of("stop words", self.stop_words, [NONE, *_stop_words()])
        if self.stemmer != NONE:
            import Stemmer

            one_of("stemmer", self.stemmer, [NONE, LUCENE, *Stemmer.algorithms()])

    def __call__(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the lower-case tokens of each text."""
        dropped = frozenset(() if self.stop_words == NONE else _stop_words()[self.stop_words])
        # One string per distinct word: a corpus repeats most of them.
        same: dict[str, str] = {}
        tokens = [
            [same.setdefault(word, word) for word in _split(text, self.tokens)] for text in texts
        ]
        stems = _stemmer(self.stemmer)
        if stems is None and not dropped:
            return tokens
        terms = [word for word in same if word not in dropped]
        forms = dict(zip(terms, terms if stems is None else stems(terms), strict=True))
        return [[forms[word] for word in words if word in forms] for words in tokens]


WORDS = Analyser()
PRESETS: Mapping[str, Mapping[str, str]] = {
    "words": {},
    "beir": {"tokens": LUCENE, "stop_words": "english", "stemmer": LUCENE},
}


def _split(text: str, tokens: str) -> list[str]:
    text = lowered(text)
    plain = text.isascii()
    if tokens == LUCENE:
        text = (_ASCII_POSSESSIVE if plain else with_marks(_POSSESSIVE)).sub("", text)
    words: list[str] = (_ASCII[tokens] if plain else with_marks(PATTERNS[tokens])).findall(text)
    return words


def _stemmer(name: str) -> Stems | None:
    if name == NONE:
        return None
    import Stemmer

    stems: Stems = Stemmer.Stemmer("porter" if name == LUCENE else name).stemWords
    if name != LUCENE:
        return stems

    def as_lucene(words: Sequence[str]) -> list[str]:
        stemmed = stems(words)
        for index, (word, stem) in enumerate(zip(words, stemmed, strict=True)):
            if len(word) <= 2:
                stemmed[index] = word
            elif word.endswith("e"):
                continue  # the stem's end was no suffix: -logie is not -logi
            elif stem.endswith("logi") and _MEASURED.search(stem[:-4]):
                stemmed[index] = stem[:-1]
            elif stem.endswith("bli") and _MEASURED.search(stem[:-3]):
                stemmed[index] = stems([f"{stem[:-1]}e"])[0]
        return stemmed

    return as_lucene


@cache
def _stop_words() -> Mapping[str, list[str]]:
    """Return bm25s's stop words by language."""
    from bm25s import stopwords

    lists = {
        name.removeprefix("STOPWORDS_").lower(): list(words)
        for name, words in vars(stopwords).items()
        if name.startswith("STOPWORDS_")
    }
    return {"english": lists.pop("en"), "english_long": lists.pop("en_plus"), **lists}
