"""Tables of a study: runs and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scimult.studies.config import RunConfig
from scimult.studies.costs import Cost
from scimult.studies.plan import Plan
from scimult.studies.trials import by_run, config_of
from scimult.table import ABSENT, Cell, Table, label, number, texts

HOUR, TERA = 3600.0, 1e12


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
