"""Encode any number of texts into shards, with any number of processes, resuming after kills.

Shard ``k`` holds texts ``k * rows`` to ``(k + 1) * rows`` of the input, so its bytes depend on the
input and the model alone: not on who encodes it, in which order, or how often work was killed. The
texts of one shard are sorted by length together.

Shape legend: N texts of a shard, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path

from scimult import distributed
from scimult.errors import ConfigError, DataError, StorageError, one_of
from scimult.inference.encoder import SciMult
from scimult.inference.origin import space_of
from scimult.inference.texts import made_ahead
from scimult.progress import note
from scimult.retrieval.shard_folders import check_papers, holds, open_folder, publish_if_whole
from scimult.retrieval.shards import fingerprint_of_texts, write_shard
from scimult.retrieval.space import Precision, Space
from scimult.retrieval.store import key_of
from scimult.tasks import ALL, TaskSet
from scimult.types import FloatArray, Kind, Role, Text

ROWS = 1 << 14
"""Texts per shard."""


@dataclass(frozen=True)
class Part:
    """The shards that a process encodes: those with ``number % count == index``."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, given: str | None) -> Part:
        """Return the part ``i/n``, divided further over the ranks of torchrun or deepspeed.

        Raises
        ------
        ConfigError
            If it is not of that form, or ``i`` is not below ``n``.
        """
        index, _, number = (given or "0/1").partition("/")
        if not (index.isdecimal() and number.isdecimal() and int(index) < int(number)):
            fix = "write 0/4, 1/4, 2/4 or 3/4 for one of four"
            raise ConfigError("not a part i/n", value=given, fix=fix)
        ranks = distributed.world_size()
        return cls(int(index) * ranks + distributed.rank(), int(number) * ranks)

    def has(self, number: int) -> bool:
        """Return whether this part includes the shard with this number."""
        return number % self.count == self.index


@dataclass(frozen=True)
class Window:
    """The texts of one shard, with their ids."""

    number: int
    ids: list[str]
    texts: list[Text]

    @cached_property
    def hashes(self) -> list[str]:
        """Hash of each text."""
        return [key_of(text).hex() for text in self.texts]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all ids and texts."""
        return fingerprint_of_texts(self.ids, self.hashes)


@dataclass(frozen=True)
class Encoded:
    """The outcome of an encoding call.

    Attributes
    ----------
    texts, shards : int
        Totals of the input.
    encoded : int
        Texts that this call encoded; the others existed, or belong to other parts.
    missing : list of int
        Shards not written yet. If there are none, the manifest lists all.
    """

    texts: int
    shards: int
    encoded: int
    missing: list[int]


class BulkEncoder:
    """Encodes windows of texts into the shards of one or several tasks.

    The folder is created, or replaced, at the first window: an input that cannot be read leaves it
    as it was.

    Parameters
    ----------
    folder : Path
        Receives the shards; ``task="all"`` gives each task a folder in it.
    task, role : str
        Task and side to encode for; see `SciMult.encode`.
    precision : {"float32", "float16"}
        Number type on disk.
    overwrite : bool
        Replace existing embeddings, of one task or of each, instead of resuming them.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``.
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
        self.folder = folder
        self.spaces: Mapping[str, Space] = {
            name: space_of(model, name, side, precision) for name, side in sides.items()
        }
        self.folders = {name: folder / name if task == ALL else folder for name in sides}
        self._overwrite, self._is_open = overwrite, False

    def encode(self, window: Window) -> bool:
        """Write a window's shard for every task; return False if all exist.

        Raises
        ------
        DataError
            If the folder holds vectors of another model, task or setting.
        StorageError
            If it holds anything else, or cannot be written.
        """
        if window.number == 0:
            self.check(window)
        self._open()
        left = [
            name
            for name, folder in self.folders.items()
            if not holds(folder, window.number, self.spaces[name], window.fingerprint)
        ]
        if not left:
            return False
        for name, vectors_ND in self._vectors(window.texts).items():
            if name in left:
                shard = self.folders[name], window.number, self.spaces[name]
                write_shard(*shard, window.ids, vectors_ND, window.hashes)
        return True

    def check(self, first: Window) -> None:
        """Refuse to replace the embeddings of another input, whose first window this is not.

        Raises
        ------
        StorageError
            If there are some.
        """
        for folder in () if self._overwrite else self.folders.values():
            check_papers(folder, first.ids)

    def finish(self, fingerprints: Sequence[str]) -> list[int]:
        """Publish the manifests if all windows have shards; return the numbers of missing ones."""
        self._open()
        missing: set[int] = set()
        for name, folder in self.folders.items():
            missing.update(publish_if_whole(folder, self.spaces[name], fingerprints))
        return sorted(missing)

    def _open(self) -> None:
        if not self._is_open:
            spaces = {folder: self.spaces[name] for name, folder in self.folders.items()}
            open_folder(self.folder, spaces, self._overwrite)
            self._is_open = True

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
    """Encode the shards of one part; the part that finishes last publishes all.

    Every part reads the whole input, which costs about 1 % of encoding it on a CPU. Repeating the
    call encodes only what is missing or has changed.

    Parameters
    ----------
    encoder : BulkEncoder
        The model, and the folder of the shards.
    texts : iterable of (str, Text)
        Ids and texts, the same in every part.
    rows : int
        Texts per shard; memory holds two shards' texts.
    part : Part, optional
        Shards to encode here; default: all.
    total : int, optional
        Approximate number of texts, to estimate the time left.

    Raises
    ------
    DataError
        If there are no texts, or an embedding is not finite.
    StorageError
        If a shard cannot be written, or another process replaced one meanwhile.
    """
    if rows < 1:
        raise ConfigError("a shard has no rows", value=rows, fix="use 1 or more")
    part = part or Part()
    read = encoded = 0
    fingerprints: list[str] = []
    pace = _Pace(None if total is None else -(-total // part.count), rows)
    for window in _read_ahead(windows(texts, rows)):
        if window.number == 0 and not part.has(0):
            encoder.check(window)
        fingerprints.append(window.fingerprint)
        read += len(window.ids)
        if not part.has(window.number):
            continue
        if encoder.encode(window):
            encoded += len(window.ids)
            pace.encoded(window)
        else:
            pace.skipped(window)
    if not fingerprints:
        raise DataError("no text is left", fix="add one that has an id and a text")
    missing = encoder.finish(fingerprints)
    if missing and part.count == 1:
        problem = f"another process has replaced {len(missing)} of {len(fingerprints)} shards"
        fix = "write each input to a folder of its own, and repeat this call"
        raise StorageError(problem, path=encoder.folder, fix=fix)
    return Encoded(read, len(fingerprints), encoded, missing)


def kind_encoded(tasks: TaskSet, task: str, role: Role) -> Kind:
    """Return the kind of text to encode for a task or for all.

    Raises
    ------
    UnknownNameError
        If the task is not in the set, or ``role`` is not a side.
    """
    one_of("task", task, [*tasks.names, ALL])
    return "paper" if task == ALL else tasks.kind(task, role)


def windows(texts: Iterable[tuple[str, Text]], rows: int) -> Iterator[Window]:
    """Yield the texts of one shard at a time; the last may be shorter."""
    remaining = iter(texts)
    for number in count():
        chunk = list(islice(remaining, rows))
        if not chunk:
            return
        yield Window(number, [name for name, _ in chunk], [text for _, text in chunk])


def _read_ahead(source: Iterator[Window]) -> Iterator[Window]:
    """Yield windows, reading the next one while the caller works."""
    for window in made_ahead(lambda _: next(source, None), count()):
        if window is None:
            return
        yield window


class _Pace:
    """Reports speed and remaining time after each shard."""

    def __init__(self, total: int | None, rows: int) -> None:
        self._total, self._rows = total, rows
        self._started, self._encoded, self._skipped = time.perf_counter(), 0, 0

    def skipped(self, window: Window) -> None:
        self._skipped += len(window.ids)

    def encoded(self, window: Window) -> None:
        self._encoded += len(window.ids)
        if window.number == 0 and len(window.ids) < self._rows:
            return  # the only shard
        rate = self._encoded / (time.perf_counter() - self._started)
        message = f"shard {window.number}: {rate:,.0f} texts a second"
        if self._total is not None:
            left = max(0, self._total - self._encoded - self._skipped)
            message += f", {_duration(left / rate)} left"
        note(message)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
