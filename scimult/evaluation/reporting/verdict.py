"""What a report opens with: which system is best, on what, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.evaluation.comparison import Comparison, Difference, compare
from scimult.evaluation.reporting.leaderboard import main_rows, mark_of
from scimult.table import Mark


@dataclass(frozen=True)
class Estimate:
    """A system's average minus the baseline's; ``mark`` says whether the interval is off 0."""

    system: str
    score: float
    difference: float
    low: float
    high: float
    mark: Mark


@dataclass(frozen=True)
class Picture:
    """Differences to the baseline on one task, the best first, on one scale that holds 0.

    ``left`` and ``right`` are the ends of the scale. A system that is far from all others is beyond
    them: with it, the others could not be told apart.
    """

    task: str
    baseline: str
    left: float
    right: float
    estimates: list[Estimate]

    def place(self, difference: float) -> float:
        """Return where a difference is between the ends, in per cent; the near end if beyond."""
        share = (difference - self.left) / (self.right - self.left)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def beyond(self, estimate: Estimate) -> str:
        """Return the sign of an estimate that is off the scale, else nothing."""
        return "◂" if estimate.high < self.left else "▸" if estimate.low > self.right else ""


@dataclass(frozen=True)
class Verdict:
    """Sentences, pictures (all tasks first), and what the intervals mean."""

    sentences: list[str]
    pictures: list[Picture]
    note: str


def verdict(
    out: Path, comparison: Comparison, averages: Mapping[str, Mapping[str, float]]
) -> Verdict | None:
    """Say what a comparison shows; None if no set is shared by all systems.

    Parameters
    ----------
    out : Path
        The folder of results, for the differences to the best system.
    comparison : Comparison
        Of all systems with the baseline.
    averages : mapping
        Task, and ``all``, to the average of each system.
    """
    rows = [row for row in comparison.averages if row.task == "all"]
    if not rows or "all" not in averages:
        return None
    scores = averages["all"]
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
        f"Average score minus that of {settings.baseline}, × 100, with its "
        f"{100 * settings.confidence:g}% interval over queries of these sets. ▲ and ▼: the "
        "interval is above or below 0. It knows neither other sets nor the chance of training."
    )
    notes = [note, *(text for text in comparison.notes if text.startswith("Too few resamples"))]
    candidates = [
        _picture(task, comparison) for task in ("all", *(t for t in averages if t != "all"))
    ]
    pictures = [picture for picture in candidates if picture is not None]
    if any(picture.beyond(one) for picture in pictures for one in picture.estimates):
        notes.append("◂ and ▸: beyond the scale.")
    return Verdict([text for text in sentences if text], pictures, " ".join(notes))


def _lead(best: str, scores: Mapping[str, float], against_best: Comparison) -> str:
    """Say who is best, and which others may be as good."""
    rows = sorted(
        (row for row in against_best.averages if row.task == "all"),
        key=lambda row: row.difference,
        reverse=True,
    )
    having: dict[str, set[str]] = {}
    for row in against_best.rows:
        having.setdefault(row.name, set()).add(row.system)
    sets = sum(len(systems) == len(against_best.systems) for systems in having.values())
    start = f"{best} has the highest average, {100 * scores[best]:.2f} over {_many(sets, 'set')}"
    # The other way round: how far the best is above each.
    near = [row.system for row in rows if row.high >= 0]
    if near:
        by = f"{100 * abs(rows[0].difference):.2f}"
        return (
            f"{start}, but its lead of {by} over {rows[0].system} can be chance "
            f"({_ends(-rows[0].high, -rows[0].low)})"
            + (f", as can that over {_listed(near[1:])}." if near[1:] else ".")
        )
    first = rows[0]
    return (
        f"{start}: {-100 * first.difference:.2f} more than {first.system}, the next "
        f"({_ends(-first.high, -first.low)}). Other queries of these sets would not change that."
    )


def _against_baseline(best: str, rows: Sequence[Difference], comparison: Comparison) -> str:
    """Say how the best system fares against the baseline, set by set."""
    baseline, level = comparison.settings.baseline, comparison.settings.level
    if best == baseline:
        return f"No system is above {baseline}, the baseline, on average."
    row = next(row for row in rows if row.system == best)
    marks = {
        entry.name: mark_of(entry, level) for entry in main_rows(comparison) if entry.system == best
    }
    told = [
        f"{word} on {sum(mark == sign for mark in marks.values())}"
        for word, sign in (("better", "better"), ("worse", "worse"), ("undecided", ""))
    ]
    worse = [name for name, mark in marks.items() if mark == "worse"]
    where = f" ({_listed(worse)})" if 0 < len(worse) <= 3 else ""
    return (
        f"Against {baseline} it is {100 * row.difference:+.2f} ({_ends(row.low, row.high)}): "
        f"of {_many(len(marks), 'set')} {told[0]}, {told[1]}{where}, {told[2]}, by tests that are "
        f"corrected for each other (p ≤ {level:g})."
    )


def _by_task(averages: Mapping[str, Mapping[str, float]], best: str) -> str:
    """Name the best system of each task; nothing of a single one, which is the average."""
    winners = {
        task: max(scores, key=scores.__getitem__)
        for task, scores in averages.items()
        if task != "all"
    }
    if len(winners) < 2:
        return ""
    if set(winners.values()) == {best}:
        return f"It is the best on average in every task: {_listed([*winners])}."
    told = [f"{task}: {name} ({100 * averages[task][name]:.2f})" for task, name in winners.items()]
    return f"Best by task: {'; '.join(told)}."


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
    """Return the ends of a scale that holds 0 and the intervals, but for those that are far off.

    An interval is far off if it lies more than twice the length of the others' scale beyond it.
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


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    """Write names as in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
