"""Plots of a data card; each function writes one PNG file and returns its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scimult.files import atomic_file
from scimult.types import IntArray, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 600


def plot_lengths(words: Mapping[Kind, IntArray], card: Path) -> str:
    """Plot the share of texts of each kind by number of words."""

    def draw(axes: Axes) -> None:
        bins = [float(edge) for edge in range(0, LONGEST + 20, 10)]
        for kind, lengths in words.items():
            if len(lengths):
                weights = np.full(len(lengths), 1 / len(lengths))
                clipped = np.minimum(lengths, LONGEST)
                axes.hist(clipped, bins, weights=weights, histtype="step", label=kind)
        axes.set_xlabel(f"words ({LONGEST} and more in the last bin)")
        axes.set_ylabel("share of texts, bins of 10 words")
        axes.legend()

    return _save(card, "lengths", draw)


def plot_labels(labels: Mapping[str, IntArray], card: Path) -> str:
    """Plot how many papers carry each label, most frequent first."""

    def draw(axes: Axes) -> None:
        for name, counts in labels.items():
            ordered = np.sort(counts[counts > 0])[::-1]
            axes.plot(np.arange(1, len(ordered) + 1), ordered, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rank of the label")
        axes.set_ylabel("papers")
        axes.legend()

    return _save(card, "labels", draw)


def plot_years(years: IntArray, card: Path) -> str:
    """Plot the number of papers of each year."""

    def draw(axes: Axes) -> None:
        bins, counts = np.unique(years, return_counts=True)
        axes.bar(bins, counts, width=1.0)
        axes.set_xlabel("year")
        axes.set_ylabel("papers")

    return _save(card, "years", draw)


def _save(card: Path, what: str, draw: Callable[[Axes], None]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    draw(axes)
    path = card.with_name(f"{card.stem}_{what}.png")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return path.name
