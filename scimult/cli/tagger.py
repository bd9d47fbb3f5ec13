"""``scimult tagger``: tags from a vocabulary of one's own, learned from tagged papers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_inputs, check_model, check_output_file
from scimult.cli.common import rejecting, show_list
from scimult.cli.library import columns_of, incoming
from scimult.cli.output import echo, print_table

tagger = typer.Typer(
    name="tagger",
    help="Tags from a vocabulary of your own, with probabilities learned from tagged papers.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="Folder of the tagger.", show_default=False)]
Hierarchies = Literal["flat", "closed", "specific"]
DropUnknown = Annotated[
    bool, typer.Option("--drop-unknown", help="Leave out tags that are not in the vocabulary.")
]


@tagger.command()
def train(
    folder: Folder,
    vocabulary: Annotated[
        Path,
        typer.Option(
            help="JSON lines, CSV, TSV or SKOS (.rdf, .ttl, .nt); .gz too.", show_default=False
        ),
    ],
    model: opt.Model,
    papers: Annotated[
        list[str] | None,
        typer.Option(
            "--papers",
            help="Tagged papers, as of scimult library create, with ids or names of concepts in "
            "the field labels. Without any, names and embeddings of the concepts decide.",
        ),
    ] = None,
    form: opt.Format = None,
    column: opt.Columns = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FIELD: a field of the vocabulary's file, such as label=subject."),
    ] = None,
    language: Annotated[str, typer.Option(help="Of the labels that are read.")] = "en",
    hierarchy: Annotated[
        Hierarchies,
        typer.Option(
            help="flat: each concept by itself; closed: with all that are above it; specific: "
            "learned so, but only the lowest are suggested."
        ),
    ] = "flat",
    task: opt.Task = "classification",
    drop_unknown: DropUnknown = False,
    overwrite: opt.Overwrite = False,
    device: opt.Device = None,
    dtype: opt.Dtype = "auto",
    pooling: opt.Pooling = None,
    similarity: opt.Similarity = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Train a tagger; killed, the same command goes on with the papers that it encoded."""
    check_model(model)
    check_inputs([Path(file) for file in papers or ()])
    from scimult.files import check_replaceable
    from scimult.tagging import Tagger, read_vocabulary
    from scimult.tagging.folder import TAGGER

    check_replaceable(folder, TAGGER if overwrite else None)
    fields = columns_of(field)
    with rejecting(skip_bad) as rejects:
        terms = read_vocabulary(vocabulary, columns=fields, language=language, rejects=rejects)
    tagged = [] if not papers else _tagged(papers, form, column, skip_bad)
    store = folder.parent / f".{folder.name}.unfinished"
    made = Tagger.train(
        folder,
        terms,
        tagged,
        model=model,
        device=device,
        dtype=dtype,
        settings={"pooling": pooling, "similarity": similarity},
        store=store,
        task=task,
        hierarchy=hierarchy,
        drop_unknown=drop_unknown,
        seed=seed,
        show_progress=True,
    )
    shutil.rmtree(store, ignore_errors=True)
    facts = made.facts
    echo(f"{folder}: {made}")
    if made.is_calibrated:
        told = f"{facts['concepts_with_papers']:,} concepts have papers"
        echo(f"{told}; expected calibration error {facts['expected_calibration_error']:.4f}")
    else:
        echo("scores are no probabilities: there are no tagged papers", err=True)


@tagger.command()
def evaluate(
    folder: Folder,
    papers: opt.Files,
    form: opt.Format = None,
    column: opt.Columns = None,
    precision: Annotated[
        float | None, typer.Option(help="Measure what comes of this wanted precision, too.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the numbers as JSON.")] = None,
    overwrite: opt.Overwrite = False,
    drop_unknown: DropUnknown = False,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
    as_json: opt.AsJson = False,
) -> None:
    """Measure a tagger on papers that it did not learn from."""
    check_inputs([Path(file) for file in papers])
    if out is not None:
        check_output_file(out, overwrite, [Path(file) for file in papers])
    from scimult.files import write_json
    from scimult.tagging import Tagger
    from scimult.tagging.evaluating import evaluate_tagger

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
        Path | None, typer.Option(help="Write .jsonl, .csv or .trec here instead of printing.")
    ] = None,
    overwrite: opt.Overwrite = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tags of a paper at most; default: 5, or all above --threshold or --precision.",
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Least score.")] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="In place of a threshold: the precision that tags surely have."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Id or name of a concept to leave out. Repeat it for several."),
    ] = None,
    hierarchy: Annotated[
        Hierarchies | None, typer.Option(help="Other than at the training.")
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Find the sentence that speaks for each tag.")
    ] = False,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
    as_json: opt.AsJson = False,
) -> None:
    """Tag papers; with --out any number of them, and killed, the same command goes on."""
    check_inputs([Path(file) for file in papers])
    from scimult.files import sha256
    from scimult.tagging import Tagger
    from scimult.tagging.folder import FILE, VOCABULARY
    from scimult.tagging.writing import as_row, format_of, write_tags
    from scimult.types import Text

    if out is not None:
        check_output_file(out, overwrite, [Path(file) for file in papers])
        format_of(out)
    opened = Tagger.open(folder, model=model, device=device)
    alone = threshold is None and precision is None
    k = 5 if top is None and alone else top
    options: dict[str, Any] = {"k": k, "threshold": threshold, "precision": precision}
    options |= {"exclude": exclude or (), "hierarchy": hierarchy, "evidence": evidence}
    opened.tag([], **options)  # what contradicts itself is said before any work

    def suggest(texts: list[Text]) -> list[list[Any]]:
        return opened.tag(texts, show_progress=True, **options)

    with incoming(papers, form, column, skip_bad) as read:
        pairs = ((one.id, one.text) for one in read)
        if out is not None:
            settings = {**options, "tagger": [sha256(folder / name) for name in (FILE, VOCABULARY)]}
            count, tags = write_tags(out, pairs, suggest, settings)
            echo(f"{out}: {tags:,} tags for {count:,} papers")
            return
        known = list(pairs)
    lists = suggest([text for _, text in known])
    rows = [as_row(n, text.title, tags) for (n, text), tags in zip(known, lists, strict=True)]
    _print(rows, str(folder), as_json)


def _tagged(
    papers: list[str], form: str | None, column: list[str] | None, skip_bad: bool
) -> list[dict[str, Any]]:
    """Return papers with the field ``labels``; those without a list have no tags."""
    with incoming(papers, form, column, skip_bad) as read:
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
        real = "none suggested" if at["measured"] is None else f"{at['measured']:.4f}"
        notes.append(
            f"wanted precision {at['wanted']:g}: {real}, {at['tags_per_paper']:.2f} tags a paper, "
            f"{at['share_of_gold']:.1%} of those that people gave"
        )
    print_table(Table(title, heads, 1, rows, notes=notes))


def _print(rows: list[dict[str, Any]], title: str, as_json: bool) -> None:
    if as_json:
        show_list(rows, "", as_json=True)
        return
    lines = [
        {
            "paper": row["title"] if place == 0 else "",
            "score": one["score"],
            "tag": one["label"],
            **({"evidence": one["evidence"]} if "evidence" in one else {}),
        }
        for row in rows
        for place, one in enumerate(row["tags"])
    ]
    show_list(lines, f"tags by {title}", as_json=False)
