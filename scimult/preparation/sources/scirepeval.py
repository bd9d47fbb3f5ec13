"""SciRepEval's eight training tasks, as on the hub or as JSON files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from scimult.data.records import Record
from scimult.data.rows import read_rows
from scimult.errors import DataError
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion, named_files
from scimult.preparation.sources.raw import Makes, RawSource, distinct
from scimult.preparation.sources.triples import (
    paper_id,
    scored_papers,
    write_candidates,
    write_triple,
)
from scimult.progress import progress

Config = Literal[
    "fos",
    "mesh_descriptors",
    "cite_count",
    "pub_year",
    "cite_prediction",
    "cite_prediction_new",
    "same_author",
    "high_influence_cite",
    "search",
]
TRAINING_TASKS: list[Config] = [one for one in get_args(Config) if one != "cite_prediction_new"]
LABELLED = ("fos", "mesh_descriptors", "cite_count", "pub_year")


class SciRepEvalOptions(SourceOptions):
    """Options of ``scimult prepare scirepeval``.

    Parameters
    ----------
    tasks : list of str
        Configurations to take; ``cite_prediction_new`` has SPECTER2's triples.
    splits : list of str
        Splits of each. SciMult trains on both (appendix A.3); dev is our own split.
    band : mapping
        Width of the bands that turn regression into classification: of the natural logarithm of
        the citation count (``log_citations``), and of the year.
    hub : str, optional
        Stream from this data set on the hub (``allenai/scirepeval``) instead of reading files.
    """

    tasks: Annotated[list[Config], Field(min_length=1)] = TRAINING_TASKS
    splits: Annotated[list[str], Field(min_length=1)] = ["train", "validation"]
    band: dict[Literal["cite_count", "pub_year"], Annotated[float, Field(gt=0)]] = {
        "cite_count": 1,
        "pub_year": 10,
    }
    hub: Annotated[str, Field(min_length=1)] | None = None


def _convert(conversion: Conversion, options: SciRepEvalOptions) -> None:
    for task in progress(options.tasks, "SciRepEval", unit="task"):
        # With so few labels, a cap would leave next to nothing.
        choices: dict[str, Any] = {"max_pairs_per_label": "all"} if task in LABELLED else {}
        makes: Makes = "judgments" if task == "search" else "links"
        # Streams from the hub have no checksum and are never cached.
        reads = _files(conversion.source / task, options.splits) if options.hub is None else None
        fill = partial(_convert_task, options, task, reads)
        name = f"scirepeval-{task}"
        conversion.write(name, reads, fill, ["labels" if task in LABELLED else makes], **choices)


def _convert_task(
    options: SciRepEvalOptions, task: str, files: Sequence[Path] | None, raw: RawSource
) -> None:
    write = _writer(task, options, raw)
    if files is None:
        parts = [_read_hub(str(options.hub), task, split) for split in options.splits]
    else:
        parts = [read_rows(path, raw.rejects) for path in files]
    raw.each(chain.from_iterable(parts), write)


def _read_hub(repository: str, config: str, split: str) -> Iterator[Record]:
    """Stream the rows of a data set on the Hugging Face hub, or of a folder in its layout."""
    from datasets import load_dataset  # takes seconds to import

    path = Path(repository) / config / split
    try:
        rows = load_dataset(repository, config, split=split, streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(path, number, row)
    except (OSError, ValueError) as error:
        fix = "check the name and the connection, or download the files and name their folder"
        problem = "data set on the hub cannot be read"
        raise DataError(problem, path=path, value=str(error), fix=fix) from error


def _writer(task: str, options: SciRepEvalOptions, raw: RawSource) -> Callable[[Record], object]:
    """Return the function that writes one row of a task."""
    if task in ("cite_prediction", "cite_prediction_new"):
        return lambda record: write_triple(record, raw)
    if task in ("same_author", "high_influence_cite"):
        return lambda record: write_candidates(record, raw)
    if task == "search":
        return lambda record: _write_search(record, raw)
    if task == "fos":
        return lambda record: _write_labelled(record, record.strings("labels_text"), raw)
    if task == "mesh_descriptors":
        return lambda record: _write_labelled(
            record, [record.text("descriptor")], raw, record.text("descriptor")
        )
    field = "log_citations" if task == "cite_count" else "year"
    width = options.band.get("cite_count" if task == "cite_count" else "pub_year", 1.0)
    return lambda record: _write_labelled(
        record, [_band(record, field, width)], raw, record.number(field)
    )


def _files(folder: Path, splits: Sequence[str]) -> list[Path]:
    """Return the files of a task."""
    files = {split: named_files(folder, split) for split in splits}
    for split in (split for split in splits if not files[split]):
        raise DataError(
            f"no file of the split {split!r}",
            path=folder,
            fix=f"download {folder.name}/{split}-*.parquet, or name other splits (splits=[train])",
        )
    return list(chain.from_iterable(files.values()))


def _write_labelled(
    record: Record, labels: list[str], raw: RawSource, target: str | float | None = None
) -> None:
    """Write a paper with its labels, identified by name, and its target.

    A repeated paper gets all of its labels, and the first target.
    """
    raw.counts["rows"] += 1
    names = [name for name in distinct(labels) if name.strip()]
    if not names:
        raw.counts["rows without a label"] += 1
        return
    raw.titled(record, paper_id(record), labels=names, target=target)
    raw.labels_by_name(record, names)


def _band(record: Record, field: str, width: float) -> str:
    """Return the name of the band that a regression target falls into."""
    start = math.floor(record.number(field) / width) * width
    what = "logarithm of citations" if field == "log_citations" else "published"
    end = start + width
    return f"{what} from {start:g} to below {end:g}"


def _write_search(record: Record, raw: RawSource) -> None:
    """Write a query and the papers shown for it; chosen papers have a positive score.

    Rows with the same query text become one query, so that a paper chosen in one session is not
    a negative because of another.
    """
    raw.counts["rows"] += 1
    scored = scored_papers(record, raw)
    if not any(score > 0 for _, score in scored):
        raw.counts["rows without a positive"] += 1
        return
    query = raw.question(record, record.text("query"))
    for paper, score in scored:
        raw.judgment(record, query, paper, score)


# SciMult, Table A1.
PUBLISHED = {
    "scirepeval-cite_prediction": {"triples": 819_836},
    "scirepeval-search": {"rows": 528_497},
}

SCIREPEVAL = PublicSource(
    name="scirepeval",
    title="eight training tasks: fields, MeSH, citations, years, triples, authors, search",
    url="https://huggingface.co/datasets/allenai/scirepeval",
    licence="search: ODC-By 1.0 (says SciMult); other parts: see the data set's card",
    files=("TASK/train-*.parquet", "TASK/validation-*.parquet", "or TASK/train.jsonl, .json"),
    options=SciRepEvalOptions,
    convert=_convert,
    published=PUBLISHED,
)
