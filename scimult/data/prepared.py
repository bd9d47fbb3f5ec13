"""A prepared folder: texts, pairs, citations and tokens, opened for reading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from scimult import distributed
from scimult.data.manifest import FILE_NAME as MANIFEST_FILE
from scimult.data.manifest import Manifest, PairEntry, TargetEntry
from scimult.data.pairs import PairFile, Split, read_pairs
from scimult.data.targets import TargetFile, read_targets
from scimult.data.teacher import FILE_NAME as TEACHER_FILE
from scimult.data.teacher import TeacherScores, read_teacher_scores
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import METADATA_FILE, TextStore, numbers, open_arrow
from scimult.data.token_store import TokenStore, build_token_store, read_meta
from scimult.data.tokenization import TextTokenizer
from scimult.errors import DataError
from scimult.files import FolderKind, recover_folder
from scimult.locks import is_left
from scimult.terminal import counted
from scimult.types import IntArray

PREPARED = FolderKind(
    "a prepared folder",
    lambda folder: (folder / MANIFEST_FILE).is_file() and (folder / TEXTS_FILE).is_file(),
)

ALIASES_FILE = "aliases.arrow"
CITATIONS_FILE = "citations.arrow"
HELD_OUT_FILE = "held_out.arrow"
SHOWN_FILE = "shown.arrow"
TRIPLES_FILE = "triples.arrow"
REJECTS_FILE = "rejects.jsonl"
# What a folder has before texts are split and tokenised; some are optional.
COLLECTED_FILES = (
    TEXTS_FILE,
    METADATA_FILE,
    CITATIONS_FILE,
    SHOWN_FILE,
    TRIPLES_FILE,
    TEACHER_FILE,
    ALIASES_FILE,
    REJECTS_FILE,
)
TOKENS = "tokens"
_ENTRIES = {MANIFEST_FILE, HELD_OUT_FILE, "pairs", "whole", "targets", TOKENS, *COLLECTED_FILES}
_CARD = re.compile(r"card(_\w+\.png|\.md)")  # of `scimult card`
# What `prepare` may replace: a run or a file of the user's in the folder would be gone.
PREPARED_ALONE = FolderKind(
    "a prepared folder and nothing else",
    lambda folder: (
        PREPARED.is_one(folder)
        and all(
            path.name in _ENTRIES or _CARD.fullmatch(path.name) or is_left(path)
            for path in folder.iterdir()
        )
    ),
)


class PreparedData:
    """The output of ``scimult prepare``; see ``docs/formats.md``."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.texts = TextStore.open(folder, manifest.files[TEXTS_FILE].sha256)

    @classmethod
    def open(cls, folder: Path | str) -> PreparedData:
        """Open a prepared folder.

        Raises
        ------
        DataError
            If it is not one, is of another version, or a file is missing or has another size.
        """
        folder = Path(folder)
        recover_folder(folder)
        manifest = Manifest.read(folder)
        if TEXTS_FILE not in manifest.files:
            problem = f"manifest is damaged: files lacks {TEXTS_FILE}"
            fix = "run scimult prepare again"
            raise DataError(problem, path=folder / MANIFEST_FILE, fix=fix)
        for name, file in manifest.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != file.bytes:
                raise DataError(
                    "file is missing or has changed since it was prepared",
                    path=path,
                    fix="run scimult prepare again",
                )
        return cls(folder, manifest)

    def __repr__(self) -> str:
        entries = self.manifest.pairs
        tasks = ", ".join(sorted({entry.task for entry in entries})) or "no task"
        pairs: Counter[str] = Counter()
        for entry in entries:
            pairs[entry.split] += entry.pairs
        sizes = ", ".join(f"{count:,} in {split}" for split, count in pairs.items()) or "0"
        texts = counted(len(self.texts), "text")
        return f"PreparedData({str(self.folder)!r}: {texts}; {tasks}; pairs: {sizes})"

    @property
    def fingerprint(self) -> str:
        """Hash of everything but the tokens."""
        return self.manifest.fingerprint

    def row(self, identifier: str) -> int:
        """Return the row of the text with this id, or of the one it was merged into.

        Raises
        ------
        DataError
            If there is no such text.
        """
        row = self._aliases.get(identifier)
        return self.texts.row(identifier) if row is None else row

    def papers(self, namespace: str) -> IntArray:
        """Return the rows of a namespace's papers, or of those they were merged into."""
        return papers_of(self.texts, self._aliases, namespace)

    @cached_property
    def _aliases(self) -> dict[str, int]:
        return read_aliases(self.folder)

    def pairs(self, split: Split) -> list[PairFile]:
        """Return the pair files of a split, one per source and task, in config order."""
        return [self.open_pairs(entry) for entry in self.manifest.pairs if entry.split == split]

    def targets(self, split: Split) -> list[TargetFile]:
        """Return the target files of a split, one per source and task, in config order."""
        entries = (entry for entry in self.manifest.targets if entry.split == split)
        return [self.open_targets(entry) for entry in entries]

    def open_targets(self, entry: TargetEntry) -> TargetFile:
        """Return one target file."""
        return replace(read_targets(self.folder / entry.file), namespace=entry.namespace)

    def open_pairs(self, entry: PairEntry) -> PairFile:
        """Return one pair file, with the namespace and part that only the manifest has."""
        pairs = read_pairs(self.folder / entry.file)
        return replace(pairs, namespace=entry.namespace, part=entry.part)

    def held_out(self) -> IntArray:
        """Return the rows of texts that the dev split withholds from training, ascending.

        Always its queries and papers with targets; its other texts if the split says so.
        """
        if (self.folder / HELD_OUT_FILE).exists():
            table = open_arrow(self.folder / HELD_OUT_FILE, "held out")
            return np.asarray(numbers(table.column("row")), dtype=np.int64)
        queries = [file.queries for file in self.pairs("dev")]
        queries += [file.rows for file in self.targets("dev")]
        return np.unique(np.concatenate([np.empty(0, np.int64), *queries]))

    def teacher_scores(self) -> TeacherScores | None:
        """Return the teacher's scores; ``None`` if the folder has none."""
        return read_teacher_scores(self.folder)

    def tokens(self, tokenizer: TextTokenizer, max_length: int = 512) -> TokenStore:
        """Return the token store of ``tokenizer``; the main rank builds it if needed.

        Raises
        ------
        StorageError, DataError
            On every rank, if the build failed on the main rank.
        """
        folder = self.folder / TOKENS / tokenizer.fingerprint

        def build() -> None:
            # A store that exists but is damaged is an error.
            if not folder.exists() or int(read_meta(folder)["max_length"]) < max_length:
                build_token_store(self.texts, tokenizer, folder, max(max_length, 512))

        distributed.on_main(build)
        return TokenStore.open(folder, texts=self.texts, max_length=max_length)


def read_aliases(folder: Path) -> dict[str, int]:
    """Return the row that each merged text became part of, by id."""
    path = folder / ALIASES_FILE
    if not path.exists():
        return {}
    table = open_arrow(path, "aliases")
    names, rows = (table.column(name).to_pylist() for name in ("id", "row"))
    return dict(zip(names, rows, strict=True))


def papers_of(texts: TextStore, aliases: Mapping[str, int], namespace: str) -> IntArray:
    """Return the rows of a namespace's papers, or of those they were merged into."""
    prefix = f"{namespace}:"
    merged = [row for name, row in aliases.items() if name.startswith(prefix)]
    return np.union1d(texts.rows_with_prefix(prefix), np.array(merged, dtype=np.int64))


def read_triples(folder: Path) -> IntArray:
    """Return the triples of a folder, shape ``(T, 3)``; most have none."""
    if not (folder / TRIPLES_FILE).exists():
        return np.empty((0, 3), np.int64)
    table = open_arrow(folder / TRIPLES_FILE, "triples")
    return np.stack([numbers(column) for column in table.columns], axis=1)
