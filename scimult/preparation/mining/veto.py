"""A cross-encoder's objection to candidates that it finds as fitting as a positive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError
from scimult.preparation.mining.pools import Groups
from scimult.preparation.steps import checksums_below
from scimult.types import FloatArray

PairScorer = Callable[[Sequence[tuple[str, str]]], FloatArray]


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
        kept = scores[of_positives:] <= lowest_G[pools.owners] - self.margin
        return Ragged.from_pairs(pools.owners[kept], pools.values[kept], len(pools))


def content_of_model(model: str) -> str | dict[str, str]:
    """Return the checksum of every file of a model's folder; of another one its name."""
    return checksums_below(Path(model)) or model


def load_cross_encoder(model: str) -> PairScorer:
    """Load a cross-encoder of sentence-transformers, from a folder or by its name.

    Raises
    ------
    ConfigError
        If sentence-transformers is not installed, or the model cannot be loaded.
    """
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        fix = "pip install sentence-transformers, or remove the veto"
        raise ConfigError("a veto needs sentence-transformers", value=model, fix=fix) from error
    try:
        encoder = CrossEncoder(model)
    except (OSError, ValueError) as error:
        fix = "name a folder or a model with one score per pair"
        raise ConfigError(f"cannot load cross-encoder: {error}", value=model, fix=fix) from error
    if encoder.num_labels != 1:
        fix = "take one with a single score per pair"
        raise ConfigError(
            f"cross-encoder gives {encoder.num_labels} scores per pair", value=model, fix=fix
        )

    def score(pairs: Sequence[tuple[str, str]]) -> FloatArray:
        scores = encoder.predict(list(pairs), show_progress_bar=False)
        return np.asarray(scores, dtype=np.float32)

    return score
