"""Export a model in the structure of the checkpoints that SciMult's authors released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.fold import Known, settings_beyond
from scimult.checkpoints.pretrained import Pretrained
from scimult.checkpoints.released import BASE, CONTEXT, POSITION_IDS, QUESTION
from scimult.checkpoints.released_keys import HEADS, moe_type_of, to_released, usual_heads
from scimult.checkpoints.warm_start import in_bank
from scimult.checkpoints.weights import check_finite
from scimult.errors import CheckpointError
from scimult.files import atomic_file
from scimult.models import EncoderConfig, ExpertLayout
from scimult.tasks import default_tasks

# Settings that the released structure can express: a BERT with experts by task.
_KNOWN: Known = {
    PretrainedConfig: frozenset(
        "format version encoder tasks similarity max_length provenance".split()
    ),
    EncoderConfig: frozenset(
        "vocab_size hidden_size num_blocks num_heads intermediate_size max_positions token_types "
        "norm_eps dropout attention_dropout initializer_range pooling experts".split()
    ),
    ExpertLayout: frozenset("count sublayers blocks".split()),
}


def write_released(path: Path | str, pretrained: Pretrained) -> list[str]:
    """Write a model in the released structure; return notes for the user.

    Raises
    ------
    CheckpointError
        If the structure cannot express the model.
    StorageError
        If the file cannot be written.
    """
    config, encoder = pretrained.config, pretrained.config.encoder
    if beyond := settings_beyond(config, _KNOWN):
        raise CheckpointError(
            f"the released structure cannot express {', '.join(sorted(beyond))}",
            value=beyond,
            fix="export it as pretrained, which keeps everything",
        )
    order = _released_order(config)
    weights = {
        key: value.detach().float().cpu() for key, value in pretrained.model.state_dict().items()
    }
    check_finite(weights)
    released = to_released(_reorder(weights, order), encoder)
    width = encoder.hidden_size
    released["pooler.dense.weight"] = torch.zeros(width, width)
    released["pooler.dense.bias"] = torch.zeros(width)
    released[POSITION_IDS] = torch.arange(encoder.max_positions)[None]
    before = config.provenance.get("released", {})
    parameters = _encoder_params(config, before.get("encoder_params", {}))
    state = {
        "model_dict": {
            prefix + key: value for prefix in (QUESTION, CONTEXT) for key, value in released.items()
        },
        "optimizer_dict": {},
        "scheduler_dict": {},
        "offset": before.get("offset", 0),
        "epoch": before.get("epoch", 0),
        "encoder_params": parameters,
    }
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch raises its own for a full disk, while it handles the system's.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    names = [config.tasks[number].name for number in order]
    notes = [
        "the pooler is zero: embeddings do not use it, but the original code's loader requires it",
        "optimizer and scheduler state are empty",
    ]
    if encoder.experts is not None:
        notes.insert(0, "experts " + ", ".join(f"{i} = {name}" for i, name in enumerate(names)))
    if config.max_length < encoder.max_positions:
        notes.append(
            f"this model reads {config.max_length} tokens of a text; the file does not say so, and "
            f"is read with {encoder.max_positions}"
        )
    if HEADS in parameters:
        notes.append(
            f"the original code takes the {encoder.num_heads} attention heads from the config of "
            f"{parameters['pretrained_model_cfg']}, not from the file"
        )
    if config.similarity != "dot":
        notes.append(
            f"the original code compares by dot product, this model by {config.similarity}"
        )
    return notes


def _encoder_params(config: PretrainedConfig, before: dict[str, Any]) -> dict[str, Any]:
    """Return what the original code reads of a model, with settings of the file it came from."""
    encoder, layout = config.encoder, config.encoder.experts
    parameters = before | {
        "pretrained_model_cfg": config.provenance.get("base") or BASE,
        "projection_dim": 0,
        "mean_pool": encoder.pooling == "mean",
        "factor_rep": False,
        "shared_encoder": True,
        "q_rep_method": before.get("q_rep_method", "cls"),
        "use_moe": layout is not None,
        "num_expert": layout.count if layout else 0,
        "use_infer_expert": layout is not None,
        "per_layer_gating": False,
        "moe_type": moe_type_of(layout, encoder.num_blocks) if layout else "mod2:attn",
    }
    if encoder.num_heads != usual_heads(encoder.hidden_size):
        parameters[HEADS] = encoder.num_heads
    return parameters


def _released_order(config: PretrainedConfig) -> list[int]:
    """Return our expert numbers, in the released order if the tasks are the released ones."""
    names, released = [task.name for task in config.tasks], default_tasks().names
    if config.encoder.experts is None or set(names) != set(released):
        return list(range(len(names)))
    return [names.index(name) for name in released]


def _reorder(weights: dict[str, Tensor], order: list[int]) -> dict[str, Tensor]:
    """Renumber the experts of every bank that has several, ``len(order)``."""
    changed = {}
    for key, value in weights.items():
        if match := in_bank(key, weights):
            key = f"{match[1]}{order.index(int(match[2]))}{match[3]}"
        changed[key] = value
    return changed
