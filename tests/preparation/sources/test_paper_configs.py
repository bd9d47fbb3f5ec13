"""The papers' own data: their conversions write just the files that configs/data names."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scimult.config import load_config
from scimult.preparation.dataset import DatasetConfig, build_dataset
from tests.conftest import REPOSITORY
from tests.data.importers.written import lines
from tests.public import Content, run, table


def _text(number: int, **more: Any) -> dict[str, Any]:
    title, abstract = f"Study {number}", f"An abstract on topic {number % 5}. " * 5
    return {"corpus_id": number, "title": title, "abstract": abstract, **more}


def _maple(folder: Path) -> None:
    papers = [
        {
            "paper": str(number),
            "venue": "77",
            "year": "1999",
            "label": [f"L{number % 3}"],
            "author": [f"5{number % 4}"],
            "reference": [str(number - 1), "999"],
            "title_raw": f"Study {number}",
            "abstract_raw": f"An abstract on topic {number % 5}.",
        }
        for number in range(1, 13)
    ]
    files: dict[str, Content] = {}
    for name in ("Art", "Bio_MeSH"):
        files[f"{name}/papers.json"] = lines(*papers)
        counted = () if name.endswith("_MeSH") else ("4",)
        files[f"{name}/labels.txt"] = table(
            *((f"L{number}", f"Topic {number}", *counted) for number in range(3))
        )
        files[f"{name}/venues.txt"] = table(("77", "j things", "J. of Things"))
    run(folder, "maple", files, folders=["Art", "Bio_MeSH"], coarse_fields=["Art"])


def _scirepeval(folder: Path) -> None:
    extra = {"venue": "", "year": "", "author_names": ""}
    candidates = [_text(n, score=int(n % 2), **extra) for n in range(1, 5)]
    judged = [{"query": _text(n), "candidates": candidates} for n in range(20, 30)]
    rows: dict[str, list[dict[str, Any]]] = {
        "fos": [_text(n, labels=[n % 2], labels_text=[f"Field {n % 2}"]) for n in range(8)],
        "mesh_descriptors": [
            _text(n, mag_id=n, descriptor=f"D{n % 2}", qualifier=None) for n in range(8)
        ],
        "cite_count": [_text(n, log_citations=n / 2) for n in range(8)],
        "pub_year": [_text(n, year=1990 + n) for n in range(8)],
        "same_author": judged,
        "high_influence_cite": judged,
        "search": [{"query": f"query {n}", "candidates": candidates} for n in range(10)],
        "cite_prediction": [
            {"query": _text(n), "pos": _text(n + 40), "neg": _text(n + 60)} for n in range(10)
        ],
    }
    files: dict[str, Content] = {f"{task}/train.jsonl": part for task, part in rows.items()}
    run(folder, "scirepeval", files, tasks=list(rows), splits=["train"])


def _msmarco(folder: Path) -> None:
    passages = table(*((n, f"Passage {n} on topic {n % 5}.") for n in range(8)))
    queries = table(*((100 + n, f"what is {n}") for n in range(8)))
    triples = table(*((100 + n, n, (n + 1) % 8) for n in range(8)))
    files: dict[str, Content] = {
        "collection.tsv": passages,
        "queries.train.tsv": queries,
        "qidpidtriples.train.full.2.tsv": triples,
    }
    run(folder, "msmarco", files)


def _specter(folder: Path) -> None:
    names = [f"p{n}" for n in range(12)]
    metadata = {
        name: {"paper_id": name, "title": f"On {name}", "abstract": f"Words of {name}. " * 12}
        for name in names
    }
    cited = {
        name: {names[n - 1]: {"count": 5}, names[n - 2]: {"count": 1}}
        for n, name in enumerate(names)
    }
    run(folder, "specter", {"data.json": cited, "metadata.json": metadata})


def _unarxive(folder: Path) -> None:
    papers = [f"1{n:03}.1" for n in range(10)]
    collection = table(
        *((name, f"Title of {name}", f"Text of {name}.", "cs.IR") for name in papers)
    )
    contexts = [
        {"text": f"As {one} shows.", "cited_ids": [one, other]} for one, other in pairwise(papers)
    ]
    run(
        folder,
        "multi-objective-contexts",
        {"collection.tsv": collection, "contexts.jsonl": lines(*contexts)},
    )


def _inpars(folder: Path) -> None:
    rows = [
        {"query": f"query {n}", "doc_id": f"d{n}", "doc_text": f"Document {n}."} for n in range(10)
    ]
    run(folder, "inpars", {"queries.jsonl": lines(*rows)})


# Configuration to the folders of its raw data, and what writes each.
RAW = {
    "scimult": {"maple": _maple, "scirepeval": _scirepeval},
    "scirepeval": {"scirepeval": _scirepeval},
    "multi_objective": {
        "msmarco": _msmarco,
        "specter": _specter,
        "unarxive": _unarxive,
        "inpars": _inpars,
    },
}


@pytest.mark.long
@pytest.mark.parametrize("name", list(RAW))
def test_conversions_write_what_the_configuration_reads(tmp_path: Path, name: str) -> None:
    for folder, write in RAW[name].items():
        work = tmp_path / "work" / folder
        write(work)
        (work / "raw").rename(tmp_path / folder)
    path = REPOSITORY / "configs" / "data" / f"{name}.yaml"
    config = load_config(DatasetConfig, path, [f"root={tmp_path}"])
    data = build_dataset(config, tmp_path / "prepared")[0]
    read = {file.source for file in [*data.pairs("train"), *data.targets("train")]}
    assert {source.name for source in config.sources} <= read
