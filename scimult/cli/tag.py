"""``scimult tag``: labels for papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scimult.cli.checks import check_output_file, check_use
from scimult.cli.common import (
    AsJson,
    Device,
    Dtype,
    Model,
    NoCache,
    Overwrite,
    Papers,
    Pooling,
    Similarity,
    SkipBad,
    Top,
    embed,
    open_collection,
    open_model,
    ranked,
    show_list,
)
from scimult.cli.output import echo
from scimult.files import write_text


def tag(
    model: Model,
    papers: Papers,
    labels: Annotated[
        Path,
        typer.Option(
            help="JSON lines or one JSON array with id, name and definition, or a folder with "
            "labels.jsonl.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write JSON lines here instead of printing.")
    ] = None,
    overwrite: Overwrite = False,
    top: Top = 5,
    task: Annotated[str, typer.Option(help="Task of the model.")] = "classification",
    device: Device = None,
    dtype: Dtype = "auto",
    pooling: Pooling = None,
    similarity: Similarity = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Rank labels for every paper by the labels' names and definitions."""
    files = check_use(model, papers, labels)
    if out is not None:
        check_output_file(out, overwrite, files)
    encoder = open_model(model, device, dtype, pooling, similarity)
    queries = open_collection(papers, encoder.kind(task, "query"), skip_bad)
    space = open_collection(labels, encoder.kind(task, "candidate"), skip_bad)
    papers_ND = embed(encoder, queries, task, "query", no_cache)
    labels_CD = embed(encoder, space, task, "candidate", no_cache)
    lists = ranked(encoder, space, labels_CD, papers_ND, top)
    tagged: list[dict[str, Any]] = [
        {"id": name, "title": text.title, "labels": found}
        for name, text, found in zip(queries.ids, queries.texts, lists, strict=True)
    ]
    if out is not None:
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in tagged))
        echo(f"{out}: {min(top, len(space))} labels for each of {len(tagged):,} papers")
    elif as_json:
        show_list(tagged, "", as_json=True)
    else:
        rows = [{**row, "labels": _names(row["labels"])} for row in tagged]
        show_list(rows, f"labels of {queries.path}", as_json=False)


def _names(found: list[dict[str, Any]]) -> str:
    return "\n".join(str(label["title"]) for label in found)
