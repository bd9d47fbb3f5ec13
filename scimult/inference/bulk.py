"""Encoding of any number of texts into shards, by any number of processes, resumed where it ended.

Shard ``k`` holds texts ``k * rows`` to ``(k + 1) * rows`` of the input, so its bytes depend on the
input and the model alone: not on who encodes it, in which order, or how often work was killed. The
texts of a shard are sorted by length together.

Shape legend: N texts of a shard, D width.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from scimult import distributed
from scimult.errors import ConfigError, DataError
from scimult.inference.encoder import SciMult
from scimult.inference.origin import space_of
from scimult.inference.texts import made_ahead
from scimult.progress import note
from scimult.retrieval.shard_folders import (
    holds,
    open_folder,
    publish_if_whole,
)
from scimult.retrieval.shards import Precision, Space, write_shard
from scimult.retrieval.store import key_of
from scimult.tasks import ALL
from scimult.types import FloatArray, Role, Text

ROWS = 1 << 14
"""Texts of a shard."""


@dataclass(frozen=True)
class Part:
    """Which shards a process encodes: those with ``number % count == index``."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, given: str | None) -> Part:
        """Return the part ``i/n``, divided further over the ranks of torchrun or deepspeed.

        Raises
        ------
        ConfigError
            If it is not such a fraction, or ``i`` is not below ``n``.
        """
        index, _, number = (given or "0/1").partition("/")
        if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
            fix = "write 0/4, 1/4, 2/4 or 3/4 for one of four"
            raise ConfigError("not a part of the work", value=given, fix=fix)
        ranks = distributed.world_size()
        return cls(int(index) * ranks + distributed.rank(), int(number) * ranks)

    def has(self, number: int) -> bool:
        """Return whether the shard with this number is of this part."""
        return number % self.count == self.index


class Window(NamedTuple):
    """The texts of one shard, with their ids."""

    number: int
    ids: list[str]
    texts: list[Text]

    @property
    def hashes(self) -> list[str]:
        """Hash of each text."""
        return [key_of(text).hex() for text in self.texts]


@dataclass(frozen=True)
class Encoded:
    """What came of it.

    Attributes
    ----------
    texts, shards : int
        All of the input.
    encoded : int
        Texts that this call encoded; the others were there, or are of other parts.
    missing : list of int
        Shards that are not written yet. Without any, the manifest lists all.
    """

    texts: int
    shards: int
    encoded: int
    missing: list[int]


class BulkEncoder:
    """Encodes windows of texts into the shards of one or several tasks.

    Parameters
    ----------
    model : SciMult
        The encoder.
    folder : Path
        Of the shards; of ``task="all"`` it has a folder for each task.
    task, role : str
        What the texts are encoded for; see `SciMult.encode`.
    precision : {"float32", "float16"}
        Type of the numbers on disk.
    overwrite : bool
        Replace embeddings that are there, of whatever kind, instead of going on with them.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``.
    DataError
        If the folder holds vectors of another model, task or setting.
    StorageError
        If it holds anything else, or cannot be written.
    """

    def __init__(
        self,
        model: SciMult,
        folder: Path,
        *,
        task: str,
        role: Role,
        precision: Precision = "float32",
        overwrite: bool = False,
    ) -> None:
        self._model, self._task, self._role = model, task, role
        sides = model.paper_sides(role) if task == ALL else {task: role}
        self.spaces: Mapping[str, Space] = {
            name: space_of(model, name, side, precision) for name, side in sides.items()
        }
        self.folders = {name: folder / name if task == ALL else folder for name in sides}
        open_folder(folder, {self.folders[name]: self.spaces[name] for name in sides}, overwrite)

    def encode(self, window: Window) -> bool:
        """Write the shard of a window for every task; False if all are there already."""
        hashes = window.hashes
        left = [
            name
            for name, folder in self.folders.items()
            if not holds(folder, window.number, self.spaces[name], window.ids, hashes)
        ]
        if not left:
            return False
        for name, vectors_ND in self._vectors(window.texts).items():
            if name in left:
                place = self.folders[name], window.number, self.spaces[name]
                write_shard(*place, window.ids, vectors_ND, hashes)
        return True

    def finish(self, shards: int) -> list[int]:
        """Publish the manifests if all shards are there; return the numbers of missing ones."""
        missing: set[int] = set()
        for name, folder in self.folders.items():
            missing.update(publish_if_whole(folder, self.spaces[name], shards))
        return sorted(missing)

    def _vectors(self, texts: list[Text]) -> dict[str, FloatArray]:
        if self._task == ALL:
            return self._model.encode(texts, task=ALL, role=self._role, show_progress=True)
        vectors_ND = self._model.encode(texts, task=self._task, role=self._role, show_progress=True)
        return {self._task: vectors_ND}


def encode_shards(
    encoder: BulkEncoder,
    texts: Iterable[tuple[str, Text]],
    *,
    rows: int = ROWS,
    part: Part | None = None,
    total: int | None = None,
) -> Encoded:
    """Encode the shards of one part; the part that ends last publishes all.

    Every part reads the whole input, which costs some 1 % of encoding it on a CPU. The same call
    again encodes what is missing or has changed, and nothing else.

    Parameters
    ----------
    encoder : BulkEncoder
        The model, and where the shards go.
    texts : iterable of (str, Text)
        Ids and texts, the same in every part.
    rows : int
        Texts of a shard; held in memory together with those of the next.
    part : Part, optional
        Which shards are encoded here; by default all.
    total : int, optional
        About how many texts there are, for the time that is left.

    Raises
    ------
    DataError
        If there are no texts, or an embedding is not finite.
    StorageError
        If a shard cannot be written.
    """
    if rows < 1:
        raise ConfigError("a shard has no rows", value=rows, fix="use 1 or more")
    part = part or Part()
    shards = read = encoded = 0
    pace = _Pace(None if total is None else -(-total // part.count), rows)
    for window in _read_ahead(windows(texts, rows)):
        shards, read = window.number + 1, read + len(window.ids)
        if not part.has(window.number):
            continue
        if encoder.encode(window):
            encoded += len(window.ids)
            pace.encoded(window)
        else:
            pace.found(window)
    if not shards:
        raise DataError("no text is left", fix="add one that has an id and a text")
    return Encoded(read, shards, encoded, encoder.finish(shards))


def local_device(device: str | None) -> str | None:
    """Return the GPU of this rank, where a launcher gave each rank one; else what was asked."""
    import torch

    several = "LOCAL_RANK" in os.environ and torch.cuda.device_count() > 1
    return f"cuda:{distributed.local_rank()}" if several and device in (None, "cuda") else device


def windows(texts: Iterable[tuple[str, Text]], rows: int) -> Iterator[Window]:
    """Yield the texts of one shard after the other; the last one may be shorter."""
    left = iter(texts)
    for number in count():
        held = list(islice(left, rows))
        if not held:
            return
        yield Window(number, [name for name, _ in held], [text for _, text in held])


def _read_ahead(source: Iterator[Window]) -> Iterator[Window]:
    """Yield windows; the next one is read while the caller is at work with one."""
    read = made_ahead(lambda _: next(source, None), count())
    return (window for window in takewhile(lambda window: window is not None, read) if window)


class _Pace:
    """Says after each shard how fast it goes and what is left."""

    def __init__(self, total: int | None, rows: int) -> None:
        self._total, self._rows = total, rows
        self._started, self._encoded, self._found = time.perf_counter(), 0, 0

    def found(self, window: Window) -> None:
        self._found += len(window.ids)

    def encoded(self, window: Window) -> None:
        self._encoded += len(window.ids)
        if window.number == 0 and len(window.ids) < self._rows:
            return  # it was the only one
        rate = self._encoded / (time.perf_counter() - self._started)
        words = f"shard {window.number}: {rate:,.0f} texts a second"
        if self._total is not None:
            left = max(0, self._total - self._encoded - self._found)
            words += f", {_duration(left / rate)} left"
        note(words)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
