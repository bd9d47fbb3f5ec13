"""One conversion of a download: the files it reads, the sources it writes, and their counts."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from scimult.data.packed import unpacked_name, variants
from scimult.data.records import EXAMPLES_PER_REASON, Rejects
from scimult.data.rows import KINDS
from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.preparation.config import Dangling, PairTable, SourceConfig
from scimult.preparation.sources.raw import Makes, RawSource
from scimult.preparation.steps import Steps

REJECTS_FILE = "rejects.jsonl"
RESULT_FILE = "result.json"


class Conversion:
    """One conversion of a download.

    Each source it writes is a cached step, reused by later conversions with the same options and
    files. ``inputs`` are what all sources depend on, apart from the files they read, as JSON
    values.

    Of the written sources, ``configs`` are what prepare reads; ``counts`` and ``folders`` are by
    name, ``rejects`` are their bad records, and ``notes`` are remarks for the user. ``read`` has
    the checksums of all files that were read.
    """

    def __init__(
        self,
        source: Path,
        steps: Steps,
        inputs: Mapping[str, Any],
        dangling: Mapping[PairTable, Dangling],
        *,
        skip_bad: bool = False,
    ) -> None:
        self.source, self._steps, self._inputs = source, steps, inputs
        self._dangling = dangling
        self.rejects = Rejects(skip_bad)
        self.configs: list[SourceConfig] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.notes: list[str] = []
        self.folders: dict[str, Path] = {}
        self.read: dict[str, Any] = {}

    def file(self, name: str, fix: str = "") -> Path:
        """Return the path of a required file below the source, compressed or not.

        ``fix`` says how to get it, if it is not part of the download.
        """
        path = self.optional_file(name)
        if path is None:
            raise DataError(
                "file does not exist",
                path=self.source / name,
                fix=fix
                or "download it into this folder, or name another with --input; "
                "scimult prepare --list shows what each source needs",
            )
        return path

    def optional_file(self, name: str) -> Path | None:
        """Return the path of a file below the source, compressed or not, if it exists."""
        return next(filter(Path.is_file, variants(self.source / name)), None)

    def matching(self, names: Sequence[str], fix: str) -> list[Path]:
        """Return the files below the source that match paths and globs, in order."""
        paths = []
        for name in names:
            if not glob.has_magic(name) or (self.source / name).exists():
                paths.append(self.file(name, fix))
                continue
            matches = sorted(glob.glob(name, root_dir=self.source, recursive=True))
            files = [path for match in matches if (path := self.source / match).is_file()]
            if not files:
                raise DataError("no file matches", path=self.source / name, fix=fix)
            paths.extend(files)
        return paths

    def write(
        self,
        name: str,
        reads: Sequence[Path] | None,
        fill: Callable[[RawSource], None],
        makes: Sequence[Makes],
        *,
        dangling: Mapping[PairTable, Dangling] | None = None,
        **choices: Any,
    ) -> None:
        """Write a source, or reuse it from the cache.

        ``fill`` writes everything into the ``RawSource`` it is given. ``reads`` are all files that
        it reads; ``None``, to never cache it, if its input has no checksum. It is an error if
        nothing is left of what it ``makes``. ``dangling`` are defaults for this data, which the
        user's choice overrides; ``choices`` are fields of the ``SourceConfig``.
        """
        if name in self.counts:
            return

        def make(folder: Path) -> None:
            rejects = Rejects(self.rejects.skip_bad, folder / REJECTS_FILE)
            policy = {**(dangling or {}), **self._dangling}
            with RawSource(folder, name, rejects, policy) as raw:
                fill(raw)
                config = raw.finish(makes, **choices)
            result = {
                "config": config.model_dump(mode="json", exclude_unset=True),
                "counts": raw.counts,
                "notes": raw.notes,
                "rejects": {"counts": rejects.counts, "examples": rejects.examples},
            }
            write_json(folder / RESULT_FILE, result)

        unique = {} if reads is not None else {"once": uuid4().hex}
        read = self._steps.checksums({self._relative(path): path for path in reads or ()})
        step = self._steps.run(name, {**self._inputs, **unique, "read": read}, make)
        self.read.update(read)
        self._add(name, step.folder)

    def _relative(self, path: Path) -> str:
        """Return a file's path relative to the source, or its full path if it is elsewhere."""
        below = path.is_relative_to(self.source)
        return path.relative_to(self.source).as_posix() if below else str(path.resolve())

    def _add(self, name: str, folder: Path) -> None:
        """Register a finished source."""
        tree = read_json(folder / RESULT_FILE)
        self.configs.append(SourceConfig(**tree["config"]))
        self.counts[name] = tree["counts"]
        self.notes.extend(f"{name}: {note}" for note in tree["notes"])
        self.folders[name] = folder
        self.rejects.counts.update(tree["rejects"]["counts"])
        for reason, examples in tree["rejects"]["examples"].items():
            known = self.rejects.examples.setdefault(reason, [])
            known.extend(examples[: EXAMPLES_PER_REASON - len(known)])


def named_files(folder: Path, stem: str) -> list[Path]:
    """Return the files of a hub-like folder that hold the split ``stem``, of any kind, in order.

    For ``train``: ``train.jsonl``, ``train.json.gz``, ``train-00000-of-00006.parquet``, or the
    files of a sub-folder ``train/``.
    """
    inner = folder / stem
    paths = inner.iterdir() if inner.is_dir() else folder.glob(f"{stem}[-.]*")
    return sorted(
        path
        for path in paths
        if path.is_file() and Path(unpacked_name(path)).suffix.lower() in KINDS
    )
