"""What is served: a library that follows its folder, and the model that all requests share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from scimult.errors import DataError, SciMultError
from scimult.library import Library
from scimult.library.manifest import FILE
from scimult.progress import note, warn
from scimult.serving.batching import SharedModel

_T = TypeVar("_T")
_Stamp = tuple[int, int, int]


class Served:
    """A library that other processes may change while it is asked.

    Every question is put to a library as it was at one moment; a change is a fresh object in
    place of the former one, which lives until its last question is answered.

    Parameters
    ----------
    path : Path
        The library.
    model : path, optional
        Its model, if that was moved.
    device : str, optional
        Where texts are encoded.
    **passes
        Options of :class:`scimult.serving.batching.Passes`.

    Raises
    ------
    DataError
        If there is no library, or its model is not here.
    """

    def __init__(
        self,
        path: Path,
        *,
        model: Path | str | None = None,
        device: str | None = None,
        **passes: Any,
    ) -> None:
        self.path, self._device = path, device
        self._passes = passes
        self._swapping, self._reading_words = threading.Lock(), threading.Lock()
        self._with_words: Library | None = None
        self._stamp = _stamp_of(path)
        self._library = self._opened(Library.open(path, model=model, device=device))
        self.problem: str | None = None

    @property
    def library(self) -> Library:
        """The library as it was last seen."""
        return self._library

    def ask(self, question: Callable[[Library], _T], *, words: bool = False) -> _T:
        """Return the answer of today's library.

        Where the library was rewritten meanwhile, and its former files are gone, the question is
        put once more. The first one that reads words makes their index, and others wait for it.
        """
        library = self._library
        try:
            return self._put(question, library, words)
        except DataError:
            if not self.follow() and self._library is library:
                raise
            return self._put(question, self._library, words)

    def follow(self) -> bool:
        """Take the library as it is on disk by now; return whether it had changed.

        What cannot be opened is told in ``problem``, and the former library stays.
        """
        with self._swapping:
            try:
                stamp = _stamp_of(self.path)
                if stamp == self._stamp:
                    return False
                self._library = self._next()
                self._stamp, self.problem, self._with_words = stamp, None, None
            except (SciMultError, OSError) as error:
                told = error.problem if isinstance(error, SciMultError) else str(error.strerror)
                if told != self.problem:
                    warn(f"the library of before is served on: {error}")
                self.problem = told
                return False
        note(f"{self.path}: {len(self._library):,} papers now")
        return True

    def close(self) -> None:
        """End the encoder's threads when all who wait have been served."""
        self._shared.close()

    def _put(self, question: Callable[[Library], _T], library: Library, words: bool) -> _T:
        if not words or self._with_words is library:
            return question(library)
        with self._reading_words:
            answer = question(library)
            self._with_words = library
        return answer

    def _next(self) -> Library:
        """Open the library anew: with the model that is open, or with another that made it."""
        reopened = Library.open(self.path, model=self._shared, device=self._device)
        try:
            return self._warm(reopened)
        except DataError:
            former = self._shared
            fresh = self._opened(Library.open(self.path, device=self._device))
            former.close()
            return fresh

    def _opened(self, library: Library) -> Library:
        shared = SharedModel(library.model, **self._passes)
        opened = self._warm(Library.open(self.path, model=shared, device=self._device))
        self._shared = shared
        return opened

    def _warm(self, library: Library) -> Library:
        """Let a library read all that its first question would wait for."""
        tasks = {task for task, side in library.state.manifest.sides.items() if side == "candidate"}
        for task in tasks:
            library.search("warm", task=task, k=1, percentile=True)
        return library


def _stamp_of(path: Path) -> _Stamp:
    file = path / FILE
    if not file.is_file():
        fix = "name the folder of a library; scimult library create makes one"
        raise DataError("is no library", path=path, fix=fix)
    facts = file.stat()
    return facts.st_mtime_ns, facts.st_ino, facts.st_size
