"""From a request to an answer: what the library returns, as it goes out."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scimult import __version__
from scimult.data.ragged import Ragged, offsets_of
from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.inference.texts import as_texts
from scimult.library import Hits, Library
from scimult.matching.affinity import Rule, affinities
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.exact import ExactIndex
from scimult.serving import schemas
from scimult.serving.labels import LabelSpace, Tags
from scimult.serving.served import Served
from scimult.tagging.evidence import evidence_for
from scimult.tagging.tagger import SuggestedTag
from scimult.types import FloatArray, Text


@dataclass
class Answers:
    """Answers requests by a library, the model and labels.

    Parameters
    ----------
    served : Served
        The library.
    labels : Tags, optional
        What papers are tagged with.
    """

    served: Served
    labels: Tags | None = None

    def known_tags(self) -> Tags:
        """Return what papers are tagged with, by the model of today.

        Raises
        ------
        DataError
            If the service knows no labels.
        """
        model, labels = self.served.library.model, self.labels
        if labels is None:
            fix = "give labels, or start the service with --labels"
            raise DataError("the service knows no labels", fix=fix)
        if isinstance(labels, LabelSpace) and labels.model is not model:
            self.labels = labels = labels.on(model)
        return labels

    def facts(self) -> schemas.Facts:
        """Say what the library holds."""
        library, manifest = self.served.library, self.served.library.state.manifest
        sides = manifest.sides
        return schemas.Facts(
            papers=len(library),
            tasks={
                task: library.model.kind(task, "query")
                for task, side in sides.items()
                if side == "candidate"
            },
            columns=dict(manifest.columns),
            model=library.model.name,
            similarity=library.model.similarity,
            width=library.model.width,
            labels=0 if self.labels is None else len(self.labels),
            generation=manifest.generation,
            scimult=__version__,
        )

    def encode(self, asked: schemas.Encode) -> schemas.Encoded:
        """Embed texts."""
        model = self.served.library.model
        texts = [_given(text) for text in asked.texts]
        vectors_ND = model.encode(texts, task=asked.task, role=asked.role)
        as_bytes = asked.format == "base64"
        return schemas.Encoded(
            model=model.name,
            task=asked.task,
            role=asked.role,
            similarity=model.similarity,
            width=model.width,
            vectors=base64.b64encode(vectors_ND.astype("<f4").tobytes()).decode()
            if as_bytes
            else vectors_ND.tolist(),
        )

    def texts(self, ids: Sequence[str]) -> list[Text]:
        """Return the texts of papers, in their order.

        Raises
        ------
        DataError
            If one is not in the library.
        """
        return self.served.ask(lambda library: _papers_of(library, ids))

    def search(self, asked: schemas.Search) -> schemas.Page:
        """Find papers for words, papers of the library, or a vector."""
        vector = None if asked.vector is None else np.array(asked.vector, dtype=np.float32)

        def question(library: Library) -> schemas.Page:
            hits = library.search(
                asked.text,
                task=asked.task,
                ids=asked.ids,
                vector=vector,
                words=asked.words,
                **_options(asked),
            )
            seeds = [asked.text] if asked.text.strip() else []
            return _page(library, asked, hits, seeds, asked.ids, vector)

        return self.served.ask(question, words=asked.words is not None)

    def recommend(self, asked: schemas.Recommend) -> schemas.Page:
        """Find papers to cite for papers of the library, or for a draft."""

        def question(library: Library) -> schemas.Page:
            hits = library.recommend(
                asked.ids,
                title=asked.title,
                abstract=asked.abstract,
                task=asked.task,
                **_options(asked),
            )
            draft = {"title": asked.title, "abstract": asked.abstract}
            return _page(library, asked, hits, [] if asked.ids else [draft], asked.ids, None)

        return self.served.ask(question)

    def tag(self, asked: schemas.Tag) -> schemas.TaggedPapers:
        """Give papers labels: those of the request, or of the service."""
        if not asked.ids and not asked.papers:
            raise DataError("no paper is given", fix="give ids of the library, or papers")

        def question(library: Library) -> schemas.TaggedPapers:
            known = _papers_of(library, asked.ids)
            new = as_texts([paper.model_dump() for paper in asked.papers], "paper")
            tags = self._tags(library.model, asked.labels)
            options: dict[str, Any] = {"threshold": asked.threshold, "exclude": asked.exclude}
            suggestions = tags.suggest([*known, *new], k=asked.k, **options)
            names: list[str | None] = [*asked.ids, *(None for _ in new)]
            texts = [*known, *new]
            return schemas.TaggedPapers(
                papers=[
                    schemas.TaggedPaper(id=name, title=text.title, labels=_labels(labels))
                    for name, text, labels in zip(names, texts, suggestions, strict=True)
                ]
            )

        return self.served.ask(question)

    def match(self, asked: schemas.Match) -> schemas.Matches:
        """Rank candidates for each paper: papers of the request or of the library, or reviewers."""
        texts = as_texts([paper.model_dump() for paper in asked.papers], "paper")
        if asked.candidates is None:
            return self.served.ask(lambda library: _match_library(library, asked, texts))
        if asked.where is not None:
            raise DataError("a filter is for papers of the library", fix="leave out where")
        return _match_given(self.served.library.model, asked, texts, asked.candidates)

    def _tags(self, model: SciMult, given: Sequence[str | schemas.LabelIn] | None) -> Tags:
        if given is not None:
            return LabelSpace(model, [_named(label) for label in given])
        return self.known_tags()


def _given(text: str | schemas.PaperIn | schemas.LabelIn) -> Any:
    if isinstance(text, str):
        return text
    return _named(text) if isinstance(text, schemas.LabelIn) else text.model_dump()


def _named(label: str | schemas.LabelIn) -> str | dict[str, str]:
    if isinstance(label, str):
        return label
    return {name: value for name, value in label.model_dump().items() if value is not None}


def _options(asked: schemas.Listing) -> dict[str, Any]:
    most = schemas.MOST_EVIDENCE if asked.evidence else schemas.MOST_RESULTS
    if asked.k is not None and asked.k > most:
        fix = f"ask for {most} papers, page by page, or leave evidence out"
        raise DataError("too many papers to read for evidence", value=asked.k, fix=fix)
    everything = asked.min_score is not None and asked.k is None
    return {
        "k": most if everything else asked.k,
        "offset": asked.offset,
        "min_score": asked.min_score,
        "where": None if asked.where is None else _filter(asked.where),
        "only": asked.only,
        "exclude": asked.exclude,
        "method": asked.method,
        "percentile": asked.percentile,
    }


def _filter(where: schemas.Where) -> dict[str, Any]:
    """Return a filter as the library reads it: a range is a pair there."""
    return {
        name: (value.from_, value.to) if isinstance(value, schemas.Range) else value
        for name, value in where.items()
    }


def _papers_of(library: Library, ids: Sequence[str]) -> list[Text]:
    """Return the texts of papers, in their order.

    Raises
    ------
    DataError
        If one is not in the library.
    """
    rows = library.state.live_rows(ids) if ids else np.empty(0, np.int64)
    papers = library.state.papers
    texts = dict(zip(papers.ids_of(rows), papers.texts_of(rows), strict=True))
    missing = [name for name in ids if name not in texts]
    if missing:
        raise DataError("no paper has this id", value=missing[0], fix="use ids of the library")
    return [texts[name] for name in ids]


def _page(
    library: Library,
    asked: schemas.Search | schemas.Recommend,
    hits: Hits,
    texts: Sequence[Any],
    ids: Sequence[str],
    vector: FloatArray | None,
) -> schemas.Page:
    sentences: Sequence[str | None] = [None] * len(hits)
    if asked.evidence:
        if vector is None:
            queries = [*texts, *_papers_of(library, ids)]
            vectors_QD = library.model.encode(queries, task=asked.task, role="query")
            vector = vectors_QD.mean(axis=0)
        sentences = evidence_for(library.model, asked.task, vector, hits.texts)
    papers = [
        schemas.Found(
            rank=hit.rank,
            score=hit.score,
            id=hit.id,
            title=hit.title,
            abstract=hit.abstract,
            columns=dict(hit.columns),
            percentile=hit.percentile,
            evidence=sentence,
        )
        for hit, sentence in zip(hits, sentences, strict=True)
    ]
    return schemas.Page(score=hits.score, exact=hits.exact, papers=papers)


def _labels(tags: Sequence[SuggestedTag]) -> list[schemas.TagFound]:
    return [
        schemas.TagFound(
            rank=rank, score=tag.score, id=tag.id, name=tag.label, evidence=tag.evidence or None
        )
        for rank, tag in enumerate(tags, start=1)
    ]


def _match_library(
    library: Library, asked: schemas.Match, texts: Sequence[Text]
) -> schemas.Matches:
    where = None if asked.where is None else _filter(asked.where)
    lists = [
        library.recommend(
            title=text.title, abstract=text.body, task=asked.task, k=asked.k, where=where
        )
        for text in texts
    ]
    return schemas.Matches(
        of="papers",
        score=lists[0].score,
        matches=[
            [schemas.MatchFound(rank=hit.rank, score=hit.score, id=hit.id) for hit in hits]
            for hits in lists
        ],
    )


def _match_given(
    model: SciMult,
    asked: schemas.Match,
    texts: Sequence[Text],
    candidates: Sequence[schemas.CandidateIn],
) -> schemas.Matches:
    """Rank given candidates, or who wrote them where all say it."""
    named = [one.reviewer for one in candidates]
    papers = [{"title": one.title, "abstract": one.abstract} for one in candidates]
    if any(named) and not all(named):
        fix = "name a reviewer with every candidate, or with none"
        raise DataError("candidates with and without a reviewer", fix=fix)
    rule = Rule.parse(asked.score)
    queries_ND = model.encode(texts, task=asked.task, role="query")
    candidates_CD = model.encode(papers, task=asked.task, role="candidate")
    if not any(named):
        ids = [one.id for one in candidates]
        if len(set(ids)) != len(ids):
            raise DataError("an id comes twice", fix="give every candidate its own id")
        index = ExactIndex(ids, candidates_CD, model.similarity)
        ranking = index.search(queries_ND, min(asked.k, len(ids)))
        rows, scores_QK = ranking.rows_QK, ranking.scores_QK
        return _matches("papers", model.similarity, ids, rows, scores_QK)
    owners = sorted({str(name) for name in named})
    entries = sorted((owners.index(str(name)), row) for row, name in enumerate(named))
    counts = [len(list(group)) for _, group in itertools.groupby(entries, lambda entry: entry[0])]
    written = Ragged(np.array([row for _, row in entries]), offsets_of(np.array(counts)))
    blocks = affinities(unit_rows(queries_ND), unit_rows(candidates_CD), written, rule)
    scores_QR = np.concatenate([block for _, block in blocks])
    order = np.argsort(-scores_QR, axis=1, kind="stable")[:, : asked.k]
    best = np.take_along_axis(scores_QR, order, 1)
    return _matches("reviewers", f"{asked.score} of cosines", owners, order, best)


def _matches(
    of: Any, score: str, names: Sequence[str], rows_QK: Any, scores_QK: Any
) -> schemas.Matches:
    return schemas.Matches(
        of=of,
        score=score,
        matches=[
            [
                schemas.MatchFound(rank=rank, score=value, id=names[row])
                for rank, (row, value) in enumerate(zip(rows, values, strict=True), start=1)
            ]
            for rows, values in zip(rows_QK.tolist(), scores_QK.tolist(), strict=True)
        ],
    )
