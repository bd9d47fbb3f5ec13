"""Embedding of many tokenised texts with one model: length-batched, order kept.

Shape legend: N texts, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from scimult import distributed
from scimult.models.encoder import Encoder
from scimult.models.packing import pack
from scimult.progress import bar
from scimult.types import FloatArray, IntArray, TokenIds


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[IntArray]:
    """Yield index arrays that cover all texts, longest first, each within a token budget.

    A text longer than the budget gets a batch of its own.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        total, stop = 0, start
        while stop < len(order) and (stop == start or total + lengths[order[stop]] <= max_tokens):
            total += int(lengths[order[stop]])
            stop += 1
        yield order[start:stop]
        start = stop


# Not inference_mode: parameters that ZeRO-3 gathers inside it could not be trained after.
@torch.no_grad()
def embed_tokens(
    model: Encoder,
    tokens: Sequence[TokenIds],
    *,
    route: int = 0,
    instruction: TokenIds | None = None,
    max_tokens_per_batch: int = 8192,
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
        Token budget of one forward pass.
    sharded : bool
        Divide the work over ranks; every rank must call with the same texts, runs the
        same number of forward passes, and gets all embeddings.

    Returns
    -------
    array
        float32, shape ``(N, D)``, in the order given.
    """
    batches = list(length_batches([len(row) for row in tokens], max_tokens_per_batch))
    if sharded:
        ranks = distributed.world_size()
        batches += batches[-1:] * (-len(batches) % ranks)
        batches = batches[distributed.rank() :: ranks]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    states = model.read_instructions([route], {} if instruction is None else {route: instruction})
    parts: list[tuple[IntArray, FloatArray]] = []
    total = sum(len(rows) for rows in batches)
    with bar("encode", total=total, unit="text", show=show_progress) as shown:
        for rows in batches:
            texts = pack([tokens[row] for row in rows]).to(device)
            parts.append((rows, model(texts, route, states).float().cpu().numpy()))
            shown.update(len(rows))
    model.train(training)
    if sharded:
        parts = [part for shard in distributed.all_gather_objects(parts) for part in shard]
    embeddings_ND = np.empty((len(tokens), parts[0][1].shape[1]), dtype=np.float32)
    for rows, embedded in parts:
        embeddings_ND[rows] = embedded
    return embeddings_ND
