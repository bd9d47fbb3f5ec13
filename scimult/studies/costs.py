"""What a study cost: steps, tokens, operations and hours of each trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scimult.evaluation.results import folder_of, load_result
from scimult.files import read_json
from scimult.studies.plan import Plan
from scimult.studies.trials import Trial
from scimult.training import record
from scimult.training.runs import METRICS, read_metrics


@dataclass(frozen=True)
class Cost:
    """Of one trial; that of the run it starts from is not in it.

    Attributes
    ----------
    steps, tokens : int
        Of its training.
    flops : float or None
        Operations of its forward and backward passes; None if its metrics do not have them.
    training_seconds : float
        Of all steps, times ranks, without what comes between steps.
    evaluation_seconds : float
        To encode and rank.
    """

    key: str
    steps: int
    tokens: int
    flops: float | None
    training_seconds: float
    evaluation_seconds: float


def cost_of(plan: Plan, trial: Trial) -> Cost:
    """Return what a trial has cost so far."""
    steps, tokens, seconds = 0, 0, 0.0
    flops: float | None = 0.0
    for stage in trial.stages:
        folder = Path(stage.config.output)
        path = folder / record.FILE
        ranks = read_json(path).get("ranks", 1) if path.is_file() else 1
        for line in read_metrics(folder / METRICS):
            if line["step"] == 0:
                continue
            steps += 1
            tokens += line["tokens"]
            seconds += line["seconds"] * ranks
            of_step = line.get("usage", {}).get("model_flops")
            flops = None if flops is None or of_step is None else flops + of_step
    return Cost(trial.key, steps, tokens, flops, seconds, _evaluation_seconds(plan, trial))


def _evaluation_seconds(plan: Plan, trial: Trial) -> float:
    paths = [folder_of(plan.results(suite), trial.key) / "result.json" for suite in plan.suites]
    results = [load_result(path) for path in paths if path.is_file()]
    return sum(entry.seconds for result in results for entry in result.sets.values())
