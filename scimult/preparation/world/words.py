"""Invented words: pronounceable, unique, from a seeded generator."""

from __future__ import annotations

import numpy as np

_ONSETS = "b br c ch d dr f fl g gr h j k l m n p pl pr qu r s sh st t tr v z".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "", "l", "m", "n", "r", "s", "x"]
_NOUN_ENDINGS = "ation ance ism ity or oid ent ure age ine".split()
_ADJECTIVE_ENDINGS = "al ic ive ous ant ary ile ate".split()
_FIELD_ENDINGS = "ics ology onomy istry".split()


class WordMaker:
    """Draws invented words, each at most once; ``reserved`` are real words, never invented."""

    def __init__(self, rng: np.random.Generator, reserved: frozenset[str]) -> None:
        self._rng = rng
        self._taken = set(reserved)

    def noun(self) -> str:
        """Return a new noun."""
        return self._new(_NOUN_ENDINGS)

    def adjective(self) -> str:
        """Return a new adjective."""
        return self._new(_ADJECTIVE_ENDINGS)

    def field(self) -> str:
        """Return a new word that sounds like the name of a discipline."""
        return self._new(_FIELD_ENDINGS)

    def name(self) -> str:
        """Return a new capitalised proper name."""
        return self._new([""]).capitalize()

    def blend(self, first: str, second: str) -> str:
        """Return a new word from the shortest possible prefixes of two words."""
        for length in range(3, len(first) + len(second) + 1):
            word = first[:length] + second[:length]
            if word not in self._taken:
                self._taken.add(word)
                return word
        return self.noun()

    def _new(self, endings: list[str]) -> str:
        while True:
            word = self._syllable() + self._syllable() + self._choice(endings)
            if word not in self._taken:
                self._taken.add(word)
                return word

    def _syllable(self) -> str:
        return self._choice(_ONSETS) + self._choice(_VOWELS) + self._choice(_CODAS)

    def _choice(self, options: list[str]) -> str:
        return options[self._rng.integers(len(options))]
