"""``scimult library``: papers that are encoded once, kept fresh, and searched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model, named_values
from scimult.cli.common import rejecting
from scimult.cli.output import echo, print_records
from scimult.errors import DataError, StorageError

if TYPE_CHECKING:
    from scimult.library.records import Paper
    from scimult.library.writing import Changes

library = typer.Typer(
    name="library",
    help="Papers that are encoded once, kept fresh, and searched.",
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
        typer.Option(help="Task that papers are encoded for; default: all that have papers."),
    ] = None,
    precision: Annotated[
        Literal["float32", "float16"], typer.Option(help="Type of the vectors on disk.")
    ] = "float32",
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    vectors: opt.Vectors = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Make a library of papers; given again after a kill, sync goes on."""
    from scimult.files import check_replaceable
    from scimult.library.manifest import FILE

    check_model(model)
    if (folder / FILE).is_file():
        fix = "scimult library sync makes it hold the papers; or choose another folder"
        raise StorageError("a library is here already", path=folder, fix=fix)
    check_replaceable(folder)
    with incoming(papers, form, column, skip_bad) as read:
        from scimult.library import Library

        made = Library.create(
            folder,
            read,
            model=model,
            tasks=task or (),
            precision=precision,
            device=device,
            dtype=dtype,
            settings={"pooling": pooling, "similarity": similarity},
            vectors=vectors,
            show_progress=True,
        )
    echo(f"{folder}: {len(made):,} papers, encoded for {', '.join(made.state.manifest.sides)}")


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
    """Take papers in: new ones, and others of ids that are there."""
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
    """Make the library hold exactly these papers: encode what changed, remove what is gone."""
    _change("sync", folder, incoming(papers, form, column, skip_bad), model, device, vectors)


def _change(
    how: Literal["add", "sync"],
    folder: Path,
    files: AbstractContextManager[Iterator[Paper]],
    model: Path | None,
    device: str | None,
    vectors: Path | None,
) -> None:
    from scimult.library import Library

    opened = Library.open(folder, model=model, device=device)
    with files as read:
        change = opened.add if how == "add" else opened.sync
        changes = change(read, vectors=vectors, show_progress=True)
    _tell(folder, len(opened), changes)


@library.command()
def remove(
    folder: opt.Folder,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of papers.", show_default=False)
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='A condition in SQL, such as "year < 1990".')
    ] = None,
) -> None:
    """Remove papers by id or by a filter."""
    from scimult.library import Library

    if bool(ids) == (where is not None):
        raise DataError("no papers are named", fix="give ids, or a condition with --where")
    opened = Library.open(folder)
    names = ids or opened.ids(where=where)
    changes = opened.remove(names)
    if ids and changes.removed < len(set(ids)):
        echo(f"{len(set(ids)) - changes.removed} of {len(set(ids))} ids are not in it", err=True)
    _tell(folder, len(opened), changes)


@library.command()
def index(
    folder: opt.Folder,
    task: Annotated[str, typer.Option(help="Task whose search is to be quicker.")] = "search",
    kind: Annotated[
        Literal["rabitq", "pq", "hnsw"],
        typer.Option(
            help="pq: four bits for each four numbers; rabitq: one bit a number; hnsw: a graph."
        ),
    ] = "pq",
    target_recall: Annotated[
        float, typer.Option(help="Share of the exact best 10 that it has to find.")
    ] = 0.95,
    part: Annotated[
        str | None,
        typer.Option(help="i/n: fill a part; the process that ends last makes the index."),
    ] = None,
    model: opt.OtherModel = None,
    device: opt.Device = None,
) -> None:
    """Make the approximate index of a task, for libraries of more than 20,000 papers."""
    from scimult.inference.bulk import Part
    from scimult.library import Library

    opened = Library.open(folder, model=model, device=device)
    mine = Part.parse(part)
    facts = opened.index(task=task, kind=kind, target_recall=target_recall, part=mine)
    if isinstance(facts, list):
        echo(f"{folder}: part {part} is there; {len(facts)} of the others are missing")
        return
    told = f"recall {facts.recall:.3f} of the best 10 on {facts.queries} queries"
    settings = f"{facts.effort} lists, {facts.candidates} candidates for a result"
    echo(f"{folder}: {kind} of {facts.papers:,} papers, {told} ({settings})")
    if facts.recall < target_recall:
        echo(f"{target_recall} was not reached; --kind hnsw may", err=True)


@library.command()
def tune(
    folder: opt.Folder,
    queries: Annotated[
        Path, typer.Option(help="JSON lines with query, and the ids of papers that answer it.")
    ],
    task: opt.Task = "search",
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Choose the share of BM25 on queries, for search --words tuned."""
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
    print_records(rows, f"{tuned.queries:,} queries")
    echo(f"{folder}: --words tuned is {tuned.share} for {task}")


@library.command()
def info(folder: opt.Folder, as_json: opt.AsJson = False) -> None:
    """Say what a library holds and what made it."""
    from scimult.library import Library

    facts = Library.open(folder).info()
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    rows = [{"": name, str(folder): _words(value)} for name, value in facts.items()]
    print_records(rows, "")


@library.command()
def check(folder: opt.Folder) -> None:
    """Read everything and name what is damaged; exit code 1 if something is."""
    from scimult.library import Library

    opened = Library.open(folder)
    damaged = opened.check()
    for problem in damaged:
        echo(problem, err=True)
    echo(f"{folder}: {len(opened):,} papers can be used, {len(damaged)} files are damaged")
    if damaged:
        raise typer.Exit(1)


@library.command()
def compact(folder: opt.Folder) -> None:
    """Rewrite a library without removed papers, and small segments as one."""
    from scimult.library import Library

    opened = Library.open(folder)
    opened.compact()
    echo(f"{folder}: {len(opened):,} papers in {len(opened.state.manifest.segments)} segments")


@library.command()
def migrate(
    folder: opt.Folder,
    model: opt.Model,
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter",
            help="Encode no paper: fit a map by which its queries search the old vectors.",
        ),
    ] = False,
    precision: Annotated[
        Literal["float32", "float16"] | None, typer.Option(help="Default: as it is.")
    ] = None,
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
) -> None:
    """Encode a library with another model and switch to it; killed, it goes on."""
    check_model(model)
    from scimult.library import Library

    opened = Library.open(folder, device=device)
    settings = {"pooling": pooling, "similarity": similarity}
    if adapter:
        for task, fitted in opened.adapt(model, dtype=dtype, settings=settings).items():
            told = f"{fitted.kind} finds {fitted.recall:.3f} of the best 10 of {model.name}"
            echo(f"{folder}: {task}: {told}, on papers that were held out")
        echo(f"search with --model {model}")
        return
    done = opened.migrate(
        model, precision=precision, dtype=dtype, settings=settings, show_progress=True
    )
    echo(f"{folder}: {done.papers:,} papers by {model.name} ({done.texts_encoded:,} texts encoded)")


@library.command()
def export(
    folder: opt.Folder,
    to: Annotated[
        Literal["qdrant", "milvus", "opensearch", "pgvector"],
        typer.Option(help="Data base that the papers and vectors go to.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the files that it loads; of qdrant its local mode."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Server of qdrant.")] = None,
    task: Annotated[str, typer.Option(help="Task whose vectors go out.")] = "search",
    name: Annotated[str, typer.Option(help="Of the collection, index or table there.")] = "papers",
    where: Annotated[
        str | None, typer.Option(help='A condition in SQL, such as "year >= 2020".')
    ] = None,
) -> None:
    """Hand papers and vectors to Qdrant, Milvus, OpenSearch or PostgreSQL with pgvector."""
    if (out is None) == (url is None) or (url is not None and to != "qdrant"):
        fix = "give --out, or --url of a Qdrant server"
        raise DataError("no place to export to", fix=fix)
    from scimult.library import Library
    from scimult.library.feeds import feed_files, feed_qdrant

    feed = Library.open(folder).feed(task=task, where=where)
    if to == "qdrant":
        count = feed_qdrant(feed, url or str(out), name)
    else:
        assert out is not None
        count = feed_files(feed, to, out, name)
    echo(f"{url or out}: {count:,} papers for {to}")


@contextmanager
def incoming(
    files: list[str], form: str | None, column: list[str] | None, skip_bad: bool
) -> Iterator[Iterator[Paper]]:
    """Yield the papers of files; what was left out of them is named at the end."""
    from scimult.data.importers.files import find_files
    from scimult.library.records import read_files

    find_files(files)
    columns = columns_of(column)
    with rejecting(skip_bad) as rejects:
        yield read_files(files, rejects, format=form, columns=columns)


def columns_of(given: list[str] | None) -> dict[str, str | None]:
    """Return the fields of options such as ``--column abstract=summary``; None if empty."""
    example = "--column abstract=summary"
    fields = named_values(given or (), "a column", "NAME=FIELD", example, lambda field: True)
    return {name.strip(): field.strip() or None for name, field in fields.items()}


def _tell(folder: Path, count: int, changes: Changes) -> None:
    echo(f"{folder}: {count:,} papers ({changes})")


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_words(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
