"""Numbers that choose: the same in Python, numpy and every SQL engine.

What is chosen by them depends on what there is to choose from, not on when or where: blocks,
threads, engines and their versions do not matter. They are made as by SplitMix (Steele et al.,
2014): a sum of the columns, each times an odd number, is mixed once. All is below 2^63, for engines
whose integers are signed and may not overflow.
"""

from __future__ import annotations

from typing import TypeVar

from scimult.types import IntArray

ALL_KEYS = 1 << 32
_MASK = ALL_KEYS - 1
# Of a permutation of 32 bits from Wellons' prospector whose factors are below 2^31.
_FIRST, _SECOND = 0x21F0AAAD, 0x735A2D97
# Of the columns of a row, from the last to the first.
_COLUMNS = (0x6C8E9CF5, 0x4F1BBCDD, 0x5851F42D, 0x7FEB352D)
# SQL functions of an integer ``x``; each may use those before it.
SQL_FUNCTIONS = {
    "mix_first": f"(xor(x, x >> 16) * {_FIRST}) & {_MASK}",
    "mix_second": f"(xor(x, x >> 15) * {_SECOND}) & {_MASK}",
    "mix_last": "xor(x, x >> 15)",
    "mix": "mix_last(mix_second(mix_first(x)))",
}
Numbers = TypeVar("Numbers", int, IntArray)


def mix(x: Numbers) -> Numbers:
    """Permute the numbers below 2^32: equal ones stay equal, others stay apart."""
    x = ((x ^ (x >> 16)) * _FIRST) & _MASK
    x = ((x ^ (x >> 15)) * _SECOND) & _MASK
    return x ^ (x >> 15)


def key(seed: int, *columns: Numbers) -> Numbers:
    """Return a number below 2^32 for each row of ``columns``.

    Rows that differ in one column alone have different numbers, so that an order by them has
    no ties.

    Parameters
    ----------
    seed : int
        Another seed, another order.
    columns : int or IntArray
        At most four, of numbers from 0 to 2^32 - 1.
    """
    first, *others = columns
    total = ((first * _COLUMNS[len(others)]) & _MASK) + mix(seed & _MASK)
    for place, column in enumerate(reversed(others)):
        total = total + ((column * _COLUMNS[place]) & _MASK)
    return mix(total & _MASK)


def key_sql(seed: int, *columns: str) -> str:
    """Return ``key`` as an expression of SQL over columns of these names."""
    terms = [str(mix(seed & _MASK))]
    for column, factor in zip(reversed(columns), _COLUMNS, strict=False):
        terms.append(f"(({column} * {factor}) & {_MASK})")
    return f"mix(({' + '.join(terms)}) & {_MASK})"
