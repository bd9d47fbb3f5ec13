"""What answers for an opened library: its model, searchers and words, each opened at first use."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scimult.errors import SciMultError
from scimult.inference.query_encoder import QueryEncoder
from scimult.inference.texts import Texts
from scimult.library.drift import Adapter
from scimult.library.encoding import open_model
from scimult.library.manifest import TOKENIZER, VECTORS
from scimult.library.migration import adapter_for
from scimult.library.searching import Searcher
from scimult.library.state import State
from scimult.library.words import WordIndex
from scimult.library.writing import check_model
from scimult.progress import warn
from scimult.types import FloatArray

if TYPE_CHECKING:
    from scimult.inference import SciMult


class Opened:
    """What encodes for a library and searches it; warns of papers that cannot be.

    Parameters
    ----------
    state : State
        The library.
    given : path or SciMult, optional
        What the user named in place of the library's own.
    device : str, optional
        Where it computes.
    light : bool
        Whether queries are encoded without torch where that can be done.
    """

    def __init__(
        self,
        state: State,
        given: Path | str | SciMult | None,
        device: str | None,
        light: bool = False,
    ) -> None:
        self._state, self._given, self._device, self._is_light = state, given, device, light
        self._searchers: dict[str, Searcher] = {}
        for problem in state.damage():
            warn(f"papers are left out: {problem}")

    @cached_property
    def model(self) -> SciMult:
        """The library's model, or a newer one that an adapter was fitted to.

        Raises
        ------
        DataError
            If it is neither; what differs from the library's is named.
        """
        model = self._opened()
        if not adapter_for(self._state, model):
            check_model(self._state, model)
        return model

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

    @cached_property
    def encoder(self) -> SciMult | QueryEncoder:
        """What encodes queries: the model, or what does so without torch."""
        return (self._query_encoder() if self._is_light else None) or self.model

    def queries(self, task: str, texts: Texts) -> FloatArray:
        """Encode what is looked for, as vectors of the library: of a newer model, adapted ones."""
        if isinstance(self.encoder, QueryEncoder):
            return self.encoder.encode(texts, task=task, role="query")
        vectors = self.model.encode(texts, task=task, role="query")
        adapter = self._adapters.get(task)
        return vectors if adapter is None else adapter(vectors)

    @cached_property
    def _adapters(self) -> dict[str, Adapter]:
        return adapter_for(self._state, self.model)

    def _opened(self) -> SciMult:
        given, manifest = self._given, self._state.manifest
        if not (given is None or isinstance(given, (str, Path))):
            return given
        reference, newer, tokenizer = manifest.model, manifest.adapter.get("model"), self._tokenizer
        if newer and given is not None and Path(given).resolve() == Path(newer["path"]):
            # As it was opened when the adapter was fitted.
            reference, tokenizer = newer, None
        return open_model(reference, given, self._device, tokenizer)

    @property
    def _tokenizer(self) -> Path | None:
        """The library's copy of its model's tokenizer, if that is the model to open."""
        folder = self._state.folder / VECTORS / self._state.manifest.vectors / TOKENIZER
        # Of another model that the user names, the check of what made the vectors says so.
        return folder if self._given is None and folder.is_dir() else None

    def _query_encoder(self) -> QueryEncoder | None:
        """Open what encodes queries without torch; whatever is in the way, the model tells."""
        given, reference = self._given, self._state.manifest.model
        named = given is None or isinstance(given, (str, Path))
        if not named or self._device is not None or (given and self._state.manifest.adapter):
            return None
        try:
            encoder = QueryEncoder(
                str(given or reference["path"]),
                dtype=reference["dtype"],
                tokenizer=self._tokenizer,
                **reference["settings"],
            )
            check_model(self._state, encoder)
        except SciMultError:
            return None
        return encoder
