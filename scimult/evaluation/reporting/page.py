"""The report's files: a self-contained HTML page, Markdown, LaTeX and JSON."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from scimult.evaluation.reporting import charts
from scimult.evaluation.reporting.suite_report import SuiteReport
from scimult.evaluation.results import provenance
from scimult.files import write_json, write_text
from scimult.table import SIGNS, Table, escaped, latex_comment, to_latex, to_markdown

FORMAT = "scimult-report/2"
PACKAGE = "scimult.evaluation.reporting"
COLOURS = 8
"""Systems and fields beyond these share the last colour; names appear next to every colour."""


def write_page(suite_reports: Sequence[SuiteReport], out: Path) -> Path:
    """Write ``report.html``, ``.md``, ``.tex`` and ``.json``; return the path of the page."""
    written = provenance()
    write_json(
        out / "report.json",
        {"format": FORMAT, "suites": [asdict(one) for one in suite_reports], "provenance": written},
    )
    write_text(out / "report.md", "\n".join(map(_markdown, suite_reports)))
    write_text(out / "report.tex", "\n".join(map(_latex, suite_reports)))
    write_text(out / "report.html", to_html(suite_reports, written))
    return out / "report.html"


def to_html(suite_reports: Sequence[SuiteReport], written: dict[str, Any]) -> str:
    """Return the page; all text is escaped, and only the page's own script may run."""
    script = asset("report.js")
    # The policy allows only the script with this hash: text that slips through escaping cannot run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template("report.html").render(
        suites=suite_reports,
        written=written,
        style=Markup(asset("report.css")),
        script=Markup(script),
        digest=digest,
        charts=charts,
        signs=SIGNS,
        colours=COLOURS,
    )


def template(name: str, *packages: str) -> Template:
    """Return a template of the report, or of another package that extends it."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, PACKAGE)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def asset(name: str) -> str:
    """Return the text of a file next to the templates."""
    folder = resources.files(PACKAGE) / "templates"
    return (folder / name).read_text(encoding="utf-8")


def _grids(suite_report: SuiteReport) -> list[Table]:
    return [*suite_report.tables, *suite_report.frequencies]


def _markdown(suite_report: SuiteReport) -> str:
    parts = [f"# {escaped(f'{suite_report.suite}: {suite_report.description}')}\n"]
    if suite_report.verdict:
        points = [*suite_report.verdict.sentences, suite_report.verdict.note]
        lines = ["## In short", "", *(f"* {escaped(point)}" for point in points)]
        parts.append("\n".join(lines) + "\n")
    parts += [to_markdown(grid) for grid in _grids(suite_report)]
    if suite_report.missing:
        gaps = [
            f"* {escaped(f'{gap.section}: {gap.why}. Fix: {gap.fix}.')}"
            for gap in suite_report.missing
        ]
        parts.append("\n".join(["## Not shown", "", *gaps]) + "\n")
    return "\n".join(parts)


def _latex(suite_report: SuiteReport) -> str:
    signs = f"+ better, - worse than {suite_report.baseline}"
    heading = latex_comment(f"Suite {suite_report.suite}. Needs the package booktabs; {signs}.")
    return "\n".join([f"{heading}\n", *map(to_latex, _grids(suite_report))])
