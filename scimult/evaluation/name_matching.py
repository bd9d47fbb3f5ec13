"""Label-name matching: labels whose name occurs in a paper move to the front of its list.

The rule is MAPLE's (Zhang et al. 2023, used in SciMult, section 4.3): a label matches a paper
when every token of its name is a token of title + abstract and, if the name has several tokens,
the name is also a substring of that text. One matching name (synonym) is enough.

Shape legend: Q papers, K ranked labels per paper, M further matched labels per paper.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from scimult.data.marks import lowered, with_marks
from scimult.data.ragged import Ragged
from scimult.retrieval.runs import Ranking
from scimult.types import BoolArray, IntArray

_MATCHED, _MATCHED_BELOW, _OTHER, _DROPPED = range(4)
_NOT_WORD = re.compile(r"[\W_]+")
_WORD = r"[^\W_]+(?:[\p{M}]+[^\W_]*)*"


def words(text: str) -> str:
    """Lower-case ``text`` and put one space between its words, dropping punctuation.

    A letter with an accent is the same as one character and as two.
    Raw titles and abstracts need it, so that a name at the end of a sentence matches. Tokenised
    data such as MAPLE's is only stripped.
    """
    text = lowered(text)
    if text.isascii():
        return _NOT_WORD.sub(" ", text).strip()
    return " ".join(with_marks(_WORD).findall(text))


class NameMatcher:
    """Finds the labels whose name occurs in a text.

    Names are indexed by their rarest token, so a text is compared with few names rather than
    with all labels. ``names`` are the normalised ones of each label; an empty one never matches.
    """

    def __init__(self, names: Sequence[Sequence[str]]) -> None:
        tokenised = [
            (label, name, frozenset(name.split()))
            for label, synonyms in enumerate(names)
            for name in synonyms
        ]
        frequency = Counter(token for _, _, tokens in tokenised for token in tokens)
        self._by_rarest: dict[str, list[tuple[int, str, frozenset[str]]]] = defaultdict(list)
        for entry in tokenised:
            if entry[2]:
                rarest = min(entry[2], key=lambda token: (frequency[token], token))
                self._by_rarest[rarest].append(entry)

    def match(self, text: str) -> list[int]:
        """Return the rows of the labels that match a normalised text, ascending."""
        tokens = set(text.split())
        return sorted(
            {
                label
                for token in tokens
                for label, name, needed in self._by_rarest.get(token, ())
                if needed <= tokens and (len(needed) == 1 or name in text)
            }
        )


def match_names(texts: Sequence[str], names: Sequence[Sequence[str]]) -> Ragged:
    """Return, for each normalised text, the rows of the labels that match it."""
    matcher = NameMatcher(names)
    return Ragged.from_lists(matcher.match(text) for text in texts)


def matched_first(ranking: Ranking, ranked_matches: Ranking) -> Ranking:
    """Move matched labels to the front; matched and other labels each keep their order.

    ``ranked_matches`` has all matched labels of each paper by score, so that those beyond the end
    of ``ranking`` are placed as in a list of all labels. The lists stay as long as ``ranking``'s;
    their scores are descending ranks (K, K - 1, ...), as the order is no longer that of
    similarities.
    """
    rows_QK, rows_QM = ranking.rows_QK, ranked_matches.rows_QK
    labels = int(max(rows_QK.max(initial=0), rows_QM.max(initial=0))) + 1
    keys_QK, keys_QM = _keys(rows_QK, labels), _keys(rows_QM, labels)
    in_matches_QK, in_list_QM = _shared(keys_QK, keys_QM)
    # Sorting single-byte integers is several times faster.
    group_QK = np.where(in_matches_QK, _MATCHED, _OTHER).astype(np.int8)
    group_QM = np.where(in_list_QM, _DROPPED, _MATCHED_BELOW).astype(np.int8)
    group_QK[rows_QK < 0], group_QM[rows_QM < 0] = _DROPPED, _DROPPED
    groups = np.concatenate([group_QK, group_QM], axis=1)
    order_QK = np.argsort(groups, axis=1, kind="stable")[:, : rows_QK.shape[1]]
    rows = np.take_along_axis(np.concatenate([rows_QK, rows_QM], axis=1), order_QK, axis=1)
    rows[np.take_along_axis(groups, order_QK, axis=1) == _DROPPED] = -1
    ranks_K = np.arange(rows.shape[1], 0, -1, dtype=np.float32)
    return Ranking(rows, np.where(rows >= 0, ranks_K, np.float32(-np.inf)))


def _shared(keys_QK: IntArray, keys_QM: IntArray) -> tuple[BoolArray, BoolArray]:
    """Return masks of the keys that occur in both arrays."""
    sorted_P = np.unique(keys_QM)
    if not len(sorted_P):
        return np.zeros(keys_QK.shape, dtype=np.bool_), np.zeros(keys_QM.shape, dtype=np.bool_)
    index_QK = np.searchsorted(sorted_P, keys_QK).clip(max=len(sorted_P) - 1)
    shared_QK: BoolArray = sorted_P[index_QK] == keys_QK
    shared_P = np.zeros(len(sorted_P), dtype=np.bool_)
    shared_P[index_QK[shared_QK]] = True
    return shared_QK, shared_P[np.searchsorted(sorted_P, keys_QM)]


def _keys(rows_QK: IntArray, labels: int) -> IntArray:
    """Give every (paper, label) pair its own number; padding gets -1 - paper."""
    papers_Q = np.arange(len(rows_QK), dtype=np.int64)[:, None]
    return np.where(rows_QK >= 0, papers_Q * labels + rows_QK, -1 - papers_Q)
