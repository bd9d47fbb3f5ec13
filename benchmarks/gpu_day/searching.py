"""Exact search on the device: time against plain products, and agreement with float64.

Shape legend: Q queries, C candidates, D width, K results per query.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.host import longest_functions
from benchmarks.timing import interleaved, median_seconds
from scimult.retrieval.exact import ExactIndex

_K = 100
_CHECKED = 32
# Rows of float64 candidates to multiply at once.
_EXACT_ROWS = 1 << 18


def search(day: Day, step: str) -> None:
    """Report milliseconds of search, of the host in it, and of plain products, and its recall."""
    device, width = torch.device(day.device), day.size(768, 64)
    generator = torch.Generator(device).manual_seed(0)
    for candidates in day.size((200_000, 1_413_087), (2000,)):
        embeddings_CD = torch.randn(candidates, width, device=device, generator=generator)
        started = time.perf_counter()
        ids = [f"{row:08d}" for row in range(candidates)]
        index = ExactIndex(ids, embeddings_CD.cpu().numpy(), "dot", device=device)
        built = time.perf_counter() - started
        for count in day.size((1, 32, 1024), (4, 32)):
            queries_QD = torch.randn(count, width, device=device, generator=generator)
            on_host = queries_QD.cpu().numpy()
            index.search(on_host, _K)
            work = partial(index.search, on_host, _K)
            ours = median(interleaved({"": work}, day.size(5, 2), device)[""])
            bare = _bare_seconds(day, queries_QD, embeddings_CD)
            day.note(
                step,
                candidates=candidates,
                queries=count,
                built_seconds=round(built, 2),
                search_ms=round(ours * 1e3, 3),
                **{f"bare_{name}_ms": round(value * 1e3, 3) for name, value in bare.items()},
                of_bare=round(bare["fp32"] / ours, 3),
            )
        alone = on_host[:1]
        index.search(alone, _K)
        for row in longest_functions(partial(index.search, alone, _K), runs=10):
            day.note(step, candidates=candidates, queries=1, **row)
        expected_QK = _exact(queries_QD[:_CHECKED], embeddings_CD).cpu()
        # Among many queries, and alone: few are searched in another way.
        for queries in (on_host, on_host[:_CHECKED]):
            rows_QK = torch.from_numpy(index.search(queries, _K).rows_QK[:_CHECKED])
            right_QK = (rows_QK[:, :, None] == expected_QK[:, None, :]).any(dim=2)
            share = float(right_QK.double().mean())
            day.note(step, candidates=candidates, together=len(queries), of_best_in_float64=share)


def _bare_seconds(day: Day, queries_QD: Tensor, embeddings_CD: Tensor) -> dict[str, float]:
    """Return the seconds of one product with all resident candidates, and its top K."""
    device, rounds = queries_QD.device, day.size(5, 2)
    seconds = {}
    for name, dtype, tf32 in (
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, False),
    ):
        queries, embeddings = queries_QD.to(dtype), embeddings_CD.to(dtype)
        with _tf32(tf32):
            work = partial(_best, queries, embeddings)
            seconds[name] = median_seconds(work, device, rounds, 1)
    return seconds


def _best(queries_QD: Tensor, embeddings_CD: Tensor) -> Tensor:
    return (queries_QD @ embeddings_CD.T).topk(_K, dim=1).indices


def _exact(queries_QD: Tensor, embeddings_CD: Tensor) -> Tensor:
    starts = range(0, len(embeddings_CD), _EXACT_ROWS)
    blocks = (embeddings_CD[start : start + _EXACT_ROWS].double() for start in starts)
    scores = torch.cat([queries_QD.double() @ block.T for block in blocks], dim=1)
    return scores.topk(_K, dim=1).indices


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow TF32 in float32 products, or not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
