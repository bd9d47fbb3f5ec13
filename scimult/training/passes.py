"""Forward and backward passes over a micro-batch, at once or in chunks with an embedding cache.

Shape legend: U distinct texts of this rank, D width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from scimult import distributed
from scimult.data.batches import MicroBatch, TargetBatch
from scimult.hardware import send
from scimult.models import Encoder, PackedTexts, length_batches, pack
from scimult.models.product_attention import attends_by_products
from scimult.progress import note
from scimult.training.learned import Values
from scimult.training.objective import PartResult
from scimult.types import IntArray, TokenIds

Forward = Callable[[PackedTexts, int | list[int]], Tensor]
# From the embeddings of a micro-batch's texts, and the values of its learned parts, to the loss.
MicroBatchLoss = Callable[[Tensor, Values], tuple[Tensor, list[PartResult]]]
LearnedValues = Callable[[], Values]
# One padding token, as a placeholder where a rank has no text of a route that others have.
_FILLER: TokenIds = np.zeros(1, dtype=np.int64)
# Activations per token that a block keeps for the backward pass, in hidden sizes, with dropout.
_BLOCK_WIDTHS = 20
_ACTIVATION_BYTES = 2 << 30
# Below this, a GPU computes a block's products as fast as the host launches them.
_BUSY_TOKENS = 16_000


@dataclass(frozen=True)
class Graph:
    """The part of the engine that passes need.

    ``forward`` embeds packed texts, with one route or one per row; ``backward`` accumulates the
    gradient of a loss; ``device`` is the model's.
    """

    forward: Forward
    backward: Callable[[Tensor], None]
    device: torch.device


@dataclass(frozen=True)
class MicroBatchTexts:
    """The distinct texts of all parts of a micro-batch on this rank, one part after another.

    ``every_route`` lists the routes that the micro-batch has on any rank: all ranks must run the
    same experts, because sharded ones are gathered collectively.
    """

    rows: list[TokenIds]
    routes: list[int]
    every_route: list[int]

    @classmethod
    def of(
        cls, micro_batch: MicroBatch, routes_of_task: Callable[[str], Sequence[int]]
    ) -> MicroBatchTexts:
        """Collect the texts of a micro-batch; a task has a route for each of its two sides."""
        rows: list[TokenIds] = []
        routes: list[int] = []
        for part in micro_batch.parts:
            route_of_side = routes_of_task(part.task)
            rows += part.rows
            routes += [route_of_side[side] for side in part.sides]
        return cls(rows, routes, sorted(routes_of_parts(micro_batch, routes_of_task)))


def routes_of_parts(
    micro_batch: MicroBatch, routes_of_task: Callable[[str], Sequence[int]]
) -> set[int]:
    """Return the routes of the texts that a micro-batch has on any rank.

    Papers with targets are on the side of queries alone: without rows, an expert is not stepped.
    """
    routes: set[int] = set()
    for part in micro_batch.parts:
        query, candidate = routes_of_task(part.task)
        routes |= {query} if isinstance(part, TargetBatch) else {query, candidate}
    return routes


def activation_tokens(lengths_U: IntArray, head_width: int | None) -> IntArray:
    """Return each text's activation cost, in equivalent short-text tokens.

    A block keeps about ``_BLOCK_WIDTHS`` D numbers per token for the backward pass, with dropout.
    Unfused attention keeps two per head and pair of tokens: weights, and weights after dropout. A
    pair then costs 2 / (``_BLOCK_WIDTHS`` ``head_width``) of a token; ``None`` means fused
    attention.
    """
    if head_width is None:
        return lengths_U
    return lengths_U + 2 * lengths_U**2 // (_BLOCK_WIDTHS * head_width)


def unfused_head_width(model: Encoder, device: torch.device) -> int | None:
    """Return the ``head_width`` of a model for `activation_tokens`."""
    config, dtype = model.config, next(model.parameters()).dtype
    unfused = attends_by_products(device, dtype, config.attention_dropout)
    return config.hidden_size // config.num_heads if unfused else None


def resolve_chunk_tokens(
    choice: int | Literal["auto"] | None, model: Encoder, device: torch.device
) -> int | None:
    """Return the token budget of an embedding cache's chunk; ``None`` for whole passes.

    ``auto`` is, on CPUs of any size, the number of short-text tokens whose activations take 2 GB
    in float32; elsewhere it means whole passes. A choice too small to keep a GPU busy is noted.
    """
    if choice != "auto":
        if choice is not None and device.type == "cuda" and choice < _BUSY_TOKENS:
            note(
                f"batch.chunk_tokens {choice:,} is small: below about {_BUSY_TOKENS:,} tokens a "
                "GPU waits for the host between chunks; use as many as fit into its memory"
            )
        return choice
    if device.type != "cpu":
        return None
    blocks = model.config.num_blocks
    # With recomputation, blocks keep only their input, and all activations of one block at a time.
    widths = blocks + _BLOCK_WIDTHS if model.checkpoints_activations else blocks * _BLOCK_WIDTHS
    return max(1, _ACTIVATION_BYTES // (4 * widths * model.config.hidden_size))


def pass_whole(
    graph: Graph, texts: MicroBatchTexts, loss_of: MicroBatchLoss, learned: LearnedValues
) -> list[PartResult]:
    """Encode all texts in one forward pass and backpropagate their loss."""
    absent = sorted(set(texts.every_route) - set(texts.routes))
    rows, routes = texts.rows + [_FILLER] * len(absent), texts.routes + absent
    route = routes[0] if len(set(routes)) == 1 else routes
    embeddings_UD = _embed(graph, pack(rows).to(graph.device), route)[: len(texts.rows)]
    loss, results = loss_of(embeddings_UD, learned())
    graph.backward(loss)
    return results


def pass_in_chunks(
    graph: Graph,
    texts: MicroBatchTexts,
    loss_of: MicroBatchLoss,
    learned: LearnedValues,
    *,
    chunk_tokens: int,
    weigh: Callable[[IntArray], IntArray],
    seed_of_chunk: Callable[[int], int],
) -> list[PartResult]:
    """Do the same as ``pass_whole``, holding the activations of only one chunk at a time.

    All chunks are encoded without a graph, the loss yields the gradient of every embedding, and
    each chunk is encoded again to backpropagate its share (Gao et al., 2021, "Scaling Deep
    Contrastive Learning Batch Size under Memory Limited Setup"). The gradient equals that of
    ``pass_whole``; with dropout, a chunk draws the same masks both times, by ``seed_of_chunk``.

    ``chunk_tokens`` limits the cost of a chunk's texts by ``weigh`` (`activation_tokens`); a more
    expensive text gets a chunk of its own. Every rank calls with the same micro-batch.
    """
    weights_U = weigh(np.array([len(row) for row in texts.rows], dtype=np.int64))
    if max(distributed.all_gather_objects(int(weights_U.sum()))) <= chunk_tokens:
        torch.manual_seed(seed_of_chunk(0))
        return pass_whole(graph, texts, loss_of, learned)
    chunks = list(_chunks(texts, weights_U, chunk_tokens))
    # Packed and planned once, for both passes.
    packed = deque(
        (pack([texts.rows[row] for row in rows_U] or [_FILLER]).to(graph.device), route)
        for rows_U, route in chunks
    )
    sizes = [len(rows_U) for rows_U, _ in chunks]

    def encode(number: int, chunk: PackedTexts, route: int) -> Tensor:
        torch.manual_seed(seed_of_chunk(number))
        return _embed(graph, chunk, route)[: sizes[number]]

    with torch.no_grad():
        encoded = torch.cat([encode(number, *chunk) for number, chunk in enumerate(packed)])
        order = torch.from_numpy(np.concatenate([rows_U for rows_U, _ in chunks]))
        (order_U,) = send([order], graph.device)
        embeddings_UD = torch.empty_like(encoded).index_copy_(0, order_U, encoded)
        values = {name: value.requires_grad_() for name, value in learned().items()}
    embeddings_UD.requires_grad_()
    loss, results = loss_of(embeddings_UD, values)
    torch.autograd.backward(loss)
    assert embeddings_UD.grad is not None
    gradients = torch.split(embeddings_UD.grad[order_U], sizes)
    for number, gradient_UD in enumerate(gradients):
        # The gradient of this product is the chunk's share of the loss gradient.
        chained = (encode(number, *packed.popleft()) * gradient_UD).sum()
        if number == len(chunks) - 1:
            for name, value in learned().items():
                value_gradient = values[name].grad
                assert value_gradient is not None, f"the loss does not use the learned {name}"
                chained = chained + (value * value_gradient).sum()
        # Nothing is trained on a route whose weights are frozen, the same one on every rank.
        if chained.requires_grad:
            graph.backward(chained)
    return results


def _embed(graph: Graph, texts: PackedTexts, route: int | list[int]) -> Tensor:
    embeddings_UD = graph.forward(texts, route)
    return embeddings_UD.to(torch.promote_types(embeddings_UD.dtype, torch.float32))


def _chunks(
    texts: MicroBatchTexts, weights_U: IntArray, chunk_tokens: int
) -> Iterator[tuple[IntArray, int]]:
    """Yield (text indices, route) of every chunk, with equally many chunks per route on all ranks.

    Collectives of sharded experts need the same routes in the same order everywhere; a rank
    with fewer texts of a route gets empty chunks.
    """
    routes_U = np.array(texts.routes, dtype=np.int64)
    by_route: list[list[IntArray]] = []
    for route in texts.every_route:
        indices = np.flatnonzero(routes_U == route)
        batches = length_batches(weights_U[indices].tolist(), chunk_tokens)
        by_route.append([indices[rows] for rows in batches])
    counts = np.array(distributed.all_gather_objects([len(chunks) for chunks in by_route])).max(0)
    for route, chunks, count in zip(texts.every_route, by_route, counts, strict=True):
        for number in range(count):
            yield (chunks[number] if number < len(chunks) else routes_U[:0]), route
