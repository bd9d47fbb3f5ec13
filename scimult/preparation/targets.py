"""Turn paper fields and tables into targets of supervised tasks.

Shape legend: T papers with a target, N texts.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult.data.ragged import Ragged
from scimult.data.records import Record, Rejects
from scimult.data.targets import TargetFile
from scimult.errors import DataError
from scimult.preparation.config import SourceConfig
from scimult.preparation.target_config import (
    ClassTargetConfig,
    RegressionTargetConfig,
    TargetOptions,
)
from scimult.types import BoolArray, IntArray

PAPER_COLUMN = "paper-id|corpus-id"
# Means closer to 0, as a share of the largest number, are 0.
_ROUNDING = 1e-12


class TargetReader:
    """Collects the targets of one task from a source's papers or a table.

    ``first_lines`` has the first line of each class.
    """

    def __init__(
        self, config: TargetOptions, source: SourceConfig, path: Path, rejects: Rejects
    ) -> None:
        self.config, self.source, self.path, self._rejects = config, source, path, rejects
        self._rows, self._values = array("q"), array("d")
        self._lines: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self.first_lines: dict[str, int] = {}

    def add_row(self, row: int, record: Record) -> None:
        """Add the target in a table row for the paper at ``row``."""
        if self.config.kind != "multi_label" and row in self._lines:
            raise record.error(
                f"paper has two targets of task {self.config.task!r}",
                value=record.fields["paper-id"],
                fix=f"remove one of lines {self._lines[row]} and {record.line}",
            )
        self._add(row, record, self.config.column)

    def add_field(self, row: int, record: Record) -> None:
        """Add the target in a paper's record, if there is one."""
        name = self.config.field
        assert name is not None
        if record.fields.get(name) in (None, "", []):
            return
        try:
            self._add(row, record, name, is_list=self.config.kind == "multi_label")
        except DataError as error:
            self._rejects.reject(error)

    def _add(self, row: int, record: Record, name: str, *, is_list: bool = False) -> None:
        """Add the number or the classes in a field of a record."""
        if self.config.kind == "regression":
            self._append(row, self._number(record, name), record)
            return
        names = record.identifiers(name) if is_list else [record.identifier(name)]
        for class_name in names:
            self.first_lines.setdefault(class_name, record.line)
            number = self._numbers.setdefault(class_name, len(self._numbers))
            self._append(row, number, record)

    def _number(self, record: Record, name: str) -> float:
        assert isinstance(self.config, RegressionTargetConfig)
        number = record.number(name)
        if self.config.scale == "log" and number < 0:
            fix = "correct it, or choose another scale"
            raise record.error("negative number with scale log", value=number, fix=fix)
        return number

    def _append(self, row: int, value: float, record: Record) -> None:
        self._lines[row] = record.line
        self._rows.append(row)
        self._values.append(value)

    def finish(self) -> TargetFile:
        """Return all targets: unscaled numbers, all classes and splits."""
        if not self._rows:
            raise DataError(
                f"no paper has a target of task {self.config.task!r}{self._rejects.because()}",
                path=self.path,
                value=self.config.field or self.config.column,
                fix="correct the name of the field or column, or leave these targets out",
            )
        rows_T, values_T = np.array(self._rows, dtype=np.int64), np.array(self._values)
        header = (self.source.name, self.config.task, "", self.config.kind)
        if self.config.kind == "regression":
            order = np.argsort(rows_T)
            file = TargetFile(*header, rows_T[order], numbers=values_T[order])
        else:
            distinct, owners = np.unique(rows_T, return_inverse=True)
            labels = Ragged.from_pairs(owners, values_T.astype(np.int64), len(distinct))
            file = TargetFile(*header, distinct, labels=labels, classes=tuple(self._numbers))
        return replace(file, namespace=self.source.space)


def refuse_lonely_classes(
    readers: Sequence[TargetReader], files: Sequence[TargetFile], rejects: Rejects
) -> None:
    """Reject every class with a single paper, unless ``min_papers`` leaves rare classes out.

    ``files`` are the targets of the readers, of each paper once.
    """
    papers: Counter[tuple[str, str]] = Counter()
    location: dict[tuple[str, str], tuple[Path, int]] = {}
    for reader, file in zip(readers, files, strict=True):
        if isinstance(reader.config, ClassTargetConfig) and reader.config.min_papers is None:
            for name, count in _papers_per_class(file):
                papers[file.task, name] += count
                location[file.task, name] = (reader.path, reader.first_lines[name])
    for (task, name), count in papers.items():
        if count == 1:
            fix = "set min_papers of its targets to leave rare classes out, or remove it"
            problem = f"only one paper has this class of task {task!r}"
            rejects.refuse(problem, *location[task, name], value=name, fix=fix)


def _papers_per_class(file: TargetFile) -> Iterator[tuple[str, int]]:
    counts = np.bincount(file.labels.values, minlength=len(file.classes))
    return zip(file.classes, counts.tolist(), strict=True)


def moved(files: Sequence[TargetFile], new_N: IntArray, is_kept_N: BoolArray) -> list[TargetFile]:
    """Return the targets after texts were removed or merged.

    A text keeps one target of each task, of whatever source: of merged texts that of the text that
    stays, or else the first.
    """
    result = list(files)
    for task in dict.fromkeys(file.task for file in files):
        numbers = [number for number, file in enumerate(files) if file.task == task]
        old_T = np.concatenate([files[number].rows for number in numbers])
        new_T = new_N[old_T]
        order = np.lexsort((~is_kept_N[old_T], new_T))
        stays_T = np.zeros(len(old_T), dtype=np.bool_)
        stays_T[order[np.diff(new_T[order], prepend=-1) > 0]] = True
        start = 0
        for number in numbers:
            file = files[number]
            own = np.flatnonzero(stays_T[start : start + len(file)])
            own = own[np.argsort(new_N[file.rows[own]])]
            result[number] = replace(file.take(own), rows=new_N[file.rows[own]])
            start += len(file)
    return result


@dataclass(frozen=True)
class SplitTargets:
    """Training targets; of a regression, ``value = factor * scaled(raw) + offset``."""

    files: list[TargetFile]
    factor: float
    offset: float


def split_targets(
    raw: Sequence[TargetFile], configs: Mapping[str, TargetOptions], dev_N: BoolArray
) -> list[SplitTargets]:
    """Scale numbers, number classes by name and split papers: a file per source and split.

    ``raw`` are targets as read, ``configs`` those of each task.

    Raises
    ------
    DataError
        If a task has no training paper or fewer than two classes left, or identical numbers
        cannot be scaled.
    """
    by_task: dict[str, list[TargetFile]] = {}
    for file in raw:
        by_task.setdefault(file.task, []).append(file)
    means: dict[str, float] = {}
    result: dict[str, SplitTargets] = {}
    # Tasks without ``times_mean_of`` come first: the others need their means.
    for task, files in sorted(by_task.items(), key=lambda item: _depends(configs[item[0]])):
        factor, offset, config = 1.0, 0.0, configs[task]
        if isinstance(config, RegressionTargetConfig):
            if config.scale == "log":
                files = [replace(file, numbers=np.log1p(file.numbers)) for file in files]
            factor, offset = _scaling(config, files, dev_N, means)
            files = [replace(file, numbers=factor * file.numbers + offset) for file in files]
            means[task] = _mean(_training(files, dev_N))
        else:
            files = _numbered(config, files)
        split = [part for file in files for part in _split(file, dev_N)]
        result[task] = SplitTargets(split, factor, offset)
    return [result[task] for task in by_task]


def _depends(config: TargetOptions) -> bool:
    return isinstance(config, RegressionTargetConfig) and config.times_mean_of is not None


def _split(file: TargetFile, dev_N: BoolArray) -> Iterator[TargetFile]:
    in_dev = dev_N[file.rows]
    yield replace(file.take(np.flatnonzero(~in_dev)), split="train")
    yield replace(file.take(np.flatnonzero(in_dev)), split="dev")


def _training(files: Sequence[TargetFile], dev_N: BoolArray) -> NDArray[np.float64]:
    return np.concatenate([file.numbers[~dev_N[file.rows]] for file in files])


def _mean(numbers: NDArray[np.float64]) -> float:
    """Return the mean; 0 if rounding alone makes it another, as that of standardised numbers."""
    mean = float(numbers.mean())
    return mean if abs(mean) > _ROUNDING * np.abs(numbers).max() else 0.0


def _scaling(
    config: RegressionTargetConfig,
    files: Sequence[TargetFile],
    dev_N: BoolArray,
    means: Mapping[str, float],
) -> tuple[float, float]:
    """Return factor and offset, computed from the train split."""
    numbers = _training(files, dev_N)
    if not len(numbers):
        raise _unusable(config.task, "no training paper is left")
    width, zero = 1.0, 0.0
    if config.scale == "unit":
        width, zero = float(np.ptp(numbers)), float(numbers.min())
    elif config.scale == "standard":
        # Equal numbers may deviate from their mean by rounding.
        width, zero = float(numbers.std()) if np.ptp(numbers) else 0.0, float(numbers.mean())
    if width == 0:
        raise _unusable(
            config.task, f"all numbers are {numbers[0]:g}, which scale {config.scale} cannot scale"
        )
    mean = 1.0 if config.times_mean_of is None else means[config.times_mean_of]
    if mean <= 0:
        raise _unusable(config.task, f"the mean of {config.times_mean_of} is {mean:g}")
    return mean / width, -zero * mean / width


def _numbered(config: ClassTargetConfig, parts: Sequence[TargetFile]) -> list[TargetFile]:
    """Return the targets with only frequent classes, numbered in the order of their names."""
    papers: Counter[str] = Counter()
    for part in parts:
        papers.update(dict(_papers_per_class(part)))
    classes = sorted(name for name, count in papers.items() if count >= (config.min_papers or 2))
    if (len(classes) < 2 and config.kind == "multi_class") or not classes:
        raise _unusable(config.task, f"classes left: {len(classes)}")
    number_of = {name: number for number, name in enumerate(classes)}
    files = []
    for part in parts:
        new = np.array([number_of.get(name, -1) for name in part.classes], dtype=np.int64)
        numbers = new[part.labels.values]
        owners = part.labels.owners[numbers >= 0]
        labels = Ragged.from_pairs(owners, numbers[numbers >= 0], len(part))
        file = replace(part, labels=labels, classes=tuple(classes))
        files.append(file.take(np.flatnonzero(labels.lengths)))
    return files


def _unusable(task: str, problem: str) -> DataError:
    fix = "lower min_papers, choose another scale, or leave these targets out"
    return DataError(f"targets of task {task!r} cannot be used: {problem}", fix=fix)
