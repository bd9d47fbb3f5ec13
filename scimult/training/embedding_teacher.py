"""A teacher's vectors in a run: the texts that follow them, and the projection to their width.

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

# Pairs to whose texts a projection is fitted before the first step.
_FITTED_PAIRS = 512


@dataclass(frozen=True)
class EmbeddingTeacher:
    """The vectors that a run follows, and the tasks whose texts follow them."""

    vectors: TeacherVectors
    tasks: frozenset[str]

    def of(self, source: PairFile) -> TeacherVectors | None:
        """Return the vectors that a source's texts follow; views of texts follow none."""
        return self.vectors if source.view is None and source.task in self.tasks else None


def open_embedding_teacher(
    config: PretrainConfig, data: PreparedData, sources: Sequence[PairFile | TargetFile]
) -> EmbeddingTeacher | None:
    """Open the vectors that a run follows; ``None`` if it follows none.

    Raises
    ------
    UnknownNameError
        If a task that should follow is not trained.
    ConfigError
        If a task that should follow has only self-supervised pairs or targets.
    DataError
        If the vectors belong to other texts.
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
            "loss.embedding_teacher needs texts of pairs, but these tasks have only views of texts "
            "or targets",
            value=without,
            fix="remove them from loss.embedding_teacher.tasks, or add sources with pairs",
        )
    ignored = [
        source.name
        for source in sources
        if source.task in tasks and (isinstance(source, TargetFile) or source.view is not None)
    ]
    if ignored:
        note(f"{', '.join(ignored)}: views of texts, and texts with targets, follow no teacher")
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
    """Return the projection to the teacher's width, if the run learns one; every rank calls this.

    ``fit`` fits it to the initial model (`fitted_projection`); a resumed run loads it instead.

    Raises
    ------
    ConfigError
        If the widths differ and the configuration rules out a projection.
    """
    width = pretrained.config.encoder.width
    if teacher is None or not needs_projection(config, teacher, width):
        return None
    if not fit:
        return Projection(torch.zeros(teacher.vectors.width, width))
    return Projection(fitted_projection(*_sample(config, teacher, sources, tokens, pretrained)))


def needs_projection(config: PretrainConfig, teacher: EmbeddingTeacher, width: int) -> bool:
    """Return whether the run learns a projection from embeddings of this width to the teacher's.

    Raises
    ------
    ConfigError
        If the widths differ and the configuration rules out a projection.
    """
    section, teacher_width = config.loss.embedding_teacher, teacher.vectors.width
    if section is None or section.loss == "relational":
        return False
    if section.projection is False and teacher_width != width:
        raise ConfigError(
            f"the teacher's vectors have width {teacher_width}, the model's embeddings {width}",
            path=section.vectors,
            fix="leave loss.embedding_teacher.projection out, or follow relations: "
            "loss.embedding_teacher.loss=relational",
        )
    return bool(section.projection) or teacher_width != width


def _sample(
    config: PretrainConfig,
    teacher: EmbeddingTeacher,
    sources: Sequence[PairFile | TargetFile],
    tokens: TokenStore,
    pretrained: Pretrained,
) -> tuple[FloatArray, FloatArray]:
    """Return embeddings and vectors of the texts of random pairs, each text by its route."""
    rng = np.random.default_rng(config.seed)
    pairs = [source for source in sources if isinstance(source, PairFile)]
    followed = [source for source in pairs if teacher.of(source) is not None]
    rows_of_route: dict[int, list[int]] = defaultdict(list)
    for source in followed:
        first, second = pretrained.routes(source.task)
        share = -(-_FITTED_PAIRS // len(followed))
        for group in rng.permutation(len(source))[:share]:
            rows_of_route[first].append(int(source.queries[group]))
            rows_of_route[second].append(int(source.positives[group][0]))
    embeddings, vectors = [], []
    for route, rows in sorted(rows_of_route.items()):
        rows_N = np.unique(rows)
        texts = [tokens.tokens(int(row), config.data.max_length) for row in rows_N]
        embeddings.append(embed_tokens(pretrained.model, texts, route=route, sharded=True))
        vectors.append(teacher.vectors(rows_N))
    return np.concatenate(embeddings), np.concatenate(vectors)
