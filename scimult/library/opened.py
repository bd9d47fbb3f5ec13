"""An opened library's models, searchers and word index, each opened on first use."""

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
from scimult.library.request import Request
from scimult.library.results import Hits
from scimult.library.searching import Searcher
from scimult.library.state import State, check_complete
from scimult.library.words import WordIndex
from scimult.library.writing import check_model
from scimult.progress import warn
from scimult.retrieval.cross_encoder import PairScorer, load_cross_encoder
from scimult.types import FloatArray

if TYPE_CHECKING:
    from scimult.inference import SciMult


class Opened:
    """Encodes and searches a library; warns about unsearchable papers.

    ``given`` is the user's replacement for the library's model; if ``light``, queries are encoded
    without torch where possible.
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
        self._cross_encoders: dict[str, PairScorer] = {}
        for problem in state.damage():
            warn(f"skipping papers: {problem}")

    @cached_property
    def model(self) -> SciMult:
        """The library's model, or a newer one that has an adapter.

        Raises
        ------
        DataError
            If it is neither; the message says what differs from the library's.
        """
        model = self._opened()
        if not adapter_for(self._state, model):
            check_model(self._state, model)
        return model

    @property
    def open_model(self) -> SciMult | None:
        """The model, if it is open."""
        return self.__dict__.get("model")

    @property
    def own(self) -> SciMult:
        """The model, if its vectors may join the library's.

        Raises
        ------
        DataError
            If it is another model; the message says what differs.
        """
        check_model(self._state, self.model)
        return self.model

    def searcher(self, task: str) -> Searcher:
        """Return the searcher of a task's vectors."""
        check_complete(self._state)
        if task not in self._searchers:
            self._searchers[task] = Searcher(self._state, task)
        return self._searchers[task]

    def search(self, task: str, request: Request) -> Hits:
        """Return the papers that answer a request."""
        return self.searcher(task).search(request, self)

    @cached_property
    def words(self) -> WordIndex:
        """BM25 over the papers."""
        return WordIndex(self._state)

    def cross_encoder(self, name: str) -> PairScorer:
        """Return the scorer of a sentence-transformers cross-encoder; the last one stays open.

        Raises
        ------
        ConfigError
            See `scimult.retrieval.cross_encoder.load_cross_encoder`.
        """
        if name not in self._cross_encoders:
            self._cross_encoders = {name: load_cross_encoder(name, str(self.model.device))}
        return self._cross_encoders[name]

    @cached_property
    def encoder(self) -> SciMult | QueryEncoder:
        """Encodes queries: the model, or an encoder without torch."""
        return (self._query_encoder() if self._is_light else None) or self.model

    def queries(self, task: str, texts: Texts) -> FloatArray:
        """Encode queries in the library's space; a newer model's vectors are adapted."""
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
        if newer and given and newer["path"] in (str(given), str(Path(given).resolve())):
            # As it was opened to fit the adapter.
            reference, tokenizer = newer, None
        return open_model(reference, given, self._device, tokenizer)

    @property
    def _tokenizer(self) -> Path | None:
        """The library's copy of its model's tokenizer, unless the user gave another model."""
        folder = self._state.folder / VECTORS / self._state.manifest.vectors / TOKENIZER
        # If the user's model differs, check_model reports it.
        return folder if self._given is None and folder.is_dir() else None

    def _query_encoder(self) -> QueryEncoder | None:
        """Open the encoder without torch; None where only the model will do, or can say why not."""
        given, reference = self._given, self._state.manifest.model
        is_path = given is None or isinstance(given, (str, Path))
        if not is_path or self._device is not None or (given and self._state.manifest.adapter):
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
