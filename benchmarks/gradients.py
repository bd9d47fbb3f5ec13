"""Errors of bfloat16 gradients against float32's, by group of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from benchmarks.training import Setting, batches_of
from scimult.models import Encoder, PackedTexts
from scimult.training.learned import Values
from scimult.training.objective import Objective, PartResult
from scimult.training.optim import GradientSums
from scimult.training.passes import Graph, MicroBatchTexts, pass_in_chunks, pass_whole

# Chunk size of the float32 reference; chunking changes its gradient by 1e-6.
_REFERENCE_TOKENS = 4096
# Group by the first of these parts that a name contains.
_GROUPS = (
    ("norm.weight", "LayerNorm weights"),
    ("norm.bias", "LayerNorm biases"),
    ("words.", "words"),
    ("positions.", "positions"),
    ("token_types.", "token types"),
    ("bias", "biases of linears"),
    ("attention.", "attention"),
    ("", "feed-forward"),
)


@dataclass(frozen=True)
class GradientErrors:
    """Errors of a gradient in ``chunks``, relative to the norm of float32's.

    ``groups`` has the error of each group's gradient, as one vector, and the largest error among
    its tensors; ``all`` is the whole gradient.
    """

    chunks: int
    groups: dict[str, tuple[float, float]]


@dataclass
class _Counted:
    """Forward and backward of a graph, which sums gradients as a run does."""

    encoder: Encoder
    sums: GradientSums
    passes: int = 0

    def forward(self, texts: PackedTexts, routes: int | list[int]) -> Tensor:
        embeddings: Tensor = self.encoder(texts, routes)
        return embeddings

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)
        self.sums.take()
        self.passes += 1


def gradient_errors(setting: Setting, chunks: Sequence[int]) -> tuple[int, list[GradientErrors]]:
    """Compare bfloat16 with float32 on the first batch, in one pass and in chunks.

    There is no dropout and no DeepSpeed, which would partition the gradients.

    Returns
    -------
    tokens, errors
        Tokens of the batch, and an entry for the single pass and for each of ``chunks``.
    """
    batches = batches_of(setting)
    micro_batch, encoder = batches.micro_batch(0), batches.pretrained.model
    texts = MicroBatchTexts.of(micro_batch, batches.pretrained.routes)
    objective = Objective("cosine", batches.config.loss)

    def loss_of(embeddings_UD: Tensor, _: Values) -> tuple[Tensor, list[PartResult]]:
        results = objective(micro_batch.parts, embeddings_UD)
        return torch.stack([result.loss for result in results]).sum() / micro_batch.pairs, results

    def gradients(chunk_tokens: int) -> tuple[int, dict[str, Tensor]]:
        encoder.zero_grad()
        counted = _Counted(encoder, GradientSums(encoder))
        graph = Graph(counted.forward, counted.backward, torch.device("cpu"))
        if chunk_tokens >= tokens:
            pass_whole(graph, texts, loss_of, dict)
        else:
            pass_in_chunks(
                graph,
                texts,
                loss_of,
                dict,
                chunk_tokens=chunk_tokens,
                weigh=lambda lengths_U: lengths_U,
                seed_of_chunk=lambda chunk: chunk,
            )
        counted.sums.restore()
        named = encoder.named_parameters()
        return counted.passes, {n: p.grad.double() for n, p in named if p.grad is not None}

    tokens = sum(map(len, texts.rows))
    _, exact = gradients(_REFERENCE_TOKENS)
    encoder.bfloat16()
    errors = []
    for number in (1, *chunks):
        passes, ours = gradients(-(-tokens // number))
        errors.append(GradientErrors(passes, _by_group(ours, exact)))
    return tokens, errors


def _by_group(ours: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    def group_of(name: str) -> str:
        return next(group for part, group in _GROUPS if part in name)

    def error(names: Sequence[str]) -> float:
        wrong, right = (
            torch.stack([gradient.norm() for gradient in gradients]).norm()
            for gradients in ([ours[n] - exact[n] for n in names], [exact[n] for n in names])
        )
        return float(wrong / right)

    by_group = {
        group: (error(names), max(error([name]) for name in names))
        for group, names in (
            (group, list(members))
            for group, members in groupby(sorted(exact, key=group_of), key=group_of)
        )
    }
    order = [group for _, group in _GROUPS if group in by_group]
    everything = (error(list(exact)), max(worst for _, worst in by_group.values()))
    return {group: by_group[group] for group in order} | {"all": everything}
