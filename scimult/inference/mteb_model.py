"""Our models as MTEB 2 encoders: MTEB's tasks are routed to ours by type, name and side.

Shape legend: N texts, M texts of the other side, D width.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scimult.errors import DataError
from scimult.inference.encoder import SciMult
from scimult.inference.mteb_tasks import scientific_tasks
from scimult.losses import similarity_matrix
from scimult.types import FloatArray, Kind, Role, Text

if TYPE_CHECKING:
    from mteb.models.model_meta import ModelMeta

# MTEB's task types, and our task whose embeddings suit them. Clusters are topics there, and
# reranking orders passages for a query. Other types compare papers with papers, as link prediction
# does. Tasks in `mteb_tasks.yaml` have routes of their own.
ROUTES: Mapping[str, str] = {
    "Classification": "classification",
    "MultilabelClassification": "classification",
    "Regression": "classification",
    "Clustering": "classification",
    "Retrieval": "search",
    "InstructionRetrieval": "search",
    "Reranking": "search",
    "InstructionReranking": "search",
}
OTHERWISE = "link_prediction"
_METRICS = {"dot": "dot", "cosine": "cosine", "l2": "euclidean"}
# Required by MTEB's description of a model.
_UNSTATED = (
    "loader release_date languages n_parameters memory_usage_mb max_tokens license open_weights "
    "public_training_code public_training_data use_instructions training_datasets"
).split()
# Some corpora (LitSearch's) have empty documents, which must be ranked like the others.
_NO_WORDS = "."


@dataclass
class Work:
    """Running totals of what was encoded for one task."""

    texts: int = 0
    empty: int = 0
    tokens: int = 0
    encode_seconds: float = 0.0


class MtebEncoder:
    """A SciMult model for ``mteb.evaluate``.

    Parameters
    ----------
    model : SciMult
        The model.
    routes : mapping, optional
        MTEB task name or type to the name of one of the model's tasks, added to ``ROUTES`` and
        the list of scientific tasks; a name overrides a type.

    Attributes
    ----------
    work : dict
        Task name to what was encoded for it.

    Raises
    ------
    UnknownNameError
        If the model does not know a task in ``routes``.
    """

    def __init__(self, model: SciMult, routes: Mapping[str, str] | None = None) -> None:
        self._model = model
        listed = {name: task.route for name, task in scientific_tasks().tasks.items()}
        self._routes = {**ROUTES, **listed, **(routes or {})}
        self.work: defaultdict[str, Work] = defaultdict(Work)
        for task in set((routes or {}).values()):
            model.kind(task, "query")

    def route(self, task_metadata: Any, prompt_type: Any = None) -> tuple[str, Role]:
        """Return our task and side for an MTEB task and its prompt type.

        Documents are candidates; everything else, including papers to classify, is a query.
        """
        by_type = self._routes.get(task_metadata.type, OTHERWISE)
        task = self._routes.get(task_metadata.name, by_type)
        side = getattr(prompt_type, "value", prompt_type)
        return task, "candidate" if side in ("document", "passage") else "query"

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> FloatArray:
        """Return float32 embeddings of all batches, shape ``(N, D)``.

        Raises
        ------
        DataError
            If a batch has no text.
        """
        task, role = self.route(task_metadata, prompt_type)
        kind = self._model.kind(task, role)
        start, tokens = time.perf_counter(), self._model.tokens_encoded
        texts = [text for batch in inputs for text in _texts(batch, kind)]
        empty = [index for index, text in enumerate(texts) if not text.joined.strip()]
        for index in empty:
            texts[index] = Text(kind, _NO_WORDS)
        embeddings = self._model.encode(texts, task=task, role=role)
        work = self.work[task_metadata.name]
        work.texts += len(texts)
        work.empty += len(empty)
        work.tokens += self._model.tokens_encoded - tokens
        work.encode_seconds += time.perf_counter() - start
        return embeddings

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compare all pairs by the model's similarity, shape ``(N, M)``."""
        x_ND, y_MD = _tensor(embeddings1), _tensor(embeddings2)
        x_ND, y_MD = (x if x.ndim > 1 else x[None] for x in (x_ND, y_MD))
        return similarity_matrix(x_ND, y_MD, self._model.similarity)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compare row with row by the model's similarity, shape ``(N,)``."""
        x_ND, y_ND = _tensor(embeddings1), _tensor(embeddings2)
        if self._model.similarity == "l2":
            distances_N: Tensor = torch.linalg.vector_norm(x_ND - y_ND, dim=-1)
            return -distances_N
        if self._model.similarity == "cosine":
            x_ND, y_ND = _normalised(x_ND), _normalised(y_ND)
        return (x_ND * y_ND).sum(dim=-1)

    @property
    def _revision(self) -> str:
        """Everything scores depend on, for MTEB's cache: the model, its similarity, the routes."""
        rest = json.dumps([self._model.similarity, self._routes], sort_keys=True)
        return f"{self._model.fingerprint}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's description in MTEB's results."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        return ModelMeta(
            name=f"scimult/{self._model.name}",
            revision=self._revision,
            embed_dim=self._model.width,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction(_METRICS[self._model.similarity]),
            **dict.fromkeys(_UNSTATED),
        )


def _texts(batch: Mapping[str, Any], kind: Kind) -> list[Text]:
    """Return the texts of a batch; papers keep title and body apart if MTEB does."""
    if kind == "paper" and batch.get("title") and batch.get("body"):
        pairs: Sequence[tuple[str, str]] = list(zip(batch["title"], batch["body"], strict=True))
        return [Text(kind, title or "", body or "") for title, body in pairs]
    if "text" not in batch:
        fix = "evaluate tasks whose inputs are texts"
        raise DataError("MTEB batch has no text", value=sorted(batch), fix=fix)
    return [Text(kind, text) for text in batch["text"]]


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)


def _normalised(x_ND: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x_ND, dim=-1)
