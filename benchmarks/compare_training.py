"""Comparisons of ``launch/benchmark.py train``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from statistics import median

import torch

from benchmarks.processes import on_ranks
from benchmarks.timing import Clock, Ratio, interleaved, ratio
from benchmarks.training import OurSteps, Setting, TheirSteps, in_turn


@dataclass(frozen=True)
class TrainingRow:
    """Our steps and sentence-transformers' at one dropout, round by round.

    ``ours`` and ``theirs`` are real tokens per second, of all three columns of a batch. ``faster``
    is their time over ours; ``cached`` is our time with the embedding cache over that without;
    ``padding`` is the share of padding in sentence-transformers' tokens.
    """

    dropout: float
    ours: float
    theirs: float
    padding: float
    faster: Ratio
    cached: Ratio


def side_by_side(
    setting: Setting,
    chunk_tokens: int,
    device: torch.device,
    precision: str,
    rounds: int,
    clock: Clock,
) -> list[TrainingRow]:
    """Time our steps, with and without the embedding cache, and sentence-transformers'.

    Every round runs the same batch with all of them, within a joined process group. On a GPU all
    batches run once before: their shapes are new to kernels, and memory is allocated for them.
    """
    rows = []
    for dropout in (setting.dropout, 0.0):
        plain = OurSteps(replace(setting, dropout=dropout), device, precision)
        cached = OurSteps(
            replace(setting, dropout=dropout, chunk_tokens=chunk_tokens), device, precision
        )
        batches = [plain.columns(number) for number in range(rounds + 1)]
        theirs = TheirSteps(replace(setting, dropout=dropout), batches, device, precision)
        works = {"ours": plain.step, "theirs": theirs.step, "cached": cached.step}
        if device.type != "cpu":
            for number, step in product(range(rounds + 1), works.values()):
                step(number)
        turns = {name: in_turn(step) for name, step in works.items()}
        seconds = interleaved(turns, rounds, device, clock)
        # The first round is a warm-up.
        real = [sum(len(row) for column in batch for row in column) for batch in batches[1:]]
        padded = [sum(len(c) * max(map(len, c)) for c in batch) for batch in batches[1:]]
        rows.append(
            TrainingRow(
                dropout=dropout,
                ours=median(n / s for n, s in zip(real, seconds["ours"], strict=True)),
                theirs=median(n / s for n, s in zip(real, seconds["theirs"], strict=True)),
                padding=1 - sum(real) / sum(padded),
                faster=ratio(seconds["theirs"], seconds["ours"]),
                cached=ratio(seconds["cached"], seconds["ours"]),
            )
        )
        plain.close()
        cached.close()
    return rows


def two_ranks(setting: Setting, rounds: int, precision: str) -> dict[str, float]:
    """Return real tokens per second of one rank and of two, with one thread each, in turns."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for ranks, rank_rates in rates.items():
            measured = on_ranks(setting, ranks, steps=3, precision=precision)
            rank_rates.append(
                sum(rank.tokens for rank in measured) / max(rank.seconds for rank in measured)
            )
    faster = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    return {"one": median(rates[1]), "two": median(rates[2]), "faster": median(faster)}


def memory(setting: Setting, chunk_tokens: int, precision: str) -> dict[str, dict[int, float]]:
    """Return the peak megabytes of one rank by pairs per step, without and with the cache."""
    cached = replace(setting, chunk_tokens=chunk_tokens)
    sizes = {"plain": (setting, (1, 4)), "cached": (cached, (1, 4, 16))}
    peaks: dict[str, dict[int, float]] = {}
    for name, (base, factors) in sizes.items():
        peaks[name] = {}
        for factor in factors:
            grown = replace(base, pairs=setting.pairs * factor)
            (measured,) = on_ranks(grown, 1, steps=1, precision=precision)
            peaks[name][grown.pairs] = round(measured.peak_megabytes)
    return peaks
