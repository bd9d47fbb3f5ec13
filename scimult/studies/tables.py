"""Tables of a study's findings and costs: scores of every run over its seeds, runs, costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.evaluation.columns import AVERAGE, Column, columns_of
from scimult.evaluation.repeated import Runs, SuiteFindings, findings
from scimult.evaluation.results import Result, folder_of, load_result
from scimult.files import read_json
from scimult.studies.config import RunConfig
from scimult.studies.plan import Plan
from scimult.studies.trials import Trial, by_run, config_of
from scimult.studies.work import Evaluating
from scimult.table import ABSENT, Cell, Table, label, number, texts
from scimult.training import record
from scimult.training.runs import METRICS, read_metrics


def find(plan: Plan, suite: str, failed: Collection[str] = ()) -> SuiteFindings | None:
    """Compare the runs on a suite; None if there is no result yet.

    Of the jobs that ``failed``, scores of another model, data or suite than now are left out.

    Raises
    ------
    DataError
        If results are damaged, of other data, or lack per-query scores.
    """
    results = _results(plan, suite, failed)
    if not results:
        return None
    wanted = plan.suites[suite].suite.select(plan.suites[suite].section.sets)
    columns = columns_of(plan.results(suite), results, list(wanted))
    members = by_run(_evaluated(plan))
    runs = Runs(
        {run: [trial.key for trial in trials] for run, trials in members.items()},
        plan.study.baseline,
        frozenset(run for run, trials in members.items() if trials[0].seed is not None),
        plan.study.confidence,
    )
    description = plan.suites[suite].suite.description
    return findings(suite, description, columns, runs, _missing(plan, columns, results))


def _evaluated(plan: Plan) -> dict[str, Trial]:
    return {key: trial for key, trial in plan.trials.items() if plan.run_of(trial).evaluate}


def _results(plan: Plan, suite: str, failed: Collection[str]) -> dict[str, Result]:
    """Return the results that exist, by trial."""
    out = plan.results(suite)
    results: dict[str, Result] = {}
    for key, trial in _evaluated(plan).items():
        path = folder_of(out, key) / "result.json"
        result = load_result(path) if path.is_file() else None
        job = Evaluating(plan, trial, suite)
        if result is not None and job.name in failed:
            current = job.current_sets()
            sets = {name: entry for name, entry in result.sets.items() if current.get(name)}
            result = result.model_copy(update={"sets": sets})
        if result is not None and result.sets:
            results[key] = result
    return results


def _missing(plan: Plan, columns: Sequence[Column], results: Mapping[str, Result]) -> list[str]:
    notes = []
    missing = [key for key in _evaluated(plan) if key not in results]
    if missing:
        notes.append(f"No result yet of {', '.join(missing)}.")
    for column in columns:
        without = [key for key in results if key not in column.keys]
        if column.name != AVERAGE and without:
            notes.append(f"{column.name}: no score yet of {', '.join(without)}.")
    return notes


@dataclass(frozen=True)
class Cost:
    """Cost of one trial, without the run it starts from.

    ``flops`` are of its forward and backward passes, None if its metrics lack them;
    ``training_seconds`` of all steps, times ranks, without time between steps;
    ``evaluation_seconds`` to encode and rank.
    """

    key: str
    steps: int
    tokens: int
    flops: float | None
    training_seconds: float
    evaluation_seconds: float


def cost_of(plan: Plan, trial: Trial) -> Cost:
    """Return a trial's cost so far."""
    steps, tokens, seconds = 0, 0, 0.0
    flops: float | None = 0.0
    for stage in trial.stages:
        folder = Path(stage.config.output)
        path = folder / record.FILE
        # Lines of older versions do not name their ranks.
        last_ranks = read_json(path).get("ranks", 1) if path.is_file() else 1
        for line in read_metrics(folder / METRICS):
            if line["step"] == 0:
                continue
            steps += 1
            tokens += int(line["tokens"])
            seconds += line["seconds"] * line.get("ranks", last_ranks)
            step_flops = line.get("usage", {}).get("model_flops")
            flops = None if flops is None or step_flops is None else flops + step_flops
    return Cost(trial.key, steps, tokens, flops, seconds, _evaluation_seconds(plan, trial))


def _evaluation_seconds(plan: Plan, trial: Trial) -> float:
    paths = [folder_of(plan.results(suite), trial.key) / "result.json" for suite in plan.suites]
    results = [load_result(path) for path in paths if path.is_file()]
    return sum(entry.seconds for result in results for entry in result.sets.values())


HOUR, TERA = 3600.0, 1e12


def run_table(plan: Plan) -> Table:
    """Return each run's configuration file or model, seeds and overrides."""
    rows = []
    for name, members in by_run(plan.trials).items():
        run = plan.runs[name]
        seeds = ", ".join(str(trial.seed) for trial in members if trial.seed is not None)
        rows.append(texts(name, _origin(plan, run), seeds or ABSENT, " ".join(run.overrides)))
    notes = [f"All trained runs: {' '.join(plan.study.overrides)}"] if plan.study.overrides else []
    return Table("Runs", ["run", "made from", "seeds", "overrides"], 4, rows, notes)


def _origin(plan: Plan, run: RunConfig) -> str:
    if run.model is not None:
        return run.model
    if run.merge is None:
        stage = f", up to stage {run.stage}" if run.stage else ""
        after = f", after {run.after}" if run.after else ""
        return f"{config_of(plan.study, run)}{stage}{after}"
    merge = run.merge
    shares = f" ({', '.join(f'{share:g}' for share in merge.shares)})" if merge.shares else ""
    if merge.experts:
        return f"experts of {', '.join(f'{task}: {name}' for task, name in merge.experts.items())}"
    if merge.share_experts:
        return f"experts of {merge.models[0]} shared{shares}"
    base = f" from {merge.base}" if merge.base else ""
    if merge.by_depth:
        base += ", by depth {:g}:{:g}".format(*merge.by_depth)
    seeds = ", all seeds in one" if merge.all_seeds else ""
    return f"{merge.method} of {' and '.join(merge.models)}{base}{shares}{seeds}"


def cost_table(plan: Plan, costs: Mapping[str, Cost]) -> Table:
    """Return the cost of every trial, and the sum."""
    rows = [_cost_row(costs[key]) for key in plan.trials]
    total = Cost(
        "all",
        sum(cost.steps for cost in costs.values()),
        sum(cost.tokens for cost in costs.values()),
        _sum([cost.flops for cost in costs.values()]),
        sum(cost.training_seconds for cost in costs.values()),
        sum(cost.evaluation_seconds for cost in costs.values()),
    )
    notes = [
        "Training hours: steps times ranks, without dev scores and checkpoints. Times from a busy "
        "machine are not comparable. The run that another one starts from is not counted again.",
        f"Ranks per run: {plan.study.launch.ranks}, on "
        f"{'CPUs' if plan.study.launch.devices is None else 'GPUs'} unless the machine decided.",
    ]
    headings = ["model", "steps", "tokens", "TFLOP", "training h", "evaluation h"]
    return Table("Cost", headings, 1, [*rows, _cost_row(total)], notes, footer=1)


def _cost_row(cost: Cost) -> list[Cell]:
    return [
        label(cost.key),
        number(cost.steps, "{:,}"),
        number(cost.tokens, "{:,}"),
        number(cost.flops, "{:,.3f}", 1 / TERA),
        number(cost.training_seconds, "{:.3f}", 1 / HOUR),
        number(cost.evaluation_seconds, "{:.3f}", 1 / HOUR),
    ]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
