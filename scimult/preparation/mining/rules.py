"""Build rules from their configuration, for the pair files of a prepared folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from scimult import distributed
from scimult.data.manifest import PairEntry
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.preparation.mining import config as configs
from scimult.preparation.mining import plans
from scimult.preparation.mining.citation_embedding import (
    citation_components,
    citation_embedding,
)
from scimult.preparation.mining.dense import CrossEncoderVeto, DenseWindows, content_of_model
from scimult.preparation.mining.engine import Engine
from scimult.preparation.mining.hashing import ALL_KEYS, key
from scimult.preparation.mining.indexes import Indexes
from scimult.preparation.mining.pools import BlockMiner, Filter, Groups, RuleSpec, Search
from scimult.preparation.mining.ranked import Index, RankWindow, look_up
from scimult.preparation.mining.tables import Tables
from scimult.retrieval import analysis
from scimult.retrieval.cross_encoder import load_cross_encoder
from scimult.types import FloatArray, IntArray


class RuleBuilder:
    """Builds the rules of pair files; what several of them need is loaded or built once."""

    def __init__(
        self,
        data: PreparedData,
        config: configs.MiningConfig,
        engine: Engine,
        indexes: Indexes,
        dense: DenseWindows,
    ) -> None:
        self._data, self._config, self._engine = data, config, engine
        self._tables = Tables(data, engine)
        self._indexes, self._dense = indexes, dense
        self._bm25: dict[str, Index[Sequence[str]]] = {}
        self._embeddings: dict[str, tuple[Index[FloatArray], IntArray, FloatArray]] = {}
        self._cross_encoder = cache(load_cross_encoder)
        self._content = cache(content_of_model)

    def miner(
        self, pairs: PairFile, rules: Sequence[configs.RuleConfig], below: int = ALL_KEYS
    ) -> BlockMiner:
        """Return the miner of a pair file by these rules; ``below`` limits it to some queries."""
        if not rules or not len(pairs):
            return BlockMiner(self._engine, Groups.of(pairs), "", [], [], limit=1, seed=0)
        return BlockMiner(
            self._engine,
            Groups.of(pairs),
            self._tables.pairs(pairs),
            self._tables.known(pairs.task, pairs.part),
            self._specs(pairs, rules, below),
            limit=self._config.max_negatives,
            seed=self._config.seed,
            below=below,
        )

    def _specs(
        self, pairs: PairFile, rules: Sequence[configs.RuleConfig], below: int
    ) -> list[RuleSpec]:
        specs, names = [], Counter[str]()
        for number, rule in enumerate(rules, start=1):
            name: str = rule.rule  # type: ignore[attr-defined]
            names[name] += 1
            specs.append(
                RuleSpec(
                    name if names[name] == 1 else f"{name} {names[name]}",
                    self._rule(rule, pairs, below, self._config.seed + 1000 * number),
                    rule.count or self._config.max_negatives,
                    rule.exclude_known,
                    self._veto(rule.veto),
                )
            )
        return specs

    def _rule(
        self, rule: configs.RuleConfig, pairs: PairFile, below: int, seed: int
    ) -> str | Search:
        config, space, tables = self._config, pairs.namespace, self._tables
        count, near = rule.count or config.max_negatives, config.max_neighbours
        match rule:
            case configs.CitationConfig():
                tables.edges()
                co_cited = rule.rule == "co_cited"
                return plans.co_cited(near, seed) if co_cited else plans.CITED_BY_CITED
            case configs.NeighbourLabelConfig():
                tables.values("label")
                labels = range(*self._data.manifest.label_rows[space])
                return plans.labels_of(self._near(rule.rule), labels)
            case configs.ShownConfig():
                tables.shown()
                return plans.SHOWN
            case configs.RandomConfig():
                return self._random(pairs, count, seed)
            case configs.FieldConfig():
                return self._field_rule(rule, pairs, count, seed)
            case configs.BM25Config():
                return self._bm25_window(rule, pairs).candidates
            case configs.DenseConfig():
                candidates = f"{space} {pairs.part == 'labels'}"
                queries_Q = np.unique(pairs.queries)
                queries_Q = queries_Q[key(config.seed, queries_Q) < below]
                rows_C = self._candidates(pairs)
                window = self._dense.window(rule, pairs, queries_Q, rows_C, candidates)
                return window.candidates
            case configs.CitationBandConfig():
                return self.citation_window(space, range(*rule.ranks), rule.margin).candidates
        raise AssertionError(rule)

    def identity(self, rule: configs.RuleConfig, pairs: PairFile | PairEntry) -> dict[str, Any]:
        """Return what a rule's candidates depend on, as JSON: its options, its models' content.

        Its share of training draws is left out, and so are search options if the search is exact.
        """
        described = rule.model_dump(mode="json", exclude={"share"})
        if isinstance(rule, configs.DenseConfig):
            described["model"] = self._dense.identity(rule)
        if isinstance(rule, configs.BM25Config):
            described["analysis"] = analysis.VERSION
        if isinstance(rule, configs.CitationBandConfig):
            described["embedding"] = self._config.embedding.model_dump(mode="json")
        if isinstance(rule, configs.RankedConfig):
            search = self._config.search
            options = search.bm25 if isinstance(rule, configs.BM25Config) else search.dense
            if len(self._candidates(pairs)) >= options.exact_below:
                described["search"] = options.model_dump(mode="json")
        if rule.veto is not None:
            described["veto"]["model"] = self._content(rule.veto.model)
        return described

    def citation_window(
        self, space: str, ranks: range, margin: float | None = None
    ) -> RankWindow[FloatArray]:
        """Return a window of the ranking by the citation embedding of a namespace.

        The embedding uses only training pairs, so that citations of dev queries stay unseen.
        """
        if space not in self._embeddings:
            sizes = self._config.embedding
            papers_N, vectors_ND = citation_embedding(
                self._training_edges(space),
                width=sizes.width,
                iterations=sizes.iterations,
                seed=self._config.seed,
            )
            built = self._indexes.dense(f"citations.{space}", papers_N, vectors_ND, "cosine")
            self._embeddings[space] = built, papers_N, vectors_ND
        index, papers_N, vectors_ND = self._embeddings[space]
        return RankWindow(
            index, look_up(papers_N, vectors_ND), papers_N, ranks, margin, askable=papers_N
        )

    def citation_components(self, space: str) -> IntArray:
        """Return the connected component of each candidate of ``citation_window``."""
        return citation_components(self._training_edges(space))

    def _training_edges(self, space: str) -> IntArray:
        edges = [np.empty((0, 2), np.int64)]
        for pairs in self._data.pairs("train"):
            if (pairs.namespace, pairs.part) == (space, "citations"):
                citing = pairs.queries[pairs.positives.owners]
                edges.append(np.stack([citing, pairs.positives.values], axis=1))
        return np.concatenate(edges)

    def _near(self, relation: str) -> str:
        """Return the SELECT ``(query, paper)`` of papers related to each query."""
        limit, seed = self._config.max_neighbours, self._config.seed
        if relation == "cited":
            self._tables.edges()
            return plans.cited_papers(limit, seed)
        self._tables.members(relation)
        self._tables.draws(limit)
        return plans.sharing_papers(relation, limit, seed)

    def _random(self, pairs: PairFile, count: int, seed: int) -> str:
        self._tables.draws(plans.DRAWS * count)
        return plans.random(*self._numbered(pairs), count, seed)

    def _field_rule(self, rule: configs.FieldConfig, pairs: PairFile, count: int, seed: int) -> str:
        field = "label" if rule.field == "labels" else "venue"
        if rule.rule == "other_field":
            self._tables.values(field)
            return plans.other_field(field, self._random(pairs, count, seed))
        self._tables.places(field)
        self._tables.draws(plans.DRAWS * count)
        members = self._tables.members(field, self._numbered(pairs)[0])
        return plans.same_field(field, members, count, seed)

    def _numbered(self, pairs: PairFile) -> tuple[str, int]:
        """Return the table of numbered candidates of a pair file, and its size."""
        rows, labels = self._candidates(pairs), pairs.part == "labels"
        return self._tables.candidates(f"{pairs.namespace} {labels}", rows), len(rows)

    def _bm25_window(self, rule: configs.BM25Config, pairs: PairFile) -> RankWindow[Sequence[str]]:
        texts, rows_C = self._data.texts, self._candidates(pairs)
        name = f"{pairs.namespace}.{'labels' if pairs.part == 'labels' else 'papers'}"
        if name not in self._bm25:
            self._bm25[name] = self._indexes.bm25(name, rows_C)
        return RankWindow(
            self._bm25[name],
            lambda rows: [text.joined for text in texts.texts(rows)],
            rows_C,
            range(*rule.ranks),
            rule.margin,
        )

    def _veto(self, veto: configs.VetoConfig | None) -> Filter | None:
        if veto is None:
            return None
        distributed.use_own_gpu()
        score = self._cross_encoder(veto.model)
        return CrossEncoderVeto(score, self._data.texts, veto.margin).keep

    def _candidates(self, pairs: PairFile | PairEntry) -> IntArray:
        """Return the text rows of a pair file's candidates."""
        if pairs.part == "labels":
            rows = self._data.manifest.label_rows[pairs.namespace]
            return np.arange(*rows, dtype=np.int64)
        return self._data.papers(pairs.namespace)
