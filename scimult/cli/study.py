"""``scimult study``: train, evaluate and compare a grid of runs, each with several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli.output import echo, print_table
from scimult.cli.systems import MODEL_OPTIONS, parse_system
from scimult.errors import ConfigError, SciMultError

if TYPE_CHECKING:
    from scimult.studies.plan import Plan


def study(
    file: Annotated[Path, typer.Argument(help="Study file (YAML).", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Study overrides: dotted.key=value.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "--list", help="Check every run and list the missing ones."),
    ] = False,
) -> None:
    """Train, evaluate and compare a grid of runs and seeds; repeat the command to resume.

    Finished jobs are not repeated. A failed run does not stop the others, and the next call
    retries it. Writes table.md, costs.md, study.json and study.html.
    """
    from scimult.config import save_config
    from scimult.files import only_writer
    from scimult.studies.jobs import is_at_work, run_jobs
    from scimult.studies.page import write_findings
    from scimult.studies.plan import check_plan, make_plan
    from scimult.studies.states import state_table, states
    from scimult.studies.work import drop_other_scores, make_jobs, make_slots
    from scimult.training.stopping import StopRequest

    plan = make_plan(file, overrides or [])
    for trial in plan.trials.values():
        parse_system(plan.system(trial), MODEL_OPTIONS)
    check_plan(plan)
    jobs = make_jobs(plan)
    if dry_run:
        print_table(state_table(plan, states(plan)))
        for job in jobs:
            if is_at_work(plan.logs, job.name):
                echo(f"at work: {job.name}")
        return
    with only_writer(plan.out):
        _check_folder(plan)
        save_config(plan.study, plan.out / "study.yaml")
        drop_other_scores(plan)
        with StopRequest().listening() as request:
            outcome = run_jobs(jobs, make_slots(plan.study.launch), plan.logs, request)
        if request.signal:
            echo(f"stopped after {len(outcome.done)} of {len(jobs)} jobs", err=True)
            echo("run the same command again to resume", err=True)
            raise typer.Exit(128 + request.signal)
        tables = write_findings(plan, outcome.failed)
    for table in tables:
        print_table(table)
    echo(f"page in {plan.out / 'study.html'}; table.md, costs.md and study.json next to it")
    if outcome.failed:
        lines = [f"{name}: {reason}" for name, reason in outcome.failed.items()]
        problem = "\n  ".join(["some jobs failed:", *lines])
        problem += f"\n{len(lines)} of {len(jobs)} jobs failed"
        fix = "read the logs, then run the same command again to retry these jobs"
        raise SciMultError(problem, fix=fix)


def _check_folder(plan: Plan) -> None:
    """Refuse the output folder of another study."""
    from scimult.config import read_yaml

    path = plan.out / "study.yaml"
    name = read_yaml(path).get("name") if path.exists() else plan.study.name
    if name != plan.study.name:
        fix = "choose another output"
        raise ConfigError("the folder belongs to another study", path=path, value=name, fix=fix)
