"""Hash keys for sampling, the same in Python, numpy and every SQL engine.

A sample by key depends only on what there is to choose from, not on blocks, threads, or engines
and their versions. Keys are made as in SplitMix (Steele et al., 2014): a sum of the columns, each
times an odd number, is mixed once. Everything stays below 2^63, for engines whose integers are
signed and must not overflow.
"""

from __future__ import annotations

from typing import TypeVar

from scimult.types import IntArray

ALL_KEYS = 1 << 32
_MASK = ALL_KEYS - 1
# Factors, below 2^31, of a 32-bit permutation from Wellons' prospector.
_FIRST, _SECOND = 0x21F0AAAD, 0x735A2D97
# Factors of the columns of a row, from the last to the first.
_COLUMNS = (0x6C8E9CF5, 0x4F1BBCDD, 0x5851F42D, 0x7FEB352D)
# SQL functions of an integer ``x``; each may use the ones before it.
SQL_FUNCTIONS = {
    "mix_first": f"(xor(x, x >> 16) * {_FIRST}) & {_MASK}",
    "mix_second": f"(xor(x, x >> 15) * {_SECOND}) & {_MASK}",
    "mix_last": "xor(x, x >> 15)",
    "mix": "mix_last(mix_second(mix_first(x)))",
}
Numbers = TypeVar("Numbers", int, IntArray)


def mix(x: Numbers) -> Numbers:
    """Permute the numbers below 2^32: distinct numbers stay distinct."""
    x = ((x ^ (x >> 16)) * _FIRST) & _MASK
    x = ((x ^ (x >> 15)) * _SECOND) & _MASK
    return x ^ (x >> 15)


def key(seed: int, *columns: Numbers) -> Numbers:
    """Return a number below 2^32 for each row of at most four ``columns`` of such numbers.

    Rows that differ in a single column have different numbers, so ordering them has no ties.
    ``seed`` determines the order.
    """
    first, *others = columns
    total = ((first * _COLUMNS[len(others)]) & _MASK) + mix(seed & _MASK)
    for column, factor in zip(reversed(others), _COLUMNS, strict=False):
        total = total + ((column * factor) & _MASK)
    return mix(total & _MASK)


def key_sql(seed: int, *columns: str) -> str:
    """Return ``key`` as an SQL expression over the named columns."""
    terms = [str(mix(seed & _MASK))]
    for column, factor in zip(reversed(columns), _COLUMNS, strict=False):
        terms.append(f"(({column} * {factor}) & {_MASK})")
    return f"mix(({' + '.join(terms)}) & {_MASK})"
