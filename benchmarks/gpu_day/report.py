"""A Markdown page from the ``day.jsonl`` of calls: steps, predictions, all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.day import read_lines
from benchmarks.gpu_day.predictions import MISS, PREDICTIONS, Findings
from benchmarks.gpu_day.schedule import CALLS

_DRY = (
    "**This was a dry run with small sizes, to test that the steps run. Its figures say nothing "
    "about any machine and are not compared with predictions.**"
)
_NOT_ENDED = "no end written"


@dataclass
class Attempt:
    """The last attempt at a step of a call."""

    call: str
    step: str
    rc: int | str = _NOT_ENDED
    seconds: float | None = None
    box: float | None = None
    error: str = ""
    dry: bool = False
    findings: list[dict[str, Any]] = field(default_factory=list)


def make_report(folders: Iterable[Path]) -> str:
    """Return the report as Markdown.

    Raises
    ------
    DayError
        If a folder has no lines.
    """
    attempts = last_attempts(line for folder in folders for line in read_lines(folder))
    findings: dict[str, list[Mapping[str, Any]]] = {}
    for attempt in attempts:
        findings.setdefault(attempt.step, []).extend(attempt.findings)
    dry = any(attempt.dry for attempt in attempts)
    parts = ["# A GPU machine and SciMult", *([_DRY] if dry else []), _machine(findings)]
    parts += ["## Steps", _steps(attempts)]
    parts += ["## Predictions", _predictions(findings, dry)]
    parts += ["## Figures", *(_figures(attempt) for attempt in attempts if attempt.findings)]
    failed = [attempt for attempt in attempts if attempt.error]
    if failed:
        parts += ["## Failures", *(_failure(attempt) for attempt in failed)]
    return "\n\n".join(part for part in parts if part) + "\n"


def last_attempts(lines: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Return the last attempt at each step, in the order of the calls."""
    attempts: dict[tuple[str, str], Attempt] = {}
    current: dict[str, tuple[str, str]] = {}
    for line in lines:
        step = line["step"]
        if "call" in line:
            current[step] = key = (line["call"], step)
            if line.get("started") or key not in attempts or line["rc"] == "no time left":
                attempts[key] = Attempt(*key, dry=line["dry"])
            if "rc" in line:
                attempt = attempts[key]
                attempt.rc, attempt.seconds, attempt.box = line["rc"], line["seconds"], line["box"]
                attempt.error = line.get("error", "")
        elif step in current:
            attempts[current[step]].findings.append(line["found"])
    order = {(call, step.name): n for call in CALLS for n, step in enumerate(CALLS[call])}
    calls = list(CALLS)
    return sorted(
        attempts.values(),
        key=lambda attempt: (calls.index(attempt.call), order[attempt.call, attempt.step]),
    )


def _machine(findings: Findings) -> str:
    facts: dict[str, Any] = {}
    for finding in findings.get("machine", ()):
        facts |= finding
    if not facts:
        return "The step `machine` reported nothing."
    versions = facts.pop("versions", {})
    facts |= {name: version for name, version in versions.items() if version}
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _steps(attempts: Sequence[Attempt]) -> str:
    rows = []
    for attempt in attempts:
        result = "ran" if attempt.rc == 0 else f"**{attempt.rc}**"
        row = [attempt.call, attempt.step, result, attempt.seconds, attempt.box]
        rows.append([*row, len(attempt.findings)])
    return table(["call", "step", "end", "seconds", "limit", "lines"], rows)


def _predictions(findings: Findings, dry: bool) -> str:
    device = str(next((f.get("device") for f in findings.get("machine", ())), ""))
    rows, missed = [], 0
    for prediction in PREDICTIONS:
        figure = prediction.figure(findings)
        if figure is None:
            verdict = "not measured"
        elif dry:
            verdict = "dry run"
        elif prediction.device is not None and prediction.device not in device:
            verdict = f"only for an {prediction.device}"
        else:
            is_missed = prediction.misses(figure)
            missed += is_missed
            verdict = f"**missed by more than {MISS:g} times**" if is_missed else "held"
        rows.append([prediction.what, prediction.range, figure, verdict])
    count = "" if dry else f"{missed} missed by more than {MISS:g} times: find out why first.\n\n"
    return count + table(["figure", "expected", "found", ""], rows)


def _figures(attempt: Attempt) -> str:
    """Return a step's findings: tables of those that share their keys, lists of the others."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for finding in attempt.findings:
        groups.setdefault(tuple(finding), []).append(finding)
    parts = [f"### {attempt.call}: {attempt.step}"]
    for keys, rows in groups.items():
        if len(rows) == 1:
            parts.append("\n".join(f"- {key}: {shown(rows[0][key])}" for key in keys))
        else:
            parts.append(table(list(keys), [[row[key] for key in keys] for row in rows]))
    return "\n\n".join(parts)


def _failure(attempt: Attempt) -> str:
    return f"### {attempt.call}: {attempt.step} ({attempt.rc})\n\n```\n{attempt.error.strip()}\n```"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table, with numbers right-aligned."""
    numbers = [
        any(isinstance(row[n], (int, float)) and not isinstance(row[n], bool) for row in rows)
        for n in range(len(headings))
    ]
    lines = [headings, ["---:" if number else "---" for number in numbers]]
    lines += [[shown(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: Any) -> str:
    """Format a value as a cell: four digits, thousands separators, escaped bars."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return shown([[key, one] for key, one in value.items()])
    if isinstance(value, list):
        return "; ".join(
            " ".join(map(shown, item)) if isinstance(item, list) else shown(item) for item in value
        )
    return str(value).replace("|", "\\|")
