"""What answers for an opened library: its model, searchers and words, each opened at first use."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from scimult.inference import SciMult
from scimult.inference.texts import Texts
from scimult.library.drift import Adapter
from scimult.library.encoding import open_model
from scimult.library.manifest import TOKENIZER, VECTORS
from scimult.library.migration import adapter_for
from scimult.library.searching import Searcher
from scimult.library.state import State
from scimult.library.words import WordIndex
from scimult.library.writing import check_model
from scimult.types import FloatArray


class Opened:
    """What encodes for a library and searches it.

    Parameters
    ----------
    state : State
        The library.
    given : path or SciMult, optional
        What the user named in place of the library's own.
    device : str, optional
        Where it computes.
    """

    def __init__(
        self, state: State, given: Path | str | SciMult | None, device: str | None
    ) -> None:
        self._state, self._given, self._device = state, given, device
        self._searchers: dict[str, Searcher] = {}

    @cached_property
    def model(self) -> SciMult:
        """The library's model, or a newer one that an adapter was fitted to.

        Raises
        ------
        DataError
            If it is neither; what differs from the library's is named.
        """
        found = self._opened()
        if not adapter_for(self._state, found):
            check_model(self._state, found)
        return found

    @property
    def kept(self) -> Path | str | SciMult | None:
        """What opens the same again: the model, if it is open by now."""
        return self.__dict__.get("model", self._given)

    @property
    def own(self) -> SciMult:
        """The model, if its vectors may stand in the library.

        Raises
        ------
        DataError
            If it is another; what differs is named.
        """
        check_model(self._state, self.model)
        return self.model

    def searcher(self, task: str) -> Searcher:
        """Return what searches the vectors of a task."""
        if task not in self._searchers:
            self._searchers[task] = Searcher(self._state, task, self)
        return self._searchers[task]

    @cached_property
    def words(self) -> WordIndex:
        """BM25 over the papers."""
        return WordIndex(self._state)

    def queries(self, task: str, texts: Texts) -> FloatArray:
        """Encode what is looked for, as vectors of the library: of a newer model, adapted ones."""
        vectors = self.model.encode(texts, task=task, role="query")
        adapter = self._adapters.get(task)
        return vectors if adapter is None else adapter(vectors)

    @cached_property
    def _adapters(self) -> dict[str, Adapter]:
        return adapter_for(self._state, self.model)

    def _opened(self) -> SciMult:
        given, manifest = self._given, self._state.manifest
        if isinstance(given, SciMult):
            return given
        reference, newer = manifest.model, manifest.adapter.get("model")
        kept: Path | None = self._state.folder / VECTORS / manifest.vectors / TOKENIZER
        if newer and given is not None and Path(given).resolve() == Path(newer["path"]):
            # As it was opened when the adapter was fitted.
            reference, kept = newer, None
        # Of another model that the user names, the check of what made the vectors says so.
        kept = kept if kept is not None and kept.is_dir() and given is None else None
        return open_model(reference, given, self._device, kept)
