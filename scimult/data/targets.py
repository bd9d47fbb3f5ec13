"""Targets: what a head predicts for a paper, one class, several classes or a number.

Shape legend: T papers of a file, B of them, K classes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from scimult.data.ragged import Ragged
from scimult.data.text_store import list_array, numbers, open_arrow, ragged, write_arrow
from scimult.types import IntArray

TargetKind = Literal["multi_class", "multi_label", "regression"]


@dataclass(frozen=True)
class TargetFile:
    """Papers of one source and split with the targets of one task.

    Parameters
    ----------
    source, task, split : str
        Where the papers come from, the task they train, and ``train`` or ``dev``.
    kind : TargetKind
        Kind of target, which decides the loss.
    rows : IntArray
        Papers, as rows of the text store, ascending, shape ``(T,)``.
    numbers : array of float
        Regression targets, as trained, shape ``(T,)``; else empty.
    labels : Ragged
        Class numbers of each paper, ``T`` lists, of length one for ``multi_class``; empty for a
        regression.
    classes : tuple of str
        Class names; the same in all files of a task.
    namespace : str
        Namespace of the paper ids, from the manifest rather than the file.
    """

    source: str
    task: str
    split: str
    kind: TargetKind
    rows: IntArray
    numbers: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    labels: Ragged = field(default_factory=lambda: Ragged.empty(0))
    classes: tuple[str, ...] = ()
    namespace: str = ""

    def __post_init__(self) -> None:
        values = self.numbers if self.kind == "regression" else self.labels
        assert len(values) == len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        """``source.task``: unique among the pair and target files of a split."""
        return f"{self.source}.{self.task}"

    @property
    def outputs(self) -> int:
        """Number of outputs of the head."""
        return 1 if self.kind == "regression" else len(self.classes)

    def take(self, indices: IntArray) -> TargetFile:
        """Return the papers at ``indices``, which ascend."""
        if self.kind == "regression":
            return replace(self, rows=self.rows[indices], numbers=self.numbers[indices])
        return replace(self, rows=self.rows[indices], labels=self.labels.take(indices))

    def targets(self, rows_B: IntArray) -> Tensor:
        """Return the targets of some papers of this file.

        Class numbers, shape ``(B,)``; for ``multi_label`` 0 or 1, shape ``(B, K)``, float32; for a
        regression float64 numbers, shape ``(B,)``.
        """
        indices_B = np.searchsorted(self.rows, rows_B)
        if self.kind == "regression":
            return torch.from_numpy(self.numbers[indices_B])
        labels = self.labels.take(indices_B)
        if self.kind == "multi_class":
            return torch.from_numpy(labels.values)
        targets_BK = torch.zeros(len(rows_B), len(self.classes))
        targets_BK[labels.owners, labels.values] = 1.0
        return targets_BK


def target_file_name(source: str, task: str, split: str) -> str:
    """Return the path of a target file, relative to its prepared folder."""
    return f"targets/{source}.{task}.{split}.arrow"


def write_targets(path: Path | str, targets: TargetFile) -> None:
    """Write a target file as Arrow IPC. Call it inside ``files.atomic_folder``."""
    columns = {"row": pa.array(targets.rows, pa.int64())}
    if targets.kind == "regression":
        columns["value"] = pa.array(targets.numbers, pa.float64())
    else:
        columns["classes"] = list_array(targets.labels)
    facts = {
        "source": targets.source,
        "task": targets.task,
        "split": targets.split,
        "kind": targets.kind,
        "class names": json.dumps(targets.classes),
    }
    write_arrow(Path(path), "targets", columns, facts)


def read_targets(path: Path | str) -> TargetFile:
    """Memory-map a target file.

    Raises
    ------
    DataError
        If it is missing, damaged or of another format version.
    """
    table = open_arrow(Path(path), "targets").combine_chunks()
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    values: dict[str, Any] = {}
    if "value" in table.column_names:
        values["numbers"] = numbers(table.column("value"))
    else:
        values["labels"] = ragged(table.column("classes"))
    return TargetFile(
        metadata["source"],
        metadata["task"],
        metadata["split"],
        cast("TargetKind", metadata["kind"]),
        numbers(table.column("row")),
        classes=tuple(json.loads(metadata["class names"])),
        **values,
    )
