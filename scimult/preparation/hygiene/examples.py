"""Hard negatives to look at: some of each rule of mining, drawn evenly from all that it gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scimult.data.pairs import SPLITS, PairFile, RuleBits
from scimult.data.prepared import PreparedData
from scimult.types import IntArray, Text

PLACES_PER_CHUNK = 1 << 20


@dataclass(frozen=True)
class Example:
    """One hard negative with its query and a positive of its group."""

    source: str
    task: str
    query: Text
    positive: Text
    negative: Text


def draw_examples(data: PreparedData, count: int, seed: int = 0) -> dict[str, list[Example]]:
    """Draw hard negatives of each rule, from all pair files together.

    A negative that several rules gave may be drawn for each of them.

    Parameters
    ----------
    data : PreparedData
        A folder that was mined.
    count : int
        Most examples of a rule.
    seed : int
        Of the draw.

    Returns
    -------
    dict
        Examples by rule; no rule if the folder does not say which rules gave its negatives.
    """
    files = [file for split in SPLITS for file in data.pairs(split)]
    by_rule: dict[str, list[tuple[PairFile, int]]] = defaultdict(list)
    for file in files:
        for bit, rule in enumerate(file.rules):
            by_rule[rule].append((file, bit))
    return {
        rule: _draw(data, places, count, np.random.default_rng([seed, number]))
        for number, (rule, places) in enumerate(by_rule.items())
    }


def _draw(
    data: PreparedData, files: list[tuple[PairFile, int]], count: int, rng: np.random.Generator
) -> list[Example]:
    """Draw from the negatives of one rule, which stand in several files."""
    counts = [sum(len(at) for _, at in _places(file.found_by, bit)) for file, bit in files]
    ordinals = np.sort(rng.choice(sum(counts), min(count, sum(counts)), replace=False))
    examples, before = [], 0
    for (file, bit), own in zip(files, counts, strict=True):
        here = ordinals[(ordinals >= before) & (ordinals < before + own)] - before
        examples += [_example(data, file, place, rng) for place in _at(file.found_by, bit, here)]
        before += own
    return examples


def _example(data: PreparedData, file: PairFile, place: int, rng: np.random.Generator) -> Example:
    """Return the negative at ``place`` of a file's negatives, with one of its positives."""
    group = int(np.searchsorted(file.negatives.offsets, place, side="right")) - 1
    positive = rng.choice(file.positives[group])
    rows = (file.queries[group], positive, file.negatives.values[place])
    query, answer, negative = (data.texts.text(int(row)) for row in rows)
    return Example(file.source, file.task, query, answer, negative)


def _at(found_by: RuleBits | None, bit: int, ordinals: IntArray) -> list[int]:
    """Return where the negatives of a rule stand that have these numbers among its own."""
    positions: list[int] = []
    for first, places in _places(found_by, bit):
        inside = ordinals[(ordinals >= first) & (ordinals < first + len(places))]
        positions.extend(places[inside - first].tolist())
    return positions


def _places(found_by: RuleBits | None, bit: int) -> Iterator[tuple[int, IntArray]]:
    """Yield, chunk by chunk, how many negatives of a rule came before, and where the next are."""
    if found_by is None:
        return
    before = 0
    for start in range(0, len(found_by), PLACES_PER_CHUNK):
        chunk = found_by[start : start + PLACES_PER_CHUNK]
        places = np.flatnonzero(chunk >> chunk.dtype.type(bit) & chunk.dtype.type(1)) + start
        yield before, places
        before += len(places)
