"""Tables of a study: scores, differences, runs and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scimult.studies.config import RunConfig
from scimult.studies.costs import Cost
from scimult.studies.findings import AVERAGE, EVERYTHING, Difference, Score, SuiteFindings
from scimult.studies.plan import Plan
from scimult.studies.trials import by_run, config_of
from scimult.table import ABSENT, Cell, Mark, Table, label, number, texts

HOUR, TERA = 3600.0, 1e12
Place = tuple[str, str, str]


def score_table(plan: Plan, found: SuiteFindings) -> Table:
    """Return one row per run, and one column per average and set."""
    level = round(1 - plan.study.confidence, 12)
    columns = list(dict.fromkeys((row.task, row.name, row.metric) for row in found.scores))
    scores = {(row.run, row.task, row.name): row for row in found.scores}
    differences = {(row.run, row.task, row.name): row for row in found.differences}
    best = {place: _best(found.scores, place) for place in columns}
    rows = []
    for run in plan.runs:
        cells = []
        for task, name, metric in columns:
            row = scores.get((run, task, name))
            change = differences.get((run, task, name))
            cells.append(_cell(row, change, best[task, name, metric], level))
        rows.append([label(run), label(_seeds(plan, run)), *cells])
    headings = ["run", "seeds", *map(_heading, columns)]
    title = f"Suite {found.suite}: {found.description}"
    return Table(title, headings, 1, rows, found.notes)


def _heading(place: Place) -> str:
    task, name, metric = place
    if name != AVERAGE:
        return f"{name} {metric}"
    return AVERAGE if task == EVERYTHING else f"{AVERAGE} {task}"


def _seeds(plan: Plan, run: str) -> str:
    seeds = [trial.seed for trial in plan.trials.values() if trial.run == run]
    return ABSENT if seeds == [None] else str(len(seeds))


def _best(scores: Sequence[Score], place: Place) -> str:
    """Return the highest mean as it is shown."""
    task, name, _ = place
    shown = [row.mean for row in scores if (row.task, row.name) == (task, name)]
    return f"{100 * max(shown):.2f}"


def _cell(row: Score | None, change: Difference | None, best: str, level: float) -> Cell:
    if row is None:
        return Cell(ABSENT)
    mean = f"{100 * row.mean:.2f}"
    text = mean if row.sd is None else f"{mean} ± {100 * row.sd:.2f}"
    mark: Mark = ""
    if change is not None and change.p_holm is not None and change.p_holm <= level:
        mark = "better" if change.difference > 0 else "worse"
    note = ""
    if change is not None and change.low is not None and change.high is not None:
        note = f"{100 * change.difference:+.2f} [{100 * change.low:+.2f}, {100 * change.high:+.2f}]"
    return Cell(text, row.mean, bold=mean == best, mark=mark, note=note)


def difference_table(plan: Plan, found: SuiteFindings) -> Table:
    """Return one row per run and set, averages first."""
    rows = []
    ordered = [row for run in plan.runs for row in found.differences if row.run == run]
    for row in ordered:
        interval = ABSENT
        if row.low is not None and row.high is not None:
            interval = f"[{100 * row.low:+.2f}, {100 * row.high:+.2f}]"
        rows.append(
            [
                *texts(row.run, row.task, row.name, row.metric, f"{row.seeds[0]}, {row.seeds[1]}"),
                number(row.difference, "{:+.2f}", 100),
                label(interval),
                number(row.p, "{:.4f}"),
                number(row.p_holm, "{:.4f}"),
            ]
        )
    names = ["run", "task", "set", "metric", "seeds"]
    numbers = ["difference", f"{100 * plan.study.confidence:g}% interval", "p", "p (Holm)"]
    title = f"Suite {found.suite}: differences to {plan.study.baseline}"
    return Table(title, [*names, *numbers], len(names), rows, group=1)


def run_table(plan: Plan) -> Table:
    """Return what each run is: its file, what it starts from, and its overrides."""
    rows = []
    for name, members in by_run(plan.trials).items():
        run = plan.runs[name]
        seeds = ", ".join(str(trial.seed) for trial in members if trial.seed is not None)
        rows.append(texts(name, _made(plan, run), seeds or ABSENT, " ".join(run.overrides)))
    notes = [f"All trained runs: {' '.join(plan.study.overrides)}"] if plan.study.overrides else []
    return Table("Runs", ["run", "made from", "seeds", "overrides"], 4, rows, notes)


def _made(plan: Plan, run: RunConfig) -> str:
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
    return f"{merge.method} of {' and '.join(merge.models)}{base}{shares}"


def cost_table(plan: Plan, costs: Mapping[str, Cost]) -> Table:
    """Return what every trial cost, and the sum."""
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
        "Hours: of steps, times ranks, without dev scores and checkpoints; and of evaluation. "
        "Those of a busy machine do not compare. What a run starts from is not counted again.",
        f"Ranks of a run: {plan.study.launch.ranks}, on "
        f"{'CPUs' if plan.study.launch.devices is None else 'GPUs'} unless a machine chose itself.",
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
