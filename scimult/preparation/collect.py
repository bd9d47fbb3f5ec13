"""The reading step of ``scimult prepare``: turn sources into texts, metadata and pairs of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from scimult.data.importers.engine import connected
from scimult.data.prepared import REJECTS_FILE
from scimult.data.records import Rejects
from scimult.data.targets import TargetFile
from scimult.data.text_store import TextStoreWriter
from scimult.errors import DataError
from scimult.preparation.collected import Collected, RawPairs, unique_rows
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
    teacher_scores,
)
from scimult.preparation.source_texts import nothing_left, read_labels, read_papers, read_queries
from scimult.preparation.targets import TargetReader, moved, refuse_lonely_classes
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
                fix = "correct the path in the configuration, or pass the folder with --root"
                if (beside := files[name].with_name(f"{field}.parquet")).is_file():
                    fix = f"name {beside.name}, which conversions write today, in the configuration"
                problem = f"{field} file of source {source.name!r} does not exist"
                raise DataError(problem, path=files[name], fix=fix)
    return files


def collect(config: PrepareConfig, folder: Path, *, limits: Limits, skip_bad: bool = False) -> None:
    """Read all sources into ``folder``: texts, metadata and ``Collected``."""
    with (
        TemporaryDirectory(prefix="rows-", dir=folder) as rows,
        connected(folder, limits.memory, limits.threads) as connection,
    ):
        with TextStoreWriter(folder) as texts:
            rejects = Rejects(skip_bad, folder / REJECTS_FILE)
            corpus = Corpus(Path(rows), texts, rejects, connection)
            reading = _Reading(config, corpus)
            reading.read()
        corpus.write_metadata(folder)
        answers = reading.answers
        collected = Collected(
            parts=reading.parts,
            citations=corpus.unique_pairs(reading.edges),
            shown=corpus.unique_pairs([answer.shown for answer in answers]),
            triples=unique_rows([answer.triples for answer in answers]),
            teacher=teacher_scores(answers),
            targets=reading.targets,
            label_rows=corpus.label_rows,
            counts=reading.counts,
            rejects=rejects,
        )
    collected.save(folder)


class _Reading:
    """Reads the sources of a configuration: the labels of all, then papers, then pairs."""

    def __init__(self, config: PrepareConfig, corpus: Corpus) -> None:
        self._config, self._corpus = config, corpus
        self.counts: dict[str, dict[str, int]] = {source.name: {} for source in config.sources}
        self.parts: list[RawPairs] = []
        self.edges: list[Columns] = []
        self.answers: list[Answers] = []
        self.targets: list[TargetFile] = []

    def read(self) -> None:
        """Read everything; the results are in the attributes."""
        sources, readers = self._config.sources, self._target_readers()
        # The labels of a namespace are one range of rows, in whatever order its sources come.
        for space in dict.fromkeys(source.space for source in sources):
            for source in sources:
                if source.space == space:
                    self._read_labels(source)
        for source in progress(sources, "papers", unit="source"):
            self._read_papers(source, [one for one in readers if one.source is source])
        for source in progress(sources, "pairs", unit="source"):
            self._read_citations(source)
            self._read_answers(source)
        self._refuse_empty()
        self._finish_targets(readers)

    def _target_readers(self) -> list[TargetReader]:
        config, rejects = self._config, self._corpus.rejects
        return [
            TargetReader(
                target, source, config.resolve(target.file or source.papers or ""), rejects
            )
            for source in config.sources
            for target in source.targets
        ]

    def _read_labels(self, source: SourceConfig) -> None:
        if source.labels is not None:
            path = self._config.resolve(source.labels)
            self.counts[source.name].update(read_labels(path, source.space, self._corpus))

    def _read_papers(self, source: SourceConfig, targets: Sequence[TargetReader]) -> None:
        """Read papers with their targets and labels."""
        if source.papers is None:
            return
        path = self._config.resolve(source.papers)
        fields = [reader for reader in targets if reader.config.field is not None]
        paper_counts, paper_labels = read_papers(
            path, source.space, self._corpus, fields, source.append_to_abstract
        )
        self.counts[source.name].update(paper_counts)
        if source.labels is not None:
            assert paper_labels is not None, "labels of all sources were read before"
            labelled = self._corpus.unique_pairs([paper_labels])
            if not len(labelled[0]):
                fix = "give the papers a field 'labels' with a list of label ids"
                rejects = self._corpus.rejects
                raise nothing_left("no paper has a defined label", path, rejects, fix)
            self.parts.append(RawPairs(source, "labels", *labelled))

    def _read_citations(self, source: SourceConfig) -> None:
        """Read citations and references; only citations make pairs."""
        names: tuple[CitationTable, ...] = ("citations", "references")
        for name in names:
            file = getattr(source, name)
            if file is None:
                continue
            drop, counts = source.dangling.get(name) == "drop", self.counts[source.name]
            path = self._config.resolve(file)
            cited, dropped = read_citations(path, source.space, self._corpus, drop_dangling=drop)
            pairs, count = self._corpus.unique_pairs([cited]), len(cited[0])
            counts.update({name: count, f"repeated {name}": count - len(pairs[0])})
            if drop:
                counts[f"{name} without a text"] = dropped
            self.edges.append(pairs)
            if name == "citations":
                self.parts.append(RawPairs(source, "citations", *pairs))

    def _read_answers(self, source: SourceConfig) -> None:
        """Read links and the answers of queries."""
        config, corpus, counts = self._config, self._corpus, self.counts[source.name]
        for kind in ("links", *ANSWERS):
            if getattr(source, kind) is None:
                continue
            queries = None
            if kind != "links":
                assert source.queries is not None
                queries = read_queries(config.resolve(source.queries), source.name, corpus)
                counts["queries"] = len(queries.rows)
            path = config.resolve(getattr(source, kind))
            answers = read_answers(path, kind, source, corpus)
            if queries is not None:
                reject_unanswered(queries, source, corpus)
            pairs, count = corpus.unique_pairs([answers.positives]), len(answers.positives[0])
            noun = "link" if queries is None else "answer"
            others = "judged, not links" if queries is None else "shown, not answers"
            counts |= {f"{noun}s": count, others: len(answers.shown[0])}
            counts[f"hard negatives of one {noun}"] = len(answers.triples)
            if queries is not None:
                counts["scored by a teacher"] = len(answers.scores)
            counts[f"repeated {noun}s"] = count - len(pairs[0])
            self.answers.append(answers)
            part: Part = "links" if queries is None else "queries"
            has_triples = len(answers.triples) > 0
            self.parts.append(RawPairs(source, part, *pairs, has_triples=has_triples))

    def _refuse_empty(self) -> None:
        """Raise if nothing is left of a part of a source."""
        rejects = self._corpus.rejects
        for part in (part for part in self.parts if not len(part.positives)):
            path = self._config.resolve(getattr(part.source, part.part))
            problem = f"{part.part}: no pair is left"
            dropped = self.counts[part.source.name].get(f"{part.part} without a text")
            if not dropped:
                raise nothing_left(problem, path, rejects)
            raise DataError(
                f"{problem}{rejects.because()}; dropped for a paper without a text: {dropped:,}",
                path=path,
                fix=f"check that its ids are those of the papers; dangling.{part.part}=error "
                "names the first",
            )

    def _finish_targets(self, readers: Sequence[TargetReader]) -> None:
        """Read the target tables; fields were read along with the papers."""
        for reader in readers:
            if reader.config.file is not None:
                read_targets(reader, self._corpus)
        every = np.arange(len(self._corpus.texts), dtype=np.int64)
        # Of a paper of two sources, the earlier source's target counts.
        files = moved([reader.finish() for reader in readers], every, np.ones(len(every), np.bool_))
        refuse_lonely_classes(readers, files, self._corpus.rejects)
        self.targets = [file for file in files if len(file)]
        for file in self.targets:
            self.counts[file.source][f"papers with a target of {file.task}"] = len(file)
