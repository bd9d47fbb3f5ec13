"""Sizes and speeds of the model variants, relative to a vanilla encoder of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import Clock, Ratio, Work, interleaved, ratio
from scimult.errors import UnknownNameError
from scimult.losses import InBatchScores, info_nce, similarity_matrix
from scimult.models import (
    VARIANTS,
    Encoder,
    EncoderConfig,
    embed_tokens,
    embed_tokens_each,
    pack,
    variant_layouts,
)
from scimult.types import TokenIds

ROUTES = 3
INSTRUCTION_TOKENS = 24

SIZES: dict[str, dict[str, Any]] = {
    "bert-base": {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_blocks": 12,
        "num_heads": 12,
        "intermediate_size": 3072,
    },
    "minilm": {
        "vocab_size": 30522,
        "hidden_size": 384,
        "num_blocks": 6,
        "num_heads": 12,
        "intermediate_size": 1536,
    },
    "tiny": {
        "vocab_size": 1000,
        "hidden_size": 32,
        "num_blocks": 4,
        "num_heads": 2,
        "intermediate_size": 64,
    },
}

# Rows of the table: variant and options.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in VARIANTS if name != "adapters"},
    "adapters": ("adapters", {}),
    "houlsby_adapters": ("adapters", {"placement": "houlsby"}),
    "late_ffn_expert": ("ffn_expert", {"blocks": "last:2"}),
    "late_mha_ffn_expert": ("mha_ffn_expert", {"blocks": "last:2"}),
}


@dataclass(frozen=True)
class Load:
    """Rows of random tokens to time; a mixed batch has a third of them for each route."""

    rows: list[TokenIds]
    device: torch.device
    dtype: torch.dtype

    @property
    def tokens(self) -> int:
        """Tokens of one batch."""
        return sum(map(len, self.rows))

    @property
    def mixed_routes(self) -> list[int]:
        """Routes of the rows of a mixed batch."""
        return [number % ROUTES for number in range(len(self.rows))]


@dataclass(frozen=True)
class Measurement:
    """A row of the table.

    Times are relative to vanilla, except ``mixed`` and ``encode_all`` (all routes in one pass),
    which are relative to the same model with one route. ``active`` counts the parameters that one
    row's gradient reaches. ``train`` is a forward and a backward pass over rows of one task,
    without the optimizer.
    """

    name: str
    parameters: int
    pooler: int
    trainable: int
    active: int
    megabytes: float
    train: Ratio | None
    encode: Ratio
    mixed: Ratio | None
    encode_all: Ratio | None

    def as_json(self) -> dict[str, Any]:
        """Return all fields; ``parameters_with_pooler`` counts as the released files do."""
        return asdict(self) | {"parameters_with_pooler": self.parameters + self.pooler}


def make_load(
    tokens: int, max_length: int, device: torch.device, dtype: torch.dtype, vocab_size: int
) -> Load:
    """Sample an even number of rows, with lengths from a quarter of ``max_length`` to all of it."""
    rng = np.random.default_rng(0)
    rows: list[TokenIds] = []
    while len(rows) % 2 or sum(map(len, rows)) < tokens:
        length = int(rng.integers(max_length // 4, max_length + 1))
        rows.append(rng.integers(1, vocab_size, length))
    return Load(rows, device, dtype)


def build(name: str, size: str) -> Encoder:
    """Return a freshly initialised encoder of a case of the table, without dropout.

    Raises
    ------
    UnknownNameError
        If the case or the size is unknown.
    """
    if size not in SIZES:
        raise UnknownNameError("size", size, SIZES)
    if name not in CASES:
        raise UnknownNameError("model variant", name, CASES)
    variant, options = CASES[name]
    layouts = variant_layouts(variant, options, ROUTES, SIZES[size]["num_blocks"])
    dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    model = Encoder(EncoderConfig.model_validate(SIZES[size] | dropout | layouts))
    trains = VARIANTS[variant].trains
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(trains is None or trains.search(key) is not None)
    if model.config.instructions is not None:
        rng = np.random.default_rng(0)
        shape = (ROUTES, INSTRUCTION_TOKENS)
        model.set_instructions(list(rng.integers(1, model.config.vocab_size, shape)))
    return model


def measure(
    name: str,
    size: str,
    load: Load,
    rounds: int,
    clock: Clock = "wall",
    *,
    encode_only: bool = False,
) -> Measurement:
    """Count the parameters of a case, and time it against vanilla."""
    model, vanilla = _ready(name, size, load), _ready("vanilla", size, load)
    routed = model.config.is_routed
    works: dict[str, Work] = {
        "vanilla encodes": lambda: embed_tokens(vanilla, load.rows),
        "encodes": lambda: embed_tokens(model, load.rows, route=0),
    }
    if not encode_only:
        works["vanilla trains"] = lambda: _train(vanilla, load, 0)
        works["trains"] = lambda: _train(model, load, 0)
    if routed and not encode_only:
        works["trains mixed"] = lambda: _train(model, load, load.mixed_routes)
    if routed:
        works["encodes all"] = lambda: embed_tokens_each(model, load.rows, routes=range(ROUTES))
    seconds = interleaved(works, rounds, load.device, clock)

    def relative(work: str, reference: str) -> Ratio | None:
        return ratio(seconds[work], seconds[reference]) if work in seconds else None

    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    return Measurement(
        name=name,
        parameters=total,
        pooler=pooler_parameters(size),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        active=active_parameters(model, load),
        megabytes=total * 4 / 1e6,
        train=relative("trains", "vanilla trains"),
        encode=ratio(seconds["encodes"], seconds["vanilla encodes"]),
        mixed=relative("trains mixed", "trains"),
        encode_all=relative("encodes all", "encodes"),
    )


def pooler_parameters(size: str) -> int:
    """Count BERT's pooler, a dense layer that SciMult never uses and we leave out."""
    width: int = SIZES[size]["hidden_size"]
    return width * width + width


def active_parameters(model: Encoder, load: Load) -> int:
    """Count the parameters that the gradient of one row's embedding reaches.

    Embedding tables count as a whole.
    """
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    for parameter in model.parameters():
        parameter.requires_grad_(True)
        parameter.grad = None
    torch.autograd.backward(model(pack(load.rows[:1]).to(load.device), 0).sum())
    active = sum(p.numel() for p in model.parameters() if p.grad is not None)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)
        parameter.grad = None
    return active


def _ready(name: str, size: str, load: Load) -> Encoder:
    model = build(name, size)
    model.initialise(0)
    return model.to(load.device, load.dtype)


def _train(model: Encoder, load: Load, routes: int | Sequence[int]) -> None:
    """Run one forward and one backward pass; half the rows are queries."""
    texts = pack(load.rows).to(load.device)
    embeddings_BD: Tensor = model(texts, routes).float()
    half = len(load.rows) // 2
    scores_BC = similarity_matrix(embeddings_BD[:half], embeddings_BD[half:], "cosine")
    batch = InBatchScores(
        scores_BC,
        torch.arange(half, device=load.device),
        torch.zeros_like(scores_BC, dtype=torch.bool),
    )
    if embeddings_BD.requires_grad:
        torch.autograd.backward(info_nce(batch, 0.05).mean())
    for parameter in model.parameters():
        parameter.grad = None
