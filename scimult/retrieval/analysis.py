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

from scimult.errors import one_of

NONE, LUCENE = "none", "lucene"
_IDEOGRAPHS = "\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
PATTERNS = {
    "words": r"(?u)\b\w\w+\b",
    # Unicode's word rules (UAX 29): some marks join letters, others join digits, and each
    # ideograph is a word.
    LUCENE: rf"(?u)[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+"
    r"(?:(?:(?<=[^\W\d_])['’.:·](?=[^\W\d_])|(?<=\d)[,;.'’](?=\d))\w+)*",
}
# Where Lucene's Porter departs from the paper: after a vowel and a consonant (Porter's measure
# above 0), -logi loses its i and -bli becomes -ble.
_MEASURED = re.compile("(?:[aeiou]|[^aeiou]y)[^aeiou]")
Stems = Callable[[Sequence[str]], list[str]]
_POSSESSIVE = re.compile(r"(?<=\w)['’＇][sS](?!\w)")


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
        import bm25s  # loads scipy, which a dense search does not need

        if self.tokens == "lucene":
            texts = [_POSSESSIVE.sub("", text) for text in texts]
        tokens: list[list[str]] = bm25s.tokenize(
            list(texts),
            lower=True,
            token_pattern=PATTERNS[self.tokens],
            stopwords=None if self.stop_words == NONE else _stop_words()[self.stop_words],
            stemmer=_stemmer(self.stemmer),
            return_ids=False,
            show_progress=False,
        )
        return tokens


WORDS = Analyser()
PRESETS: Mapping[str, Mapping[str, str]] = {
    "words": {},
    "beir": {"tokens": LUCENE, "stop_words": "english", "stemmer": LUCENE},
}


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
