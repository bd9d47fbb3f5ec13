"""``scimult mteb``: score a model on MTEB's tasks, by MTEB's own code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model, named_values
from scimult.cli.common import open_model
from scimult.cli.output import echo, print_table, report_set
from scimult.errors import ConfigError, SciMultError, one_of
from scimult.terminal import counted


def mteb(
    model: Annotated[
        Path | None,
        typer.Argument(
            help=opt.ANY_MODEL,
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="MTEB task, or group of --list (repeatable).", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; its table shows every model in it."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name in the table. Default: the model's own name.")
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(help="TASK=OURS: encode an MTEB task or type by our task (repeatable)."),
    ] = None,
    language: Annotated[
        list[str] | None,
        typer.Option(help="Language of multilingual tasks (ISO 639-3, repeatable). Default: eng."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="MTEB's result cache. Default: OUT/mteb.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Score cached tasks again.")] = False,
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the scientific tasks and how each is encoded.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Score a model on MTEB's tasks, with MTEB's code, cache and files, and our table."""
    if show_list:
        _show_tasks(as_json)
        return
    if model is None or not tasks or out is None:
        fix = "write scimult mteb MODEL --tasks GROUP --out FOLDER; --list shows the groups"
        raise ConfigError("MODEL, --tasks and --out are needed", fix=fix)
    check_model(model)
    routes = named_values(route or [], "a route", "TASK=OURS", "SCIDOCS=link_prediction")
    from scimult.data.manifest import check_no_other_output
    from scimult.evaluation.mteb_suite import score
    from scimult.evaluation.results import folder_of
    from scimult.files import only_writer
    from scimult.inference.mteb_model import MtebEncoder
    from scimult.inference.mteb_tasks import find_tasks

    check_no_other_output(out)
    requested = find_tasks(tasks, language or ["eng"])
    routed = {name for one in requested for name in (one.metadata.name, one.metadata.type)}
    for key in routes:
        one_of("task or type in --route", key, routed)
    encoder = open_model(model, device, dtype, pooling, similarity)
    system = name or encoder.name
    settings: dict[str, Any] = {
        "fingerprint": encoder.fingerprint,
        "folder": str(model),
        "dtype": encoder.dtype,
    }
    settings |= {"similarity": encoder.similarity, "unit_vectors": encoder.unit_vectors}
    if routes:
        settings["routes"] = routes
    with only_writer(folder_of(out, system)):
        result = score(
            system,
            settings,
            MtebEncoder(encoder, routes),
            requested,
            out,
            cache or out / "mteb",
            again=again,
            on_task=partial(report_set, system),
        )
    names = {task.metadata.name for task in requested}
    _show_table(out, [key for key in result.failed if key in names], as_json)


def _show_table(out: Path, failed: Sequence[str], as_json: bool) -> None:
    from scimult.evaluation.report import update_table
    from scimult.evaluation.results import load_results

    tables = update_table(out)
    if as_json:
        for result in load_results(out):
            typer.echo(json.dumps(result.model_dump(mode="json")))
    else:
        print_table(tables[0])
    echo(f"table in {out / 'table.md'}, MTEB's own files in its cache", err=as_json)
    if failed:
        fix = "fix the errors above, then run the command again"
        raise SciMultError(f"{counted(len(failed), 'task')} failed: {', '.join(failed)}", fix=fix)


def _show_tasks(as_json: bool) -> None:
    """Print the list, which needs neither MTEB nor a network."""
    from scimult.inference.mteb_tasks import scientific_tasks
    from scimult.table import Table, texts

    listed = scientific_tasks()
    if as_json:
        for key, task in listed.tasks.items():
            typer.echo(json.dumps({"name": key, **task.model_dump()}))
        return
    rows = [
        texts(
            task.group,
            key,
            task.type,
            f"{task.route}, query",
            f"{task.route}, candidate" if task.has_documents else "",
            task.what,
        )
        for key, task in listed.tasks.items()
    ]
    headings = ["group", "task", "type", "queries as", "documents as", "question"]
    notes = [f"{group}: {what}." for group, what in listed.groups.items()]
    print_table(Table("Scientific tasks of MTEB", headings, 6, rows, notes, group=1))
