"""A generated library of any size: papers of random words, citations to earlier papers, labels.

Two papers in a hundred repeat an earlier one with one word changed. Files are written in parts, so
that memory does not grow with the size; the same size and seed give the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from scimult.config import validate
from scimult.files import read_json, write_json
from scimult.preparation.dataset import DatasetConfig

WORDS = 20_000
REPEATED = 0.02
PAPERS_PER_CHUNK = 10_000
CITATIONS_PER_CHUNK = 1_000_000
_SETTINGS_FILE = "library.json"


@dataclass(frozen=True)
class Library:
    """Size of a generated library."""

    papers: int
    citations: int
    labels: int
    words: int = 120


def write_library(folder: Path, library: Library, seed: int = 0) -> DatasetConfig:
    """Write the raw files of a library, unless they exist; return the config to prepare them."""
    path = folder / _SETTINGS_FILE
    settings = {**asdict(library), "seed": seed}
    if not path.exists() or read_json(path) != settings:
        folder.mkdir(parents=True, exist_ok=True)
        # If this is killed, what is here are no longer the files of those settings.
        path.unlink(missing_ok=True)
        rng = np.random.default_rng(seed)
        with (folder / "labels.jsonl").open("w") as file:
            for number in range(library.labels):
                file.write(json.dumps({"id": f"l{number}", "name": f"label {number}"}) + "\n")
        with (folder / "papers.jsonl").open("w") as file:
            file.writelines(_papers(rng, library))
        _write_citations(folder / "citations.tsv", rng, library)
        write_json(path, settings)
    source = {
        "name": "library",
        "papers": "papers.jsonl",
        "labels": "labels.jsonl",
        "citations": "citations.tsv",
    }
    return validate(DatasetConfig, {"root": str(folder), "sources": [source]})


def _papers(rng: np.random.Generator, library: Library) -> Iterator[str]:
    """Yield lines of papers, with word frequencies by Zipf's law."""
    words = np.array([f"w{number:x}q" for number in range(WORDS)])
    for start in range(0, library.papers, PAPERS_PER_CHUNK):
        count = min(PAPERS_PER_CHUNK, library.papers - start)
        sample = np.minimum(rng.zipf(1.3, (count, library.words)) - 1, WORDS - 1)
        sample = (sample + rng.integers(0, 50, sample.shape)) % WORDS
        repeats = np.flatnonzero(rng.random(count) < REPEATED)
        repeats = repeats[repeats > 0]
        sample[repeats] = sample[repeats - 1]
        sample[repeats, -1] = rng.integers(0, WORDS, len(repeats))
        labels = rng.integers(0, library.labels, (count, 3))
        for row in range(count):
            paper = {
                "id": f"p{start + row}",
                "title": " ".join(words[sample[row, :10]]),
                "abstract": " ".join(words[sample[row, 10:]]),
                "year": 1990 + (start + row) * 30 // library.papers,
                "labels": [f"l{label}" for label in sorted(set(labels[row].tolist()))],
            }
            yield json.dumps(paper) + "\n"


def _write_citations(path: Path, rng: np.random.Generator, library: Library) -> None:
    schema = pa.schema([("citing", pa.string()), ("cited", pa.string())])
    # pyarrow would quote the header.
    options = pcsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        file.write(b"citing\tcited\n")
        with pcsv.CSVWriter(file, schema, write_options=options) as writer:
            for start in range(0, library.citations, CITATIONS_PER_CHUNK):
                count = min(CITATIONS_PER_CHUNK, library.citations - start)
                citing = rng.integers(1, library.papers, count)
                cited = (citing * rng.random(count)).astype(np.int64)
                ids = [
                    pc.binary_join_element_wise("p", pc.cast(pa.array(rows), pa.string()), "")
                    for rows in (citing, cited)
                ]
                writer.write_batch(pa.record_batch(ids, schema=schema))
