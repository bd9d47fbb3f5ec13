"""A cross-encoder's objection to candidates that it finds as fitting as a positive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore
from scimult.preparation.mining.pools import Groups
from scimult.preparation.steps import checksums_below
from scimult.retrieval.cross_encoder import PairScorer


@dataclass(frozen=True)
class CrossEncoderVeto:
    """Takes away candidates that score above the lowest positive's score minus a margin.

    The idea of denoised hard negatives of RocketQA (Qu et al., 2021, section 3.3), with a
    threshold that follows each query instead of a fixed one.

    Parameters
    ----------
    score : callable
        Scores of (query, document) texts.
    texts : TextStore
        Where rows point to.
    margin : float
        In the scorer's unit.
    """

    score: PairScorer
    texts: TextStore
    margin: float

    def keep(self, groups: Groups, pools: Ragged) -> Ragged:
        """Return the candidates that score low enough."""
        asked = np.flatnonzero(pools.lengths)
        positives = groups.positives.take(asked)
        owners = np.concatenate([asked[positives.owners], pools.owners])
        rows = np.concatenate([positives.values, pools.values])
        if not len(rows):
            return pools
        queries = [text.joined for text in self.texts.texts(groups.queries_G[owners])]
        documents = [text.joined for text in self.texts.texts(rows)]
        scores = self.score(list(zip(queries, documents, strict=True)))
        lowest_G = np.full(len(groups), np.inf)
        of_positives = len(positives.values)
        np.minimum.at(lowest_G, owners[:of_positives], scores[:of_positives])
        is_low = scores[of_positives:] <= lowest_G[pools.owners] - self.margin
        return Ragged.from_pairs(pools.owners[is_low], pools.values[is_low], len(pools))


def content_of_model(model: str) -> str | dict[str, str]:
    """Return the checksum of every file of a model's folder; of another one its name."""
    return checksums_below(Path(model)) or model
