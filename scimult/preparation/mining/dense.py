"""Mining with models: windows of a text encoder's ranking, and filtering by a cross-encoder.

Texts are encoded once, and embeddings can be cached.

Shape legend: G groups, Q distinct queries, C candidates, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError
from scimult.files import checksums_below
from scimult.preparation.mining.config import DenseConfig
from scimult.preparation.mining.indexes import Indexes
from scimult.preparation.mining.pools import Groups
from scimult.preparation.mining.ranked import RankWindow, encode_to_file, look_up
from scimult.retrieval.cross_encoder import PairScorer
from scimult.retrieval.store import StoringEncoder
from scimult.types import FloatArray, IntArray, Role, TextEncoder

Model = tuple[str, str | None, str | None]


class MiningEncoder(TextEncoder, Protocol):
    """A text encoder that can identify itself."""

    @property
    def fingerprint(self) -> str:
        """Hash of weights, architecture, tokenizer and everything else that changes embeddings."""
        ...


OpenEncoder = Callable[[DenseConfig], MiningEncoder]


class DenseWindows:
    """Builds windows of ``dense`` rules; shared candidates and queries are encoded once.

    ``scratch`` holds embeddings during mining. ``store`` caches them by text and model, so that
    interrupted encoding can resume.
    """

    def __init__(
        self,
        data: PreparedData,
        scratch: Path,
        open_encoder: OpenEncoder | None,
        indexes: Indexes,
        store: Path | None,
    ) -> None:
        self._texts, self._scratch, self._indexes = data.texts, scratch, indexes
        self._open_encoder, self._store = open_encoder, store
        self._encoders: dict[Model, MiningEncoder] = {}
        self._encoded: dict[tuple[Any, ...], FloatArray] = {}

    def window(
        self,
        rule: DenseConfig,
        pairs: PairFile,
        queries_Q: IntArray,
        rows_C: IntArray,
        candidates: str,
    ) -> RankWindow[FloatArray]:
        """Return the window of a rule over the queries of a pair file that are mined.

        ``candidates`` names the set of candidates; all text rows ascend.
        """
        candidate_CD = self._encode(rule, pairs.task, "candidate", candidates, rows_C)
        query_QD = self._encode(rule, pairs.task, "query", f"{pairs.name} {pairs.split}", queries_Q)
        identity = "\n".join([*self.identity(rule), pairs.task, candidates])
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        index = self._indexes.dense(name, rows_C, candidate_CD, self._encoder(rule).similarity)
        return RankWindow(
            index, look_up(queries_Q, query_QD), rows_C, range(*rule.ranks), rule.margin
        )

    def identity(self, rule: DenseConfig) -> list[str]:
        """Return what the ranking depends on, apart from the texts."""
        encoder = self._encoder(rule)
        return [encoder.fingerprint, encoder.similarity]

    def _encode(
        self, rule: DenseConfig, task: str, role: Role, name: str, rows: IntArray
    ) -> FloatArray:
        key = (*_model(rule), task, role, name)
        if key not in self._encoded:
            encoder: TextEncoder = self._encoder(rule)
            if self._store is not None:
                encoder = StoringEncoder(encoder, self._store, self._encoder(rule).fingerprint)
            path = self._scratch / f"embeddings.{len(self._encoded)}.npy"
            self._encoded[key] = encode_to_file(encoder, task, role, self._texts, rows, path)
        return self._encoded[key]

    def _encoder(self, rule: DenseConfig) -> MiningEncoder:
        if self._open_encoder is None:
            fix = "run scimult mine, or pass open_encoder"
            raise ConfigError("a dense rule needs open_encoder to open its model", fix=fix)
        if _model(rule) not in self._encoders:
            self._encoders[_model(rule)] = self._open_encoder(rule)
        return self._encoders[_model(rule)]


def _model(rule: DenseConfig) -> Model:
    return rule.model, rule.pooling, rule.similarity


@dataclass(frozen=True)
class CrossEncoderVeto:
    """Removes candidates that score above the lowest positive's score minus a margin.

    Follows the denoised hard negatives of RocketQA (Qu et al., 2021, section 3.3), with a threshold
    per group instead of a fixed one. The margin is in the scorer's unit.
    """

    score: PairScorer
    texts: TextStore
    margin: float

    def keep(self, groups: Groups, pools: Ragged) -> Ragged:
        """Return the candidates that score low enough."""
        filled = np.flatnonzero(pools.lengths)
        positives = groups.positives.take(filled)
        owners = np.concatenate([filled[positives.owners], pools.owners])
        rows = np.concatenate([positives.values, pools.values])
        if not len(rows):
            return pools
        queries = [text.joined for text in self.texts.texts(groups.queries_G[owners])]
        documents = [text.joined for text in self.texts.texts(rows)]
        scores = self.score(list(zip(queries, documents, strict=True)))
        lowest_G = np.full(len(groups), np.inf)
        count = len(positives.values)
        np.minimum.at(lowest_G, owners[:count], scores[:count])
        is_low = scores[count:] <= lowest_G[pools.owners] - self.margin
        return Ragged.from_pairs(pools.owners[is_low], pools.values[is_low], len(pools))


def content_of_model(model: str) -> str | dict[str, str]:
    """Return the checksums of a model folder's files, or the name of a model on the hub."""
    return checksums_below(Path(model)) or model
