"""Save and load the heads that a run keeps with its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from scimult.checkpoints.weights import read_tensors, write_tensors
from scimult.config import StrictConfig
from scimult.errors import CheckpointError, DataError
from scimult.files import read_json, write_json
from scimult.models.heads import apply_head
from scimult.types import FloatArray

WEIGHTS_FILE, DESCRIPTION_FILE = "heads.safetensors", "heads.json"
# Unit vectors in float16 are this close to length 1; no raw embeddings are.
_UNIT_TOLERANCE = 1e-3


class HeadDescription(StrictConfig):
    """The meaning of a head's outputs.

    ``classes`` are the names of the outputs. A regression was trained on ``factor`` times the
    number n, or with ``log`` times ln(1 + n), plus ``offset``. Heads of older versions do not say
    whether they were trained on logarithms, and count as without.
    """

    kind: Literal["multi_class", "multi_label", "regression"]
    classes: list[str] = []
    factor: float = 1.0
    offset: float = 0.0
    log: bool = False


@dataclass(frozen=True)
class Head:
    """A linear head on embeddings."""

    description: HeadDescription
    weight_KD: Tensor
    bias_K: Tensor

    def predict(self, embeddings_BD: Tensor | FloatArray) -> Tensor:
        """Return probabilities of the classes, shape ``(B, K)``; a regression's numbers, ``(B,)``.

        Parameters
        ----------
        embeddings_BD : Tensor or array
            Embeddings for the head's task as it was trained, not scaled to length 1: those of
            ``SciMult.from_pretrained(model, normalise=False).encode(papers, task=task)``.

        Raises
        ------
        DataError
            If the embeddings have another width, or length 1.
        """
        if not isinstance(embeddings_BD, Tensor):
            embeddings_BD = torch.tensor(np.asarray(embeddings_BD))
        self._check(embeddings_BD)
        value_KD1 = torch.cat([self.weight_KD, self.bias_K[:, None]], 1)
        outputs_BK = apply_head(value_KD1.to(embeddings_BD.device), embeddings_BD)
        if self.description.kind == "multi_class":
            return outputs_BK.softmax(1)
        if self.description.kind == "multi_label":
            return outputs_BK.sigmoid()
        numbers_B = (outputs_BK[:, 0] - self.description.offset) / self.description.factor
        return numbers_B.expm1() if self.description.log else numbers_B

    def _check(self, embeddings_BD: Tensor) -> None:
        width = self.weight_KD.shape[1]
        if embeddings_BD.dim() != 2 or embeddings_BD.shape[1] != width:
            raise DataError(
                f"this head reads embeddings of width {width}",
                value=f"shape {tuple(embeddings_BD.shape)}",
                fix="encode with the model that the head is saved with, one row per text",
            )
        lengths_B = embeddings_BD.float().norm(dim=1)
        # Heads train on raw embeddings; a model of cosine similarity scales them by default.
        if len(lengths_B) and bool(((lengths_B - 1).abs() < _UNIT_TOLERANCE).all()):
            raise DataError(
                "these embeddings are scaled to length 1, which heads were not trained on",
                fix="encode with SciMult.from_pretrained(model, normalise=False)",
            )


def save_heads(
    folder: Path, weights: Mapping[str, Tensor], descriptions: Mapping[str, HeadDescription]
) -> None:
    """Write ``TASK.weight`` and ``TASK.bias`` of every described head, and the descriptions."""
    names = [f"{task}.{part}" for task in descriptions for part in ("weight", "bias")]
    write_tensors(folder / WEIGHTS_FILE, {name: weights[name] for name in names})
    tree = {task: head.model_dump(mode="json") for task, head in descriptions.items()}
    write_json(folder / DESCRIPTION_FILE, tree)


def load_heads(folder: Path | str) -> dict[str, Head]:
    """Return the heads of a saved model or run, by task.

    Raises
    ------
    CheckpointError
        If there are none, or a file is damaged.
    """
    folder = Path(folder)
    folder = folder / "model" if (folder / "model").is_dir() else folder
    if not (folder / DESCRIPTION_FILE).is_file():
        fix = "train with checkpoint.keep_heads: true"
        raise CheckpointError("no heads were saved with this model", path=folder, fix=fix)
    weights, described = read_tensors(folder / WEIGHTS_FILE), read_json(folder / DESCRIPTION_FILE)
    try:
        return {
            task: _described(head, weights[f"{task}.weight"], weights[f"{task}.bias"])
            for task, head in described.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        path, fix = folder / DESCRIPTION_FILE, "export the model again"
        problem = "descriptions of heads are damaged, or do not fit their weights"
        raise CheckpointError(problem, path=path, fix=fix) from None


def _described(head: dict[str, Any], weight_KD: Tensor, bias_K: Tensor) -> Head:
    """Return a head; raise a ``ValueError`` if its description or its shapes do not fit."""
    description = HeadDescription(**head)
    outputs = len(description.classes) or len(bias_K)
    if weight_KD.dim() != 2 or not len(weight_KD) == len(bias_K) == outputs:
        raise ValueError(f"{outputs} outputs, weights of {tuple(weight_KD.shape)}")
    return Head(description, weight_KD, bias_K)
