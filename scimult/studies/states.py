"""Progress of a study: each trial's training and evaluation, and the estimated time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.studies.plan import Plan
from scimult.studies.tables import Cost, cost_of
from scimult.studies.trials import Trial
from scimult.studies.work import Evaluating, making_of, scored_sets
from scimult.table import Table, label, number, texts
from scimult.terminal import counted
from scimult.training import record
from scimult.training.runs import summarise


@dataclass(frozen=True)
class State:
    """Progress of a trial.

    ``model`` is ``ready``, ``missing``, or the state of its run folder; ``done`` and ``planned``
    are optimizer steps, ``scored`` and ``asked`` sets of all suites, by the current model, and
    ``hours`` those estimated to be left on one rank. None is unknown.
    """

    key: str
    model: str
    done: int
    planned: int | None
    scored: int
    asked: int
    hours: float | None


def states(plan: Plan) -> list[State]:
    """Return the state of every trial."""
    costs = {key: cost_of(plan, trial) for key, trial in plan.trials.items()}
    count, current = 0, dict[str, list[bool]]()
    for key, trial in plan.trials.items():
        current[key] = []
        for suite in plan.suites_of(trial):
            # Each result is read once: a study may have hundreds.
            scored = list(scored_sets(plan, trial, suite).values())
            count += sum(scored)
            is_current = any(scored) and Evaluating(plan, trial, suite).is_current()
            current[key] += [is_current and each for each in scored]
    per_set = sum(cost.evaluation_seconds for cost in costs.values()) / count if count else None
    return [_state(plan, trial, costs, current[key], per_set) for key, trial in plan.trials.items()]


def _state(
    plan: Plan,
    trial: Trial,
    costs: Mapping[str, Cost],
    scored: Sequence[bool],
    per_set: float | None,
) -> State:
    making = making_of(plan, trial)
    is_ready = making is None or making.is_done()
    missing = len(scored) - sum(scored)
    return State(
        key=trial.key,
        model="ready" if is_ready else _run_state(trial),
        done=costs[trial.key].steps,
        planned=_planned(trial),
        scored=sum(scored) if is_ready else 0,
        asked=len(scored),
        hours=_hours_left(plan, trial, costs, is_ready, missing, per_set),
    )


def _run_state(trial: Trial) -> str:
    """Return the state of the last stage that began."""
    started = [s for s in trial.stages if (Path(s.config.output) / record.FILE).is_file()]
    if not started:
        return "missing"
    summary = summarise(Path(started[-1].config.output))
    message = "" if summary.message is None else f": {summary.message.splitlines()[0]}"
    return f"{summary.state}{message}"


def _planned(trial: Trial) -> int | None:
    steps = [stage.config.schedule.steps for stage in trial.stages]
    known = [number for number in steps if number is not None]
    return sum(known) if len(known) == len(steps) else None


def _hours_left(
    plan: Plan,
    trial: Trial,
    costs: Mapping[str, Cost],
    is_ready: bool,
    sets: int,
    per_set: float | None,
) -> float | None:
    """Estimate from seconds per step of trials of the same run, or else of any, and per set."""
    same = [costs[key] for key, other in plan.trials.items() if other.run == trial.run]
    seconds = 0.0
    planned = _planned(trial)
    if not is_ready and trial.stages:
        step = _seconds_per_step(same) or _seconds_per_step(list(costs.values()))
        if planned is None or step is None:
            return None
        seconds += step * max(planned - costs[trial.key].steps, 0)
    if sets:
        if per_set is None:
            return None
        seconds += per_set * sets
    return seconds / 3600


def _seconds_per_step(costs: Sequence[Cost]) -> float | None:
    steps = sum(cost.steps for cost in costs)
    return sum(cost.training_seconds for cost in costs) / steps if steps else None


def state_table(plan: Plan, states: Sequence[State]) -> Table:
    """Return what is done, what is missing, and how long the rest may take."""
    rows = []
    for state in states:
        planned = "?" if state.planned is None else str(state.planned)
        steps = f"{state.done}/{planned}" if state.planned != 0 or state.done else ""
        scored = label(f"{state.scored}/{state.asked}")
        left = number(state.hours, "{:.2f}")
        rows.append([*texts(state.key, state.model), label(steps), scored, left])
    known = [state.hours for state in states if state.hours is not None]
    unknown = len(states) - len(known)
    note = f"{sum(known):.2f} hours of one rank are left"
    if unknown:
        note += f", plus {counted(unknown, 'model')} without an estimate yet"
    if unknown and not sum(known):
        note = "The time left is known once the first model is trained and evaluated"
    headings = ["model", "state", "steps", "sets scored", "hours left"]
    return Table(f"Study {plan.study.name}: {plan.out}", headings, 2, rows, [f"{note}."])
