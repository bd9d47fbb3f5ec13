"""Token ids of all texts, written once and memory-mapped.

Shape legend: N texts, T total tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.data.text_store import TextStore
from scimult.data.tokenization import TextTokenizer, cut
from scimult.errors import DataError
from scimult.files import atomic_folder, read_json, write_json
from scimult.progress import bar
from scimult.types import IntArray

VERSION = "1"
TEXTS_PER_CHUNK = 4096


class TokenStore:
    """Memory-mapped token ids.

    Parameters
    ----------
    tokens_T : ndarray
        Token ids of all texts, one after the other.
    offsets : IntArray
        Text ``i`` is ``tokens_T[offsets[i]:offsets[i + 1]]``, shape ``(N + 1,)``.
    meta : dict
        Content of ``meta.json``.
    """

    def __init__(self, tokens_T: np.ndarray, offsets: IntArray, meta: dict[str, Any]) -> None:
        self._tokens_T = tokens_T
        self._offsets = offsets
        self.meta = meta

    @classmethod
    def open(
        cls, folder: Path | str, *, texts: TextStore | None = None, max_length: int = 0
    ) -> TokenStore:
        """Memory-map a token store.

        Parameters
        ----------
        folder : path
            Holds ``tokens.bin``, ``offsets.npy`` and ``meta.json``.
        texts : TextStore, optional
            If given, the store must have been built from exactly these texts.
        max_length : int
            If given, texts must not have been cut shorter than this.

        Raises
        ------
        DataError
            If a file is absent or damaged, or the store belongs to other texts.
        """
        folder = Path(folder)
        meta = read_json(folder / "meta.json")
        fix = f"delete {folder} and run scimult prepare or scimult pretrain again"
        if meta.get("version") != VERSION:
            raise DataError("token store of another version", path=folder, fix=fix)
        if texts is not None and meta["texts"] != texts.fingerprint:
            raise DataError("token store belongs to other texts", path=folder, fix=fix)
        if meta["max_length"] < max_length:
            raise DataError(
                f"token store is cut at {meta['max_length']} tokens, {max_length} are wanted",
                path=folder,
                fix=fix,
            )
        try:
            offsets = np.load(folder / "offsets.npy", mmap_mode="r")
            tokens_T = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")
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


def build_token_store(
    texts: TextStore,
    tokenizer: TextTokenizer,
    folder: Path | str,
    max_length: int = 512,
    *,
    show_progress: bool = True,
) -> TokenStore:
    """Tokenise every text and write the store; the folder appears only when complete.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    with atomic_folder(folder) as temporary:
        with (
            (temporary / "tokens.bin").open("wb") as file,
            bar("tokenise", total=len(texts), unit="text", show=show_progress) as shown,
        ):
            for start in range(0, len(texts), TEXTS_PER_CHUNK):
                stop = min(start + TEXTS_PER_CHUNK, len(texts))
                encoded = tokenizer.encode(texts.slice(start, stop), max_length)
                offsets[start + 1 : stop + 1] = [len(ids) for ids in encoded]
                file.write(np.concatenate(encoded).astype(dtype).tobytes())
                shown.update(stop - start)
        np.save(temporary / "offsets.npy", np.cumsum(offsets))
        meta = {
            "version": VERSION,
            "tokenizer": tokenizer.fingerprint,
            "texts": texts.fingerprint,
            "max_length": max_length,
            "count": len(texts),
            "dtype": dtype.name,
            "sep_id": tokenizer.sep_id,
        }
        write_json(temporary / "meta.json", meta)
    return TokenStore.open(folder, texts=texts)
