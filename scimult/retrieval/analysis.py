"""From text to the tokens that BM25 counts: how they are cut, which are dropped, their stems.

``words`` is what the toolkit does unless told otherwise. ``beir`` is Lucene's analyser of English,
with which Anserini, and so BEIR's published BM25, reads documents and queries: words as Unicode
cuts them, possessives and 33 stop words removed, Porter's stems (Program 14(3), 1980) with the
changes that he later made and Lucene has.
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
    # Unicode's rules for words (UAX 29): some marks join letters, others join digits, and each
    # ideograph is a word.
    LUCENE: rf"(?u)[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+"
    r"(?:(?:(?<=[^\W\d_])['’.:·](?=[^\W\d_])|(?<=\d)[,;.'’](?=\d))\w+)*",
}
# Where Lucene's Porter departs from the paper: -logi loses its i and -bli becomes -ble, after a
# vowel and a consonant (Porter's measure above 0).
_MEASURED = re.compile("(?:[aeiou]|[^aeiou]y)[^aeiou]")
Stems = Callable[[Sequence[str]], list[str]]
_POSSESSIVE = re.compile(r"(?<=\w)['’＇][sS](?!\w)")


@dataclass(frozen=True)
class Analyser:
    """How BM25 reads a text.

    Parameters
    ----------
    tokens : {"words", "lucene"}
        Runs of two or more word characters, or Lucene's words without possessive ``'s``.
    stop_words : str
        Language whose stop words are dropped, as bm25s lists them (``english`` is Lucene's
        list), or ``none``.
    stemmer : str
        ``none``, a Snowball algorithm, such as ``english`` or ``porter``, or ``lucene``: Porter's
        as Lucene has it. Needs PyStemmer.

    Raises
    ------
    UnknownNameError
        If there is no such rule, list or algorithm.
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
        """Return the tokens of each text, in lower case."""
        import bm25s  # it loads scipy, which a dense search never needs

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
    """Return what turns words into their stems."""
    if name == NONE:
        return None
    import Stemmer

    stems: Stems = Stemmer.Stemmer("porter" if name == LUCENE else name).stemWords
    if name != LUCENE:
        return stems

    def as_lucene(words: Sequence[str]) -> list[str]:
        stemmed = stems(words)
        for place, (word, stem) in enumerate(zip(words, stemmed, strict=True)):
            if len(word) <= 2:
                stemmed[place] = word
            elif stem.endswith("logi") and _MEASURED.search(stem[:-4]):
                stemmed[place] = stem[:-1]
            elif stem.endswith("bli") and _MEASURED.search(stem[:-3]):
                stemmed[place] = stems([f"{stem[:-1]}e"])[0]
        return stemmed

    return as_lucene


@cache
def _stop_words() -> Mapping[str, list[str]]:
    """Return the stop words that bm25s has, by language."""
    from bm25s import stopwords

    words_of = {
        name.removeprefix("STOPWORDS_").lower(): list(words)
        for name, words in vars(stopwords).items()
        if name.startswith("STOPWORDS_")
    }
    return {"english": words_of.pop("en"), "english_long": words_of.pop("en_plus"), **words_of}
