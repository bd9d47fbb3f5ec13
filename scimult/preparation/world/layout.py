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
from scimult.files import FolderKind, atomic_folder, holds_only, read_json, sha256, write_json
from scimult.preparation.world.fields import COARSE, FINE, stream
from scimult.preparation.world.world import World

MANIFEST = "manifest.json"
FORMAT = "scimult generated world"
VERSION = 1
_QRELS_HEADER = ("query-id", "corpus-id", "score")
# Records of JSON lines, or the rows of a table, header first.
Rows = Iterable[dict[str, Any] | Sequence[Any]]


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
    records: dict[str, int] = {}
    with atomic_folder(folder, WORLD) as temporary:
        for name, rows in _files(world):
            lines = [
                json.dumps(row, ensure_ascii=False)
                if isinstance(row, dict)
                else "\t".join(map(str, row))
                for row in rows
            ]
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
            records[name] = len(lines) - name.endswith(".tsv")
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "scimult": scimult.__version__,
            "settings": world.settings.model_dump(mode="json"),
            "records": records,
            "sha256": {name: sha256(temporary / name) for name in records},
        }
        write_json(temporary / MANIFEST, manifest)
    return records


def paper_id(row: int) -> str:
    """Return the id of the paper in a row."""
    return f"p{row:06d}"


def _files(world: World) -> Iterator[tuple[str, Rows]]:
    """Yield name and content of every file but the manifest."""
    old, papers = range(world.first_held_out), range(len(world.papers))
    yield "train/papers.jsonl", (_labelled_paper(world, row, FINE) for row in old)
    yield "train/labels.jsonl", _labels(world, FINE)
    edges = ((paper_id(row), paper_id(cited)) for row in old for cited in world.references[row])
    yield "train/citations.tsv", (("citing", "cited"), *edges)
    yield "train/queries.jsonl", ({"id": q.id, "text": q.text} for q in world.train_queries)
    clicks = (
        (query.id, paper_id(row), int(row in query.clicked))
        for query in world.train_queries
        for row in query.results
    )
    yield "train/clicks.tsv", (("query-id", "paper-id", "clicked"), *clicks)

    for name, level in (("fields_fine", FINE), ("fields_coarse", COARSE)):
        new = papers[world.first_held_out :]
        yield f"eval/{name}/papers.jsonl", (_labelled_paper(world, row, level) for row in new)
        yield f"eval/{name}/labels.jsonl", _labels(world, level)

    queries = _citing_queries(world)
    yield "eval/cite/corpus.jsonl", _corpus(world, papers)
    yield "eval/cite/queries.jsonl", (_query_paper(world, row) for row in queries)
    judged = ((paper_id(row), paper_id(c), 1) for row in queries for c in world.references[row])
    yield "eval/cite/qrels/test.tsv", (_QRELS_HEADER, *judged)

    lists = dict(_rerank_lists(world, queries))
    listed = sorted(set().union(*lists.values()))
    scored = [
        (paper_id(query), paper_id(row), int(is_cited))
        for query, candidates in lists.items()
        for row, is_cited in sorted(candidates.items())
    ]
    yield "eval/cite_rerank/corpus.jsonl", _corpus(world, listed)
    yield "eval/cite_rerank/queries.jsonl", (_query_paper(world, query) for query in lists)
    yield "eval/cite_rerank/candidates.tsv", (_QRELS_HEADER, *scored)
    relevant = (row for row in scored if row[2] == 1)
    yield "eval/cite_rerank/qrels/test.tsv", (_QRELS_HEADER, *relevant)

    yield "eval/search/corpus.jsonl", _corpus(world, papers)
    yield "eval/search/queries.jsonl", ({"_id": q.id, "text": q.text} for q in world.eval_queries)
    answers = ((q.id, paper_id(row), 1) for q in world.eval_queries for row in q.relevant)
    yield "eval/search/qrels/test.tsv", (_QRELS_HEADER, *answers)


def _citing_queries(world: World) -> list[int]:
    """Return held-out papers with enough references to be queries, sorted."""
    new, least = range(world.first_held_out, len(world.papers)), world.settings.rerank_cited
    rows = [row for row in new if len(world.references[row]) >= least]
    count = min(world.settings.eval_queries, len(rows))
    queries = stream(world.settings, "query papers").choice(rows, size=count, replace=False)
    return sorted(queries.tolist())


def _rerank_lists(world: World, queries: Iterable[int]) -> Iterator[tuple[int, dict[int, bool]]]:
    """Yield query papers with the papers to rank, and whether each is cited.

    The others are of the same coarse field, and older than the query paper, so that age does not
    give them away.
    """
    settings, rng = world.settings, stream(world.settings, "rerank")
    coarse = np.array([world.tree.lineage(paper.fields[0])[-1] for paper in world.papers])
    for query in queries:
        cited = world.references[query]
        others = np.setdiff1d(np.flatnonzero(coarse[:query] == coarse[query]), cited)
        if len(others) >= settings.rerank_others:
            relevant = rng.choice(cited, settings.rerank_cited, replace=False).tolist()
            distractors = rng.choice(others, settings.rerank_others, replace=False).tolist()
            yield query, dict.fromkeys(relevant, True) | dict.fromkeys(distractors, False)


def _labelled_paper(world: World, row: int, level: int) -> dict[str, Any]:
    """Return the record of a paper, labelled with its fine fields or its coarse field."""
    paper, text, fields = world.papers[row], world.paper_texts[row], world.tree.fields
    named = paper.fields if level == FINE else world.tree.lineage(paper.fields[0])[-1:]
    return {
        "id": paper_id(row),
        "title": text.title,
        "abstract": text.body,
        "authors": list(paper.authors),
        "labels": sorted(fields[field].id for field in named),
        "primary": fields[named[0]].id,
        "venue": paper.venue,
        "year": paper.year,
    }


def _labels(world: World, level: int) -> Rows:
    for field in world.tree.level(level):
        text = world.labels[field]
        identifier = world.tree.fields[field].id
        yield {"id": identifier, "name": text.title, "definition": text.body}


def _corpus(world: World, rows: Iterable[int]) -> Rows:
    for row in rows:
        text, year = world.paper_texts[row], world.papers[row].year
        yield {"_id": paper_id(row), "title": text.title, "text": text.body, "year": year}


def _query_paper(world: World, row: int) -> dict[str, Any]:
    text, year = world.paper_texts[row], world.papers[row].year
    both = {"title": text.title, "abstract": text.body}
    return {"_id": paper_id(row), "text": f"{text.title} {text.body}", **both, "year": year}
