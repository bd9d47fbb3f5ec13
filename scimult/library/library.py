"""The class ``Library``: papers that are encoded once, kept up to date, and searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from scimult.errors import DataError, one_of
from scimult.files import only_writer
from scimult.library.approximate import IndexFacts, Kind
from scimult.library.compaction import compact
from scimult.library.drift import Adapter
from scimult.library.encoded import PrecomputedVectors
from scimult.library.encoding import create_library, open_other, withdraw_library
from scimult.library.feeds import Feed
from scimult.library.filters import Where
from scimult.library.indexing import damaged_indexes, keep_up, make_index
from scimult.library.migration import SAMPLE, Migrated, adapt, migrate
from scimult.library.opened import Opened
from scimult.library.records import Paper, as_papers
from scimult.library.request import Request
from scimult.library.results import Hits, Tagged
from scimult.library.state import State, facts_of, finish_creation, summary
from scimult.library.tagging import LabelIndex, tag_rows
from scimult.library.tuning import Question, Tuned, tune_words
from scimult.library.writing import Changes, Writer
from scimult.locks import remove_if_empty
from scimult.retrieval.space import Precision

if TYPE_CHECKING:
    from scimult.inference import SciMult
    from scimult.inference.bulk import Part

Papers = Iterable[Paper | Mapping[str, Any]]


class Library:
    """Papers in a folder: texts, columns to filter by, vectors for each task of a model.

    Parameters
    ----------
    path : path
        The folder, which `create` makes; a ``DataError`` if it is not a library.
    model : path or SciMult, optional
        The model, if it has moved since the library was created.
    device : str, optional
        Where to encode texts.
    light : bool
        Encode queries without torch, in float32, where possible: for a process of one question.

    Attributes
    ----------
    state : State
        The library as this object last saw it.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        model: Path | str | SciMult | None = None,
        device: str | None = None,
        light: bool = False,
    ) -> None:
        self.path, self.state = Path(path), State(Path(path))
        self._device, self._given, self._is_light = device, model, light
        self._loaded: SciMult | None = None  # for as long as the library's vectors stay

    @classmethod
    def open(cls, path: Path | str, **options: Any) -> Library:
        """Open a library, with the options of the class, without reading its vectors."""
        return cls(path, **options)

    @classmethod
    def create(
        cls,
        path: Path | str,
        papers: Papers = (),
        *,
        model: Path | str,
        tasks: Sequence[str] = (),
        precision: Precision = "float32",
        device: str | None = None,
        dtype: str = "auto",
        settings: Mapping[str, Any] | None = None,
        vectors: Path | str | None = None,
        show_progress: bool = False,
    ) -> Library:
        """Create a library of papers and return it.

        Parameters
        ----------
        path : path
            A new or empty folder.
        papers : iterable of mapping
            ``id``, ``title``, ``abstract`` and columns; read once, in blocks.
        model : path
            Any that ``SciMult.from_pretrained`` reads: a folder, hub name or ``package:NAME``.
        tasks : sequence of str
            Tasks to encode papers for, in one pass; default: all that have papers.
        precision : {"float32", "float16"}
            Number type on disk.
        device, dtype, settings
            As in ``SciMult.from_pretrained``; settings are ``pooling``, ``similarity``, ....
        vectors : path, optional
            Vectors to reuse, as in `add`.

        Raises
        ------
        StorageError
            If the folder is not empty.
        DataError
            If a paper is bad; the library is removed again if it kept no paper.
        """
        encoder = open_other(model, device, dtype, settings)
        new = [folder for folder in Path(path).absolute().parents if not folder.exists()]
        create_library(Path(path), encoder, Path(model), settings or {}, tasks, precision)
        library = cls(path, device=device)
        library._loaded = encoder
        try:
            library.add(papers, vectors=vectors, show_progress=show_progress)
        except BaseException:
            # Whatever ends this must not leave an empty library that refuses the next attempt.
            withdraw_library(Path(path))
            remove_if_empty(*new)
            raise
        return library

    def __repr__(self) -> str:
        return f"Library({str(self.path)!r}: {summary(self.state)})"

    def __len__(self) -> int:
        return int(self.state.live_N.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the folder again where a copy is unpickled, with the model if it was an object."""
        given, device, light = self._given, self._device, self._is_light
        return partial(Library, self.path.absolute(), model=given, device=device, light=light), ()

    @property
    def model(self) -> SciMult:
        """The model, opened on first use.

        Raises
        ------
        DataError
            If it did not encode the library; the message says what differs.
        """
        return self._opened.model

    @cached_property
    def _opened(self) -> Opened:
        return Opened(self.state, self._loaded or self._given, self._device, self._is_light)

    def refresh(self) -> None:
        """Load changes by other processes."""
        before, opened = self.state.manifest.vectors, self.__dict__.pop("_opened", None)
        self.state = State(self.path)
        model = self._loaded if opened is None else opened.open_model or self._loaded
        self._loaded = model if self.state.manifest.vectors == before else None

    def search(self, text: str = "", *, task: str = "search", **options: Any) -> Hits:
        """Find papers for words, for papers of the library, or for a vector.

        Parameters
        ----------
        text, task : str
            Words to search for, and the task whose vectors are searched.
        **options
            ``k``, ``where``, ``min_score`` and others: the fields of
            `scimult.library.request.Request`, which documents them.

        Raises
        ------
        ConfigError, UnknownNameError
            If the request contradicts itself, or an option, column or task is unknown.
        DataError
            If an id is not in the library, or the vector does not fit its space.
        """
        for name in options:
            one_of("option of a search", name, Request.__dataclass_fields__)
        return self._opened.search(task, Request(text=text, **options))

    def recommend(
        self,
        ids: str | int | Sequence[str | int] = (),
        *,
        title: str | None = "",
        abstract: str | None = "",
        task: str = "link_prediction",
        **options: Any,
    ) -> Hits:
        """Find papers to cite, given papers of the library or a new one.

        Parameters
        ----------
        ids : str or sequence of str
            Papers to start from; excluded from the results.
        title, abstract : str
            A new paper.
        task, **options
            As in `search`: ``k``, ``min_score``, ``where``, ``exclude`` and others.
        """
        seeds = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else [ids]
        paper = {"title": title, "abstract": abstract}
        if not any(text and text.strip() for text in paper.values()):
            return self.search(task=task, ids=seeds, **options)
        if seeds:
            fix = "give ids, or title and abstract of a new paper"
            raise DataError("ids and a new paper are mutually exclusive", fix=fix)
        return self.search(task=task, vector=self._opened.queries(task, [paper])[0], **options)

    def tag(
        self,
        labels: Iterable[str | Mapping[str, Any]],
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        k: int = 5,
        task: str = "classification",
    ) -> list[Tagged]:
        """Return the best labels of the library's papers: of all, of given ids, or by a filter.

        Labels are names, or mappings with ``id``, ``name`` and ``definition``. Raises a
        ``DataError`` if an id is not in the library, or a label is invalid.
        """
        rows = self.state.live_rows(where, ids)
        return list(tag_rows(self.state, LabelIndex(self._opened.own, labels, task), rows, k))

    def add(
        self,
        papers: Papers,
        *,
        vectors: Path | str | None = None,
        show_progress: bool = False,
    ) -> Changes:
        """Add new papers and update those with known ids, encoding only new texts.

        Parameters
        ----------
        papers : iterable of mapping
            As in `create`.
        vectors : path, optional
            Written by ``scimult encode`` with the library's model: texts found there, under
            whatever id, are not encoded again.

        Raises
        ------
        DataError
            If an id repeats, a value does not fit its column or the creation was interrupted.
        StorageError
            If another process is writing.
        """
        with self._writer(self._opened.own, vectors) as writer:
            writer.put(as_papers(papers), show_progress=show_progress)
        return writer.changes

    def remove(self, ids: Iterable[str]) -> Changes:
        """Remove papers; ignore unknown ids."""
        with self._writer(None) as writer:
            writer.remove(ids)
        return writer.changes

    def sync(
        self,
        papers: Papers,
        *,
        keep: Set[str | None] = frozenset(),
        vectors: Path | str | None = None,
        show_progress: bool = False,
    ) -> Changes:
        """Make the library hold exactly these papers: encode changes, remove the rest.

        Ids in ``keep``, read last, stay; all do if None is in it. Resumes if repeated after a kill.
        """
        with self._writer(self._opened.own, vectors) as writer:
            ids = writer.put(as_papers(papers), resumes=True, show_progress=show_progress)
            if not ids and len(self):
                fix = "check the papers; remove takes ids, or delete the folder"
                raise DataError("no paper is left: sync would empty the library", fix=fix)
            writer.remove_others(ids, keep)
        return writer.changes

    def index(
        self,
        *,
        task: str = "search",
        kind: Kind = "pq",
        target_recall: float = 0.95,
        part: Part | None = None,
    ) -> IndexFacts | list[int]:
        """Build a task's approximate index, tuned on titles or papers of the library.

        Parameters
        ----------
        task : str
            Task whose vectors are indexed.
        kind : {"rabitq", "pq", "hnsw"}
            See `scimult.library.approximate`.
        target_recall : float
            Share of the exact best 10 to find on the sample.
        part : Part, optional
            Fill one of several; the last to finish builds the index, others return missing parts.

        Raises
        ------
        ConfigError
            If there are too few papers, or faiss is not installed.
        """
        one_of("kind of index", kind, get_args(Kind))
        self._opened.searcher(task)
        facts = make_index(self.path, self._opened.own, task, kind, target_recall, part)
        self.refresh()
        return facts

    def tune_words(self, questions: Iterable[Question], *, task: str = "search") -> Tuned:
        """Choose the share of BM25 for ``words="tuned"`` on queries whose papers are known."""
        tuned = tune_words(self.state, self._opened, task, questions)
        self.refresh()
        return tuned

    def migrate(
        self,
        model: Path | str,
        *,
        precision: Precision | None = None,
        dtype: str = "auto",
        settings: Mapping[str, Any] | None = None,
        show_progress: bool = False,
    ) -> Migrated:
        """Encode all papers with another model, then switch to it; resumes after a kill.

        Until then searches are as before. Arguments are as in `create`; by default precision stays.
        """
        encoder = open_other(model, self._device, dtype, settings)
        with only_writer(self.path):
            state = State(self.path)
            done = migrate(
                state, encoder, Path(model), settings or {}, precision, show_progress=show_progress
            )
            keep_up(State(self.path))
        self.refresh()
        self._given, self._loaded = None, encoder
        return done

    def adapt(
        self,
        model: Path | str,
        *,
        sample: int = SAMPLE,
        dtype: str = "auto",
        settings: Mapping[str, Any] | None = None,
    ) -> dict[str, Adapter]:
        """Let a newer model's queries search these vectors, through a map fitted to a sample.

        ``Library.open(path, model=newer)`` then searches; only the library's own model can add.
        """
        encoder = open_other(model, self._device, dtype, settings)
        with only_writer(self.path):
            adapters = adapt(State(self.path), encoder, Path(model), settings or {}, sample)
        self.refresh()
        return adapters

    def ids(self, *, where: Where | None = None) -> list[str]:
        """Return the ids of all papers, or of those that pass a filter."""
        return self.state.papers.ids_of(self.state.live_rows(where))

    def info(self) -> dict[str, Any]:
        """Return facts about the library and its model, by name."""
        return facts_of(self.state)

    def feed(self, *, task: str = "search", where: Where | None = None) -> Feed:
        """Return papers with the vectors of a task, for `scimult.library.feeds`."""
        return Feed(self.state, task, where)

    def compact(self) -> None:
        """Rewrite the library without removed papers, and merge small segments."""
        with only_writer(self.path):
            keep_up(compact(State(self.path), everything=True))
        self.refresh()

    def check(self) -> list[DataError]:
        """Read everything and return all damage."""
        return [*self.state.check(), *damaged_indexes(self.state)]

    @contextmanager
    def _writer(self, model: SciMult | None, vectors: Path | str | None = None) -> Iterator[Writer]:
        """Yield a writer on the state on disk, locked against other writers."""
        try:
            with only_writer(self.path):
                state = State(self.path)
                known = PrecomputedVectors(Path(vectors), state.spaces) if vectors else None
                yield Writer(state, model, known)
                keep_up(compact(finish_creation(State(self.path))))
        finally:
            self.refresh()
