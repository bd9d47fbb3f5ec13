"""Prepare your own CSV library for training, with mined hard negatives, and show some.

    python examples/prepare_own_library.py            # on a small generated CSV
    python examples/prepare_own_library.py --input FOLDER

FOLDER has library.csv (columns PMID, Title, Abstract, Terms; terms are separated by ;) and
citations.tsv (columns citing, cited). For other column names, change COLUMNS. docs/sources.md
lists all columns, docs/mining.md all rules.
"""

import argparse
import csv
from pathlib import Path

from scimult.config import load_config, validate
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.hygiene.statistics import draw_examples
from scimult.preparation.sources import SOURCES, convert
from scimult.preparation.world import WorldSettings, make_world

COLUMNS = {"id": "PMID", "title": "Title", "abstract": "Abstract", "labels": "Terms"}
MINING = [
    "mining.citations=[cited_by_cited, {rule: bm25, ranks: [5, 50], count: 4}]",
    "mining.labels=[cited, {rule: random, count: 4}]",
]


def main(library: Path, out: Path) -> None:
    """Convert the tables to raw files, prepare and mine them, and print a negative per rule."""
    table = SOURCES["table"]
    papers = {"file": "library.csv", "columns": COLUMNS}
    options = {"papers": papers, "citations": {"file": "citations.tsv"}}
    convert(table, validate(table.options, options), library, out / "raw", for_training=True)

    settings = load_config(DatasetConfig, out / "raw" / "sources.yaml", MINING)
    data, _ = build_dataset(settings, out / "prepared")
    for pairs in data.pairs("train"):
        print(f"{pairs.source}, {pairs.task}: {len(pairs.positives.values)} pairs")
    for rule, (example, *_) in draw_examples(data, count=1).items():
        print(f"{rule}: for {example.query.title!r} not {example.negative.title!r}")


def make_library(folder: Path) -> None:
    """Write example tables from a generated world."""
    world = make_world(WorldSettings(papers=300))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "library.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS.values())
        for number, (facts, text) in enumerate(zip(world.papers, world.paper_texts, strict=True)):
            terms = "; ".join(world.labels[field].title for field in facts.fields)
            rows.writerow([number, text.title, text.body, terms])
    lines = [
        f"{citing}\t{cited}\n" for citing, refs in enumerate(world.references) for cited in refs
    ]
    (folder / "citations.tsv").write_text("citing\tcited\n" + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=Path("runs/examples/own"))
    options = parser.parse_args()
    if options.input is None:
        make_library(options.out / "library")
    main(options.input or options.out / "library", options.out)
