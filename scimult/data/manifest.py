"""``manifest.json`` of a prepared folder: its configuration, contents and checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_serializer,
)

from scimult.data.pairs import PairFile, PairPart, pair_file_name
from scimult.data.targets import TargetFile, TargetKind, target_file_name
from scimult.errors import DataError
from scimult.files import check_replaceable, read_json, sha256, write_json
from scimult.tasks import Task

FILE_NAME = "manifest.json"
VERSION = "1"
# Of prepared data, worlds, shards and checkpoints; of libraries; of taggers.
_OUTPUTS = (FILE_NAME, "library.json", "tagger.json")


def check_no_other_output(folder: Path) -> None:
    """Check that runs or results in a folder do not go among the files of another verb's output.

    Raises
    ------
    StorageError
        If it is prepared data, a world, a checkpoint, a library or a tagger.
    """
    if any((folder / name).is_file() for name in _OUTPUTS):
        check_replaceable(folder)


# Within the folder: mining replaces and removes pair files, also of a folder that others made.
ArrowFile = Annotated[str, StringConstraints(pattern=r"^(pairs|targets)/[^/]+\.arrow$")]


class _Entry(BaseModel):
    """A part of the manifest; unknown keys from later versions are preserved."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())


class FileEntry(_Entry):
    """A file of the folder."""

    bytes: int
    sha256: str


class SourceEntry(_Entry):
    """A source, and counts of what was read from it."""

    name: str
    namespace: str
    counts: dict[str, int]


class MinedCounts(_Entry):
    """Mining results of a pair file.

    ``with_negatives`` groups have ``negatives`` in total; ``found`` counts each rule's candidates,
    ``drawn`` is its share of the negatives that training draws.
    """

    with_negatives: int = 0
    negatives: int = 0
    found: dict[str, int] = {}
    drawn: dict[str, float] = {}


class PairEntry(MinedCounts):
    """A pair file: its origin and counts.

    ``queries`` counts distinct ones. ``neighbours_of`` is the source whose citations gave a
    neighbours file; ``too_short`` counts papers that self-supervision left out.
    """

    file: ArrowFile
    source: str
    namespace: str
    part: PairPart
    neighbours_of: str | None = Field(None, alias="from")
    task: str
    split: str
    queries: int
    groups: int
    pairs: int
    unsampled: int
    too_short: int | None = Field(None, alias="too short")

    @classmethod
    def of(cls, pairs: PairFile) -> PairEntry:
        """Return the entry of a pair file that has not been mined."""
        assert pairs.part is not None
        return cls(
            file=pair_file_name(pairs.source, pairs.task, pairs.split),
            source=pairs.source,
            namespace=pairs.namespace,
            part=pairs.part,
            task=pairs.task,
            split=pairs.split,
            queries=min(1, len(pairs)) + int((pairs.queries[1:] != pairs.queries[:-1]).sum()),
            groups=len(pairs),
            pairs=len(pairs.positives.values),
            unsampled=len(pairs.unsampled.values),
        )

    def mined(self, counts: MinedCounts) -> PairEntry:
        """Return the entry with mining results."""
        return self.model_copy(update=dict(counts))


class TargetEntry(_Entry):
    """A target file: its origin, kind, and counts.

    A regression is trained on ``factor * n + offset``, where n is the number read, or its
    ln(1 + n) under scale ``log``.
    """

    file: ArrowFile
    source: str
    namespace: str
    task: str
    split: str
    kind: TargetKind
    papers: int
    classes: int
    factor: float = 1.0
    offset: float = 0.0

    @classmethod
    def of(cls, targets: TargetFile, factor: float, offset: float) -> TargetEntry:
        """Return the entry of a target file."""
        return cls(
            file=target_file_name(targets.source, targets.task, targets.split),
            source=targets.source,
            namespace=targets.namespace,
            task=targets.task,
            split=targets.split,
            kind=targets.kind,
            papers=len(targets),
            classes=len(targets.classes),
            factor=factor,
            offset=offset,
        )


class OverlapEntry(_Entry):
    """An evaluation set: distinct texts by role, overlap with training, and how it was found."""

    set: str
    texts: dict[str, int]
    found: dict[str, int]
    ways: dict[str, int]


class HygieneReport(_Entry):
    """Counts from cleaning; ``None`` for checks that did not run."""

    duplicates: dict[str, int] | None = None
    overlap: list[OverlapEntry] | None = None
    texts: dict[str, int] = {}
    pairs: dict[str, int] = {}


class Manifest(_Entry):
    """The manifest of a prepared folder; see ``docs/formats.md``.

    Parameters
    ----------
    config : dict
        The resolved configuration of ``prepare``.
    tasks : list of Task
        Tasks that some pair or target file trains.
    texts : int
        Number of texts.
    label_rows : dict
        First row of the labels of each namespace, and the row after the last.
    sources, pairs, targets : list
        In configuration order.
    in_neither_split : dict
        Number of pairs left out because they would show training a text or pair of the dev split,
        by source and task.
    hygiene : HygieneReport
        Empty if nothing was cleaned.
    rejects : dict
        Numbers of bad records left out, by reason.
    mining : dict
        The resolved configuration of the last mining; empty before the first.
    files : dict
        Every Arrow file, by its relative path.
    fingerprint : str
        Hash of ``files``: changes when texts or pairs do.
    """

    version: str = VERSION
    config: dict[str, Any]
    tasks: list[Task]
    texts: int
    label_rows: dict[str, tuple[int, int]]
    sources: list[SourceEntry]
    pairs: list[PairEntry]
    targets: list[TargetEntry] = []
    in_neither_split: dict[str, int] = {}
    hygiene: HygieneReport = HygieneReport()
    rejects: dict[str, int] = {}
    mining: dict[str, Any] = {}
    files: dict[str, FileEntry] = {}
    fingerprint: str = ""

    @field_serializer("tasks")
    def _whole(self, tasks: list[Task]) -> list[dict[str, Any]]:
        """Include the defaults of a task, which other versions may not share."""
        return [task.model_dump(mode="json") for task in tasks]

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a prepared folder.

        Raises
        ------
        DataError
            If there is none, it is another folder's, of another version, or damaged.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise DataError("not a prepared folder", path=folder, fix="run scimult prepare first")
        tree = read_json(path)
        if not isinstance(tree, dict) or "fingerprint" not in tree:  # worlds, shards, checkpoints
            raise DataError("not a prepared folder", path=folder, fix="run scimult prepare first")
        if tree.get("version") != VERSION:
            fix = "run scimult prepare again with this version of scimult"
            raise DataError("prepared folder of another version", path=folder, fix=fix)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            problem = f"manifest is damaged: {key}: {first['msg']}"
            raise DataError(problem, path=path, fix="run scimult prepare again") from None

    def write(self, folder: Path, unchanged: Collection[str] = ()) -> None:
        """Record size and SHA-256 of every file and a fingerprint, and write; call it last.

        ``unchanged`` files keep their recorded SHA-256 and are not read.
        """
        known = {name: self.files[name] for name in unchanged}
        self.files = {
            name: known.get(name) or FileEntry(bytes=path.stat().st_size, sha256=sha256(path))
            for path in sorted(folder.rglob("*.arrow"))
            for name in [path.relative_to(folder).as_posix()]
        }
        listing = "\n".join(f"{name} {file.sha256}" for name, file in self.files.items())
        self.fingerprint = hashlib.sha256(listing.encode()).hexdigest()[:12]
        tree = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        write_json(folder / FILE_NAME, {"version": self.version, **tree})
