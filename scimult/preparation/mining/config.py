"""Configuration of hard-negative mining: a list of rules per part of a source."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from scimult.config import StrictConfig
from scimult.preparation.config import Part
from scimult.types import Similarity

Positive = Annotated[int, Field(ge=1)]


def _not_empty(band: tuple[int, int]) -> tuple[int, int]:
    if band[0] >= band[1]:
        raise ValueError(f"{list(band)} is empty; give first and last-plus-one, as [20, 25]")
    return band


Band = Annotated[tuple[Annotated[int, Field(ge=0)], Positive], AfterValidator(_not_empty)]


class VetoConfig(StrictConfig):
    """A cross-encoder that removes candidates as relevant as the positive.

    ``model`` is the folder or name of a sentence-transformers cross-encoder. A candidate stays if
    it scores at most the lowest positive's score minus the ``margin``.
    """

    model: str
    margin: float = 0.0


class RuleConfig(StrictConfig):
    """Options of every rule.

    Parameters
    ----------
    count : int, optional
        Candidates to keep per group; default: ``max_negatives``.
    exclude_known : bool
        Leave out known positives of the query, from all sources and splits.
    veto : VetoConfig, optional
        Filters the kept candidates; those it removes are not replaced.
    share : float, optional
        How often training draws a negative of this rule, relative to the shares of the other
        rules. Either all rules of a list have a share or none has: then all candidates of a pool
        are equally likely.
    """

    count: Positive | None = None
    exclude_known: bool = True
    veto: VetoConfig | None = None
    share: Annotated[float, Field(gt=0)] | None = None


class CitationConfig(RuleConfig):
    """Papers that the positive cites, or that are co-cited with it."""

    rule: Literal["cited_by_cited", "co_cited"]


class NeighbourLabelConfig(RuleConfig):
    """Labels of papers that the query cites, or that share an author or its venue."""

    rule: Literal["cited", "author", "venue"]


class ShownConfig(RuleConfig):
    """Papers shown but not clicked, or judged not relevant."""

    rule: Literal["shown"]


class RandomConfig(RuleConfig):
    """Any candidate."""

    rule: Literal["random"]


class FieldConfig(RuleConfig):
    """Papers that share a label or the venue with the query, or share none."""

    rule: Literal["same_field", "other_field"]
    field: Literal["labels", "venue"] = "labels"


class RankedConfig(RuleConfig):
    """Candidates between two ranks, including the first but not the second.

    Ranks count from 0 over all candidates but the query. With ``margin``, a candidate stays
    only if it scores at most the lowest positive's score minus the margin.
    """

    ranks: Band = (0, 100)
    margin: float | None = None


class BM25Config(RankedConfig):
    """A window of the BM25 ranking."""

    rule: Literal["bm25"]


class DenseConfig(RankedConfig):
    """A window of the ranking by a text encoder: a run, a saved model or a BERT folder."""

    rule: Literal["dense"]
    model: str
    pooling: Literal["cls", "mean"] | None = None
    similarity: Similarity | None = None


class CitationBandConfig(RankedConfig):
    """A window of the ranking by the citation embedding (SciNCL: 3998 to 4000)."""

    rule: Literal["citation_band"]
    ranks: Band = (3998, 4000)


def _named(rule: Any) -> Any:
    """Accept a rule without options as its bare name."""
    return {"rule": rule} if isinstance(rule, str) else rule


def _all_or_none(rules: list[Any]) -> list[Any]:
    without = [rule.rule for rule in rules if rule.share is None]
    if 0 < len(without) < len(rules):
        raise ValueError(f"some rules have a share, but not {', '.join(without)}; give all one")
    return rules


Rule = TypeVar("Rule")
Rules: TypeAlias = Annotated[
    list[Annotated[Rule, Field(discriminator="rule"), BeforeValidator(_named)]],
    AfterValidator(_all_or_none),
]
Anywhere: TypeAlias = BM25Config | DenseConfig | RandomConfig
PaperRules = Rules[CitationConfig | CitationBandConfig | Anywhere | FieldConfig]
LinkRules = Rules[ShownConfig | Anywhere | FieldConfig]
LabelRules = Rules[NeighbourLabelConfig | Anywhere]
QueryRules = Rules[ShownConfig | Anywhere]


class SourceRules(StrictConfig):
    """Rules of one source that override the general ones."""

    citations: PaperRules | None = None
    links: LinkRules | None = None
    labels: LabelRules | None = None
    queries: QueryRules | None = None


class NeighbourConfig(StrictConfig):
    """Additional pairs for a source with citations: neighbours in the citation embedding (SciNCL).

    They become a separate source, ``<source>-neighbours``, that trains the same task.

    Parameters
    ----------
    source : str
        Source whose citing papers are the queries.
    ranks : tuple of int
        Window of the positives (SciNCL: 20 to 25).
    negatives : list
        Rules, as under ``citations``.
    """

    source: str
    ranks: Band = (20, 25)
    negatives: PaperRules = [CitationBandConfig(rule="citation_band")]


class EmbeddingConfig(StrictConfig):
    """The citation embedding, computed from the training citations of one namespace.

    ``iterations`` are power iterations of the randomised singular value decomposition.
    """

    width: Positive = 128
    iterations: Annotated[int, Field(ge=0)] = 5


class BM25SearchConfig(StrictConfig):
    """BM25 search over many candidates.

    Parameters
    ----------
    exact_below : int
        From this number of candidates on, an index is cached and windows are approximate.
    longest : int
        Candidates that the index keeps per word: those in which it weighs most.
    postings : int
        Postings that a query adds up, its weightiest words first.
    overfetch, spare : int
        For a window that ends at rank ``k``, ``overfetch * k + spare`` candidates are scored by
        all their words.
    """

    exact_below: Positive = 100_000
    longest: Positive = 16_000
    postings: Positive = 200_000
    overfetch: Positive = 10
    spare: Annotated[int, Field(ge=0)] = 1_000


class DenseSearchConfig(StrictConfig):
    """Search over many vectors, of text encoders and of the citation embedding.

    Parameters
    ----------
    exact_below : int
        From this number of candidates on, an index is cached and windows are approximate.
    lists : int, optional
        Lists of neighbours in the index; default: the square root of the number of candidates.
    probes : int
        Lists that a query searches.
    overfetch, spare : int
        For a window that ends at rank ``k``, ``overfetch * k + spare`` candidates are scored by
        their vectors.
    """

    exact_below: Positive = 250_000
    lists: Positive | None = None
    probes: Positive = 128
    overfetch: Positive = 2
    spare: Annotated[int, Field(ge=0)] = 1_000

    @model_validator(mode="after")
    def _enough_lists(self) -> DenseSearchConfig:
        if self.lists is not None and self.probes > self.lists:
            raise ValueError(f"probes ({self.probes}) exceed lists ({self.lists})")
        return self


class SearchConfig(StrictConfig):
    """Search for windows of rankings; exact below ``exact_below`` candidates."""

    bm25: BM25SearchConfig = BM25SearchConfig()
    dense: DenseSearchConfig = DenseSearchConfig()


class MiningConfig(StrictConfig):
    """Where hard negatives come from and how many are kept; see ``docs/mining.md``.

    Parameters
    ----------
    citations, links, labels, queries : list
        Rules for citations, for judged pairs of papers, for pairs of paper and label, and of
        query and paper.
    sources : dict
        Rules of single sources that override those above.
    neighbours : list
        Sources that get more pairs from the citation embedding.
    embedding : EmbeddingConfig
        The citation embedding.
    search : SearchConfig
        Search for windows of rankings over many candidates.
    max_negatives : int
        Largest pool of a group. Training draws one negative per positive and epoch.
    max_neighbours : int
        Papers considered per query, relation and author or venue; citing papers per positive.
    max_groups : int, optional
        Approximate number of groups to mine and train of the largest training file of a task;
        its other files keep the same queries. By default all.
    seed : int
        Seed of all samples and draws.
    """

    citations: PaperRules = [CitationConfig(rule="cited_by_cited")]
    links: LinkRules = [ShownConfig(rule="shown")]
    labels: LabelRules = [NeighbourLabelConfig(rule=rule) for rule in ("cited", "author", "venue")]
    queries: QueryRules = [ShownConfig(rule="shown")]
    sources: dict[str, SourceRules] = {}
    neighbours: list[NeighbourConfig] = []
    embedding: EmbeddingConfig = EmbeddingConfig()
    search: SearchConfig = SearchConfig()
    max_negatives: Positive = 32
    max_neighbours: Positive = 64
    max_groups: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _distinct_sources(self) -> MiningConfig:
        names = [neighbours.source for neighbours in self.neighbours]
        if len(set(names)) < len(names):
            raise ValueError(f"neighbours name a source twice: {names}")
        return self

    def rules(self, source: str, part: Part) -> list[Any]:
        """Return the rules of one part of a source."""
        own = getattr(self.sources.get(source), part, None)
        return list(getattr(self, part) if own is None else own)
