"""A teacher's vectors in a run: which texts follow them, and the map that lets widths differ.

Shape legend: D width of the model, E width of the teacher, N texts that a map is fitted to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from scimult.checkpoints import Pretrained
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.targets import TargetFile
from scimult.data.token_store import TokenStore
from scimult.errors import ConfigError, one_of
from scimult.losses import Projection, fitted_projection
from scimult.models import embed_tokens
from scimult.progress import note
from scimult.retrieval.teacher_vectors import TeacherVectors
from scimult.training.config import PretrainConfig
from scimult.types import FloatArray

# Pairs whose texts a projection is fitted to, before the first step.
FITTED_PAIRS = 512


@dataclass(frozen=True)
class EmbeddingTeacher:
    """The vectors that a run follows, and the tasks whose texts do."""

    vectors: TeacherVectors
    tasks: frozenset[str]

    def of(self, source: PairFile) -> TeacherVectors | None:
        """Return the vectors that the texts of a source follow; a view of a text has none."""
        return self.vectors if source.view is None and source.task in self.tasks else None


def open_embedding_teacher(
    config: PretrainConfig, data: PreparedData, sources: Sequence[PairFile | TargetFile]
) -> EmbeddingTeacher | None:
    """Open the vectors of a run; ``None`` if it follows none.

    Raises
    ------
    UnknownNameError
        If a task that should follow is not trained.
    ConfigError
        If a task that should follow has self-supervised pairs alone, or targets.
    DataError
        If the vectors are those of other texts.
    """
    section = config.loss.embedding_teacher
    if section is None:
        return None
    trained = sorted({source.task for source in sources})
    tasks = trained if section.tasks is None else section.tasks
    for task in tasks:
        one_of("task in loss.embedding_teacher.tasks", task, trained)
    pairs = [source for source in sources if isinstance(source, PairFile)]
    whole = {source.task for source in pairs if source.view is None}
    without = [task for task in tasks if task not in whole]
    if not whole.intersection(tasks) or (section.tasks is not None and without):
        raise ConfigError(
            "loss.embedding_teacher follows texts of pairs, and these tasks have views of texts or "
            "targets alone",
            value=without,
            fix="leave them out of loss.embedding_teacher.tasks, or add sources with pairs",
        )
    others = [
        source.name
        for source in sources
        if source.task in tasks and (isinstance(source, TargetFile) or source.view is not None)
    ]
    if others:
        note(f"{', '.join(others)}: views of texts, and texts with targets, follow no teacher")
    vectors = TeacherVectors.open(section.vectors, data.texts)
    return EmbeddingTeacher(vectors, frozenset(tasks) & whole)


def make_projection(
    config: PretrainConfig,
    teacher: EmbeddingTeacher | None,
    sources: Sequence[PairFile | TargetFile],
    tokens: TokenStore,
    pretrained: Pretrained,
    *,
    fit: bool,
) -> Projection | None:
    """Return the map to the teacher's width, if the run learns one; every rank calls this.

    Parameters
    ----------
    fit : bool
        Whether it is fitted to the model as it is (`fitted_projection`). A resumed run loads it.

    Raises
    ------
    ConfigError
        If widths differ and a projection is ruled out.
    """
    section, width = config.loss.embedding_teacher, pretrained.config.encoder.width
    if teacher is None or section is None or section.loss == "relational":
        return None
    theirs = teacher.vectors.width
    if section.projection is False and theirs != width:
        raise ConfigError(
            f"the teacher's vectors have width {theirs}, the model's embeddings {width}",
            path=section.vectors,
            fix="leave loss.embedding_teacher.projection out, or follow relations: "
            "loss.embedding_teacher.loss=relational",
        )
    if not (section.projection or theirs != width):
        return None
    if not fit:
        return Projection(torch.zeros(theirs, width))
    return Projection(fitted_projection(*_sample(config, teacher, sources, tokens, pretrained)))


def _sample(
    config: PretrainConfig,
    teacher: EmbeddingTeacher,
    sources: Sequence[PairFile | TargetFile],
    tokens: TokenStore,
    pretrained: Pretrained,
) -> tuple[FloatArray, FloatArray]:
    """Return embeddings and vectors of the texts of some pairs, each text by its route."""
    rng = np.random.default_rng(config.seed)
    pairs = [source for source in sources if isinstance(source, PairFile)]
    followed = [source for source in pairs if teacher.of(source) is not None]
    rows_of_route: dict[int, list[int]] = defaultdict(list)
    for source in followed:
        first, second = pretrained.routes(source.task)
        share = -(-FITTED_PAIRS // len(followed))
        for group in rng.permutation(len(source))[:share]:
            rows_of_route[first].append(int(source.queries[group]))
            rows_of_route[second].append(int(source.positives[group][0]))
    ours, theirs = [], []
    for route, rows in sorted(rows_of_route.items()):
        rows_N = np.unique(rows)
        texts = [tokens.tokens(int(row), config.data.max_length) for row in rows_N]
        ours.append(embed_tokens(pretrained.model, texts, route=route, sharded=True))
        theirs.append(teacher.vectors(rows_N))
    return np.concatenate(ours), np.concatenate(theirs)
