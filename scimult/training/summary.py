"""Summarise the reports of several steps into the numbers to show."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from scimult.training.loop import StepReport
from scimult.training.metrics import add_sums, means_by_task

_SPEED = ("padding_if_padded", "padding_in_attention")
_MEMORY = ("peak_memory_bytes", "peak_gpu_memory_bytes")
_ACCURACY = "train/in_batch_accuracy"


class Window:
    """Collects the steps since the last `take`.

    Losses, accuracies and margins of tasks are means over queries; total loss, norms and padding
    shares are means over steps; throughput and utilisation are totals over the seconds of the
    steps, without the time between them (dev scores, checkpoints).
    """

    def __init__(self) -> None:
        self._reports: list[StepReport] = []

    def add(self, report: StepReport) -> None:
        """Add one step."""
        self._reports.append(report)

    def take(self) -> dict[str, float]:
        """Return the numbers by name, ``group/name`` or ``group/name/part``, and start over.

        There must have been a step.
        """
        reports, self._reports = self._reports, []
        last = reports[-1]
        scalars = {
            "train/loss": _mean([report.loss for report in reports]),
            "train/lr": last.lr,
        }
        accuracies = [report.accuracy for report in reports if report.accuracy is not None]
        if accuracies:
            scalars[_ACCURACY] = _mean(accuracies)
        sums = add_sums([report.sums for report in reports])
        for task, means in means_by_task(sums).items():
            for name, value in means.items():
                scalar = _ACCURACY if name == "accuracy" else f"train/{name}"
                scalars[f"{scalar}/{task}"] = value
        return scalars | _norms(reports) | _usage(reports) | _loss_scaling(last)


def _norms(reports: Sequence[StepReport]) -> dict[str, float]:
    """Return mean gradient norms: in total, of each part, and of single-task steps by task.

    Steps that fp16 skipped, whose norm is infinite, do not count.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        if not math.isfinite(report.gradient_norm):
            continue
        values["train/gradient_norm"].append(report.gradient_norm)
        if len(set(report.tasks)) == 1:
            values[f"train/gradient_norm/{report.tasks[0]}"].append(report.gradient_norm)
        for part, norm in report.gradient_norms.items():
            values[f"train/gradient_norm_of/{part}"].append(norm)
    return {name: _mean(norms) for name, norms in values.items()}


def _usage(reports: Sequence[StepReport]) -> dict[str, float]:
    seconds = sum(report.seconds for report in reports)
    tokens = sum(report.tokens for report in reports)
    scalars = {"speed/tokens_per_second": tokens / seconds}
    metered = [report for report in reports if report.usage]
    for name in _SPEED if metered else ():
        scalars[f"speed/{name}"] = _mean([report.usage[name] for report in metered])
    with_peak = [report for report in metered if "model_flop_utilisation" in report.usage]
    if with_peak:
        shares = [r.usage["model_flop_utilisation"] * r.seconds for r in with_peak]
        scalars["speed/model_flop_utilisation"] = sum(shares) / sum(r.seconds for r in with_peak)
    for name in _MEMORY:
        peaks = [report.usage[name] for report in metered if name in report.usage]
        if peaks:
            scalars[f"memory/{name.removesuffix('_bytes')}_gib"] = max(peaks) / 2**30
    return scalars


def _loss_scaling(last: StepReport) -> dict[str, float]:
    if last.loss_scale is None:
        return {}
    return {"fp16/loss_scale": last.loss_scale, "fp16/skipped_steps": last.skipped_steps}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
