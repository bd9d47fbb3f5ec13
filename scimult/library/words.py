"""BM25 over a library's papers, stored with it until the papers change."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scimult.errors import StorageError
from scimult.files import FolderKind, atomic_folder
from scimult.library.exact import RowScores, ranked
from scimult.library.state import State
from scimult.locks import remove_leftovers_in
from scimult.progress import note, warn
from scimult.retrieval.analysis import VERSION, WORDS
from scimult.terminal import counted
from scimult.types import BoolArray

if TYPE_CHECKING:
    import bm25s

FOLDER = "words"
_KIND = FolderKind("an index of words", lambda folder: True)


class WordIndex:
    """An inverted index over the current papers, memory-mapped from the library's folder.

    It is built on first use after the papers changed, for this process alone if the folder is not
    writable.
    """

    def __init__(self, state: State) -> None:
        self._state, self._rows = state, state.live_rows()
        # Of this analysis too: a query's words must be those that were counted.
        folder = state.folder / FOLDER / f"{state.numbering}.{VERSION}"
        stored = _stored(folder)
        self._model = self._build() if stored is None else stored
        if stored is None:
            self._store(folder)

    def best(self, query: str, k: int, allowed_N: BoolArray) -> RowScores:
        """Return the best ``k`` allowed rows that share a token with the query."""
        (tokens,) = WORDS([query])
        if not tokens:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        scores_C = np.asarray(self._model.get_scores(tokens), dtype=np.float32)
        index_P = np.flatnonzero((scores_C > 0) & allowed_N[self._rows])
        return ranked(self._rows[index_P], scores_C[index_P], self._state.papers.ids_of, k)

    def _build(self) -> bm25s.BM25:
        import bm25s

        from scimult.retrieval.bm25 import K1, B

        rows = self._rows
        note(f"BM25: indexing {counted(len(rows), 'paper')}")
        tokens = []
        for start in range(0, len(rows), 1 << 14):
            texts = self._state.papers.texts_of(rows[start : start + (1 << 14)])
            tokens += WORDS([text.joined for text in texts])
        model = bm25s.BM25(method="lucene", k1=K1, b=B)
        # bm25s needs a token even if the library has none.
        model.index(tokens if any(tokens) else [[" "]] * max(1, len(tokens)), show_progress=False)
        return model

    def _store(self, folder: Path) -> None:
        try:
            with atomic_folder(folder, _KIND) as temporary:
                self._model.save(temporary, show_progress=False)
        except StorageError as error:
            warn(f"{folder}: cannot store the word index ({error.problem})")
            return
        remove_leftovers_in(folder.parent)
        for other in folder.parent.iterdir():
            if other.name != folder.name and not other.name.startswith("."):
                with suppress(OSError):
                    shutil.rmtree(other)


def _stored(folder: Path) -> bm25s.BM25 | None:
    """Return a stored index; None if there is none, or it is damaged."""
    if not folder.is_dir():
        return None
    import bm25s  # loads scipy, which a dense search does not need

    try:
        return bm25s.BM25.load(folder, mmap=True)
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None
