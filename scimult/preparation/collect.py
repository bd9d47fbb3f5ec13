"""The reading step of ``scimult prepare``: turn sources into texts, metadata and pairs of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from scimult.data.importers.engine import connected
from scimult.data.lines import Rejects
from scimult.data.targets import TargetFile
from scimult.data.teacher import TeacherScores
from scimult.data.text_store import TextStoreWriter
from scimult.errors import DataError
from scimult.preparation.collected import REJECTS_FILE, Collected, RawPairs, unique_rows
from scimult.preparation.config import ANSWERS, CitationTable, Part, PrepareConfig, SourceConfig
from scimult.preparation.corpus import Corpus
from scimult.preparation.mining.engine import Limits
from scimult.preparation.pair_columns import Columns
from scimult.preparation.source_tables import (
    Answers,
    read_answers,
    read_citations,
    read_targets,
    reject_unanswered,
)
from scimult.preparation.source_texts import NOTHING_LEFT, read_labels, read_papers, read_queries
from scimult.preparation.targets import TargetReader, refuse_lonely_classes
from scimult.progress import progress

FILE_FIELDS = ("papers", "labels", "citations", "references", "links", "queries", *ANSWERS)


def source_files(config: PrepareConfig) -> dict[str, Path]:
    """Return the path of every source file, by its name in the configuration.

    Raises
    ------
    DataError
        If a file is missing.
    """
    files = {}
    for source in config.sources:
        named = [(field, getattr(source, field)) for field in FILE_FIELDS]
        named += [("targets", target.file) for target in source.targets]
        for field, name in named:
            if name is None:
                continue
            files[name] = config.resolve(name)
            if not files[name].is_file():
                raise DataError(
                    f"{field} file of source {source.name!r} does not exist",
                    path=files[name],
                    fix="correct the path in the configuration, or pass the folder with --root",
                )
    return files


def collect(
    config: PrepareConfig, folder: Path, *, skip_bad: bool = False, limits: Limits | None = None
) -> None:
    """Read all sources into ``folder``: texts, metadata and ``Collected``."""
    rejects = Rejects(skip_bad, folder / REJECTS_FILE)
    counts: dict[str, dict[str, int]] = {source.name: {} for source in config.sources}
    limits = limits or Limits()
    with (
        TemporaryDirectory(prefix="rows-", dir=folder) as rows,
        connected(folder, limits.memory, limits.threads) as connection,
    ):
        with TextStoreWriter(folder) as texts:
            corpus = Corpus(Path(rows), texts, rejects, connection)
            targets = {
                source.name: [
                    TargetReader(
                        target, source, config.resolve(target.file or source.papers or ""), rejects
                    )
                    for target in source.targets
                ]
                for source in config.sources
            }
            parts, edges, answers = _read_all(config, corpus, counts, targets)
            raw_targets = _read_targets(targets, corpus, counts)
        corpus.write_metadata(folder)
        collected = Collected(
            parts=parts,
            citations=corpus.unique_pairs(edges),
            shown=corpus.unique_pairs([answer.shown for answer in answers]),
            triples=unique_rows([answer.triples for answer in answers]),
            teacher=_teacher_scores(answers),
            targets=raw_targets,
            label_rows=corpus.label_rows,
            counts=counts,
            rejects=rejects,
        )
    collected.save(folder)


def _read_targets(
    targets: Mapping[str, Sequence[TargetReader]],
    corpus: Corpus,
    counts: dict[str, dict[str, int]],
) -> list[TargetFile]:
    """Read the target tables and finish all readers; fields were read along with the papers."""
    readers = [reader for of_source in targets.values() for reader in of_source]
    for reader in readers:
        if reader.config.file is not None:
            read_targets(reader, corpus)
    refuse_lonely_classes(readers, corpus.rejects)
    files = [reader.finish() for reader in readers]
    for file in files:
        counts[file.source][f"papers with a target of {file.task}"] = len(file)
    return files


def _read_all(
    config: PrepareConfig,
    corpus: Corpus,
    counts: dict[str, dict[str, int]],
    targets: Mapping[str, Sequence[TargetReader]],
) -> tuple[list[RawPairs], list[Columns], list[Answers]]:
    """Read the labels of all sources, then papers, then pairs.

    Return the pairs, all citations and all answers.
    """
    for source in config.sources:
        if source.labels is not None:
            label_counts = read_labels(config.resolve(source.labels), source.space, corpus)
            counts[source.name].update(label_counts)
    raw: list[RawPairs] = []
    for source in progress(config.sources, "papers", unit="source"):
        if source.papers is None:
            continue
        path = config.resolve(source.papers)
        fields = [reader for reader in targets[source.name] if reader.config.field is not None]
        paper_counts, paper_labels = read_papers(
            path, source.space, corpus, fields, source.append_to_abstract
        )
        counts[source.name].update(paper_counts)
        if source.labels is not None:
            assert paper_labels is not None, "labels of all sources were read before"
            labelled = corpus.unique_pairs([paper_labels])
            if not len(labelled[0]):
                fix = "give the papers a field 'labels' with a list of label ids"
                raise DataError("no paper has a defined label", path=path, fix=fix)
            raw.append(RawPairs(source, "labels", *labelled))
    edges: list[Columns] = []
    answers: list[Answers] = []
    for source in progress(config.sources, "pairs", unit="source"):
        raw.extend(_read_citations(config, source, corpus, counts[source.name], edges))
        raw.extend(_read_answers(config, source, corpus, counts[source.name], answers))
    _refuse_empty(config, raw, counts, corpus)
    return raw, edges, answers


def _refuse_empty(
    config: PrepareConfig,
    raw: Sequence[RawPairs],
    counts: Mapping[str, Mapping[str, int]],
    corpus: Corpus,
) -> None:
    """Raise if nothing is left of a part of a source."""
    for part in raw:
        if not len(part.positives):
            path, fix = config.resolve(getattr(part.source, part.part)), NOTHING_LEFT
            problem = f"{part.part}: no pair is left{corpus.rejects.because()}"
            dropped = counts[part.source.name].get(f"{part.part} without a text")
            if dropped:
                problem += f"; dropped {dropped:,} that name a paper without a text"
                fix = f"check that its ids are those of the papers; dangling.{part.part}=error "
                fix += "names the first"
            raise DataError(problem, path=path, fix=fix)


def _read_citations(
    config: PrepareConfig,
    source: SourceConfig,
    corpus: Corpus,
    counts: dict[str, int],
    edges: list[Columns],
) -> Iterator[RawPairs]:
    """Add citations and references to ``edges``; yield the pairs from citations."""
    names: tuple[CitationTable, ...] = ("citations", "references")
    for name in names:
        file = getattr(source, name)
        if file is None:
            continue
        drop = source.dangling.get(name) == "drop"
        path = config.resolve(file)
        cited, dropped = read_citations(path, source.space, corpus, drop_dangling=drop)
        pairs, count = corpus.unique_pairs([cited]), len(cited[0])
        counts.update({name: count, f"repeated {name}": count - len(pairs[0])})
        if drop:
            counts[f"{name} without a text"] = dropped
        edges.append(pairs)
        if name == "citations":
            yield RawPairs(source, "citations", *pairs)


def _read_answers(
    config: PrepareConfig,
    source: SourceConfig,
    corpus: Corpus,
    counts: dict[str, int],
    all_answers: list[Answers],
) -> Iterator[RawPairs]:
    """Add links and query answers to ``all_answers``; yield the pairs of each."""
    for kind in ("links", *ANSWERS):
        if getattr(source, kind) is None:
            continue
        queries = None
        if kind != "links":
            assert source.queries is not None
            queries = read_queries(config.resolve(source.queries), source.name, corpus)
            counts["queries"] = len(queries.rows) + queries.merged
        path = config.resolve(getattr(source, kind))
        answers = read_answers(path, kind, source, corpus)
        if queries is not None:
            reject_unanswered(queries, source.name, corpus)
        pairs, count = corpus.unique_pairs([answers.positives]), len(answers.positives[0])
        one = "link" if queries is None else "answer"
        shown = "judged, not links" if queries is None else "shown, not answers"
        counts |= {f"{one}s": count, shown: len(answers.shown[0])}
        counts[f"hard negatives of one {one}"] = len(answers.triples)
        if queries is not None:
            counts["scored by a teacher"] = len(answers.scores)
        counts[f"repeated {one}s"] = count - len(pairs[0])
        all_answers.append(answers)
        part: Part = "links" if queries is None else "queries"
        yield RawPairs(source, part, *pairs, has_triples=len(answers.triples) > 0)


def _teacher_scores(answers: Sequence[Answers]) -> TeacherScores | None:
    """Concatenate the teacher scores of all sources; ``None`` if there are none."""
    scored = [answer for answer in answers if len(answer.scores)]
    if not scored:
        return None
    columns = [answer.scored for answer in scored]
    queries, papers = (np.concatenate(column) for column in zip(*columns, strict=True))
    return TeacherScores(queries, papers, np.concatenate([answer.scores for answer in scored]))
