"""One conversion of a download: what it reads, the sources that it writes, what came of them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from scimult.data.lines import EXAMPLES_PER_REASON, Rejects
from scimult.data.rows import KINDS
from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.preparation.config import Dangling, PairTable, SourceConfig
from scimult.preparation.sources.raw import Makes, RawSource
from scimult.preparation.steps import Steps

REJECTS_FILE = "rejects.jsonl"
RESULT_FILE = "result.json"


class Conversion:
    """One conversion: where it reads, what it has written, what came of it.

    Each source that it writes is a step that is kept: found again in a later conversion with
    the same options that would read the same.

    Parameters
    ----------
    source : Path
        The folder that the user downloaded.
    steps : Steps
        Where finished sources are.
    inputs : mapping
        What all sources depend on besides what they read, as JSON values.
    dangling : mapping
        See ``SourceOptions``.
    skip_bad : bool
        Leave bad records out and count them.

    Attributes
    ----------
    rejects : Rejects
        The bad records of the sources that were written.
    configs : list of SourceConfig
        The sources that were written, as prepare reads them.
    counts : dict
        What was counted, by source.
    notes : list of str
        What the user should know of the sources besides their counts.
    folders : dict
        Where the files of each source are.
    read : dict
        Every file that was read, with its checksum.
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
        """Return the path of a needed file below the source; ``.gz`` is found by itself.

        Parameters
        ----------
        name : str
            Its path.
        fix : str
            Where it comes from, if not with the download.

        Raises
        ------
        DataError
            If it does not exist.
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
        """Return the path of a file below the source if it is there, as it is or gzipped."""
        paths = (self.source / there for there in (name, f"{name}.gz"))
        return next((path for path in paths if path.is_file()), None)

    def matching(self, names: Sequence[str], fix: str = "") -> list[Path]:
        """Return the files below the source that paths and globs name, in order.

        Raises
        ------
        DataError
            If one is not there, or a glob meets nothing.
        """
        paths = []
        for name in names:
            if not glob.has_magic(name) or (self.source / name).exists():
                paths.append(self.file(name, fix))
                continue
            there = sorted(glob.glob(name, root_dir=self.source, recursive=True))
            files = [self.source / one for one in there if (self.source / one).is_file()]
            if not files:
                raise DataError("no file has such a name", path=self.source / name, fix=fix)
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
        """Write a source, or find it written.

        Parameters
        ----------
        name : str
            Name of the source.
        reads : sequence of Path, optional
            All files that it reads; ``None`` if it reads what has no checksum: it is never kept.
        fill : callable
            Writes everything into the ``RawSource`` it is given.
        makes : sequence of str
            What must come of it; nothing of one of them is an error.
        dangling : mapping, optional
            What is usual for this data; the user's choice goes before it.
        **choices
            Fields of the ``SourceConfig``.

        Raises
        ------
        DataError
            See ``RawSource.finish``.
        """
        if name in self.counts:
            return

        def make(folder: Path) -> None:
            rejects = Rejects(self.rejects.skip_bad, folder / REJECTS_FILE)
            policy = {**(dangling or {}), **self._dangling}
            with RawSource(folder, name, rejects, policy) as raw:
                fill(raw)
                config = raw.finish(makes, **choices)
            left_out = {"counts": rejects.counts, "examples": rejects.examples}
            described = config.model_dump(mode="json", exclude_unset=True)
            result = {"config": described, "counts": raw.counts, "notes": raw.notes}
            write_json(folder / RESULT_FILE, {**result, "rejects": left_out})

        once = {} if reads is not None else {"once": uuid4().hex}
        read = self._steps.checksums({self._named(path): path for path in reads or ()})
        step = self._steps.run(name, {**self._inputs, **once, "read": read}, make)
        self.read.update(read)
        self._take(name, step.folder)

    def _named(self, path: Path) -> str:
        """Return what a file is called: by its place below the source, if it is there."""
        below = path.is_relative_to(self.source)
        return path.relative_to(self.source).as_posix() if below else str(path.resolve())

    def _take(self, name: str, folder: Path) -> None:
        """Enter a source that is written."""
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
    """Return the files of a hub-like folder that hold ``stem``, of any kind, in order.

    For ``train``: ``train.jsonl``, ``train.json.gz``, ``train-00000-of-00006.parquet``, or the
    files of a sub-folder ``train/``.
    """
    inner = folder / stem
    paths = inner.iterdir() if inner.is_dir() else folder.glob(f"{stem}[-.]*")
    return sorted(
        path
        for path in paths
        if path.is_file() and Path(path.name.removesuffix(".gz")).suffix in KINDS
    )
