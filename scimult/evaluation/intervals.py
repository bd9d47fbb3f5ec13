"""Confidence intervals of the scores of one system, kept in its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scimult.evaluation.comparison import Settings, paired_samples, set_seed
from scimult.evaluation.resampling import bootstrap, interval
from scimult.evaluation.results import Result


def with_intervals(
    result: Result, out: Path, confidence: float, names: Sequence[str] = ()
) -> Result:
    """Return the result with a bootstrap interval of every score that has scores per query.

    Sets that are not among ``names``, if there are any, keep what they have.

    How they were drawn stands in the provenance: confidence, resamples, and the seed, which is
    null in a result without intervals.

    Raises
    ------
    DataError
        If the scores per query below ``out`` are not those of the result.
    """
    settings = Settings(baseline=result.system, confidence=confidence)
    sets = {}
    for name, entry in result.sets.items():
        metrics = entry.resampled_metrics
        if not metrics or (names and name not in names):
            sets[name] = entry
            continue
        samples = paired_samples(out, [result], name, metrics)
        scores_RM = bootstrap(samples, settings.resamples, set_seed(settings.seed, name))[0]
        intervals = {
            metric: interval(scores_RM[:, column], confidence)
            for column, metric in enumerate(metrics)
        }
        sets[name] = entry.model_copy(update={"intervals": intervals})
    drawn = settings.model_dump(include={"seed", "confidence", "resamples"})
    return result.model_copy(
        update={"sets": sets, "provenance": {**result.provenance, **drawn}}, deep=True
    )
