"""``scimult tagger``: tags from your own vocabulary, learned from tagged papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_model, check_output_file, check_output_folder, only_with
from scimult.cli.common import rejecting, show_list
from scimult.cli.library import columns_of, incoming
from scimult.cli.output import echo, print_table
from scimult.data.importers import find_files
from scimult.terminal import counted

tagger = typer.Typer(
    name="tagger",
    help="Tag papers from your own vocabulary, with probabilities learned from tagged papers.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="Tagger folder.", show_default=False)]
Hierarchies = Literal["flat", "closed", "specific"]
DropUnknown = Annotated[
    bool, typer.Option("--drop-unknown", help="Ignore tags that are not in the vocabulary.")
]


@tagger.command()
def train(
    folder: Folder,
    vocabulary: Annotated[
        Path,
        typer.Option(
            help="Vocabulary: JSON lines, CSV, TSV or SKOS (.rdf, .ttl, .nt); .gz too.",
            show_default=False,
        ),
    ],
    model: opt.Model,
    papers: Annotated[
        list[str] | None,
        typer.Option(
            "--papers",
            help="Tagged papers, in the formats of scimult library create, with ids or names of "
            "concepts in the field labels (repeatable). Without papers, only names and embeddings "
            "of the concepts are used.",
        ),
    ] = None,
    form: opt.Format = None,
    column: opt.Columns = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FIELD: field of the vocabulary, such as label=subject."),
    ] = None,
    language: Annotated[str, typer.Option(help="Language of the labels to read.")] = "en",
    hierarchy: Annotated[
        Hierarchies,
        typer.Option(
            help="flat: each concept by itself; closed: with all broader concepts; specific: "
            "learned like closed, but only the narrowest are suggested."
        ),
    ] = "flat",
    task: opt.Task = "classification",
    drop_unknown: DropUnknown = False,
    overwrite: opt.Overwrite = False,
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Train a tagger; repeat the command to resume, reusing the papers already encoded."""
    check_model(model)
    if papers:
        find_files(papers)
    else:
        of_papers = {"--format": form, "--column": column, "--drop-unknown": drop_unknown}
        only_with("--papers", of_papers, "; --field names fields of the vocabulary")
    from scimult.tagging import Tagger, read_vocabulary
    from scimult.tagging.folder import TAGGER
    from scimult.unfinished import unfinished

    check_output_folder(folder, TAGGER, overwrite)
    fields = columns_of(field)
    with rejecting(skip_bad) as rejects:
        terms = read_vocabulary(vocabulary, columns=fields, language=language, rejects=rejects)
    tagged = [] if not papers else _tagged(papers, form, column, skip_bad)
    with unfinished(folder) as store:
        trained = Tagger.train(
            folder,
            terms,
            tagged,
            model=model,
            device=device,
            dtype=dtype,
            settings={"pooling": pooling, "similarity": similarity},
            store=store,
            overwrite=overwrite,
            task=task,
            hierarchy=hierarchy,
            drop_unknown=drop_unknown,
            seed=seed,
            show_progress=True,
        )
    facts = trained.facts
    echo(f"{folder}: {trained}")
    if trained.is_calibrated:
        error = f"expected calibration error {facts['expected_calibration_error']:.4f}"
        echo(f"{counted(facts['concepts_with_papers'], 'concept')} with papers; {error}")
    else:
        echo("without tagged papers, scores are not probabilities", err=True)


@tagger.command()
def evaluate(
    folder: Folder,
    papers: opt.Files,
    form: opt.Format = None,
    column: opt.Columns = None,
    precision: Annotated[
        float | None, typer.Option(help="Also measure the tags at this target precision.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    overwrite: opt.Overwrite = False,
    drop_unknown: DropUnknown = False,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
    as_json: opt.AsJson = False,
) -> None:
    """Evaluate a tagger on papers that it was not trained on."""
    files = find_files(papers)
    if out is not None:
        check_output_file(out, overwrite, files)
    from scimult.files import write_json
    from scimult.tagging import Tagger
    from scimult.tagging.evaluating import evaluate_tagger
    from scimult.tagging.sets import check_limits
    from scimult.unfinished import alone_with

    check_limits(None, None, precision)
    with alone_with(out):
        tagged = _tagged(papers, form, column, skip_bad)
        opened = Tagger.open(folder, model=model, device=device)
        facts = evaluate_tagger(
            opened, tagged, precision=precision, drop_unknown=drop_unknown, show_progress=True
        )
        if out is not None:
            write_json(out, facts)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show(facts, str(folder))


@tagger.command()
def tag(
    folder: Folder,
    papers: opt.Files,
    form: opt.Format = None,
    column: opt.Columns = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File (.jsonl, .csv or .trec) to write instead of printing."),
    ] = None,
    overwrite: opt.Overwrite = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tags per paper. Default: 5, or all that meet --threshold or --precision.",
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Lowest score, from 0 to 1.")] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="Target precision of the tags, instead of --threshold."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Id or name of a concept to leave out (repeatable)."),
    ] = None,
    hierarchy: Annotated[
        Hierarchies | None, typer.Option(help="Override the hierarchy of the training.")
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Show the sentence that supports each tag.")
    ] = False,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
    as_json: opt.AsJson = False,
) -> None:
    """Tag papers; with --out, any number of them, and repeating the command resumes."""
    files = find_files(papers)
    from scimult.files import sha256
    from scimult.tagging import Tagger
    from scimult.tagging.folder import FILE, VOCABULARY
    from scimult.tagging.sets import check_limits
    from scimult.tagging.writing import as_row, format_of, write_tags
    from scimult.types import Text

    check_limits(top, threshold, precision)
    content = []
    if out is not None:
        check_output_file(out, overwrite, files)
        format_of(out)
        # Before it is opened: if another one replaces it meanwhile, its tags must not count as
        # that's.
        parts = [folder / name for name in (FILE, VOCABULARY)]
        content = [sha256(part) for part in parts if part.is_file()]
    opened = Tagger.open(folder, model=model, device=device)
    alone = threshold is None and precision is None
    k = 5 if top is None and alone else top
    options: dict[str, Any] = {"k": k, "threshold": threshold, "precision": precision}
    options |= {"exclude": exclude or (), "hierarchy": hierarchy, "evidence": evidence}
    opened.tag([], **options)  # reports contradictory options before any work

    def suggest(texts: list[Text]) -> list[list[Any]]:
        return opened.tag(texts, show_progress=True, **options)

    with incoming(papers, form, column, skip_bad) as (read, _):
        pairs = ((one.id, one.text) for one in read)
        if out is not None:
            count, tags = write_tags(out, pairs, suggest, {**options, "tagger": content})
            echo(f"{out}: {counted(tags, 'tag')} for {counted(count, 'paper')}")
            return
        known = list(pairs)
    lists = suggest([text for _, text in known])
    rows = [as_row(n, text.title, tags) for (n, text), tags in zip(known, lists, strict=True)]
    _print(rows, str(folder), as_json)


def _tagged(
    papers: list[str], form: str | None, column: list[str] | None, skip_bad: bool
) -> list[dict[str, Any]]:
    """Return papers with their ``labels``, an empty list where there are none."""
    with incoming(papers, form, column, skip_bad) as (read, _):
        return [
            {
                "id": one.id,
                "title": one.text.title,
                "abstract": one.text.body,
                "labels": one.columns.get("labels") or [],
            }
            for one in read
        ]


def _show(facts: dict[str, Any], title: str) -> None:
    from scimult.table import Table, texts

    groups = [name for name in ("all", "seen", "unseen") if facts[name]["papers"]]
    heads = ["concepts", *facts["all"]]
    rows = [
        texts(name, *(f"{v:,}" if isinstance(v, int) else f"{v:.4f}" for v in facts[name].values()))
        for name in groups
    ]
    notes = [f"expected calibration error {facts['expected_calibration_error']:.4f}"]
    if "at_precision" in facts:
        at = facts["at_precision"]
        measured = "no tags" if at["measured"] is None else f"{at['measured']:.4f}"
        notes.append(
            f"target precision {at['wanted']:g}: {measured}, {at['tags_per_paper']:.2f} tags per "
            f"paper, {at['share_of_gold']:.1%} of the gold tags"
        )
    print_table(Table(title, heads, 1, rows, notes=notes))


def _print(rows: list[dict[str, Any]], title: str, as_json: bool) -> None:
    bare = sum(not row["tags"] for row in rows)
    if bare:
        papers = counted(len(rows), "paper")
        echo(f"no tag reaches the threshold for {bare:,} of {papers}", err=True)
    if as_json:
        show_list(rows, "", as_json=True)
        return
    lines = [
        {
            "paper": row["title"] if index == 0 else "",
            "score": one["score"],
            "tag": one["label"],
            **({"evidence": one["evidence"]} if "evidence" in one else {}),
        }
        for row in rows
        for index, one in enumerate(row["tags"])
    ]
    show_list(lines, f"tags by {title}", as_json=False)
