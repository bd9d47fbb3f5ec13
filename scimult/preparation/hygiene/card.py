"""Write the data card of a prepared folder, as Markdown with plots."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np

from scimult.data.manifest import HygieneReport, Manifest, PairEntry
from scimult.data.prepared import PreparedData
from scimult.data.text_store import KINDS
from scimult.files import atomic_file, write_text
from scimult.preparation.hygiene.statistics import (
    MIN_WORDS_FOR_LANGUAGE,
    TextStatistics,
    draw_examples,
    label_frequencies,
    quantiles,
    text_statistics,
)
from scimult.preparation.metadata import NONE, read_years
from scimult.table import in_legend
from scimult.types import IntArray, Kind, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")
LANGUAGE_SAMPLE = 2000
TITLE_WIDTH = 160
# Words of the longest texts that the plot of lengths tells apart.
LONGEST_SHOWN = 600
# Characters that some Markdown renderer may interpret.
MARKUP = re.compile(r"[\\`*_{}\[\]<>()#+\-!|$~&^=:@]")


def write_card(
    data: PreparedData,
    path: Path,
    *,
    sample: int = LANGUAGE_SAMPLE,
    negatives: int = 0,
    seed: int = 0,
) -> None:
    """Write a data card to ``path`` and its plots next to it (``<name>_lengths.png`` and so on).

    Overlap and duplicates are reported as ``prepare`` found them. The language of ``sample`` papers
    is identified. With ``negatives``, so many example hard negatives per rule, drawn with ``seed``,
    are shown with the titles of query and positive.
    """
    texts = text_statistics(data.texts, sample)
    labels = label_frequencies(data)
    years = read_years(data.folder, len(data.texts))
    years = years[years != NONE]
    plots = {"lengths": _save(path, "lengths", _plot_lengths, texts.words)}
    if labels:
        plots["labels"] = _save(path, "labels", _plot_labels, labels)
    if len(years):
        plots["years"] = _save(path, "years", _plot_years, years)
    sections = [
        _head(data),
        _sources(data.manifest),
        _pairs(data.manifest),
        _drawn(data.manifest),
        _texts(texts, plots["lengths"]),
        _labels(labels, plots.get("labels", "")),
        _years(years, len(texts.words["paper"]), plots.get("years", "")),
        _languages(texts),
        _duplicates(data.manifest.hygiene),
        _overlap(data.manifest),
        _left_out(data.manifest),
        _negatives(data, negatives, seed) if negatives else "",
    ]
    write_text(path, "\n\n".join(section for section in sections if section) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table; numbers get thousands separators and are right-aligned."""
    body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    first = rows[0] if rows else head
    marks = ["---:" if isinstance(cell, int) else "---" for cell in first]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(head), marks, *body])


def _head(data: PreparedData) -> str:
    return (
        f"# Data card: {data.folder.name}\n\n"
        f"{len(data.texts):,} texts; fingerprint `{data.fingerprint}`. Written by `scimult card`."
    )


def _sources(manifest: Manifest) -> str:
    licences = {source["name"]: source.get("licence", "") for source in manifest.config["sources"]}
    rows = [
        [
            source.name,
            source.namespace,
            *(source.counts.get(what, 0) for what in ("papers", "labels", "queries")),
            _plain(licences.get(source.name) or "not stated in the configuration"),
        ]
        for source in manifest.sources
    ]
    head = ("source", "namespace", "papers read", "labels", "queries", "licence")
    return f"## Sources\n\n{table(head, rows)}"


def _pairs(manifest: Manifest) -> str:
    entries = manifest.pairs
    rows = [[e.source, e.task, e.split, *_pair_counts([e])] for e in entries]
    for task in dict.fromkeys(entry.task for entry in entries):
        of_task = [entry for entry in entries if entry.task == task]
        rows.append(["all", task, "both", *_pair_counts(of_task)])
    head = ("source", "task", "split", "queries", "pairs", "with a hard negative")
    split = manifest.config.get("split", {"by": "query"})["by"]
    return f"## Pairs\n\nTrain and dev are split by {split}.\n\n{table(head, rows)}"


def _pair_counts(entries: Sequence[PairEntry]) -> list[int | str]:
    mined = sum(entry.with_negatives for entry in entries)
    share = mined / max(sum(entry.groups for entry in entries), 1)
    counts = [sum(entry.queries for entry in entries), sum(entry.pairs for entry in entries)]
    return [*counts, f"{share:.1%}"]


def _drawn(manifest: Manifest) -> str:
    """Return the share of each rule among the negatives that training draws."""
    rows = [
        [_plain(entry.source), entry.task, _plain(rule), f"{share:.1%}"]
        for entry in manifest.pairs
        if entry.split == "train" and entry.with_negatives
        for rule, share in entry.drawn.items()
    ]
    if not rows:
        return ""
    head = ("source", "task", "rule", "share of draws")
    return (
        "## Draws of hard negatives\n\nFor pairs that have one; a negative that several rules gave "
        f"counts for each.\n\n{table(head, rows)}"
    )


def _texts(texts: TextStatistics, plot: str) -> str:
    rows = [
        [kind, len(texts.words[kind]), texts.without_body[kind], *quantiles(texts.words[kind])]
        for kind in KINDS
    ]
    head = ("kind", "texts", "without body", "words: 5 %", "median", "95 %", "longest")
    return (
        f"## Texts\n\n{table(head, rows)}\n\nWords are separated by white space. The body is a "
        f"paper's abstract or a label's definition; a query has none.\n\n![Lengths]({plot})"
    )


def _labels(labels: dict[str, IntArray], plot: str) -> str:
    if not labels:
        return ""
    rows = [
        [name, len(counts), int((counts == 0).sum()), *quantiles(counts)]
        for name, counts in labels.items()
    ]
    head = ("namespace", "labels", "without a paper", "papers: 5 %", "median", "95 %", "most")
    return f"## Labels\n\n{table(head, rows)}\n\n![Label frequency]({plot})"


def _years(years: IntArray, papers: int, plot: str) -> str:
    if not len(years):
        return ""
    low, median, _, newest = quantiles(years)
    return (
        f"## Years\n\n{len(years):,} of {papers:,} papers have a year: {int(years.min())} to "
        f"{newest}, 5 % up to {low}, half up to {median}.\n\n![Years]({plot})"
    )


def _languages(texts: TextStatistics) -> str:
    total = sum(texts.languages.values())
    if not total:
        return ""
    rows = [[name, n, f"{n / total:.2%}"] for name, n in texts.languages.most_common(10)]
    return (
        f"## Languages\n\nIdentified by py3langid on a sample of {total:,} papers with at least "
        f"{MIN_WORDS_FOR_LANGUAGE} words; expect occasional errors.\n\n"
        f"{table(('language', 'papers', 'share'), rows)}"
    )


def _duplicates(report: HygieneReport) -> str:
    if report.duplicates is None:
        return "## Duplicates\n\nNot checked (`hygiene.duplicates`)."
    rows = [[what, count] for what, count in report.duplicates.items()]
    texts = report.texts
    return (
        f"## Duplicates\n\n{texts['kept']:,} of {texts['read']:,} texts are left after removing "
        f"duplicates and evaluation texts.\n\n{table(('found', 'texts'), rows)}\n\n"
        f"{table(('pairs', 'count'), [[what, n] for what, n in report.pairs.items()])}"
    )


def _overlap(manifest: Manifest) -> str:
    entries = manifest.hygiene.overlap
    if entries is None:
        return "## Overlap with evaluation sets\n\nNot checked (`hygiene.evaluation`)."
    rows = [
        [
            entry.set,
            *(f"{entry.found[role]:,} / {entry.texts[role]:,}" for role in entry.texts),
            ", ".join(f"{way} {count:,}" for way, count in entry.ways.items()) or "none",
        ]
        for entry in entries
    ]
    removed = manifest.config["hygiene"]["decontaminate"]
    note = (
        f"Training texts that match a {' or '.join(removed)} were then removed."
        if removed
        else "Nothing was removed."
    )
    head = ("set", "queries found", "answers found", "other candidates found", "by")
    return (
        "## Overlap with evaluation sets\n\nTexts of each set that are also training texts, out "
        "of all its texts. Queries are classified or searched for; answers are judged relevant. "
        f"{note}\n\n{table(head, rows)}"
    )


def _left_out(manifest: Manifest) -> str:
    rows = [[f"bad record: {reason}", count] for reason, count in manifest.rejects.items()]
    neither = manifest.in_neither_split
    rows += [[f"{name}: pairs in neither split", count] for name, count in neither.items()]
    return f"## Left out\n\n{table(('what', 'count'), rows) if rows else 'Nothing.'}"


def _negatives(data: PreparedData, count: int, seed: int) -> str:
    head = "## Hard negatives by rule"
    by_rule = draw_examples(data, count, seed)
    if not by_rule:
        return (
            f"{head}\n\nThe folder does not record which rules gave its negatives: it was mined "
            "without rules, or by an older version. Run `scimult mine FOLDER` to mine it again."
        )
    parts = [
        f"{head}\n\n**The titles below are texts of the data, and its licences apply to them: "
        f"check them before you publish this card.** Up to {count} negatives per rule, drawn with "
        f"seed {seed} from the pools; the positive is one of the group."
    ]
    columns = ("source", "task", "query", "positive", "hard negative")
    for rule, examples in by_rule.items():
        rows = [
            [_plain(e.source), e.task, _title(e.query), _title(e.positive), _title(e.negative)]
            for e in examples
        ]
        parts.append(f"### {_plain(rule)}\n\n{table(columns, rows) if rows else 'None.'}")
    return "\n\n".join(parts)


def _title(text: Text) -> str:
    """Return the title of a text, or its beginning if it has none, as plain Markdown."""
    return _plain(textwrap.shorten(text.title or text.body, TITLE_WIDTH, placeholder=" ..."))


def _plain(text: str) -> str:
    """Return Markdown that renders as ``text``."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _plot_lengths(axes: Axes, words: Mapping[Kind, IntArray]) -> None:
    """Plot the share of texts of each kind by number of words."""
    bins = [float(edge) for edge in range(0, LONGEST_SHOWN + 20, 10)]
    for kind, lengths in words.items():
        if len(lengths):
            weights = np.full(len(lengths), 1 / len(lengths))
            clipped = np.minimum(lengths, LONGEST_SHOWN)
            axes.hist(clipped, bins, weights=weights, histtype="step", label=kind)
    axes.set_xlabel(f"words ({LONGEST_SHOWN} and more in the last bin)")
    axes.set_ylabel("share of texts, bins of 10 words")
    axes.legend()


def _plot_labels(axes: Axes, labels: Mapping[str, IntArray]) -> None:
    """Plot how many papers carry each label, most frequent first."""
    for name, counts in labels.items():
        ordered = np.sort(counts[counts > 0])[::-1]
        axes.plot(np.arange(1, len(ordered) + 1), ordered, label=in_legend(name))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rank of the label")
    axes.set_ylabel("papers")
    axes.legend()


def _plot_years(axes: Axes, years: IntArray) -> None:
    """Plot the number of papers of each year."""
    bins, counts = np.unique(years, return_counts=True)
    axes.bar(bins, counts, width=1.0)
    axes.set_xlabel("year")
    axes.set_ylabel("papers")


def _save(card: Path, what: str, draw: Callable[[Axes, T], None], data: T) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    draw(axes, data)
    path = card.with_name(f"{card.stem}_{what}.png")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    # A link in Markdown ends at a space, and at a bracket that opens none.
    return quote(path.name)
