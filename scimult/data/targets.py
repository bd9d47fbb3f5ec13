"""Targets: what a head is to say of a paper, one class, several classes or a number.

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
from scimult.data.text_store import list_array, open_arrow, ragged, write_arrow
from scimult.types import IntArray

VERSION = "1"
TargetKind = Literal["multi_class", "multi_label", "regression"]


@dataclass(frozen=True)
class TargetFile:
    """Papers of one source and split with the targets of one task.

    Parameters
    ----------
    source, task, split : str
        Where the papers come from, the task they train, and ``train`` or ``dev``.
    kind : TargetKind
        What a target is, and which loss fits it.
    rows : IntArray
        Papers, as rows of the text store, ascending, shape ``(T,)``.
    numbers : array of float
        Of a regression, as trained, shape ``(T,)``; else empty.
    labels : Ragged
        Numbers of the classes of each paper, ``T`` lists, one of each for ``multi_class``; of a
        regression empty.
    classes : tuple of str
        Names of the classes; those of a task are the same in all its files.
    namespace : str
        Of the ids of its papers. It stands in the manifest, not in the file.
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
        """``source.task``: unique among the files of a split, of pairs and of targets."""
        return f"{self.source}.{self.task}"

    @property
    def outputs(self) -> int:
        """Numbers that a head has to give."""
        return 1 if self.kind == "regression" else len(self.classes)

    def take(self, places: IntArray) -> TargetFile:
        """Return the papers at ``places``, ascending."""
        if self.kind == "regression":
            return replace(self, rows=self.rows[places], numbers=self.numbers[places])
        return replace(self, rows=self.rows[places], labels=self.labels.take(places))

    def targets(self, rows_B: IntArray) -> Tensor:
        """Return the targets of papers of this file.

        Returns
        -------
        Tensor
            Class numbers, shape ``(B,)``; for ``multi_label`` 0 and 1, shape ``(B, K)``, float32;
            for a regression numbers, shape ``(B,)``, float64.
        """
        places_B = np.searchsorted(self.rows, rows_B)
        if self.kind == "regression":
            return torch.from_numpy(self.numbers[places_B])
        labels = self.labels.take(places_B)
        if self.kind == "multi_class":
            return torch.from_numpy(labels.values)
        targets_BK = torch.zeros(len(rows_B), len(self.classes))
        targets_BK[labels.owners, labels.values] = 1.0
        return targets_BK


def target_file_name(source: str, task: str, split: str) -> str:
    """Return where a file of targets stands, relative to its prepared folder."""
    return f"targets/{source}.{task}.{split}.arrow"


def write_targets(path: Path | str, targets: TargetFile) -> None:
    """Write a file of targets as Arrow IPC. Call it inside ``files.atomic_folder``."""
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
    write_arrow(Path(path), "targets", VERSION, columns, facts)


def read_targets(path: Path | str) -> TargetFile:
    """Memory-map a file of targets.

    Raises
    ------
    DataError
        If it is absent, damaged or of another format version.
    """
    table = open_arrow(Path(path), "targets", VERSION).combine_chunks()
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    values: dict[str, Any] = {}
    if "value" in table.column_names:
        values["numbers"] = table.column("value").to_numpy()
    else:
        values["labels"] = ragged(table.column("classes"))
    return TargetFile(
        metadata["source"],
        metadata["task"],
        metadata["split"],
        cast("TargetKind", metadata["kind"]),
        table.column("row").to_numpy(),
        classes=tuple(json.loads(metadata["class names"])),
        **values,
    )
