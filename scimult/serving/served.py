"""The served library, which follows changes of its folder, and its shared model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from scimult.errors import DataError, SciMultError
from scimult.inference import SciMult
from scimult.library import Library
from scimult.library.manifest import FILE
from scimult.progress import note, warn
from scimult.serving.batching import SharedModel

_T = TypeVar("_T")
_Stamp = tuple[int, int, int]


class Served:
    """A library that other processes may change while it is served.

    Every question sees one consistent state of the library. A change is a new object, and the
    former one lives until its last question is answered. ``model`` is given if it has moved;
    ``passes`` are options of `scimult.serving.batching.Passes`.

    Raises
    ------
    DataError
        If there is no library, or its model is missing.
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
        self._passes, self._others = passes, list[SharedModel]()
        self._swapping, self._reading_words = threading.Lock(), threading.Lock()
        self._with_words: Library | None = None
        self._uses_words = False
        self._stamp = _stamp_of(path)
        self._library = self._opened(Library.open(path, model=model, device=device))
        self.problem: str | None = None

    @property
    def library(self) -> Library:
        """The latest opened state of the library."""
        return self._library

    @property
    def has_words(self) -> bool:
        """Whether questions that need words are answered at once."""
        return self._with_words is self._library

    def index_words(self) -> None:
        """Build the index of words that questions to the former library needed."""
        if self._uses_words:
            self.ask(lambda library: _warm(library, words=1.0), words=True)

    def ask(self, question: Callable[[Library], _T], *, words: bool = False) -> _T:
        """Answer a question from the current library.

        If the library was rewritten meanwhile and its former files are gone, the question is
        repeated. The first question that needs words builds their index, and others wait for it.
        """
        library = self._library
        try:
            return self._answer(question, library, words)
        except DataError:
            if not self.follow() and self._library is library:
                raise
            return self._answer(question, self._library, words)

    def follow(self) -> bool:
        """Reopen the library if it changed on disk; return whether it did.

        If it cannot be opened, ``problem`` says why, and the former library stays.
        """
        with self._swapping:
            try:
                stamp = _stamp_of(self.path)
                if stamp == self._stamp:
                    self.problem = None
                    return False
                self._library = self._reopened()
                self._stamp, self.problem, self._with_words = stamp, None, None
            except Exception as error:  # any other would end the watch silently
                problem = _public(error)
                if problem != self.problem:
                    warn(f"still serving the former library: {error}")
                self.problem = problem
                return False
        note(f"{self.path}: {len(self._library):,} papers now")
        return True

    def share(self, model: SciMult) -> SciMult:
        """Return a model of other users than the library, with the same passes and deadlines.

        If it is the library's, its passes go on when the library changes to another one.
        """
        shared = model if isinstance(model, SharedModel) else SharedModel(model, **self._passes)
        self._others.append(shared)
        return shared

    def close(self) -> None:
        """End the encoders' threads after all waiting requests."""
        for model in (self._shared, *self._others):
            model.close()

    def _answer(self, question: Callable[[Library], _T], library: Library, words: bool) -> _T:
        if not words or self._with_words is library:
            return question(library)
        self._uses_words = True
        with self._reading_words:
            answer = question(library)
            self._with_words = library
        return answer

    def _reopened(self) -> Library:
        """Reopen the library with the loaded model, or with a new one that encoded it."""
        try:
            library = Library.open(self.path, model=self._shared, device=self._device)
            return _warm(library, percentile=True)
        except DataError:
            former = self._shared
            fresh = self._opened(Library.open(self.path, device=self._device))
            if former not in self._others:
                former.close()
            return fresh

    def _opened(self, library: Library) -> Library:
        shared = SharedModel(library.model, **self._passes)
        opened = Library.open(self.path, model=shared, device=self._device)
        _warm(opened, percentile=True)
        self._shared = shared
        return opened


def _warm(library: Library, **options: Any) -> Library:
    """Make a library load everything that its first question would wait for."""
    for task, side in library.state.manifest.sides.items():
        if side == "candidate":
            library.search("warm", task=task, k=1, **options)
    return library


def _stamp_of(path: Path) -> _Stamp:
    file = path / FILE
    if not file.is_file():
        fix = "give the folder of a library; scimult library create makes one"
        raise DataError("not a library", path=path, fix=fix)
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _public(error: Exception) -> str:
    """Return what is wrong without paths of this machine, which ``/health`` must not show."""
    if isinstance(error, SciMultError):
        return error.problem
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
