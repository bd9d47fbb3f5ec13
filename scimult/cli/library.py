"""``scimult library``: papers that are encoded once, kept up to date, and searched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model, named_values, only_with, real_text
from scimult.cli.common import rejecting
from scimult.cli.output import echo, print_records
from scimult.errors import DataError, StorageError
from scimult.terminal import counted

if TYPE_CHECKING:
    from scimult.data.records import Rejects
    from scimult.library.records import Paper

library = typer.Typer(
    name="library",
    help="Encode papers once, keep them up to date, and search them.",
    no_args_is_help=True,
)


@library.command()
def create(
    folder: opt.Folder,
    model: opt.Model,
    papers: opt.Files,
    form: opt.Format = None,
    column: opt.Columns = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="Task to encode for (repeatable). Default: all tasks that have papers."),
    ] = None,
    precision: Annotated[
        Literal["float32", "float16"], typer.Option(help="Number type on disk.")
    ] = "float32",
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    vectors: opt.Vectors = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Create a library of papers; after an interruption, continue with sync."""
    from scimult.files import check_replaceable
    from scimult.library.manifest import FILE

    check_model(model)
    if (folder / FILE).is_file():
        fix = "update it with scimult library sync, or choose another folder"
        raise StorageError("library already exists", path=folder, fix=fix)
    check_replaceable(folder)
    with incoming(papers, form, column, skip_bad) as (read, _):
        first = next(read, None)
        if first is None:
            fix = "check that they are the right files, and their format"
            raise DataError("no paper in the files", value=", ".join(papers), fix=fix)
        from scimult.library import Library

        created = Library.create(
            folder,
            chain([first], read),
            model=model,
            tasks=task or (),
            precision=precision,
            device=device,
            dtype=dtype,
            settings={"pooling": pooling, "similarity": similarity},
            vectors=vectors,
            show_progress=True,
        )
    sides = ", ".join(created.state.manifest.sides)
    echo(f"{folder}: {counted(len(created), 'paper')}, encoded for {sides}")


@library.command()
def add(
    folder: opt.Folder,
    papers: opt.Files,
    form: opt.Format = None,
    column: opt.Columns = None,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    vectors: opt.Vectors = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Add new papers, and replace those whose id is already there."""
    _change("add", folder, incoming(papers, form, column, skip_bad), model, device, vectors)


@library.command()
def sync(
    folder: opt.Folder,
    papers: opt.Files,
    form: opt.Format = None,
    column: opt.Columns = None,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    vectors: opt.Vectors = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Make the library hold exactly these papers: encode changed ones, remove missing ones.

    Papers whose records --skip-bad leaves out stay as they were.
    """
    _change("sync", folder, incoming(papers, form, column, skip_bad), model, device, vectors)


def _change(
    how: Literal["add", "sync"],
    folder: Path,
    files: AbstractContextManager[tuple[Iterator[Paper], Rejects]],
    model: Path | None,
    device: str | None,
    vectors: Path | None,
) -> None:
    from scimult.library import Library

    opened = Library.open(folder, model=model, device=device)
    with files as (read, rejects):
        if how == "add":
            changes = opened.add(read, vectors=vectors, show_progress=True)
        else:
            changes = opened.sync(read, keep=rejects.left_out, vectors=vectors, show_progress=True)
    if changes.kept and None in rejects.left_out:
        echo("nothing was removed: a record without a readable id was left out", err=True)
    echo(f"{folder}: {counted(len(opened), 'paper')} ({changes})")


@library.command()
def remove(
    folder: opt.Folder,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of papers.", show_default=False)
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(callback=real_text, help='SQL condition, such as "year < 1990".'),
    ] = None,
) -> None:
    """Remove papers by id or by a condition."""
    from scimult.library import Library

    if bool(ids) == (where is not None):
        fix = "give ids, or a condition with --where"
        raise DataError("exactly one of ids and --where is needed", fix=fix)
    opened = Library.open(folder)
    names = ids or opened.ids(where=where)
    changes = opened.remove(names)
    if ids and changes.removed < len(set(ids)):
        missing = len(set(ids)) - changes.removed
        echo(f"not in the library: {missing} of {counted(len(set(ids)), 'id')}", err=True)
    echo(f"{folder}: {counted(len(opened), 'paper')} ({changes})")


@library.command()
def index(
    folder: opt.Folder,
    task: Annotated[str, typer.Option(help="Task to build the index for.")] = "search",
    kind: Annotated[
        Literal["rabitq", "pq", "hnsw"],
        typer.Option(
            help="pq: four bits per four numbers; rabitq: one bit per number; hnsw: a graph."
        ),
    ] = "pq",
    target_recall: Annotated[
        float, typer.Option(help="Share of the exact top 10 that it must find.")
    ] = 0.95,
    part: Annotated[
        str | None,
        typer.Option(help="I/N: build one part; the last process to finish writes the index."),
    ] = None,
    model: opt.OtherModel = None,
    device: opt.Device = None,
) -> None:
    """Build a task's approximate index, for libraries of more than 20,000 papers."""
    from scimult.inference.bulk import Part
    from scimult.library import Library

    opened = Library.open(folder, model=model, device=device)
    mine = Part.parse(part)
    facts = opened.index(task=task, kind=kind, target_recall=target_recall, part=mine)
    if isinstance(facts, list):
        echo(f"{folder}: part {part} is done; parts still missing: {len(facts)}")
        return
    recall = f"recall {facts.recall:.3f} of the top 10 on {facts.queries} queries"
    effort = f"search width {facts.effort}" if kind == "hnsw" else f"{facts.effort} lists"
    settings = f"{effort}, {facts.candidates} candidates per result"
    echo(f"{folder}: {kind} of {facts.papers:,} papers, {recall} ({settings})")
    if facts.recall < target_recall:
        echo(f"{target_recall} was not reached; --kind hnsw may reach it", err=True)


@library.command()
def tune(
    folder: opt.Folder,
    queries: Annotated[
        Path, typer.Option(help="JSON lines with query and ids, those of the relevant papers.")
    ],
    task: opt.Task = "search",
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Tune the share of BM25 on your queries, for search --words tuned."""
    from scimult.data.lines import read_jsonl
    from scimult.library import Library
    from scimult.library.tuning import Question

    with rejecting(skip_bad) as rejects:
        records = rejects.keep(
            read_jsonl(queries, rejects),
            lambda record: Question(record.text("query"), record.identifiers("ids")),
        )
        tuned = Library.open(folder, model=model, device=device).tune_words(records, task=task)
    rows = [
        {"BM25's share": str(share), "nDCG@10": f"{100 * score:.2f}"}
        for share, score in tuned.scores.items()
    ]
    if tuned.left_out:
        echo(f"left out {tuned.left_out:,}: no words, or no paper of the library", err=True)
    print_records(rows, f"{tuned.queries:,} queries")
    echo(f"{folder}: --words tuned is {tuned.share} for {task}")


@library.command()
def info(folder: opt.Folder, as_json: opt.AsJson = False) -> None:
    """Show what a library holds and how it was made."""
    from scimult.library import Library

    facts = Library.open(folder).info()
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    rows = [{"": name, str(folder): _words(value)} for name, value in facts.items()]
    print_records(rows, "")


@library.command()
def check(folder: opt.Folder) -> None:
    """Read all files and report damaged ones; exit with code 1 if there are any."""
    from scimult.library import Library

    opened = Library.open(folder)
    damaged = opened.check()
    for problem in damaged:
        echo(problem, err=True)
    files = counted(len(damaged), "damaged file")
    echo(f"{folder}: {counted(len(opened), 'usable paper')}, {files}")
    if damaged:
        raise typer.Exit(1)


@library.command()
def compact(folder: opt.Folder) -> None:
    """Drop removed papers from disk and merge small segments."""
    from scimult.library import Library

    opened = Library.open(folder)
    opened.compact()
    segments = counted(len(opened.state.manifest.segments), "segment")
    echo(f"{folder}: {counted(len(opened), 'paper')} in {segments}")


@library.command()
def migrate(
    folder: opt.Folder,
    model: opt.Model,
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter",
            help="Encode no papers: fit a map from the model's queries to the old vectors.",
        ),
    ] = False,
    precision: Annotated[
        Literal["float32", "float16"] | None,
        typer.Option(help="Number type on disk. Default: unchanged."),
    ] = None,
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
) -> None:
    """Encode a library with another model and switch to it; resumes after an interruption."""
    if adapter:
        only_with("a migration that encodes, not with --adapter", {"--precision": precision})
    check_model(model)
    from scimult.library import Library

    opened = Library.open(folder, device=device)
    settings = {"pooling": pooling, "similarity": similarity}
    if adapter:
        for task, fitted in opened.adapt(model, dtype=dtype, settings=settings).items():
            recall = f"{fitted.recall:.3f} of the top 10 of {model.name} found on held-out papers"
            echo(f"{folder}: {task}: {recall} (adapter: {fitted.kind})")
        echo(f"search with --model {model}")
        return
    done = opened.migrate(
        model, precision=precision, dtype=dtype, settings=settings, show_progress=True
    )
    texts = counted(done.texts_encoded, "text")
    echo(f"{folder}: {counted(done.papers, 'paper')} by {model.name} ({texts} encoded)")


@library.command()
def export(
    folder: opt.Folder,
    to: Annotated[
        Literal["qdrant", "milvus", "opensearch", "pgvector"],
        typer.Option(help="Target database.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the files to load; for qdrant, its local-mode database."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of a Qdrant server.")] = None,
    task: Annotated[str, typer.Option(help="Task whose vectors are exported.")] = "search",
    name: Annotated[str, typer.Option(help="Name of the collection, index or table.")] = "papers",
    where: Annotated[
        str | None,
        typer.Option(callback=real_text, help='SQL condition, such as "year >= 2020".'),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="With qdrant: delete all other points of the collection."),
    ] = False,
) -> None:
    """Export papers and vectors to Qdrant, Milvus, OpenSearch or PostgreSQL with pgvector."""
    if (out is None) == (url is None) or (url is not None and to != "qdrant"):
        fix = "give --out, or --url of a Qdrant server"
        raise DataError("exactly one target is needed", fix=fix)
    if to != "qdrant":
        only_with("--to qdrant", {"--prune": prune})
    from scimult.library import Library
    from scimult.library.feeds import feed_files, feed_qdrant

    feed = Library.open(folder).feed(task=task, where=where)
    if to == "qdrant":
        count = feed_qdrant(feed, url or str(out), name, prune=prune)
    else:
        assert out is not None
        count = feed_files(feed, to, out, name)
    echo(f"{url or out}: {counted(count, 'paper')} for {to}")


@contextmanager
def incoming(
    files: list[str], form: str | None, column: list[str] | None, skip_bad: bool
) -> Iterator[tuple[Iterator[Paper], Rejects]]:
    """Yield the papers of files and the skipped records; report these at the end."""
    from scimult.data.importers.files import find_files
    from scimult.library.records import read_files

    find_files(files)
    columns = columns_of(column)
    with rejecting(skip_bad) as rejects:
        yield read_files(files, rejects, format=form, columns=columns), rejects


def columns_of(specs: list[str] | None) -> dict[str, str | None]:
    """Parse options such as ``--column abstract=summary``; an empty field becomes None."""
    example = "--column abstract=summary"
    fields = named_values(specs or (), "a column", "NAME=FIELD", example, lambda field: True)
    return {name.strip(): field.strip() or None for name, field in fields.items()}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_words(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
