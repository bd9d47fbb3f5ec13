"""Embed many tokenised texts with one model, batched by length, in the given order.

Shape legend: R routes, N texts, D width, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from scimult import distributed
from scimult.hardware import in_threads, independent_threads, without_autocast
from scimult.heap import heap_gaps
from scimult.models.encoder import Encoder
from scimult.models.packed_attention import MOST_ROWS
from scimult.models.packing import pack
from scimult.progress import bar
from scimult.types import FloatArray, IntArray, TokenIds

CPU_TOKENS = 4096
"""Tokens of a pass with which a CPU's thread reaches full speed."""

LEAST_TOKENS = 512
"""Fewer are not divided among threads, as each pass has a fixed cost."""

# On a CPU, of all passes at once, which bounds their memory.
_AT_ONCE = 32_768
_USUAL_TOKENS, _GPU_TOKENS = 8192, 65_536
# With this much memory (80 GB cards and larger): a fifth faster for MiniLM, equal for BERT-base.
_LARGE_GPU, _LARGE_GPU_TOKENS = 60 << 30, 262_144


def usual_tokens(device: torch.device, tokens: int, workers: int) -> int:
    """Return the usual token budget of one forward pass without gradients on a device.

    On a CPU ``workers`` share ``tokens`` in passes of about the same size.
    """
    if device.type == "cpu":
        most = max(LEAST_TOKENS, min(CPU_TOKENS, _AT_ONCE // workers))
        rounds = -(-tokens // (workers * most))
        return max(LEAST_TOKENS, -(-tokens // (workers * rounds)))
    if device.type != "cuda":
        return _USUAL_TOKENS
    memory = torch.cuda.get_device_properties(device).total_memory
    return _LARGE_GPU_TOKENS if memory >= _LARGE_GPU else _GPU_TOKENS


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[IntArray]:
    """Yield index arrays that cover all texts, longest first, each within a token budget.

    A text longer than the budget gets a batch of its own; no batch has more than 65,535 texts.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        total, stop = 0, start
        end = min(len(order), start + MOST_ROWS)
        while stop < end and (stop == start or total + lengths[order[stop]] <= max_tokens):
            total += int(lengths[order[stop]])
            stop += 1
        yield order[start:stop]
        start = stop


def embed_tokens(
    model: Encoder,
    tokens: Sequence[TokenIds],
    *,
    route: int = 0,
    sharded: bool = False,
) -> FloatArray:
    """Embed arrays of token ids for one route, shape ``(N, D)``; see `embed_tokens_each`."""
    embedded_ND: FloatArray = embed_tokens_each(model, tokens, routes=[route], sharded=sharded)[0]
    return embedded_ND


# Not inference_mode: parameters that ZeRO-3 gathers inside it could not be trained afterwards.
@torch.no_grad()
def embed_tokens_each(
    model: Encoder,
    tokens: Sequence[TokenIds],
    *,
    routes: Sequence[int],
    instead: Mapping[int, TokenIds] | None = None,
    max_tokens_per_batch: int | None = None,
    sharded: bool = False,
    show_progress: bool = False,
) -> FloatArray:
    """Embed arrays of token ids for several routes, running the blocks they share only once.

    Without dropout, and bit-identical to embedding route by route: float32, shape ``(R, N, D)``.

    Parameters
    ----------
    model : Encoder
        The encoder; its parameters may be partitioned over ranks.
    tokens : sequence of int arrays
        At least one array, special tokens included.
    routes : sequence of int
        The routes, each for every text.
    instead : mapping of int to int array, optional
        Token ids of instructions that replace those of routes.
    max_tokens_per_batch : int
        Token budget of one forward pass; by default that of `usual_tokens`. All passes at once have
        no more on a CPU, or 32,768.
    sharded : bool
        Divide the work over ranks; every rank must call with the same texts, runs the
        same number of forward passes, and gets all embeddings.
    """
    device = next(model.parameters()).device
    lengths = [len(row) for row in tokens]
    batches, workers = _divided(lengths, max_tokens_per_batch, device, sharded)
    training = model.training
    model.eval()
    host_RND: Tensor | None = None
    total, start = sum(len(rows) for rows in batches), 0
    # Pinned, so that nothing waits for a GPU before the last batch.
    pinned = device.type == "cuda"
    progress = bar("encode", total=total, unit="text", show=show_progress)
    with without_autocast(device), progress as meter:
        states = [model.read_instructions([route], instead) for route in routes]

        def embed(rows: IntArray) -> list[Tensor]:
            texts = pack([tokens[row] for row in rows]).to(device)
            return [vectors_BD.float() for vectors_BD in model.forward_each(texts, routes, states)]

        for rows, by_route in zip(batches, in_threads(embed, batches, workers), strict=True):
            if host_RND is None:
                shape = (len(routes), total, by_route[0].shape[1])
                host_RND = torch.empty(shape, dtype=torch.float32, pin_memory=pinned)
            for number, vectors_BD in enumerate(by_route):
                host_RND[number, start : start + len(rows)].copy_(vectors_BD, non_blocking=pinned)
            start += len(rows)
            meter.update(len(rows))
            if device.type == "cpu":
                heap_gaps().after_step()
    if pinned:
        torch.cuda.synchronize(device)
    model.train(training)
    assert host_RND is not None
    parts = [(np.concatenate(batches), host_RND.numpy())]
    if sharded:
        parts = [part for shard in distributed.all_gather_objects(parts) for part in shard]
    embeddings_RND = np.empty((len(routes), len(tokens), host_RND.shape[2]), dtype=np.float32)
    for indices, embedded in parts:
        embeddings_RND[:, indices] = embedded
    return embeddings_RND


def _divided(
    lengths: Sequence[int], budget: int | None, device: torch.device, sharded: bool
) -> tuple[list[IntArray], int]:
    """Return the batches that this rank embeds, and how many threads share them."""
    # Ranks gather partitioned weights in one order, so each runs its batches one by one.
    workers = 1 if sharded else independent_threads(device)
    if budget is None:
        budget = usual_tokens(device, sum(lengths), workers)
    else:
        workers = max(1, min(workers, _AT_ONCE // budget))
    batches = list(length_batches(lengths, budget))
    if sharded:
        ranks = distributed.world_size()
        batches += batches[-1:] * (-len(batches) % ranks)
        batches = batches[distributed.rank() :: ranks]
    return batches, workers
