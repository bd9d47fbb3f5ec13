"""Answers to requests, from the library, the model and labels."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scimult import __version__
from scimult.data.ragged import Ragged, offsets_of
from scimult.errors import DataError, one_of
from scimult.inference import SciMult
from scimult.inference.texts import as_texts
from scimult.library import Hits, Library
from scimult.library.results import SCORES
from scimult.library.writing import check_model
from scimult.matching.affinity import Rule, affinities
from scimult.matching.venue import reviewer_id, two_titles
from scimult.progress import note
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.exact import ExactIndex
from scimult.serving import schemas
from scimult.serving.following import Following
from scimult.serving.labels import LabelSpace, Tags
from scimult.serving.served import Served
from scimult.tagging.evidence import evidence_for
from scimult.tagging.tagger import SuggestedTag
from scimult.terminal import counted
from scimult.types import FloatArray, Text


@dataclass
class Answers:
    """Answers requests from a library, its model and the labels to tag papers with."""

    served: Served
    labels: Following[Tags] | None = None

    def follow(self) -> bool:
        """Read the library and the labels again if they changed; return whether the library did."""
        if self.labels is not None and self.labels.follow():
            note(f"{self.labels.file}: {counted(len(self.labels.value), 'label')} now")
        return self.served.follow()

    @property
    def health(self) -> schemas.Health:
        """The state of the service."""
        library, problem = self.served.library, self.served.problem
        if problem is None and self.labels is not None and self.labels.problem is not None:
            problem = f"{self.labels.what}: {self.labels.problem}"
        damage = self.served.damage
        return schemas.Health(
            status="damaged" if damage else "stale" if problem else "ok",
            papers=len(library),
            generation=library.state.manifest.generation,
            problem=damage or problem,
        )

    def known_tags(self) -> Tags:
        """Return the service's labels, encoded by the current model.

        Raises
        ------
        DataError
            If the service has no labels.
        """
        if self.labels is None:
            fix = "give labels, or start the service with --labels"
            raise DataError("the service has no labels", fix=fix)
        model = self.served.library.model
        tags = self.labels.value
        if isinstance(tags, LabelSpace) and tags.model is not model:
            return self.labels.change(lambda current: current.on(model))
        return tags

    def bounded_tags(self) -> Tags:
        """Return the labels with scores of at most 1: probabilities or cosines."""
        tags = self.known_tags()
        return tags.by_cosine if isinstance(tags, LabelSpace) else tags

    def facts(self) -> schemas.Facts:
        """Describe the library."""
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
            labels=0 if self.labels is None else len(self.labels.value),
            generation=manifest.generation,
            scimult=__version__,
        )

    def encode(self, request: schemas.Encode) -> schemas.Encoded:
        """Encode texts."""
        model = self.served.library.model
        one_of("task", request.task, model.tasks.names)
        texts = [_as_text(text) for text in request.texts]
        vectors_ND = model.encode(texts, task=request.task, role=request.role)
        as_bytes = request.format == "base64"
        return schemas.Encoded(
            model=model.name,
            task=request.task,
            role=request.role,
            similarity=model.similarity,
            width=model.width,
            vectors=base64.b64encode(vectors_ND.astype("<f4").tobytes()).decode()
            if as_bytes
            else vectors_ND.tolist(),
        )

    def search(self, request: schemas.Search) -> schemas.Page:
        """Search by words, by papers of the library or by a vector."""
        vector = None
        if request.vector is not None:
            with np.errstate(over="ignore"):  # the library refuses what is not finite
                vector = np.array(request.vector, dtype=np.float32)

        def question(library: Library) -> schemas.Page:
            hits = library.search(
                request.text,
                task=request.task,
                ids=request.ids,
                vector=vector,
                words=request.words,
                **_options(request),
            )
            seeds = [request.text] if request.text.strip() else []
            return _page(library, request, hits, seeds, request.ids, vector)

        return self.served.ask(question, words=request.words is not None)

    def recommend(self, request: schemas.Recommend) -> schemas.Page:
        """Recommend papers to cite for papers of the library or for a draft."""
        if not request.ids and not f"{request.title}{request.abstract}".strip():
            fix = "give ids of the library, or title and abstract of a draft"
            raise DataError("no paper to recommend others for", fix=fix)

        def question(library: Library) -> schemas.Page:
            hits = library.recommend(
                request.ids,
                title=request.title,
                abstract=request.abstract,
                task=request.task,
                **_options(request),
            )
            draft = {"title": request.title, "abstract": request.abstract}
            return _page(library, request, hits, [] if request.ids else [draft], request.ids, None)

        return self.served.ask(question)

    def tag(self, request: schemas.Tag) -> schemas.TaggedPapers:
        """Tag papers with the labels of the request or of the service."""
        if not request.ids and not request.papers:
            raise DataError("no papers to tag", fix="give ids of the library, or papers")

        def question(library: Library) -> schemas.TaggedPapers:
            new = as_texts([paper.model_dump() for paper in request.papers], "paper")
            texts = [*_papers_of(library, request.ids), *new]
            names: list[str | None] = [*request.ids, *(None for _ in new)]
            tags = self._tags(library.model, request.labels)
            suggestions = tags.suggest(
                texts, k=request.k, threshold=request.threshold, exclude=request.exclude
            )
            return schemas.TaggedPapers(
                papers=[
                    schemas.TaggedPaper(id=name, title=text.title, labels=_labels(labels))
                    for name, text, labels in zip(names, texts, suggestions, strict=True)
                ]
            )

        return self.served.ask(question)

    def match(self, request: schemas.Match) -> schemas.Matches:
        """Rank candidates or reviewers of the request, or papers of the library, per paper."""
        texts = as_texts([paper.model_dump() for paper in request.papers], "paper")
        if request.candidates is None:
            return self.served.ask(lambda library: _match_library(library, request, texts))
        if request.where is not None:
            problem = "where can only be used with papers of the library"
            raise DataError(problem, fix="leave out where")
        return _match_candidates(self.served.library.model, request, texts, request.candidates)

    def _tags(self, model: SciMult, labels: Sequence[str | schemas.LabelIn] | None) -> Tags:
        if labels is not None:
            return LabelSpace(model, [_as_label(label) for label in labels])
        return self.known_tags()


def _as_text(text: str | schemas.PaperIn | schemas.LabelIn) -> Any:
    return text.model_dump() if isinstance(text, schemas.PaperIn) else _as_label(text)


def _as_label(label: str | schemas.LabelIn) -> str | dict[str, str]:
    if isinstance(label, str):
        return label
    return {name: value for name, value in label.model_dump().items() if value is not None}


def _options(request: schemas.Listing) -> dict[str, Any]:
    most = schemas.MOST_EVIDENCE if request.evidence else schemas.MOST_RESULTS
    if request.k is not None and request.k > most:
        fix = f"request pages of {most} papers, or leave out evidence"
        raise DataError("too many papers for evidence", value=request.k, fix=fix)
    everything = request.min_score is not None and request.k is None
    return {
        "k": most if everything else request.k,
        "offset": request.offset,
        "min_score": request.min_score,
        "where": None if request.where is None else _filter(request.where),
        "only": request.only,
        "exclude": request.exclude,
        "method": request.method,
        "percentile": request.percentile,
    }


def _filter(where: schemas.Where) -> dict[str, Any]:
    """Return a filter in the library's form, with ranges as pairs."""
    return {
        name: (value.from_, value.to) if isinstance(value, schemas.Range) else value
        for name, value in where.items()
    }


def _papers_of(library: Library, ids: Sequence[str]) -> list[Text]:
    """Return the texts of papers, in the order of the ids."""
    return library.state.papers.texts_of(library.state.rows_of(ids))


def _page(
    library: Library,
    request: schemas.Search | schemas.Recommend,
    hits: Hits,
    texts: Sequence[Any],
    ids: Sequence[str],
    vector: FloatArray | None,
) -> schemas.Page:
    sentences: Sequence[str | None] = [None] * len(hits)
    if request.evidence:
        if vector is not None:
            check_model(library.state, library.model)  # sentences, too, must be of its space
        else:
            queries = [*texts, *_papers_of(library, ids)]
            vectors_QD = library.model.encode(queries, task=request.task, role="query")
            vector = vectors_QD.mean(axis=0)
        sentences = evidence_for(library.model, request.task, vector, hits.texts)
    papers = [schemas.Found.model_validate(hit) for hit in hits]
    for paper, sentence in zip(papers, sentences, strict=True):
        paper.evidence = sentence
    return schemas.Page(score=hits.score, exact=hits.exact, papers=papers)


def _labels(tags: Sequence[SuggestedTag]) -> list[schemas.TagFound]:
    return [
        schemas.TagFound(
            rank=rank, score=tag.score, id=tag.id, name=tag.label, evidence=tag.evidence or None
        )
        for rank, tag in enumerate(tags, start=1)
    ]


def _match_library(
    library: Library, request: schemas.Match, texts: Sequence[Text]
) -> schemas.Matches:
    where = None if request.where is None else _filter(request.where)
    lists = [
        library.recommend(
            title=text.title, abstract=text.body, task=request.task, k=request.k, where=where
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


def _match_candidates(
    model: SciMult,
    request: schemas.Match,
    texts: Sequence[Text],
    candidates: Sequence[schemas.CandidateIn],
) -> schemas.Matches:
    """Rank the candidates, or their reviewers if every candidate has one."""
    reviewers = [one.reviewer and reviewer_id(one.reviewer) for one in candidates]
    papers = [{"title": one.title, "abstract": one.abstract} for one in candidates]
    if any(reviewers) and not all(reviewers):
        fix = "give every candidate a reviewer, or none of them"
        raise DataError("only some candidates have a reviewer", fix=fix)
    rule = Rule.parse(request.score)
    one_of("task", request.task, model.tasks.names)
    queries_ND = model.encode(texts, task=request.task, role="query")
    candidates_CD = model.encode(papers, task=request.task, role="candidate")
    if not any(reviewers):
        ids = [one.id for one in candidates]
        if len(set(ids)) != len(ids):
            raise DataError("repeated id", fix="give every candidate its own id")
        index = ExactIndex(ids, candidates_CD, model.similarity)
        ranking = index.search(queries_ND, min(request.k, len(ids)))
        scores_QK = index.shown_scores(queries_ND, ranking)
        return _matches("papers", SCORES[model.similarity], ids, ranking.rows_QK, scores_QK)
    names = sorted({str(name) for name in reviewers})
    # A publication counts once per reviewer; of two copies, the one with an abstract.
    rows: dict[str, int] = {}
    for row, candidate in enumerate(candidates):
        known = rows.setdefault(candidate.id, row)
        if titles := two_titles(candidates[known].title, candidate.title):
            fix = "give every publication an id of its own, and the same title wherever it stands"
            raise DataError(f"two publications have the id {candidate.id!r}", value=titles, fix=fix)
        if candidate.abstract and not candidates[known].abstract:
            rows[candidate.id] = row
    owners = zip(reviewers, candidates, strict=True)
    entries = sorted({(names.index(str(name)), rows[one.id]) for name, one in owners})
    counts = [len(list(group)) for _, group in itertools.groupby(entries, lambda entry: entry[0])]
    publications = Ragged(np.array([row for _, row in entries]), offsets_of(np.array(counts)))
    blocks = affinities(unit_rows(queries_ND), unit_rows(candidates_CD), publications, rule)
    scores_QR = np.concatenate([block for _, block in blocks])
    order = np.argsort(-scores_QR, axis=1, kind="stable")[:, : request.k]
    best = np.take_along_axis(scores_QR, order, 1)
    return _matches("reviewers", f"{request.score} of cosines", names, order, best)


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
