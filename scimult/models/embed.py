"""Embedding of many tokenised texts with one model: length-batched, order kept.

Shape legend: R routes, N texts, D width, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from scimult import distributed
from scimult.models.encoder import Encoder
from scimult.models.packing import pack
from scimult.progress import bar
from scimult.types import FloatArray, IntArray, TokenIds

# A kernel of FlashAttention counts its rows in 16 bits.
_MOST_ROWS = 65_535
_CPU_TOKENS, _CUDA_TOKENS = 8192, 65_536


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[IntArray]:
    """Yield index arrays that cover all texts, longest first, each within a token budget.

    A text longer than the budget gets a batch of its own; no batch has more than 65,535 texts.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        total, stop = 0, start
        end = min(len(order), start + _MOST_ROWS)
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
    instruction: TokenIds | None = None,
    max_tokens_per_batch: int | None = None,
    sharded: bool = False,
    show_progress: bool = False,
) -> FloatArray:
    """Embed token id arrays without dropout.

    Parameters
    ----------
    model : Encoder
        The encoder; its parameters may be partitioned over ranks.
    tokens : sequence of int arrays
        One array per text, special tokens included; at least one.
    route : int
        The route of every text.
    instruction : int array, optional
        Token ids of another instruction than the route's own.
    max_tokens_per_batch : int
        Token budget of one forward pass; by default 8,192 on a CPU and 65,536 on a GPU.
    sharded : bool
        Divide the work over ranks; every rank must call with the same texts, runs the
        same number of forward passes, and gets all embeddings.

    Returns
    -------
    array
        float32, shape ``(N, D)``, in the order given.
    """
    instead = {} if instruction is None else {route: instruction}
    embeddings_RND = embed_tokens_each(
        model,
        tokens,
        routes=[route],
        instead=instead,
        max_tokens_per_batch=max_tokens_per_batch,
        sharded=sharded,
        show_progress=show_progress,
    )
    embeddings_ND: FloatArray = embeddings_RND[0]
    return embeddings_ND


# Not inference_mode: parameters that ZeRO-3 gathers inside it could not be trained after.
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
    """Embed token id arrays for each of several routes, in one pass of the blocks they share.

    Equal bit for bit to `embed_tokens` route by route; ``instead`` gives routes another
    instruction than their own, and all else is as there.

    Returns
    -------
    array
        float32, shape ``(R, N, D)``.
    """
    device = next(model.parameters()).device
    usual = _CUDA_TOKENS if device.type == "cuda" else _CPU_TOKENS
    batches = list(length_batches([len(row) for row in tokens], max_tokens_per_batch or usual))
    if sharded:
        ranks = distributed.world_size()
        batches += batches[-1:] * (-len(batches) % ranks)
        batches = batches[distributed.rank() :: ranks]
    training = model.training
    model.eval()
    states = [model.read_instructions([route], instead) for route in routes]
    done: Tensor | None = None
    total, start = sum(len(rows) for rows in batches), 0
    with bar("encode", total=total, unit="text", show=show_progress) as meter:
        for rows in batches:
            texts = pack([tokens[row] for row in rows]).to(device)
            by_route = [
                vectors_BD.float() for vectors_BD in model.forward_each(texts, routes, states)
            ]
            if done is None:
                done = _host_rows(len(routes), total, by_route[0])
            # From a GPU into pinned memory: nothing waits before the last batch.
            for place, vectors_BD in enumerate(by_route):
                done[place, start : start + len(rows)].copy_(vectors_BD, non_blocking=True)
            start += len(rows)
            meter.update(len(rows))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    model.train(training)
    assert done is not None
    parts = [(np.concatenate(batches), done.numpy())]
    if sharded:
        parts = [part for shard in distributed.all_gather_objects(parts) for part in shard]
    embeddings_RND = np.empty((len(routes), len(tokens), done.shape[2]), dtype=np.float32)
    for places, embedded in parts:
        embeddings_RND[:, places] = embedded
    return embeddings_RND


def _host_rows(routes: int, count: int, like_BD: Tensor) -> Tensor:
    """Return room for so many rows of each route on the host, pinned where a GPU writes them."""
    pinned = like_BD.device.type == "cuda"
    return torch.empty(routes, count, like_BD.shape[1], pin_memory=pinned)
