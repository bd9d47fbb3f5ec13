"""Cut two views of one text from its tokens, on the fly: pairs for self-supervision.

A view is a function of the stored tokens and a generator seeded by (seed, epoch, row): nothing is
written, every epoch sees other cuts, and a resumed run sees the same ones.

Shape legend: T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scimult.data.token_store import TokenStore
from scimult.data.tokenization import cut
from scimult.types import IntArray, ViewName

Cut = Callable[[IntArray, np.random.Generator, int], tuple[IntArray, IntArray]]

# Parisot and Zavrel (2022), section 3: both spans have at least ten tokens.
MIN_TOKENS = 10
# Izacard et al. (2022), appendix A.1: a crop takes up to half of the text.
MAX_SHARE = 0.5
# Lee et al. (2019), section 4.2: the query stays in its text in one case of ten.
KEPT_SHARE = 0.1
# Views are cut from everything that the token store has of a text.
_STORED_LENGTH = 1 << 20


def stored_views(
    name: ViewName, tokens: TokenStore, row: int, *, seed: int, epoch: int, max_length: int
) -> tuple[IntArray, IntArray]:
    """Return the views of a stored text, each cut to ``max_length`` tokens; see `view_pair`."""
    whole = tokens.tokens(row, _STORED_LENGTH)
    query, candidate = view_pair(name, whole, seed=seed, epoch=epoch, row=row)
    sep_id = int(whole[-1])
    return cut(query, max_length, sep_id), cut(candidate, max_length, sep_id)


def view_pair(
    name: ViewName, tokens_T: IntArray, *, seed: int, epoch: int, row: int
) -> tuple[IntArray, IntArray]:
    """Return a query and a candidate cut from one text of the token store.

    Both have the same special tokens around them as ``[CLS] title [SEP] body [SEP]``, and are the
    whole text if it is too short to cut, or has no second part.
    """
    rng = np.random.default_rng([seed, epoch, row])
    query, candidate = VIEWS[name](tokens_T[1:-1], rng, int(tokens_T[-1]))
    return _wrap(query, tokens_T), _wrap(candidate, tokens_T)


def independent_crop(
    content_T: IntArray, rng: np.random.Generator, sep_id: int
) -> tuple[IntArray, IntArray]:
    """Return two spans, drawn independently; they may overlap (Izacard et al., 2022)."""
    content_T = content_T[content_T != sep_id]
    return _span(content_T, rng)[0], _span(content_T, rng)[0]


def inverse_cloze(
    content_T: IntArray, rng: np.random.Generator, sep_id: int
) -> tuple[IntArray, IntArray]:
    """Return a span and the text around it (Lee et al., 2019, with spans for sentences)."""
    content_T = content_T[content_T != sep_id]
    span, start = _span(content_T, rng)
    rest = np.delete(content_T, np.s_[start : start + len(span)])
    stays = rng.random() < KEPT_SHARE or not len(rest)
    return span, content_T if stays else rest


def title_to_abstract(
    content_T: IntArray, rng: np.random.Generator, sep_id: int
) -> tuple[IntArray, IntArray]:
    """Return the tokens before and after the first separator."""
    separators = np.flatnonzero(content_T == sep_id)
    if not len(separators):
        return content_T, content_T
    return content_T[: separators[0]], content_T[separators[0] + 1 :]


VIEWS: dict[ViewName, Cut] = {
    "independent_crop": independent_crop,
    "inverse_cloze": inverse_cloze,
    "title_to_abstract": title_to_abstract,
}


def _span(content_T: IntArray, rng: np.random.Generator) -> tuple[IntArray, int]:
    """Draw a span of ``MIN_TOKENS`` tokens to half of the text; return it and its start."""
    count = len(content_T)
    shortest = min(MIN_TOKENS, count)
    longest = max(shortest, int(MAX_SHARE * count))
    length = int(rng.integers(shortest, longest + 1))
    start = int(rng.integers(0, count - length + 1))
    return content_T[start : start + length], start


def _wrap(content: IntArray, tokens_T: IntArray) -> IntArray:
    return np.concatenate([tokens_T[:1], content, tokens_T[-1:]])
