"""The served library, which follows changes of its folder, and its shared model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.library import Library
from scimult.library.manifest import FILE
from scimult.progress import note, warn
from scimult.serving.batching import SharedModel
from scimult.serving.following import Following
from scimult.terminal import counted

_T = TypeVar("_T")


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
        self.path, self._model, self._device = path, model, device
        self._passes = passes
        self._reading_words = threading.Lock()
        self._with_words: Library | None = None
        self._uses_words = False
        self._shared: SharedModel | None = None
        self._taggers: SharedModel | None = None
        self.damage: str | None = None
        """Why some questions cannot be answered; None if all can."""
        self._following = Following("library", path / FILE, self._read)

    @property
    def library(self) -> Library:
        """The latest opened state of the library."""
        return self._following.value

    @property
    def problem(self) -> str | None:
        """Why the latest state of the library cannot be served; None if it is served."""
        return self._following.problem

    @property
    def has_words(self) -> bool:
        """Whether questions that need words are answered at once."""
        return self._with_words is self.library

    def index_words(self) -> None:
        """Build the index of words that questions to the former library needed.

        If that fails, the next question that needs it tries again, and reports the problem.
        """
        if not self._uses_words:
            return
        try:
            self.ask(lambda library: _warm(library, words=1.0), words=True)
        except Exception as error:  # nobody waits for this thread
            warn(f"{self.path}: the index of words could not be built: {error}")

    def ask(self, question: Callable[[Library], _T], *, words: bool = False) -> _T:
        """Answer a question from the current library.

        If the library was rewritten meanwhile and its former files are gone, the question is
        repeated, as often as that happens. The first question that needs words builds their index,
        and others wait for it.
        """
        self._uses_words |= words
        while True:
            waits = words and not self.has_words
            with self._reading_words if waits else nullcontext():
                library = self.library  # after waiting, during which it may have changed
                try:
                    answer = question(library)
                except DataError:
                    if not self.follow() and self.library is library:
                        raise
                    continue
                if waits:
                    self._with_words = library
                return answer

    def follow(self) -> bool:
        """Reopen the library if it changed on disk; return whether it did.

        If it cannot be opened, ``problem`` says why, and the former library stays. If files of its
        papers are gone, ``damage`` says so.
        """
        changed = self._following.follow()
        gone = self.library.state.papers.gone()
        if gone and self._following.follow():  # they were of the former library
            changed, gone = True, self.library.state.papers.gone()
        if gone and not self.damage:
            warn(f"{self.path}: {counted(len(gone), 'file')} of papers missing or changed")
        self.damage = f"{counted(len(gone), 'file')} of papers missing or changed" if gone else None
        if not changed:
            return False
        self._with_words = None  # it would keep the former library in memory
        note(f"{self.path}: {counted(len(self.library), 'paper')} now")
        return True

    @property
    def models(self) -> list[SharedModel]:
        """The models in use, each once: the tagger's and the library's."""
        used = dict.fromkeys((self._taggers, self._shared))
        return [model for model in used if model is not None]

    def share(self, model: SciMult) -> SciMult:
        """Return the tagger's model with the same passes and deadlines, instead of its former one.

        If it is the library's, its passes go on when the library changes to another one.
        """
        former = self.models
        self._taggers = (
            model if isinstance(model, SharedModel) else SharedModel(model, **self._passes)
        )
        self._close_unused(former)
        return self._taggers

    def close(self) -> None:
        """End the encoders' threads after all waiting requests."""
        for model in self.models:
            model.close()

    def _close_unused(self, models: list[SharedModel]) -> None:
        for model in models:
            if model not in self.models:
                model.close()

    def _read(self) -> Library:
        """Open the library with the loaded model, or with a new one that encoded it."""
        former = self.models
        if self._shared is None:
            return self._opened(Library.open(self.path, model=self._model, device=self._device))
        try:
            library = Library.open(self.path, model=self._shared, device=self._device)
            return _warm(library, percentile=True)
        except DataError:
            fresh = self._opened(Library.open(self.path, device=self._device))
            self._close_unused(former)
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
