"""Raw data sets to a prepared folder: texts, metadata, citations and pairs (no negatives yet)."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.collected import REJECTS_FILE, Collected, RawPairs, unique_pairs
from scimult.data.collected import VERSION as COLLECTED_VERSION
from scimult.data.corpus import Corpus
from scimult.data.grouping import BoolArray, group_by_pair, group_by_query, sample_per_value
from scimult.data.hygiene.clean import REPORT_FILE, clean
from scimult.data.hygiene.clean import VERSION as CLEAN_VERSION
from scimult.data.hygiene.evaluation_sets import find_sets, set_files
from scimult.data.hygiene.splits import dev_texts, split_masks
from scimult.data.lines import Rejects
from scimult.data.metadata import FILE_NAME as METADATA_FILE
from scimult.data.metadata import read_years
from scimult.data.pairs import SPLITS, PairFile, Split, pair_file_name, write_pairs
from scimult.data.prepare_config import ANSWERS, Part, PrepareConfig, SourceConfig
from scimult.data.prepare_sources import (
    read_answers,
    read_citations,
    read_labels,
    read_papers,
    read_queries,
    reject_unanswered,
)
from scimult.data.prepared import ALIASES_FILE, VERSION, write_manifest
from scimult.data.ragged import Ragged
from scimult.data.steps import Steps
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import TextStore, TextStoreWriter
from scimult.errors import DataError
from scimult.files import link_or_copy, read_json, sha256
from scimult.progress import progress
from scimult.types import IntArray

FILE_FIELDS = ("papers", "labels", "citations", "queries", *ANSWERS)
# What the folder takes from the last step as it is; some are not always there.
COLLECTED_FILES = (
    TEXTS_FILE,
    METADATA_FILE,
    "citations.arrow",
    "shown.arrow",
    ALIASES_FILE,
    REJECTS_FILE,
)


def prepare(
    config: PrepareConfig, folder: Path, *, skip_bad: bool = False, steps: Steps | None = None
) -> Rejects:
    """Read all sources and write the stores into ``folder``, which must exist and be empty.

    Run it inside ``files.atomic_folder``, followed by ``mining.mine``.

    Parameters
    ----------
    config : PrepareConfig
        Sources and choices.
    folder : path
        Where to write.
    skip_bad : bool
        Leave bad records out and count them, instead of stopping at the first.
    steps : Steps, optional
        Where what was read and cleaned is kept for a later run; nowhere by default.

    Returns
    -------
    Rejects
        What was left out; ``rejects.jsonl`` in the folder names every record.

    Raises
    ------
    ConfigError
        Before anything is read: an unknown task, an unset variable in ``root``.
    DataError
        If a file is missing, or at the first bad record.
    """
    config.check_tasks()
    _check_files(config)
    kept = Steps(folder / "steps") if steps is None else steps
    last = _collect(config, skip_bad, kept)
    collected = Collected.load(last, config.sources, Rejects(skip_bad))
    for name in COLLECTED_FILES:
        if (last / name).exists():
            link_or_copy(last / name, folder / name)
    report = read_json(last / REPORT_FILE) if (last / REPORT_FILE).exists() else {}
    if steps is None:
        shutil.rmtree(kept.folder)
    store = TextStore.open(folder)
    years_N = read_years(folder, len(store))
    dev_N = dev_texts(
        collected.parts, store, years_N, config.split, config.dev_fraction, config.seed
    )
    entries = [
        _write_pair_file(folder, pairs, part)
        for part in collected.parts
        for pairs in _split_pairs(part, dev_N, config)
    ]
    tasks = config.task_set().subset(list(dict.fromkeys(part.task for part in collected.parts)))
    manifest: dict[str, Any] = {
        "version": VERSION,
        "config": config.model_dump(mode="json"),
        "tasks": [task.model_dump(mode="json") for task in tasks],
        "texts": len(store),
        "label_rows": {name: [r.start, r.stop] for name, r in collected.label_rows.items()},
        "sources": [_describe(source, collected) for source in config.sources],
        "pairs": entries,
        "in_neither_split": _in_neither_split(collected, dev_N, config),
        "hygiene": report,
        "rejects": dict(collected.rejects.counts),
    }
    write_manifest(folder, manifest)
    return collected.rejects


def _describe(source: SourceConfig, collected: Collected) -> dict[str, Any]:
    counts = collected.counts[source.name]
    return {"name": source.name, "namespace": source.space, "counts": counts}


def _collect(config: PrepareConfig, skip_bad: bool, steps: Steps) -> Path:
    """Read and clean, or find that done; return the folder of the last step."""
    read = steps.run("read", _read_inputs(config, skip_bad), partial(_read, config, skip_bad))
    if config.hygiene.does_nothing:
        return read.folder
    inputs = _clean_inputs(config, read.fingerprint)
    return steps.run("clean", inputs, partial(_clean, config, skip_bad, read.folder)).folder


def _read_inputs(config: PrepareConfig, skip_bad: bool) -> dict[str, Any]:
    """Return what the reading step depends on: options, and the content of every file."""
    files = {
        name: sha256(config.resolve(name))
        for source in config.sources
        for field in FILE_FIELDS
        if (name := getattr(source, field)) is not None
    }
    sources = [source.model_dump(mode="json", exclude={"licence"}) for source in config.sources]
    return {"version": COLLECTED_VERSION, "sources": sources, "files": files, "skip_bad": skip_bad}


def _clean_inputs(config: PrepareConfig, read: str) -> dict[str, Any]:
    files = {}
    if config.hygiene.evaluation_folder is not None:
        for name, folder in find_sets(config.hygiene.evaluation_folder).items():
            files[name] = [sha256(path) for path in set_files(folder)]
    return {
        "version": CLEAN_VERSION,
        "read": read,
        "hygiene": config.hygiene.model_dump(mode="json"),
        "files": files,
    }


def _read(config: PrepareConfig, skip_bad: bool, folder: Path) -> None:
    """Read all sources into ``folder``: texts, metadata and pairs."""
    rejects = Rejects(skip_bad, folder / REJECTS_FILE)
    counts: dict[str, dict[str, int]] = {source.name: {} for source in config.sources}
    with TextStoreWriter(folder) as texts:
        corpus = Corpus(texts, rejects)
        raw, shown = _read_all(config, corpus, counts)
    corpus.write_metadata(folder)
    edges = [(part.queries, part.positives) for part in raw if part.part == "citations"]
    collected = Collected(
        raw, unique_pairs(edges), unique_pairs(shown), corpus.label_rows, counts, rejects
    )
    collected.save(folder)


def _clean(config: PrepareConfig, skip_bad: bool, read: Path, folder: Path) -> None:
    """Clean what the reading step left in ``read``."""
    collected = Collected.load(read, config.sources, Rejects(skip_bad))
    clean(read, folder, collected, config.hygiene)


def _check_files(config: PrepareConfig) -> None:
    """Fail before the work starts if a named file or folder is not there."""
    if config.hygiene.evaluation_folder is not None:
        find_sets(config.hygiene.evaluation_folder)
    for source in config.sources:
        for field in FILE_FIELDS:
            name = getattr(source, field)
            if name is not None and not config.resolve(name).is_file():
                raise DataError(
                    f"{field} file of source {source.name!r} does not exist",
                    path=config.resolve(name),
                    fix="correct the path in the configuration, or the folder with --root",
                )


def _read_all(
    config: PrepareConfig, corpus: Corpus, counts: dict[str, dict[str, int]]
) -> tuple[list[RawPairs], list[tuple[IntArray, IntArray]]]:
    """Read labels of all sources, then papers, then what pairs them."""
    for source in config.sources:
        if source.labels is not None:
            found = read_labels(config.resolve(source.labels), source.space, corpus)
            counts[source.name].update(found)
    raw: list[RawPairs] = []
    for source in progress(config.sources, "papers", unit="source"):
        if source.papers is None:
            continue
        start = len(corpus.labels)
        path = config.resolve(source.papers)
        counts[source.name].update(read_papers(path, source.space, corpus))
        if source.labels is not None:
            labelled = unique_pairs([corpus.labels.columns(start)])
            if not len(labelled[0]):
                fix = "give the papers a field 'labels' with a list of label ids"
                raise DataError("no paper has a label that is defined", path=path, fix=fix)
            raw.append(RawPairs(source, "labels", *labelled))
    shown: list[tuple[IntArray, IntArray]] = []
    for source in progress(config.sources, "pairs", unit="source"):
        raw.extend(_read_citations(config, source, corpus, counts[source.name]))
        raw.extend(_read_search(config, source, corpus, counts[source.name], shown))
    return raw, shown


def _read_citations(
    config: PrepareConfig, source: SourceConfig, corpus: Corpus, counts: dict[str, int]
) -> Iterator[RawPairs]:
    if source.citations is None:
        return
    edges, found = read_citations(config.resolve(source.citations), source.space, corpus)
    pairs = unique_pairs([edges.columns()])
    counts.update(found, **{"repeated citations": len(edges) - len(pairs[0])})
    yield RawPairs(source, "citations", *pairs)


def _read_search(
    config: PrepareConfig,
    source: SourceConfig,
    corpus: Corpus,
    counts: dict[str, int],
    shown: list[tuple[IntArray, IntArray]],
) -> Iterator[RawPairs]:
    if source.queries is None:
        return
    path = config.resolve(source.queries)
    queries, found = read_queries(path, source.name, corpus)
    counts.update(found)
    kind = next(name for name in ANSWERS if getattr(source, name) is not None)
    answers, found = read_answers(
        config.resolve(getattr(source, kind)),
        kind,
        source.name,
        source.space,
        corpus,
        source.score_threshold,
    )
    reject_unanswered(path, queries, answers, corpus)
    pairs = unique_pairs([answers.positives.columns()])
    counts.update(found, **{"repeated answers": len(answers.positives) - len(pairs[0])})
    shown.append(answers.shown.columns())
    yield RawPairs(source, "queries", *pairs)


def _split_pairs(raw: RawPairs, dev_N: BoolArray, config: PrepareConfig) -> Iterator[PairFile]:
    """Yield the train and the dev groups of one part of a source."""
    masks = split_masks(raw, dev_N, config.split)
    for split in SPLITS:
        queries, positives = raw.queries[masks[split]], raw.positives[masks[split]]
        if raw.part == "citations":
            groups = group_by_pair(queries, positives)
        else:
            kept = _kept_pairs(raw.part, split, positives, config)
            groups = group_by_query(queries, positives, kept)
        rows, grouped, unsampled = groups
        yield PairFile(
            raw.source.name, raw.task, split, rows, grouped, Ragged.empty(len(rows)), unsampled
        )


def _in_neither_split(
    collected: Collected, dev_N: BoolArray, config: PrepareConfig
) -> dict[str, int]:
    """Count the pairs that would show training a text of the dev split."""
    counts: Counter[str] = Counter()
    for part in collected.parts:
        masks = split_masks(part, dev_N, config.split)
        counts[f"{part.source.name}.{part.task}"] += int((~masks["train"] & ~masks["dev"]).sum())
    return {name: count for name, count in counts.items() if count}


def _kept_pairs(part: Part, split: Split, positives: IntArray, config: PrepareConfig) -> BoolArray:
    """Down-sample frequent labels in training; a dev query keeps all its labels."""
    if part == "labels" and split == "train" and config.max_pairs_per_label is not None:
        return sample_per_value(positives, config.max_pairs_per_label, config.seed)
    return np.ones(len(positives), dtype=np.bool_)


def _write_pair_file(folder: Path, pairs: PairFile, raw: RawPairs) -> dict[str, Any]:
    """Write one pair file and return its entry in the manifest."""
    name = pair_file_name(pairs.source, pairs.task, pairs.split)
    write_pairs(folder / name, pairs)
    return {
        "file": name,
        "source": pairs.source,
        "namespace": raw.source.space,
        "part": raw.part,
        "task": pairs.task,
        "split": pairs.split,
        "queries": int(np.count_nonzero(np.diff(pairs.queries, prepend=-1))),
        "groups": len(pairs),
        "pairs": len(pairs.positives.values),
        "unsampled": len(pairs.unsampled.values),
    }
