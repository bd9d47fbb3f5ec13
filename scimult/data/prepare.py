"""Raw data sets to a prepared folder: texts, metadata, citations and pairs (no negatives yet).

Shape legend: P pairs of one part of a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scimult.data.corpus import Corpus
from scimult.data.grouping import (
    BoolArray,
    dev_mask,
    group_by_pair,
    group_by_query,
    sample_per_value,
)
from scimult.data.lines import Rejects
from scimult.data.pairs import SPLITS, PairFile, pair_file_name, write_pairs
from scimult.data.prepare_config import ANSWERS, Part, PrepareConfig, SourceConfig
from scimult.data.prepare_sources import (
    Answers,
    read_answers,
    read_citations,
    read_labels,
    read_papers,
    read_queries,
    reject_unanswered,
)
from scimult.data.prepared import VERSION, write_manifest
from scimult.data.ragged import Ragged
from scimult.data.teacher import TeacherScores
from scimult.data.text_store import TextStore, TextStoreWriter
from scimult.errors import DataError
from scimult.progress import progress
from scimult.types import IntArray

REJECTS_FILE = "rejects.jsonl"
FILES = ("papers", "labels", "citations", "references", "links", "queries", *ANSWERS)
Columns = tuple[IntArray, IntArray]


@dataclass(frozen=True)
class RawPairs:
    """Unique (query, positive) rows that one part of a source gives."""

    source: SourceConfig
    part: Part
    queries: IntArray
    positives: IntArray

    @property
    def task(self) -> str:
        """Task that the pairs train."""
        return self.source.task(self.part)


def prepare(config: PrepareConfig, folder: Path, *, skip_bad: bool = False) -> Rejects:
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
    rejects = Rejects(skip_bad, folder / REJECTS_FILE)
    counts: dict[str, dict[str, int]] = {source.name: {} for source in config.sources}
    with TextStoreWriter(folder) as texts:
        corpus = Corpus(texts, rejects)
        raw, edges, answers = _read_all(config, corpus, counts)
    corpus.write_metadata(folder)
    _write_columns(folder, "citations", ("citing", "cited"), _unique_pairs(edges))
    shown = [answer.shown.columns() for answer in answers]
    _write_columns(folder, "shown", ("query", "paper"), _unique_pairs(shown))
    store = TextStore.open(folder)
    _write_teacher_scores(folder, answers)
    in_dev = [_in_dev(part, store, config) for part in raw]
    kept = cap_labels(raw, in_dev, config)
    for part, kept_P in zip(raw, kept, strict=True):
        left_out = part.positives[~kept_P]
        if part.part == "labels":
            found = {"pairs beyond the cap of their label": len(left_out)}
            found["labels with such pairs"] = len(np.unique(left_out))
            counts[part.source.name].update(found)
    entries = [
        _write_pair_file(folder, pairs, part)
        for part, in_dev_P, kept_P in zip(raw, in_dev, kept, strict=True)
        for pairs in _split_pairs(part, in_dev_P, kept_P)
    ]
    tasks = config.task_set().subset(list(dict.fromkeys(part.task for part in raw)))
    manifest: dict[str, Any] = {
        "version": VERSION,
        "config": config.model_dump(mode="json"),
        "tasks": [task.model_dump(mode="json") for task in tasks],
        "texts": len(store),
        "label_rows": {name: [r.start, r.stop] for name, r in corpus.label_rows.items()},
        "sources": [
            {"name": source.name, "namespace": source.space, "counts": counts[source.name]}
            for source in config.sources
        ],
        "pairs": entries,
        "rejects": dict(rejects.counts),
    }
    write_manifest(folder, manifest)
    return rejects


def _check_files(config: PrepareConfig) -> None:
    """Fail before the work starts if a named file is not there."""
    for source in config.sources:
        for field in FILES:
            name = getattr(source, field)
            if name is not None and not config.resolve(name).is_file():
                raise DataError(
                    f"{field} file of source {source.name!r} does not exist",
                    path=config.resolve(name),
                    fix="correct the path in the configuration, or the folder with --root",
                )


def _read_all(
    config: PrepareConfig, corpus: Corpus, counts: dict[str, dict[str, int]]
) -> tuple[list[RawPairs], list[Columns], list[Answers]]:
    """Read labels of all sources, then papers, then what pairs them.

    Besides the pairs, return all citations and all answers.
    """
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
            labelled = _unique_pairs([corpus.labels.columns(start)])
            if not len(labelled[0]):
                fix = "give the papers a field 'labels' with a list of label ids"
                raise DataError("no paper has a label that is defined", path=path, fix=fix)
            raw.append(RawPairs(source, "labels", *labelled))
    edges: list[Columns] = []
    answers: list[Answers] = []
    for source in progress(config.sources, "pairs", unit="source"):
        raw.extend(_read_citations(config, source, corpus, counts[source.name], edges))
        raw.extend(_read_links(config, source, corpus, counts[source.name], answers))
        raw.extend(_read_search(config, source, corpus, counts[source.name], answers))
    return raw, edges, answers


def _read_citations(
    config: PrepareConfig,
    source: SourceConfig,
    corpus: Corpus,
    counts: dict[str, int],
    edges: list[Columns],
) -> Iterator[RawPairs]:
    """Add citations and references to ``edges``; yield the pairs of the citations."""
    for name in ("citations", "references"):
        file = getattr(source, name)
        if file is None:
            continue
        read = read_citations(config.resolve(file), source.space, corpus)
        pairs = _unique_pairs([read.columns()])
        counts.update({name: len(read), f"repeated {name}": len(read) - len(pairs[0])})
        edges.append(pairs)
        if name == "citations":
            yield RawPairs(source, "citations", *pairs)


def _read_links(
    config: PrepareConfig,
    source: SourceConfig,
    corpus: Corpus,
    counts: dict[str, int],
    all_answers: list[Answers],
) -> Iterator[RawPairs]:
    if source.links is None:
        return
    path, threshold = config.resolve(source.links), source.score_threshold
    answers, _ = read_answers(path, "links", source.name, source.space, corpus, threshold)
    pairs = _unique_pairs([answers.positives.columns()])
    counts["links"] = len(answers.positives)
    counts["judged, not links"] = len(answers.shown)
    counts["repeated links"] = len(answers.positives) - len(pairs[0])
    all_answers.append(answers)
    yield RawPairs(source, "links", *pairs)


def _read_search(
    config: PrepareConfig,
    source: SourceConfig,
    corpus: Corpus,
    counts: dict[str, int],
    all_answers: list[Answers],
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
    pairs = _unique_pairs([answers.positives.columns()])
    counts.update(found, **{"repeated answers": len(answers.positives) - len(pairs[0])})
    all_answers.append(answers)
    yield RawPairs(source, "queries", *pairs)


def _write_teacher_scores(folder: Path, answers: Sequence[Answers]) -> None:
    """Write what a teacher scored in any source, if there is anything."""
    scored = [answer for answer in answers if answer.scores]
    if scored:
        columns = [answer.scored.columns() for answer in scored]
        queries, papers = (np.concatenate(column) for column in zip(*columns, strict=True))
        scores = np.concatenate([np.array(answer.scores) for answer in scored])
        TeacherScores(queries, papers, scores).write(folder)


def _in_dev(raw: RawPairs, store: TextStore, config: PrepareConfig) -> BoolArray:
    """Return which pairs are of a query of the dev split."""
    unique, position = np.unique(raw.queries, return_inverse=True)
    in_dev: BoolArray = dev_mask(store.ids_at(unique), config.dev_fraction, config.seed)[position]
    return in_dev


def cap_labels(
    raw: Sequence[RawPairs], in_dev: Sequence[BoolArray], config: PrepareConfig
) -> list[BoolArray]:
    """Choose the pairs that are trained, at most so many of a label (SciMult, appendix A.1).

    Sources that share a label space share its labels and their cap. A dev query keeps all
    its labels, and other pairs than those of labels are all kept.

    Returns
    -------
    list of BoolArray
        For each part, which of its pairs are kept.
    """
    kept = [np.ones(len(part.positives), dtype=np.bool_) for part in raw]
    spaces: dict[str, list[int]] = {}
    for number, part in enumerate(raw):
        if part.part == "labels":
            spaces.setdefault(part.source.space, []).append(number)
    for numbers in spaces.values():
        limit = config.pairs_per_label(raw[numbers[0]].source)
        if limit is None:
            continue
        labels = np.concatenate([raw[n].positives[~in_dev[n]] for n in numbers])
        chosen = sample_per_value(labels, limit, config.seed)
        ends = np.cumsum([np.count_nonzero(~in_dev[n]) for n in numbers])
        for n, part_chosen in zip(numbers, np.split(chosen, ends[:-1]), strict=True):
            kept[n][~in_dev[n]] = part_chosen
    return kept


def _split_pairs(raw: RawPairs, in_dev_P: BoolArray, kept_P: BoolArray) -> Iterator[PairFile]:
    """Yield the train and the dev groups of one part of a source."""
    for split in SPLITS:
        inside = in_dev_P if split == "dev" else ~in_dev_P
        queries, positives = raw.queries[inside], raw.positives[inside]
        if raw.part == "citations":
            groups = group_by_pair(queries, positives)
        else:
            groups = group_by_query(queries, positives, kept_P[inside])
        rows, grouped, unsampled = groups
        yield PairFile(
            raw.source.name, raw.task, split, rows, grouped, Ragged.empty(len(rows)), unsampled
        )


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


def _unique_pairs(columns: list[Columns]) -> Columns:
    """Concatenate column pairs, sort them and drop repetitions."""
    if not columns:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first = np.concatenate([pair[0] for pair in columns])
    second = np.concatenate([pair[1] for pair in columns])
    grouped = Ragged.from_pairs(first, second, int(first.max(initial=-1)) + 1)
    return grouped.owners, grouped.values


def _write_columns(folder: Path, what: str, names: tuple[str, str], columns: Columns) -> None:
    described = {"scimult.format": what, "scimult.version": VERSION}
    table = pa.table(list(columns), names=list(names)).replace_schema_metadata(described)
    with pa.ipc.new_file(str(folder / f"{what}.arrow"), table.schema) as writer:
        writer.write_table(table)
