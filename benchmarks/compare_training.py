"""Comparisons of ``launch/benchmark.py train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import median

import torch

from benchmarks.processes import Ask, Steps, columns, on_ranks, own_process, seconds_of_step
from benchmarks.timing import Clock, Ratio, in_turns, ratio
from benchmarks.training import OurSteps, Setting, TheirSteps


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
    """Time our steps beside sentence-transformers', then beside ours with the embedding cache.

    Each has a process of its own, and every round runs the same batch with both, in turns.
    """
    rows = []
    for dropout in (setting.dropout, 0.0):
        plain = replace(setting, dropout=dropout)
        cached = replace(plain, chunk_tokens=chunk_tokens)
        with own_process(partial(OurSteps, plain, precision=precision)) as in_ours:
            batches = in_ours(columns, rounds + 1)
            real = [sum(len(row) for column in batch for row in column) for batch in batches]
            padded = [sum(len(c) * max(map(len, c)) for c in batch) for batch in batches]
            # Memory that a step takes for the first time is cleared by the system, and to a GPU's
            # kernels every shape is new.
            before = sorted(range(rounds + 1), key=padded.__getitem__, reverse=True)
            if device.type == "cpu":
                before = before[:1]
            compared = partial(_compared, in_ours, before=before, rounds=rounds, clock=clock)
            ours, theirs = compared(partial(TheirSteps, plain, batches, precision=precision))
            without, with_cache = compared(partial(OurSteps, cached, precision=precision))
        # The first round is a warm-up.
        rows.append(
            TrainingRow(
                dropout=dropout,
                ours=median(n / s for n, s in zip(real[1:], ours, strict=True)),
                theirs=median(n / s for n, s in zip(real[1:], theirs, strict=True)),
                padding=1 - sum(real[1:]) / sum(padded[1:]),
                faster=ratio(theirs, ours),
                cached=ratio(with_cache, without),
            )
        )
    return rows


def _compared(
    in_ours: Ask,
    make: Callable[[torch.device], Steps],
    before: Sequence[int],
    rounds: int,
    clock: Clock,
) -> tuple[list[float], list[float]]:
    """Return the seconds of our steps and of others, after steps that are not timed."""
    with own_process(make) as in_other:
        asks = {"ours": in_ours, "other": in_other}
        steps = {name: partial(ask, seconds_of_step, clock) for name, ask in asks.items()}
        for number, step in product(before, steps.values()):
            step(number)
        seconds = in_turns(steps, rounds)
    return seconds["ours"], seconds["other"]


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
