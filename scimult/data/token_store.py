"""Token ids of all texts, written once and memory-mapped; an interrupted build resumes.

Shape legend: N texts, C texts of a chunk, T their tokens.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.arrays import load_array
from scimult.data.ragged import offsets_of
from scimult.data.text_store import TEXTS_PER_CHUNK, TextStore
from scimult.data.tokenization import TextTokenizer, cut
from scimult.errors import BusyError, ConfigError, DataError
from scimult.files import publish_folder, read_json, storage_error, write_json
from scimult.locks import exclusive, lock_name
from scimult.progress import bar, note
from scimult.types import IntArray

VERSION = "1"
CHUNKS_PER_MARK = 8
_POLL_SECONDS = 0.5
_META = {
    **dict.fromkeys(("version", "tokenizer", "texts", "dtype"), str),
    **dict.fromkeys(("max_length", "count", "sep_id"), int),
}
_DTYPES = ("uint16", "int32")
Chunk = tuple[IntArray, NDArray[np.int32]]


class TokenStore:
    """Memory-mapped token ids: text ``i`` is ``tokens_T[offsets[i]:offsets[i + 1]]``."""

    def __init__(self, tokens_T: np.ndarray, offsets: IntArray, meta: dict[str, Any]) -> None:
        self._tokens_T = tokens_T
        self._offsets = offsets
        self.meta = meta

    @classmethod
    def open(
        cls, folder: Path | str, *, texts: TextStore | None = None, max_length: int = 0
    ) -> TokenStore:
        """Memory-map a token store.

        If given, it must have been built from exactly these ``texts``, not cut shorter than
        ``max_length``.

        Raises
        ------
        DataError
            If a file is missing or damaged, or the store is not as required.
        """
        folder = Path(folder)
        meta, fix = read_meta(folder), _fix(folder)
        if meta["version"] != VERSION:
            raise DataError("token store of another version", path=folder, fix=fix)
        if texts is not None and meta["texts"] != texts.fingerprint:
            raise DataError("token store belongs to other texts", path=folder, fix=fix)
        if meta["max_length"] < max_length:
            raise DataError(
                f"token store is cut at {meta['max_length']} tokens, {max_length} are needed",
                path=folder,
                fix=fix,
            )
        try:
            # As plain arrays: slicing a memmap takes twice as long.
            offsets = np.asarray(load_array(folder / "offsets.npy", mapped=True))
            tokens_T = np.asarray(np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r"))
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"damaged token store: {error}", path=folder, fix=fix) from error
        if len(offsets) != meta["count"] + 1 or len(tokens_T) != offsets[-1]:
            raise DataError("damaged token store: sizes disagree", path=folder, fix=fix)
        return cls(tokens_T, offsets, meta)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths_N(self) -> NDArray[np.int32]:
        """Number of stored tokens of each text, special tokens included."""
        return np.diff(self._offsets).astype(np.int32)

    def tokens(self, row: int, max_length: int) -> IntArray:
        """Return the token ids of a text, cut to ``max_length`` with the last one ``[SEP]``."""
        stored = self._tokens_T[self._offsets[row] : self._offsets[row + 1]]
        return cut(stored, max_length, self.meta["sep_id"])


def read_meta(folder: Path) -> dict[str, Any]:
    """Return what a token store says of itself.

    Raises
    ------
    DataError
        If it is missing or damaged.
    """
    meta = read_json(folder / "meta.json")
    if not (
        isinstance(meta, dict)
        and all(type(meta.get(name)) is kind for name, kind in _META.items())
        and meta["dtype"] in _DTYPES
    ):
        raise DataError("damaged token store", path=folder / "meta.json", fix=_fix(folder))
    return meta


def _fix(folder: Path) -> str:
    return f"delete {folder} and run scimult prepare or scimult pretrain again"


def is_token_store(folder: Path | str, texts: TextStore) -> bool:
    """Return whether a folder holds the tokens of exactly these texts."""
    try:
        TokenStore.open(folder, texts=texts)
    except DataError:
        return False
    return True


def build_token_store(
    texts: TextStore,
    tokenizer: TextTokenizer,
    folder: Path | str,
    max_length: int = 512,
) -> TokenStore:
    """Tokenise every text and write the store; the folder appears only when complete.

    An interrupted build stays in a hidden folder next to it, and the next build with the same
    texts, tokenizer and length resumes there. If another process builds the store, its end is
    waited for: runs that start together on one prepared folder tokenise it once.

    Raises
    ------
    ConfigError
        If the tokenizer keeps the end of a text that is too long: training keeps the beginning.
    """
    folder = Path(folder)
    if tokenizer.keeps_end:
        raise ConfigError(
            "the tokenizer cuts texts on the left, and training keeps their beginning",
            value="truncation_side: left",
            fix='write "truncation_side": "right" into the tokenizer_config.json of model.base',
        )
    small, large = _DTYPES
    meta = {
        "version": VERSION,
        "tokenizer": tokenizer.fingerprint,
        "texts": texts.fingerprint,
        "max_length": max_length,
        "count": len(texts),
        "dtype": small if tokenizer.vocab_size <= 1 << 16 else large,
        "sep_id": tokenizer.sep_id,
    }
    with once_free(lock_name(folder), folder, "its tokens"):
        if not (is_token_store(folder, texts) and read_meta(folder) == meta):
            _build(texts, tokenizer, folder, meta)
    return TokenStore.open(folder, texts=texts)


def _build(texts: TextStore, tokenizer: TextTokenizer, folder: Path, meta: dict[str, Any]) -> None:
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        with TokenWriter(unfinished, meta) as writer:
            chunks = encode_chunks(texts, tokenizer, meta["max_length"], writer.texts)
            done = writer.texts
            with bar("tokenise", total=len(texts), unit="text", initial=done) as meter:
                for lengths, tokens_T in chunks:
                    writer.append(lengths, tokens_T)
                    meter.update(len(lengths))
        publish_folder(unfinished, folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise storage_error(error, folder) from error


@contextmanager
def once_free(lock: Path, folder: Path, what: str) -> Iterator[None]:
    """Hold a lock beside a folder, after any other process that makes ``what`` is in it."""
    with ExitStack() as locks:
        for attempt in count():
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                locks.enter_context(exclusive(lock, folder))
                break
            except BusyError as error:
                if not attempt:
                    note(f"{folder}: {error.problem}; waiting for {what}")
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                raise storage_error(error, folder) from error
        yield


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
