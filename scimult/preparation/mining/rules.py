"""From the configuration of a rule to the rule, over one pair file of a prepared folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.pairs import PairFile, PairPart, known_positives
from scimult.data.prepared import PreparedData
from scimult.data.ragged import Ragged
from scimult.hardware import usable_device
from scimult.preparation.metadata import Metadata
from scimult.preparation.mining import config as configs
from scimult.preparation.mining.citation_embedding import citation_embedding
from scimult.preparation.mining.clicks import Shown
from scimult.preparation.mining.dense import DenseWindows, OpenEncoder
from scimult.preparation.mining.easy import OtherField, Random, SameField, fields_to_rows
from scimult.preparation.mining.graph import CitedByCited, CoCited
from scimult.preparation.mining.metadata import LabelsOfNeighbours, Links, Relation
from scimult.preparation.mining.pools import Ingredient, Rule
from scimult.preparation.mining.ranked import RankWindow, bm25_index, look_up
from scimult.preparation.mining.veto import (
    CrossEncoderVeto,
    PairScorer,
    content_of_model,
    load_cross_encoder,
)
from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.exact import ExactIndex
from scimult.types import FloatArray, IntArray

Vectors = tuple[IntArray, FloatArray]


class RuleBuilder:
    """Builds the rules of pair files; what several of them need is read or made once.

    Parameters
    ----------
    data : PreparedData
        The folder, with the pair files that are to be mined.
    config : MiningConfig
        Limits, seed and sizes.
    scratch : Path
        Takes embeddings while the folder is mined.
    open_encoder : callable, optional
        Opens the model of a ``dense`` rule.
    embeddings : Path, optional
        Keeps what such a model has encoded for a later run.
    """

    def __init__(
        self,
        data: PreparedData,
        config: configs.MiningConfig,
        scratch: Path,
        open_encoder: OpenEncoder | None = None,
        embeddings: Path | None = None,
    ) -> None:
        self._data, self._config = data, config
        self._dense = DenseWindows(data, scratch, open_encoder, embeddings)
        self._known: dict[tuple[str, PairPart | None], Ragged] = {}
        self._relations: dict[str, Relation | Links] = {}
        self._bm25: dict[tuple[str, bool], BM25Index] = {}
        self._embeddings: dict[str, Vectors] = {}
        self._vetoes: dict[str, PairScorer] = {}
        self._contents: dict[str, str | dict[str, str]] = {}

    def known(self, task: str, part: PairPart | None) -> Ragged:
        """Return, for every text row, what must not become its negative.

        That is every positive of the task, over all sources and splits; for citations also
        what the query cites under other tasks, and for labels all labels of the paper. What
        was judged for a link stays a negative even if the query cites it elsewhere.
        """
        if (task, part) not in self._known:
            files = [*self._data.pairs("train"), *self._data.pairs("dev")]
            known = known_positives([file for file in files if file.task == task])
            by_row = known.by_row(len(self._data.texts))
            if part in ("citations", "neighbours"):
                by_row = _united(by_row, self._cites)
            elif part == "labels":
                by_row = _united(by_row, self._metadata.labels)
            self._known[task, part] = by_row
        return self._known[task, part]

    def ingredients(self, pairs: PairFile, rules: Sequence[configs.RuleConfig]) -> list[Ingredient]:
        """Return the rules of one pair file.

        Parameters
        ----------
        pairs : PairFile
            Its groups; namespace and part decide where candidates come from.
        rules : sequence of RuleConfig
            What is wanted.

        Raises
        ------
        ConfigError, CheckpointError
            If a model cannot be opened.
        """
        made, names = [], Counter[str]()
        for place, rule in enumerate(rules):
            name: str = rule.rule  # type: ignore[attr-defined]
            names[name] += 1
            made.append(
                Ingredient(
                    name if names[name] == 1 else f"{name} {names[name]}",
                    self._rule(rule, pairs, self._config.seed + 1000 * (place + 1)),
                    rule.count or self._config.max_negatives,
                    rule.exclude_known,
                    self._veto(rule.veto),
                )
            )
        return made

    def _rule(self, rule: configs.RuleConfig, pairs: PairFile, seed: int) -> Rule:
        config, space = self._config, pairs.namespace
        count = rule.count or config.max_negatives
        match rule:
            case configs.CitedByCitedConfig() | configs.CoCitedConfig():
                return self._graph_rule(rule, seed)
            case configs.NeighbourLabelConfig():
                labels = range(*self._data.manifest.label_rows[space])
                return LabelsOfNeighbours(
                    self._relation(rule.rule),
                    self._metadata.labels,
                    labels,
                    config.max_neighbours,
                    config.seed,
                )
            case configs.ShownConfig():
                return Shown(self._shown, self._data.triples())
            case configs.RandomConfig():
                return Random(self._candidates(pairs), count, seed)
            case configs.FieldConfig():
                return self._field_rule(rule, self._candidates(pairs), count, seed)
            case configs.BM25Config():
                return self._bm25_window(rule, pairs)
            case configs.DenseConfig():
                candidates = f"{space} {pairs.part == 'labels'}"
                return self._dense.window(rule, pairs, self._candidates(pairs), candidates)
            case configs.CitationBandConfig():
                return self.citation_window(space, range(*rule.ranks), rule.margin)
        raise AssertionError(rule)

    def identity(self, rule: configs.RuleConfig) -> dict[str, Any]:
        """Return what the finds of a rule depend on, as JSON: its options, its models' content.

        How often training draws one of them is not part of it.

        Raises
        ------
        ConfigError, CheckpointError
            If a model cannot be opened.
        """
        described = rule.model_dump(mode="json", exclude={"share"})
        if isinstance(rule, configs.DenseConfig):
            described["model"] = self._dense.identity(rule)
        if isinstance(rule, configs.CitationBandConfig):
            described["embedding"] = self._config.embedding.model_dump(mode="json")
        if rule.veto is not None:
            described["veto"]["model"] = self._content(rule.veto.model)
        return described

    def citation_window(
        self, space: str, ranks: range, margin: float | None = None
    ) -> RankWindow[FloatArray]:
        """Return a window of the ranking by the citation embedding of a namespace.

        The embedding is made of training pairs, so that a dev query's citations stay unseen.

        Raises
        ------
        DataError
            If the namespace has no citations.
        """
        if space not in self._embeddings:
            sizes = self._config.embedding
            self._embeddings[space] = citation_embedding(
                self._training_edges(space),
                width=sizes.width,
                iterations=sizes.iterations,
                seed=self._config.seed,
            )
        papers_N, vectors_ND = self._embeddings[space]
        ids = self._data.texts.ids_at(papers_N)
        index = ExactIndex(ids, vectors_ND, "cosine", device=usable_device(None))
        return RankWindow(
            index, look_up(papers_N, vectors_ND), papers_N, ranks, margin, askable=papers_N
        )

    def _training_edges(self, space: str) -> IntArray:
        edges = [np.empty((0, 2), np.int64)]
        for pairs in self._data.pairs("train"):
            if (pairs.namespace, pairs.part) == (space, "citations"):
                citing = pairs.queries[pairs.positives.owners]
                edges.append(np.stack([citing, pairs.positives.values], axis=1))
        return np.concatenate(edges)

    def _graph_rule(
        self, rule: configs.CitedByCitedConfig | configs.CoCitedConfig, seed: int
    ) -> Rule:
        match rule:
            case configs.CitedByCitedConfig():
                return CitedByCited(self._cites)
            case configs.CoCitedConfig():
                limit = self._config.max_neighbours
                return CoCited(self._cites, self._cited_by, limit, seed)

    def _field_rule(
        self, rule: configs.FieldConfig, rows_C: IntArray, count: int, seed: int
    ) -> Rule:
        fields_of = self._metadata.labels if rule.field == "labels" else self._metadata.venues
        if rule.rule == "other_field":
            return OtherField(rows_C, fields_of, count, seed)
        return SameField(fields_of, fields_to_rows(fields_of, rows_C), count, seed)

    def _bm25_window(self, rule: configs.BM25Config, pairs: PairFile) -> RankWindow[Sequence[str]]:
        texts, rows_C = self._data.texts, self._candidates(pairs)
        key = pairs.namespace, pairs.part == "labels"
        if key not in self._bm25:
            self._bm25[key] = bm25_index(texts, rows_C)
        return RankWindow(
            self._bm25[key],
            lambda rows: [text.joined for text in texts.texts(rows)],
            rows_C,
            range(*rule.ranks),
            rule.margin,
        )

    def _content(self, model: str) -> str | dict[str, str]:
        if model not in self._contents:
            self._contents[model] = content_of_model(model)
        return self._contents[model]

    def _veto(self, veto: configs.VetoConfig | None) -> CrossEncoderVeto | None:
        if veto is None:
            return None
        if veto.model not in self._vetoes:
            self._vetoes[veto.model] = load_cross_encoder(veto.model)
        return CrossEncoderVeto(self._vetoes[veto.model], self._data.texts, veto.margin)

    def _candidates(self, pairs: PairFile) -> IntArray:
        """Return the rows that a query of this pair file chooses from."""
        if pairs.part == "labels":
            rows = self._data.manifest.label_rows[pairs.namespace]
            return np.arange(*rows, dtype=np.int64)
        return self._data.papers(pairs.namespace)

    def _relation(self, name: str) -> Relation | Links:
        if name not in self._relations:
            if name == "cited":
                self._relations[name] = Links(self._cites)
            else:
                groups = self._metadata.authors if name == "author" else self._metadata.venues
                self._relations[name] = Relation.from_groups(groups)
        return self._relations[name]

    @cached_property
    def _metadata(self) -> Metadata:
        return Metadata.open(self._data.folder, len(self._data.texts))

    @cached_property
    def _cites(self) -> Ragged:
        return self._by_row(self._data.citations())

    @cached_property
    def _cited_by(self) -> Ragged:
        return self._by_row(self._data.citations()[:, ::-1])

    @cached_property
    def _shown(self) -> Ragged:
        return self._by_row(self._data.shown())

    def _by_row(self, pairs: IntArray) -> Ragged:
        return Ragged.from_pairs(pairs[:, 0], pairs[:, 1], len(self._data.texts))


def _united(first: Ragged, second: Ragged) -> Ragged:
    """Unite two lists of lists, list by list."""
    owners = np.concatenate([first.owners, second.owners])
    return Ragged.from_pairs(owners, np.concatenate([first.values, second.values]), len(first))
