"""Token ids of all texts, written once and memory-mapped.

Shape legend: N texts, T total tokens.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.data.text_store import TextStore
from scimult.data.token_writer import TokenWriter, encode_chunks
from scimult.data.tokenization import TextTokenizer, cut
from scimult.errors import BusyError, DataError
from scimult.files import publish_folder, read_json, storage_error
from scimult.locks import exclusive, lock_name
from scimult.progress import bar, note
from scimult.types import IntArray

VERSION = "1"
_POLL_SECONDS = 0.5
_META = {"version", "tokenizer", "texts", "max_length", "count", "dtype", "sep_id"}


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
            offsets = np.asarray(np.load(folder / "offsets.npy", mmap_mode="r"))
            tokens_T = np.asarray(np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r"))
        except (OSError, ValueError) as error:
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
    if not isinstance(meta, dict) or not meta.keys() >= _META:
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
    """
    folder = Path(folder)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    meta = {
        "version": VERSION,
        "tokenizer": tokenizer.fingerprint,
        "texts": texts.fingerprint,
        "max_length": max_length,
        "count": len(texts),
        "dtype": dtype.name,
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
    with ExitStack() as held:
        for attempt in count():
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(exclusive(lock, folder))
                break
            except BusyError as error:
                if not attempt:
                    note(f"{folder}: {error.problem}; waiting for {what}")
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                raise storage_error(error, folder) from error
        yield
