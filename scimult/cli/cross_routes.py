"""``scimult cross-routes``: score every benchmark by every task's route."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model
from scimult.cli.common import open_model
from scimult.cli.output import echo, print_table
from scimult.errors import ConfigError, DataError


def cross_routes(
    model: opt.Model,
    data: Annotated[
        Path, typer.Option(help="Folder with the suite's data sets.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.", show_default=False)],
    suite: opt.SuiteName = "first",
    sets: opt.Sets = None,
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    skip_bad: opt.SkipBad = False,
) -> None:
    """Evaluate a model by each task's route and print a table of sets by routes."""
    check_model(model)
    if not data.is_dir():
        raise DataError("folder does not exist", path=data, fix="check the path")
    _check_routes(model)
    from scimult.data.manifest import check_no_other_output
    from scimult.evaluation.harness import evaluate, load_sets
    from scimult.evaluation.report import check_comparable
    from scimult.evaluation.results import folder_of, load_results
    from scimult.evaluation.routes import FixedRoute, cross_tables
    from scimult.evaluation.suites import load_suite
    from scimult.evaluation.systems import DenseSystem
    from scimult.files import only_writer
    from scimult.hardware import usable_device
    from scimult.progress import note

    check_no_other_output(out)
    config = load_suite(suite)
    loaded = load_sets(config, data, sets or [], skip_bad=skip_bad)
    encoder = open_model(model, device, dtype, None, None)
    routed = [FixedRoute(encoder, task) for task in encoder.tasks.names]
    names = [route.name for route in routed]
    others = [result for result in load_results(out) if result.system not in names]
    check_comparable(others, config.name, {name: entry.facts for name, entry in loaded.items()})
    for name in names:
        folder_of(out, name)
    identity = {"fingerprint": encoder.fingerprint, "folder": str(model), "dtype": encoder.dtype}
    on = str(usable_device(device))
    for route in routed:
        note(route.name)
        settings = {**identity, **route.settings()}
        system = DenseSystem(route, settings, device=on, show_progress=True)
        with only_writer(folder_of(out, route.name)):
            evaluate(system, config, loaded, out)
    written = [result for result in load_results(out) if result.system in names]
    for grid in cross_tables(written):
        print_table(grid)
    echo(f"results in {out}; scimult report shows this table too")


def _check_routes(model: Path) -> None:
    """Check that tasks differ in their routes: else every column of the table is the same."""
    from scimult.checkpoints import read_config

    config = read_config(model)
    routes = {
        (config.route(task.name, "query"), config.route(task.name, "candidate"))
        for task in config.tasks
    }
    if len(routes) < 2:
        raise ConfigError(
            "all tasks of this model take one route, so they would score alike",
            path=model,
            fix="name a model with experts, adapters, control codes or instructions for several "
            "tasks; scimult evaluate scores this one",
        )
