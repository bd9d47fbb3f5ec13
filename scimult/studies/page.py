"""The files of a study: JSON, Markdown and one HTML page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scimult.evaluation.repeated import SuiteFindings
from scimult.evaluation.reporting.page import PACKAGE, asset
from scimult.evaluation.reporting.repeated import difference_table, score_table
from scimult.evaluation.results import provenance
from scimult.files import write_json, write_text
from scimult.studies.costs import Cost, cost_of
from scimult.studies.curves import draw_curves
from scimult.studies.findings import find
from scimult.studies.plan import Plan
from scimult.studies.tables import cost_table, run_table
from scimult.table import SIGNS, Table, to_markdown

FORMAT = "scimult-study/1"


def write_findings(plan: Plan, failed: Mapping[str, str]) -> list[Table]:
    """Write ``study.json``, ``table.md``, ``costs.md`` and ``study.html``.

    ``table.md`` has no time in it: a study that was stopped and one that was not have the same.

    Returns
    -------
    list of Table
        The scores of each suite.

    Raises
    ------
    DataError
        If results do not fit each other.
    """
    findings = [found for suite in plan.suites if (found := find(plan, suite)) is not None]
    costs = {key: cost_of(plan, trial) for key, trial in plan.trials.items()}
    scores = [score_table(found) for found in findings]
    tables = [
        *(t for f, s in zip(findings, scores, strict=True) for t in (s, difference_table(f))),
        run_table(plan),
    ]
    cost = cost_table(plan, costs)
    written = provenance()
    write_json(plan.out / "study.json", _as_json(plan, findings, costs, failed, written))
    write_text(plan.out / "table.md", "\n".join(to_markdown(table) for table in tables))
    write_text(plan.out / "costs.md", to_markdown(cost))
    page = _to_html(plan, [*tables, cost], failed, written)
    write_text(plan.out / "study.html", page)
    return scores


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
        "suites": [asdict(found) for found in findings],
        "failed": dict(failed),
        "provenance": written,
    }


def _to_html(
    plan: Plan, tables: Sequence[Table], failed: Mapping[str, str], written: dict[str, Any]
) -> str:
    """Return the page; every text is escaped, and no script may run."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("scimult.studies"), PackageLoader(PACKAGE)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    picture = draw_curves(plan)
    return environment.get_template("study.html").render(
        study=plan.study,
        tables=tables,
        failed=failed,
        written=written,
        curves=None if picture is None else base64.b64encode(picture).decode(),
        style=Markup(asset("report.css")),
        signs=SIGNS,
    )
