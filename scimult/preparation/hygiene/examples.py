"""Draw example hard negatives of each mining rule, uniformly from all that the rule gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scimult.data.pairs import SPLITS, PairFile, RuleBits
from scimult.data.prepared import PreparedData
from scimult.types import IntArray, Text

NEGATIVES_PER_CHUNK = 1 << 20


@dataclass(frozen=True)
class Example:
    """One hard negative with its query and a positive of its group."""

    source: str
    task: str
    query: Text
    positive: Text
    negative: Text


def draw_examples(data: PreparedData, count: int, seed: int = 0) -> dict[str, list[Example]]:
    """Draw at most ``count`` hard negatives of each rule from all pair files of a mined folder.

    A negative that several rules gave may be drawn for each of them. The result is empty if the
    folder does not record which rules gave its negatives.
    """
    files = [file for split in SPLITS for file in data.pairs(split)]
    by_rule: dict[str, list[tuple[PairFile, int]]] = defaultdict(list)
    for file in files:
        for bit, rule in enumerate(file.rules):
            by_rule[rule].append((file, bit))
    return {
        rule: _draw(data, sources, count, np.random.default_rng([seed, number]))
        for number, (rule, sources) in enumerate(by_rule.items())
    }


def _draw(
    data: PreparedData, files: list[tuple[PairFile, int]], count: int, rng: np.random.Generator
) -> list[Example]:
    """Draw from the negatives of one rule, over several files."""
    counts = [sum(map(len, _positions(file.found_by, bit))) for file, bit in files]
    ordinals = np.sort(rng.choice(sum(counts), min(count, sum(counts)), replace=False))
    examples, before = [], 0
    for file, bit in files:
        for positions in _positions(file.found_by, bit):
            here = ordinals[(ordinals >= before) & (ordinals < before + len(positions))] - before
            examples += [_example(data, file, int(at), rng) for at in positions[here]]
            before += len(positions)
    return examples


def _example(data: PreparedData, file: PairFile, at: int, rng: np.random.Generator) -> Example:
    """Return the negative at a position of a file, with one of the positives of its group."""
    group = int(np.searchsorted(file.negatives.offsets, at, side="right")) - 1
    positive = rng.choice(file.positives[group])
    rows = (file.queries[group], positive, file.negatives.values[at])
    query, answer, negative = (data.texts.text(int(row)) for row in rows)
    return Example(file.source, file.task, query, answer, negative)


def _positions(found_by: RuleBits | None, bit: int) -> Iterator[IntArray]:
    """Yield the positions of a rule's negatives, chunk by chunk."""
    if found_by is None:
        return
    for start in range(0, len(found_by), NEGATIVES_PER_CHUNK):
        chunk = found_by[start : start + NEGATIVES_PER_CHUNK]
        yield np.flatnonzero(chunk >> chunk.dtype.type(bit) & chunk.dtype.type(1)) + start
