"""Save and load the heads that a run keeps with its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from scimult.checkpoints.weights import read_tensors, write_tensors
from scimult.config import StrictConfig
from scimult.errors import CheckpointError
from scimult.files import read_json, write_json
from scimult.models.heads import apply_head

WEIGHTS_FILE, DESCRIPTION_FILE = "heads.safetensors", "heads.json"


class HeadDescription(StrictConfig):
    """The meaning of a head's outputs.

    ``classes`` are the names of the outputs. A regression was trained on ``factor`` times the
    number (or its logarithm, as the targets were prepared) plus ``offset``.
    """

    kind: Literal["multi_class", "multi_label", "regression"]
    classes: list[str] = []
    factor: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class Head:
    """A linear head on embeddings."""

    description: HeadDescription
    weight_KD: Tensor
    bias_K: Tensor

    def predict(self, embeddings_BD: Tensor) -> Tensor:
        """Return probabilities of the classes, shape ``(B, K)``.

        A regression's are values before scaling, shape ``(B,)``.
        """
        value_KD1 = torch.cat([self.weight_KD, self.bias_K[:, None]], 1)
        outputs_BK = apply_head(value_KD1, embeddings_BD)
        if self.description.kind == "multi_class":
            return outputs_BK.softmax(1)
        if self.description.kind == "multi_label":
            return outputs_BK.sigmoid()
        return (outputs_BK[:, 0] - self.description.offset) / self.description.factor


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
    weights = read_tensors(folder / WEIGHTS_FILE)
    try:
        return {
            task: Head(HeadDescription(**head), weights[f"{task}.weight"], weights[f"{task}.bias"])
            for task, head in read_json(folder / DESCRIPTION_FILE).items()
        }
    except (ValidationError, KeyError, TypeError, AttributeError):
        path, fix = folder / DESCRIPTION_FILE, "export the model again"
        raise CheckpointError("descriptions of heads are damaged", path=path, fix=fix) from None
