"""``scimult tag``: rank labels for papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_output_file, check_use
from scimult.cli.common import embed, open_collection, open_model, ranked, read_labels, show_list
from scimult.cli.in_library import asked, check_paper_source
from scimult.cli.output import echo
from scimult.data.text_files import check_labels, is_table
from scimult.errors import StorageError
from scimult.files import write_text
from scimult.terminal import counted
from scimult.unfinished import alone_with


def tag(
    labels: Annotated[
        Path,
        typer.Option(
            help="JSON lines, one JSON array, CSV or TSV with id, name and definition, or a folder "
            "with labels.jsonl.",
            show_default=False,
        ),
    ],
    library: opt.InLibrary = None,
    model: opt.AnyModel = None,
    papers: opt.AnyPapers = None,
    where: opt.Where = None,
    paper: Annotated[
        list[str] | None,
        typer.Option("--id", help="With --library: id of a paper to tag (repeatable)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines file to write instead of printing.")
    ] = None,
    overwrite: opt.Overwrite = False,
    top: opt.Top = 5,
    task: opt.Task = "classification",
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    no_cache: opt.NoCache = False,
    skip_bad: opt.SkipBad = False,
    as_json: opt.AsJson = False,
) -> None:
    """Rank labels for each paper by their names and definitions."""
    of_library = {"--where": where, "--id": paper}
    of_papers: dict[str, object] = {"--dtype": dtype != "auto", "--no-cache": no_cache}
    of_papers |= {"--pooling": pooling, "--similarity": similarity}
    check_paper_source(library, model, papers, of_library, of_papers)
    if out is not None and is_table(out):
        fix = "name a file that ends in .jsonl; scimult tagger tag writes CSV"
        raise StorageError("labels are written as JSON lines", path=out, fix=fix)
    if library is not None:
        if out is not None:
            check_output_file(out, overwrite, [check_labels(labels)])
        from scimult.library import Library

        with alone_with(out):
            names = read_labels(labels, skip_bad)
            opened = Library.open(library, model=model, device=device)
            options: dict[str, Any] = {"ids": paper, "where": where, "k": top, "task": task}
            hits = asked(opened, lambda library: library.tag(names, **options))
            tagged: list[dict[str, Any]] = [
                {"id": one.id, "title": one.title, "labels": one.labels.as_dicts()} for one in hits
            ]
            _show(tagged, str(library), out, as_json)
        return
    assert model is not None
    assert papers is not None
    files = [*check_use(model, papers), check_labels(labels)]
    if out is not None:
        check_output_file(out, overwrite, files)
    with alone_with(out):
        encoder = open_model(model, device, dtype, pooling, similarity)
        encoder.tasks.check_labels(task)
        queries = open_collection(papers, "paper", skip_bad)
        space = open_collection(labels, "label", skip_bad)
        papers_ND = embed(encoder, queries, task, "query", no_cache)
        labels_CD = embed(encoder, space, task, "candidate", no_cache)
        lists = ranked(encoder, space, labels_CD, papers_ND, top)
        tagged = [
            {"id": name, "title": text.title, "labels": best}
            for name, text, best in zip(queries.ids, queries.texts, lists, strict=True)
        ]
        _show(tagged, str(queries.path), out, as_json)


def _show(tagged: list[dict[str, Any]], source: str, out: Path | None, as_json: bool) -> None:
    if out is not None:
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in tagged))
        most = max((len(row["labels"]) for row in tagged), default=0)
        papers = counted(len(tagged), "paper")
        echo(f"{out}: up to {counted(most, 'label')} for each of {papers}")
    elif as_json:
        show_list(tagged, "", as_json=True)
    else:
        rows = [
            {**row, "labels": "\n".join(str(label["title"]) for label in row["labels"])}
            for row in tagged
        ]
        show_list(rows, f"labels of {source}", as_json=False)
