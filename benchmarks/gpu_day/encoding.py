"""Encoding real texts: ours by token budget, sentence-transformers with and without padding.

Shape legend: N texts, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.provide import Inputs, random_folder
from benchmarks.timing import interleaved, ratio
from scimult.checkpoints import load_pretrained
from scimult.data.lines import read_jsonl
from scimult.data.records import Rejects
from scimult.inference.encoder import SciMult
from scimult.models.config import Pooling
from scimult.types import FloatArray

_MOST_TEXTS, _FEWER_TEXTS = 4603, 2000
_TASK = "search"
# Tokens per batch and what is pooled; peers take the mean.
_OURS: dict[str, tuple[int, Pooling]] = {
    **{f"ours bfloat16 {budget}": (budget, "mean") for budget in (8192, 65_536, 262_144)},
    "ours bfloat16 65536 cls": (65_536, "cls"),
}
# Attention kernel and texts per batch.
_PEERS = (("sdpa", 128), ("flash", 128), ("flash", 512))
Encode = Callable[[], FloatArray]


def encode(day: Day, step: str, *, size: str | None = None) -> None:
    """Report every setting's tokens per second, in turns, and smallest cosine to float32.

    Of the given model, or of random weights of a size.
    """
    inputs, device = Inputs.of(day.inputs), torch.device(day.device)
    folder = inputs.model if size is None else random_folder(day, day.size(size, "tiny"))
    texts = _texts(inputs, day.size(_MOST_TEXTS if size is None else _FEWER_TEXTS, 24))
    length = day.size(512, 64)
    expected: dict[Pooling, FloatArray] = {}
    for pooling in {pooling for _, pooling in _OURS.values()}:
        exact = _ours(folder, "float32", 8192, pooling, device, length)
        expected[pooling] = exact.encode(texts, task=_TASK)
    tokens = exact.tokens_encoded
    works: dict[str, Encode] = {}
    embedded: dict[str, FloatArray] = {}
    for name, make in _makers(day, folder, texts, device, length).items():
        try:
            work = make()
            embedded[name] = work()
        # A failing peer, for whatever reason, must not cost the figures of the others.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            day.note(step, setting=name, failed=reason[:200])
            continue
        works[name] = work
    if not any(name.startswith("ours") for name in works):
        raise SystemExit("none of our settings encodes")
    seconds = interleaved(works, day.size(2, 1), device)
    peers = [name for name in works if not name.startswith("ours")]
    best = min(peers, key=lambda name: median(seconds[name]), default=None)
    day.note(step, texts=len(texts), tokens=tokens, best_peer=best)
    for name, times in seconds.items():
        _, pooling = _OURS.get(name, (0, "mean"))
        day.note(
            step,
            setting=name,
            texts_per_second=round(len(texts) / median(times), 1),
            tokens_per_second=round(tokens / median(times)),
            times_best_peer=best and round(ratio(seconds[best], times).median, 3),
            least_cosine=round(_least_cosine(embedded[name], expected[pooling]), 6),
        )


def _makers(
    day: Day, folder: Path, texts: list[str], device: torch.device, length: int
) -> dict[str, Callable[[], Encode]]:
    """Return functions that load each model and return its encoding of the texts."""

    def ours(budget: int, pooling: Pooling) -> Encode:
        encoder = _ours(folder, "bfloat16", budget, pooling, device, length)
        return lambda: encoder.encode(texts, task=_TASK)

    makers: dict[str, Callable[[], Encode]] = {
        name: partial(ours, *setting) for name, setting in _OURS.items()
    }
    for kernel, batch in _PEERS:
        make = partial(_theirs, folder, kernel, batch, device, length, texts)
        makers[f"sentence-transformers {kernel} {batch}"] = make
    return makers


def _ours(
    folder: Path, dtype: str, budget: int, pooling: Pooling, device: torch.device, max_length: int
) -> SciMult:
    pretrained = load_pretrained(folder, pooling=pooling, similarity="cosine")
    pretrained.config.max_length = max_length
    return SciMult(pretrained, name=dtype, device=device, dtype=dtype, max_tokens_per_batch=budget)


def _theirs(
    folder: Path,
    kernel: str,
    batch: int,
    device: torch.device,
    max_length: int,
    texts: list[str],
) -> Encode:
    """Return sentence-transformers' encoding in bfloat16; ``flash`` must not pad."""
    if kernel == "flash" and device.type != "cuda":
        raise ValueError("encoding without padding needs a GPU")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )

    options: dict[str, Any] = {"dtype": torch.bfloat16}
    options["attn_implementation"] = "sdpa" if kernel == "sdpa" else "flash_attention_2"
    encoder = Transformer(str(folder), model_kwargs=options)
    encoder.max_seq_length = max_length
    if kernel == "flash" and not encoder.can_flatten_inputs:
        raise ValueError("sentence-transformers would pad: this version does not flatten inputs")
    width = int(encoder.get_embedding_dimension())
    model = SentenceTransformer(
        modules=[encoder, Pooling(width, "mean"), Normalize()], device=str(device)
    )
    return partial(model.encode, texts, batch_size=batch, show_progress_bar=False)


def _texts(inputs: Inputs, most: int) -> list[str]:
    """Return papers of the largest evaluation set as strings of title and abstract."""
    corpora = sorted(inputs.evaluation.glob("*/corpus.jsonl*"))
    largest = max(corpora, key=lambda path: path.stat().st_size)
    records = islice(read_jsonl(largest, Rejects(skip_bad=False)), most)
    return [f"{r.fields.get('title', '')} {r.fields.get('text', '')}".strip() for r in records]


def _least_cosine(vectors_ND: FloatArray, expected_ND: FloatArray) -> float:
    vectors_ND = np.asarray(vectors_ND, dtype=np.float64)
    lengths_N = np.linalg.norm(vectors_ND, axis=1) * np.linalg.norm(expected_ND, axis=1)
    return float(((vectors_ND * expected_ND).sum(axis=1) / lengths_N).min())
