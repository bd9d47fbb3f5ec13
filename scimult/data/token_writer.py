"""Tokenise many texts, and resume an interrupted build.

Shape legend: C texts of a chunk, T their tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.ragged import offsets_of
from scimult.data.text_store import TextStore
from scimult.data.tokenization import TextTokenizer
from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.types import IntArray

TEXTS_PER_CHUNK = 4096
CHUNKS_PER_MARK = 8
Chunk = tuple[IntArray, "np.ndarray[Any, np.dtype[np.int32]]"]


class TokenWriter:
    """Appends token ids to an unfinished store and records how much is safely on disk.

    An unfinished store with the same ``meta`` is resumed. The caller keeps other writers away.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self._folder, self._meta = folder, meta
        self._since_mark = 0
        self.texts = 0
        self._tokens = 0

    def __enter__(self) -> TokenWriter:
        self._folder.mkdir(exist_ok=True)
        self._read_mark()
        self._token_file = self._open("tokens.bin", self._tokens * self._dtype.itemsize)
        self._length_file = self._open("lengths.bin", self.texts * 4)
        return self

    def append(self, lengths_C: IntArray, tokens_T: np.ndarray) -> None:
        """Add the next texts."""
        self._token_file.write(tokens_T.astype(self._dtype).tobytes())
        self._length_file.write(lengths_C.astype(np.int32).tobytes())
        self.texts += len(lengths_C)
        self._tokens += len(tokens_T)
        self._since_mark += 1
        if self._since_mark == CHUNKS_PER_MARK:
            self._mark()

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is None:
                self._finish()
        finally:
            self._token_file.close()
            self._length_file.close()

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self._meta["dtype"]))

    def _read_mark(self) -> None:
        try:
            if read_json(self._folder / "meta.json") == self._meta:
                mark = read_json(self._folder / "mark.json")
                self.texts, self._tokens = mark["texts"], mark["tokens"]
        except (DataError, KeyError, TypeError):
            self.texts = self._tokens = 0
        if not self.texts:
            # It may be of other texts, which the new description below would make these.
            (self._folder / "mark.json").unlink(missing_ok=True)
        write_json(self._folder / "meta.json", self._meta)

    def _open(self, name: str, size: int) -> Any:
        path = self._folder / name
        path.touch()
        file = path.open("r+b")
        file.truncate(size)
        file.seek(size)
        return file

    def _mark(self) -> None:
        """Record how much is on disk; a resumed build rewrites what follows."""
        for file in (self._token_file, self._length_file):
            file.flush()
            os.fsync(file.fileno())
        write_json(self._folder / "mark.json", {"texts": self.texts, "tokens": self._tokens})
        self._since_mark = 0

    def _finish(self) -> None:
        self._token_file.flush()
        self._length_file.flush()
        lengths = np.fromfile(self._folder / "lengths.bin", dtype=np.int32)
        np.save(self._folder / "offsets.npy", offsets_of(lengths.astype(np.int64)))
        for name in ("lengths.bin", "mark.json"):
            (self._folder / name).unlink(missing_ok=True)


def encode_chunks(
    texts: TextStore, tokenizer: TextTokenizer, max_length: int, start: int
) -> Iterator[Chunk]:
    """Yield lengths and token ids of the texts from row ``start`` on, chunk by chunk, in order."""
    for first in range(start, len(texts), TEXTS_PER_CHUNK):
        stop = min(first + TEXTS_PER_CHUNK, len(texts))
        encoded = tokenizer.encode(texts.slice(first, stop), max_length)
        yield np.array([len(ids) for ids in encoded], dtype=np.int64), np.concatenate(encoded)
