"""The files of a study: JSON, Markdown, and an HTML page with learning curves."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from scimult.evaluation.repeated import SuiteFindings
from scimult.evaluation.reporting.page import asset, template
from scimult.evaluation.reporting.repeated import tables_of
from scimult.evaluation.results import provenance
from scimult.files import write_json, write_text
from scimult.studies.plan import Plan
from scimult.studies.tables import Cost, cost_of, cost_table, find, run_table
from scimult.studies.trials import Trial, by_run
from scimult.table import SIGNS, Table, in_legend, to_markdown
from scimult.training.curves import smoothed
from scimult.training.runs import METRICS, read_metrics

FORMAT = "scimult-study/1"


def write_findings(plan: Plan, failed: Mapping[str, str]) -> list[Table]:
    """Write ``study.json``, ``table.md``, ``costs.md`` and ``study.html``.

    ``table.md`` contains no times, so interrupting a study does not change it. Returns the scores
    of each suite.

    Raises
    ------
    DataError
        If results cannot be compared.
    """
    findings = [
        finding for suite in plan.suites if (finding := find(plan, suite, failed)) is not None
    ]
    costs = {key: cost_of(plan, trial) for key, trial in plan.trials.items()}
    by_suite = [tables_of(finding) for finding in findings]
    tables = [*chain.from_iterable(by_suite), run_table(plan)]
    cost = cost_table(plan, costs)
    written = provenance()
    write_json(plan.out / "study.json", _as_json(plan, findings, costs, failed, written))
    write_text(plan.out / "table.md", "\n".join(to_markdown(table) for table in tables))
    write_text(plan.out / "costs.md", to_markdown(cost))
    page = _to_html(plan, [*tables, cost], failed, written)
    write_text(plan.out / "study.html", page)
    return [scores for scores, *_ in by_suite]


def _as_json(
    plan: Plan,
    findings: Sequence[SuiteFindings],
    costs: Mapping[str, Cost],
    failed: Mapping[str, str],
    written: dict[str, Any],
) -> dict[str, Any]:
    trials = [
        {
            "key": trial.key,
            "run": trial.run,
            "seed": trial.seed,
            "model": str(trial.model),
            "overrides": trial.overrides,
            "cost": asdict(costs[key]),
        }
        for key, trial in plan.trials.items()
    ]
    return {
        "format": FORMAT,
        "study": plan.study.model_dump(mode="json"),
        "runs": {name: run.model_dump(mode="json") for name, run in plan.runs.items()},
        "trials": trials,
        "suites": [asdict(finding) for finding in findings],
        "failed": dict(failed),
        "provenance": written,
    }


def _to_html(
    plan: Plan, tables: Sequence[Table], failed: Mapping[str, str], written: dict[str, Any]
) -> str:
    """Return the page; all text is escaped, and no script may run."""
    picture = draw_curves(plan)
    return template("study.html", "scimult.studies").render(
        study=plan.study,
        tables=tables,
        failed=failed,
        written=written,
        curves=None if picture is None else base64.b64encode(picture).decode(),
        style=Markup(asset("report.css")),
        signs=SIGNS,
    )


Points = tuple[list[int], list[float]]


def draw_curves(plan: Plan) -> bytes | None:
    """Draw dev scores and losses as PNG, a colour per run; None if nothing was trained yet."""
    trained = {
        name: members
        for name, members in by_run(plan.trials).items()
        if any(_losses(trial)[0] for trial in members)
    }
    if not trained:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    height = 4.5 + 0.25 * (len(trained) // 3)
    figure, (scores, losses) = pyplot.subplots(1, 2, figsize=(12, height), constrained_layout=True)
    colours = pyplot.get_cmap("tab20" if len(trained) > 10 else "tab10")
    for number, (name, members) in enumerate(trained.items()):
        for i, trial in enumerate(members):
            style: dict[str, Any] = {"color": colours(number % colours.N), "linewidth": 1.2}
            style["label"] = in_legend(name) if i == 0 else None
            style["linestyle"] = ("-", "--", ":", "-.")[i % 4]
            steps, values = _losses(trial)
            losses.plot(steps, smoothed(values), **style)
            scores.plot(*_dev_means(trial), marker="o", markersize=3, **style)
    for axes, title in (
        (scores, "dev pairs: mean reciprocal rank, mean over sets"),
        (losses, "training loss, smoothed"),
    ):
        axes.set(title=title, xlabel="optimizer step")
        axes.grid(alpha=0.3)
    handles, labels = losses.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    file = io.BytesIO()
    # Fixed metadata, or matplotlib would write the time.
    figure.savefig(file, format="png", dpi=100, metadata={"Software": "Matplotlib"})
    pyplot.close(figure)
    return file.getvalue()


def _losses(trial: Trial) -> Points:
    """Return the loss of every step, stages one after the other."""
    return _points(trial, lambda line: line["loss"] if line["step"] else None)


def _dev_means(trial: Trial) -> Points:
    return _points(trial, lambda line: line.get("metrics", {}).get("dev/mean/mrr"))


def _points(trial: Trial, value_of: Callable[[dict[str, Any]], float | None]) -> Points:
    steps: list[int] = []
    values: list[float] = []
    before = 0
    for stage in trial.stages:
        lines = read_metrics(Path(stage.config.output) / METRICS)
        for line in lines:
            value = value_of(line)
            if value is not None:
                steps.append(before + line["step"])
                values.append(value)
        before += max((line["step"] for line in lines), default=0)
    return steps, values
