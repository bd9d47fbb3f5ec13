"""The tagger against Annif and omikuji on real sets, for seen and hidden concepts.

``python -m benchmarks.tagging export SET FOLDER`` writes a set in Annif's format; one concept in
five, by a hash of its id, is removed from the training papers. ``benchmarks/tagging_peers.py
FOLDER``, in its own environment, writes suggestions of the others; ``python -m benchmarks.tagging
score SET FOLDER --model MODEL`` trains ours and scores all. Sets are in ``$SCIMULT_DATA``.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.timing import load_average
from scimult.data.lines import read_jsonl
from scimult.data.ragged import Ragged
from scimult.data.records import Rejects
from scimult.evaluation.metrics import compute, judge
from scimult.files import write_text
from scimult.hardware import peak_memory
from scimult.inference import SciMult
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.runs import Qrels, Ranking
from scimult.retrieval.store import StoringEncoder
from scimult.tagging import Concept, Tagger, Vocabulary, read_vocabulary
from scimult.types import FloatArray, Text

Papers = list[dict[str, Any]]
_TEST, _TRAIN = 1500, {"acm": 12_000, "arxiv": 8000}
_METRICS = ("f1@5", "ndcg@10")
_LONGEST = 10
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class TagSet:
    """Papers with tags; no training paper has a hidden concept."""

    vocabulary: Vocabulary
    train: Papers
    test: Papers
    hidden: frozenset[str]

    @property
    def seen(self) -> set[str]:
        """Ids of concepts in training papers."""
        return {tag for paper in self.train for tag in paper["labels"]}


def read_set(name: str) -> TagSet:
    """Read ``acm``, ``arxiv`` or ``mesh``; test papers are the first by a hash of their ids."""
    data = Path(os.environ["SCIMULT_DATA"])
    folder = data / {"acm": "train/acm", "arxiv": "train/arxiv", "mesh": "eval/pubmedqa_mesh"}[name]
    vocabulary = Vocabulary(
        Concept(one.id, one.label, description=one.description)
        for one in read_vocabulary(folder / "labels.jsonl")
    )
    papers = _papers(folder / "papers.jsonl.gz", vocabulary)
    if name == "mesh":
        with (folder / "split.csv").open() as file:
            split = {row["id"]: row["split"] for row in csv.DictReader(file)}
        train, test = ([p for p in papers if split[p["id"]] == s] for s in ("train", "test"))
    elif name == "arxiv":
        train, test = papers, _papers(data / "eval/arxiv2019/papers.jsonl.gz", vocabulary)[:_TEST]
    else:
        papers = [paper for paper in papers if paper["labels"]]
        test, train = papers[:_TEST], papers[_TEST:]
    hidden = frozenset(one.id for one in vocabulary if _hash(one.id) % 5 == 0)
    train = [
        {**paper, "labels": [tag for tag in paper["labels"] if tag not in hidden]}
        for paper in train[: _TRAIN.get(name)]
    ]
    return TagSet(vocabulary, train, test, hidden)


@app.command()
def export(name: str, folder: Path) -> None:
    """Write a set as ``vocabulary.tsv``, ``train.tsv`` and ``test.jsonl``."""
    tagged = read_set(name)
    folder.mkdir(parents=True, exist_ok=True)
    uri = {one.id: f"<{_uri(one.id)}>" for one in tagged.vocabulary}
    terms = [f"{uri[one.id]}\t{one.label}\n" for one in tagged.vocabulary]
    write_text(folder / "vocabulary.tsv", "".join(terms))
    papers = [
        f"{_text(paper)}\t{' '.join(uri[tag] for tag in paper['labels'])}\n"
        for paper in tagged.train
        if paper["labels"]
    ]
    write_text(folder / "train.tsv", "".join(papers))
    test = [json.dumps({"id": paper["id"], "text": _text(paper)}) + "\n" for paper in tagged.test]
    write_text(folder / "test.jsonl", "".join(test))


@app.command()
def score(
    name: str,
    folder: Path,
    model: Annotated[Path, typer.Option()],
    only: Annotated[
        list[str] | None, typer.Option(help="Peer to score (repeatable). Default: all in FOLDER.")
    ] = None,
) -> None:
    """Train our tagger and print the scores of all, for seen, hidden and all concepts."""
    tagged = read_set(name)
    started = load_average(), time.process_time()
    encoder = SciMult.from_pretrained(model, dtype="auto")
    stored = StoringEncoder(encoder, folder / "store", encoder.fingerprint, "float32")

    def vectors(papers: Papers) -> FloatArray:
        texts = [Text("paper", paper["title"], paper["abstract"]) for paper in papers]
        return stored.encode(texts, task="classification", role="query", show_progress=True)

    train_ND, test_ND = vectors(tagged.train), vectors(tagged.test)
    clock = [time.process_time()]
    ours = Tagger.train(
        folder / "tagger", tagged.vocabulary, tagged.train, model=encoder, vectors=train_ND
    )
    clock.append(time.process_time())
    ids = set(tagged.vocabulary.ids)
    groups = {"seen": tagged.seen, "hidden": set(tagged.hidden), "all": ids}

    def tag(group: set[str], tagger: Tagger) -> list[list[str]]:
        suggestions = tagger.tag(
            _bare(tagged.test), k=_LONGEST, exclude=ids - group, evidence=False, vectors=test_ND
        )
        return [[one.id for one in tags] for tags in suggestions]

    zero = Tagger.train(folder / "zero_shot", tagged.vocabulary, model=encoder)
    systems: dict[str, Callable[[set[str]], list[list[str]]]] = {
        "scimult": lambda group: tag(group, ours),
        "scimult, no tagged papers": lambda group: tag(group, zero),
    }
    for file in sorted(folder.glob("peer.*.jsonl")):
        peer = file.name.removeprefix("peer.").removesuffix(".jsonl")
        if not only or peer in only:
            lists = _peer(file, tagged)
            systems[peer] = lambda group, lists=lists: [  # type: ignore[misc]
                [tag for tag in tags if tag in group] for tags in lists
            ]
    typer.echo(
        f"{len(tagged.train)} papers, {len(tagged.seen)} concepts seen, "
        f"{len(tagged.hidden)} hidden, {len(tagged.test)} test papers; facts {ours.facts}; "
        f"encoding {clock[0] - started[1]:.0f} CPU s ({stored.texts_encoded} texts), training "
        f"{clock[1] - clock[0]:.0f} CPU s; load {started[0]:.1f}"
    )
    for system, lists_of in systems.items():
        cells = []
        for group, members in groups.items():
            values = metrics_of(lists_of(members), tagged, members)
            cells += [f"{group} {' '.join(f'{value:.3f}' for value in values)}"]
        typer.echo(f"{system:24s} {' | '.join(cells)}")


@app.command()
def scale(
    folder: Path,
    model: Annotated[Path, typer.Option()],
    papers: int = 50_000,
    concepts: int = 5000,
    queries: int = 50_000,
) -> None:
    """Train and tag at scale: texts and tags of ``acm``, random embeddings, extra concepts."""
    tagged = read_set("acm")
    everything = [*tagged.test, *_papers_of_acm(tagged.vocabulary)][:papers]
    extra = (Concept(f"more-{n}", f"Subject {n}") for n in range(concepts))
    vocabulary = Vocabulary([*tagged.vocabulary, *extra][:concepts])
    encoder = SciMult.from_pretrained(model, dtype="auto")
    rng = np.random.default_rng(0)
    vectors = unit_rows(rng.normal(size=(len(everything), encoder.width)).astype(np.float32))
    started = load_average()
    clock = [(time.process_time(), time.perf_counter())]
    tagger = Tagger.train(
        folder, vocabulary, everything, model=encoder, vectors=vectors, show_progress=True
    )
    clock.append((time.process_time(), time.perf_counter()))
    texts = _bare(everything[:queries])
    tagger.tag(texts, evidence=False, vectors=vectors[:queries], show_progress=True)
    clock.append((time.process_time(), time.perf_counter()))
    for step, before, after in zip(("training", "tagging"), clock, clock[1:], strict=False):
        typer.echo(f"{step}: {after[0] - before[0]:.0f} CPU s, {after[1] - before[1]:.0f} s")
    sizes = f"{len(everything)} papers, {len(texts)} tagged, {len(vocabulary)} concepts"
    typer.echo(f"{sizes}; peak {peak_memory() / 1e6:.0f} MB; load {started:.1f}")


def metrics_of(lists: Sequence[Sequence[str]], tagged: TagSet, members: set[str]) -> list[float]:
    """Return the metrics over papers that have a tag among ``members``."""
    row_of = {name: row for row, name in enumerate(tagged.vocabulary.ids)}
    gold = [[row_of[tag] for tag in paper["labels"] if tag in members] for paper in tagged.test]
    papers = [paper for paper, rows in enumerate(gold) if rows]
    rows_QK = np.full((len(papers), _LONGEST), -1, dtype=np.int64)
    for query, paper in enumerate(papers):
        rows = [row_of[tag] for tag in lists[paper]][:_LONGEST]
        rows_QK[query, : len(rows)] = rows
    relevant = Ragged.from_lists(sorted(gold[paper]) for paper in papers)
    grades = Ragged(np.ones_like(relevant.values), relevant.offsets)
    scores_QK = np.where(rows_QK >= 0, -np.arange(_LONGEST, dtype=np.float32), -np.inf)
    ranking = Ranking(rows_QK, scores_QK.astype(np.float32))
    judged = judge(ranking, Qrels(relevant, grades, len(row_of)))
    return [float(compute(metric, judged).mean()) for metric in _METRICS]


def _peer(file: Path, tagged: TagSet) -> list[list[str]]:
    names = {_uri(name): name for name in tagged.vocabulary.ids}
    rows = [json.loads(line) for line in file.open(encoding="utf-8")]
    return [[names[uri] for uri, _ in row["labels"]] for row in rows]


def _papers(path: Path, vocabulary: Vocabulary) -> Papers:
    known = set(vocabulary.ids)
    fields: Iterator[dict[str, Any]] = (one.fields for one in read_jsonl(path, Rejects()))
    papers = [{**p, "labels": [tag for tag in p["labels"] if tag in known]} for p in fields]
    return sorted(papers, key=lambda paper: _hash(paper["id"]))


def _papers_of_acm(vocabulary: Vocabulary) -> Papers:
    data = Path(os.environ["SCIMULT_DATA"])
    papers = _papers(data / "train/acm/papers.jsonl.gz", vocabulary)
    return [paper for paper in papers if paper["labels"]][_TEST:]


def _bare(papers: Iterable[dict[str, Any]]) -> Papers:
    return [{"title": paper["title"], "abstract": paper["abstract"]} for paper in papers]


def _text(paper: dict[str, Any]) -> str:
    return " ".join(f"{paper['title']}. {paper['abstract']}".split())


def _uri(name: str) -> str:
    return f"http://example.org/{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _hash(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)


if __name__ == "__main__":
    app()
