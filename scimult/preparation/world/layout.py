"""Write a world as files: a training part and evaluation sets.

Papers of the held-out years are in no training file, and no training query has the same
combination of concepts as an evaluation query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import scimult
from scimult.files import FolderKind, atomic_folder, holds_only, read_json, sha256
from scimult.preparation.world.fields import COARSE, FINE
from scimult.preparation.world.settings import stream
from scimult.preparation.world.world import World
from scimult.types import Text

MANIFEST = "manifest.json"
FORMAT = "scimult generated world"
VERSION = 1
_QRELS_HEADER = ("query-id", "corpus-id", "score")

Row = Sequence[Any]


def _is_world(folder: Path) -> bool:
    manifest = read_json(folder / MANIFEST)
    ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    return ours and holds_only(folder, [MANIFEST, *manifest["records"]])


WORLD = FolderKind("a generated world and nothing else", _is_world)


def write_world(world: World, folder: Path | str) -> dict[str, int]:
    """Write the training files, the evaluation sets and a manifest, all or nothing.

    Returns
    -------
    counts : dict
        Number of records of each file, by relative path.

    Raises
    ------
    StorageError
        If the folder holds something other than a generated world, or cannot be written.
    """
    folder = Path(folder)
    with atomic_folder(folder, WORLD) as temporary:
        files = _Files(temporary)
        _write_training(world, files)
        _write_field_sets(world, files)
        _write_citation_sets(world, files)
        _write_search_set(world, files)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "scimult": scimult.__version__,
            "settings": world.settings.model_dump(mode="json"),
            "records": files.records,
            "sha256": {name: sha256(temporary / name) for name in files.records},
        }
        text = json.dumps(manifest, indent=2) + "\n"
        (temporary / MANIFEST).write_text(text, encoding="utf-8")
    return files.records


def _rerank_lists(world: World) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield held-out query papers with cited papers and others of the same coarse field.

    The others are older than the query paper, so that age does not give them away.
    """
    settings, rng = world.settings, stream(world.settings, "rerank")
    coarse = np.array([world.tree.lineage(paper.fields[0])[-1] for paper in world.papers])
    for query in _citing_queries(world):
        cited = world.references[query]
        others = np.setdiff1d(np.flatnonzero(coarse[:query] == coarse[query]), cited)
        if len(others) >= settings.rerank_others:
            shown = rng.choice(cited, settings.rerank_cited, replace=False)
            distractors = rng.choice(others, settings.rerank_others, replace=False)
            yield query, shown.tolist(), distractors.tolist()


def paper_id(row: int) -> str:
    """Return the id of the paper in a row."""
    return f"p{row:06d}"


class _Files:
    """Writes JSON lines and tables below a folder and counts their records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.records: dict[str, int] = {}

    def jsonl(self, name: str, records: Iterable[dict[str, Any]]) -> None:
        self._write(name, [json.dumps(record, ensure_ascii=False) for record in records], header=0)

    def table(self, name: str, header: Row, rows: Iterable[Row]) -> None:
        separator = "," if name.endswith(".csv") else "\t"
        lines = [separator.join(map(str, row)) for row in (header, *rows)]
        self._write(name, lines, header=1)

    def _write(self, name: str, lines: list[str], header: int) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
        self.records[name] = len(lines) - header


def _write_training(world: World, files: _Files) -> None:
    old = range(world.first_held_out)
    fine = world.tree.level(FINE)
    files.jsonl("train/papers.jsonl", (_labelled_paper(world, row, FINE) for row in old))
    files.jsonl("train/labels.jsonl", (_label(world, field) for field in fine))
    edges = ((paper_id(row), paper_id(cited)) for row in old for cited in world.references[row])
    files.table("train/citations.tsv", ("citing", "cited"), edges)
    queries = ({"id": query.id, "text": query.text} for query in world.train_queries)
    files.jsonl("train/queries.jsonl", queries)
    clicks = (
        (query.id, paper_id(row), int(row in query.clicked))
        for query in world.train_queries
        for row in query.shown
    )
    files.table("train/clicks.tsv", ("query-id", "paper-id", "clicked"), clicks)


def _write_field_sets(world: World, files: _Files) -> None:
    new = range(world.first_held_out, len(world.papers))
    for name, level in (("fields_fine", FINE), ("fields_coarse", COARSE)):
        papers = (_labelled_paper(world, row, level) for row in new)
        files.jsonl(f"eval/{name}/papers.jsonl", papers)
        labels = (_label(world, field) for field in world.tree.level(level))
        files.jsonl(f"eval/{name}/labels.jsonl", labels)


def _write_citation_sets(world: World, files: _Files) -> None:
    queries = _citing_queries(world)
    files.jsonl("eval/cite/corpus.jsonl", _corpus(world, range(len(world.papers))))
    files.jsonl("eval/cite/queries.jsonl", (_query_paper(world, row) for row in queries))
    edges = ((paper_id(row), paper_id(c), 1) for row in queries for c in world.references[row])
    files.table("eval/cite/qrels/test.tsv", _QRELS_HEADER, edges)

    lists = list(_rerank_lists(world))
    listed = sorted({row for _, cited, others in lists for row in (*cited, *others)})
    scored = [
        (paper_id(query), paper_id(row), int(row in cited))
        for query, cited, others in lists
        for row in sorted((*cited, *others))
    ]
    files.jsonl("eval/cite_rerank/corpus.jsonl", _corpus(world, listed))
    ranked = (_query_paper(world, query) for query, _, _ in lists)
    files.jsonl("eval/cite_rerank/queries.jsonl", ranked)
    files.table("eval/cite_rerank/candidates.tsv", _QRELS_HEADER, scored)
    relevant = (row for row in scored if row[2] == 1)
    files.table("eval/cite_rerank/qrels/test.tsv", _QRELS_HEADER, relevant)


def _write_search_set(world: World, files: _Files) -> None:
    files.jsonl("eval/search/corpus.jsonl", _corpus(world, range(len(world.papers))))
    queries = ({"_id": query.id, "text": query.text} for query in world.eval_queries)
    files.jsonl("eval/search/queries.jsonl", queries)
    relevant = (
        (query.id, paper_id(row), 1) for query in world.eval_queries for row in query.relevant
    )
    files.table("eval/search/qrels/test.tsv", _QRELS_HEADER, relevant)


def _citing_queries(world: World) -> list[int]:
    """Return held-out papers with enough references to be queries, sorted."""
    rows = [
        row
        for row in range(world.first_held_out, len(world.papers))
        if len(world.references[row]) >= world.settings.rerank_cited
    ]
    rng = stream(world.settings, "query papers")
    count = min(world.settings.eval_queries, len(rows))
    return sorted(rng.choice(rows, size=count, replace=False).tolist())


def _labelled_paper(world: World, row: int, level: int) -> dict[str, Any]:
    """Return the record of a paper, labelled with its fine fields or its coarse field."""
    paper, text = world.papers[row], world.paper_texts[row]
    main, _, coarse = (world.tree.fields[field].id for field in world.tree.lineage(paper.fields[0]))
    labels = [coarse] if level == COARSE else [world.tree.fields[f].id for f in paper.fields]
    return {
        "id": paper_id(row),
        "title": text.title,
        "abstract": text.body,
        "authors": list(paper.authors),
        "labels": sorted(labels),
        "primary": coarse if level == COARSE else main,
        "venue": paper.venue,
        "year": paper.year,
    }


def _label(world: World, field: int) -> dict[str, str]:
    text: Text = world.labels[field]
    return {"id": world.tree.fields[field].id, "name": text.title, "definition": text.body}


def _corpus(world: World, rows: Iterable[int]) -> Iterator[dict[str, Any]]:
    for row in rows:
        text = world.paper_texts[row]
        year = world.papers[row].year
        yield {"_id": paper_id(row), "title": text.title, "text": text.body, "year": year}


def _query_paper(world: World, row: int) -> dict[str, Any]:
    text = world.paper_texts[row]
    return {
        "_id": paper_id(row),
        "text": f"{text.title} {text.body}",
        "title": text.title,
        "abstract": text.body,
        "year": world.papers[row].year,
    }
