"""What a study found: scores of every run over its seeds, and differences to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scimult.evaluation.columns import AVERAGE, Column, columns_of
from scimult.evaluation.repeated import Runs, SuiteFindings, findings
from scimult.evaluation.results import Result, folder_of, load_result
from scimult.studies.plan import Plan
from scimult.studies.trials import by_run


def find(plan: Plan, suite: str) -> SuiteFindings | None:
    """Compare the runs on a suite; None while there is no result.

    Raises
    ------
    DataError
        If results are damaged, of other data, or their scores per query are not there.
    """
    results = _results(plan, suite)
    if not results:
        return None
    wanted = plan.suites[suite].suite.select(plan.suites[suite].section.sets)
    columns = columns_of(plan.results(suite), results, list(wanted))
    members = by_run(plan.trials)
    runs = Runs(
        {run: [trial.key for trial in trials] for run, trials in members.items()},
        plan.study.baseline,
        frozenset(run for run, trials in members.items() if trials[0].seed is not None),
        plan.study.confidence,
    )
    description = plan.suites[suite].suite.description
    return findings(suite, description, columns, runs, _missing(plan, columns, results))


def _results(plan: Plan, suite: str) -> dict[str, Result]:
    """Return the result of every trial that has one."""
    out = plan.results(suite)
    paths = {key: folder_of(out, key) / "result.json" for key in plan.trials}
    return {key: load_result(path) for key, path in paths.items() if path.is_file()}


def _missing(plan: Plan, columns: Sequence[Column], results: Mapping[str, Result]) -> list[str]:
    notes = []
    lacking = [key for key in plan.trials if key not in results]
    if lacking:
        notes.append(f"No result yet of {', '.join(lacking)}.")
    for column in columns:
        without = [key for key in results if key not in column.keys]
        if column.name != AVERAGE and without:
            notes.append(f"{column.name}: no score yet of {', '.join(without)}.")
    return notes
