"""The report's opening: which system is best, where, by how much, and how certain that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.evaluation.comparison import Comparison, Difference, compare
from scimult.evaluation.reporting.leaderboard import main_rows, mark_of
from scimult.table import Mark
from scimult.terminal import counted


@dataclass(frozen=True)
class Estimate:
    """A system's average minus the baseline's; marked if the interval excludes 0."""

    system: str
    score: float
    difference: float
    low: float
    high: float
    mark: Mark


@dataclass(frozen=True)
class Picture:
    """Differences to the baseline on one task, best first, on one scale that includes 0.

    ``left`` and ``right`` are the ends of the scale. A system far from all others is beyond them:
    a scale that included it would make the others indistinguishable.
    """

    task: str
    baseline: str
    left: float
    right: float
    estimates: list[Estimate]

    def position(self, difference: float) -> float:
        """Return a difference's position between the ends in per cent, clipped to the ends."""
        share = (difference - self.left) / (self.right - self.left)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def beyond(self, estimate: Estimate) -> str:
        """Return the arrow of an estimate that is off the scale, else nothing."""
        return "◂" if estimate.high < self.left else "▸" if estimate.low > self.right else ""


@dataclass(frozen=True)
class Verdict:
    """Sentences, pictures (all tasks first), and a note that explains the intervals."""

    sentences: list[str]
    pictures: list[Picture]
    note: str


def verdict(
    out: Path, comparison: Comparison, averages: Mapping[str, Mapping[str, float]]
) -> Verdict | None:
    """Summarise a comparison of all systems; None if no set is shared by all.

    ``out`` is the folder of the results, for differences to the best system; ``averages`` maps
    tasks, and ``all``, to each system's average. The lead is one of main metrics, like its
    interval, also where other columns enter these averages.
    """
    rows = [row for row in comparison.averages if row.task == "all"]
    if not rows or "all" not in averages:
        return None
    scores = {comparison.settings.baseline: rows[0].baseline_score}
    scores |= {row.system: row.score for row in rows}
    best = max(scores, key=scores.__getitem__)
    against_best = comparison
    if best != comparison.settings.baseline:
        settings = comparison.settings.model_copy(update={"baseline": best})
        against_best = compare(out, settings)
    sentences = [
        _lead(best, scores, against_best),
        _against_baseline(best, rows, comparison),
        _by_task(averages, best),
    ]
    settings = comparison.settings
    note = (
        f"Average of main metrics minus that of {settings.baseline}, × 100, with its "
        f"{100 * settings.confidence:g}% interval over the queries of these sets. ▲ and ▼: the "
        "interval is above or below 0. It covers neither other sets nor variance between training "
        "runs."
    )
    notes = [note, *(text for text in comparison.notes if text.startswith("Too few resamples"))]
    candidates = [
        _picture(task, comparison) for task in ("all", *(t for t in averages if t != "all"))
    ]
    pictures = [picture for picture in candidates if picture is not None]
    if any(picture.beyond(one) for picture in pictures for one in picture.estimates):
        notes.append("◂ and ▸: off the scale.")
    return Verdict([text for text in sentences if text], pictures, " ".join(notes))


def _lead(best: str, scores: Mapping[str, float], against_best: Comparison) -> str:
    """Say which system leads, and whether its lead can be chance."""
    rows = sorted(
        (row for row in against_best.averages if row.task == "all"),
        key=lambda row: row.difference,
        reverse=True,
    )
    systems_of: dict[str, set[str]] = {}
    for row in against_best.rows:
        systems_of.setdefault(row.name, set()).add(row.system)
    sets = sum(len(systems) == len(against_best.systems) for systems in systems_of.values())
    start = f"{best} has the highest average, {100 * scores[best]:.2f} over {counted(sets, 'set')}"
    # Rows are other systems minus the best; sentences state the lead of the best.
    near = [row for row in rows if row.high >= 0]
    first = (near or rows)[0]
    if near:
        others = _join([row.system for row in near[1:]])
        return (
            f"{start}, but its lead of {100 * abs(first.difference):.2f} over {first.system} could "
            f"be chance ({_ends(-first.high, -first.low)})"
            + (f", as could its lead over {others}." if others else ".")
        )
    return (
        f"{start}: {-100 * first.difference:.2f} above {first.system}, the runner-up "
        f"({_ends(-first.high, -first.low)}), a lead that the choice of queries does not explain."
    )


def _against_baseline(best: str, rows: Sequence[Difference], comparison: Comparison) -> str:
    """Compare the best system with the baseline, set by set."""
    baseline, level = comparison.settings.baseline, comparison.settings.level
    if best == baseline:
        return f"No system beats the baseline, {baseline}, on average."
    row = next(row for row in rows if row.system == best)
    marks = {
        entry.name: mark_of(entry, level) for entry in main_rows(comparison) if entry.system == best
    }
    better, worse, undecided = (
        [name for name, mark in marks.items() if mark == sign] for sign in ("better", "worse", "")
    )
    names = f" ({_join(worse)})" if 0 < len(worse) <= 3 else ""
    return (
        f"Compared with {baseline}, it gains {100 * row.difference:+.2f} "
        f"({_ends(row.low, row.high)}): of {counted(len(marks), 'set')}, better on {len(better)}, "
        f"worse on {len(worse)}{names}, undecided on {len(undecided)}, by tests corrected for "
        f"multiple comparisons (p ≤ {level:g})."
    )


def _by_task(averages: Mapping[str, Mapping[str, float]], best: str) -> str:
    """Name the best system of each task; empty for a single task, which equals the average."""
    winners = {
        task: max(scores, key=scores.__getitem__)
        for task, scores in averages.items()
        if task != "all"
    }
    if len(winners) < 2:
        return ""
    if set(winners.values()) == {best}:
        return f"It has the best average in every task: {_join([*winners])}."
    best_of = [
        f"{task}: {name} ({100 * averages[task][name]:.2f})" for task, name in winners.items()
    ]
    return f"Best by task: {'; '.join(best_of)}."


def _picture(task: str, comparison: Comparison) -> Picture | None:
    rows = sorted(
        (row for row in comparison.averages if row.task == task),
        key=lambda row: row.difference,
        reverse=True,
    )
    if not rows:
        return None
    left, right = scale_of([(row.low, row.high) for row in rows])
    estimates = [
        Estimate(
            row.system,
            row.score,
            row.difference,
            row.low,
            row.high,
            "better" if row.low > 0 else "worse" if row.high < 0 else "",
        )
        for row in rows
    ]
    return Picture(task, comparison.settings.baseline, left, right, estimates)


def scale_of(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the ends of a scale for 0 and the intervals, except intervals that are far off.

    An interval is far off if it lies beyond the others' scale by more than twice its length.
    """
    if len(intervals) > 2:
        for odd in intervals:
            rest = [interval for interval in intervals if interval is not odd]
            left, right = min(0.0, *(low for low, _ in rest)), max(0.0, *(high for _, high in rest))
            far = max(left - odd[1], odd[0] - right)
            if far > 2 * (right - left) > 0:
                return scale_of(rest)
    left = min(0.0, *(low for low, _ in intervals))
    right = max(0.0, *(high for _, high in intervals))
    margin = 0.04 * (right - left) or 1.0
    return left - margin, right + margin


def _ends(low: float, high: float) -> str:
    return f"{100 * low:+.2f} to {100 * high:+.2f}".replace("-", "−")


def _join(names: Sequence[str]) -> str:
    """Join names for a sentence: "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
