"""Finding names of concepts in texts: whole words, the longest name at each position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scimult.evaluation.name_matching import words


class NameFinder:
    """Finds the names of concepts in texts.

    A name is a run of whole words; case, punctuation and English plurals are ignored. Names inside
    a longer match do not count: "computer vision" is not "vision".

    Parameters
    ----------
    names : iterable of sequences of str
        The names of each concept; names without words never match.
    """

    def __init__(self, names: Iterable[Sequence[str]]) -> None:
        self._rows: dict[str, tuple[int, ...]] = {}
        lengths: dict[str, set[int]] = {}
        for row, synonyms in enumerate(names):
            for name in synonyms:
                tokens = _tokens(name)
                if not tokens:
                    continue
                phrase = " ".join(tokens)
                rows = self._rows.get(phrase, ())
                if row not in rows:
                    self._rows[phrase] = (*rows, row)
                    lengths.setdefault(tokens[0], set()).add(len(tokens))
        self._lengths = {token: tuple(sorted(n, reverse=True)) for token, n in lengths.items()}

    def find(self, text: str) -> list[int]:
        """Return the rows of all matching concepts, in text order, one per match."""
        return list(self._matches(_tokens(text)))

    def _matches(self, tokens: list[str]) -> Iterator[int]:
        start = 0
        while start < len(tokens):
            step = 1
            for length in self._lengths.get(tokens[start], ()):
                rows = self._rows.get(" ".join(tokens[start : start + length]))
                # At the end of the text a slice may be too short, and would match twice.
                if rows and start + length <= len(tokens):
                    yield from rows
                    step = length
                    break
            start += step


def _tokens(text: str) -> list[str]:
    return [_singular(token) for token in words(text).split()]


def _singular(word: str) -> str:
    """Strip a plural ending: the S stemmer of Harman (1991), also of -aes, -ees and -oes.

    A movie ends as movies do, in y.
    """
    if len(word) > 3 and word.endswith("ies") and word[-4] not in "ae":
        return word[:-3] + "y"
    if len(word) > 2 and word.endswith("ie"):
        return word[:-2] + "y"
    if len(word) > 2 and word.endswith("s") and word[-2] not in "us":
        return word[:-1]
    return word
