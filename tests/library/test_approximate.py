"""Approximate search: filters, newer papers, parts, damage (`test_index_recall`: recall)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import faiss
import numpy as np
import pytest

from scimult.errors import ConfigError, DataError, StorageError
from scimult.inference import SciMult
from scimult.inference.bulk import Part
from scimult.library import Library, approximate, building, indexing, searching
from scimult.library.approximate import ApproximateSearch, IndexFacts, Kind
from scimult.library.building import Parts, build
from scimult.library.exact import ExactSearch
from scimult.library.segments import UnreadableError
from scimult.locks import temporary_name
from scimult.types import FloatArray, Similarity
from tests.library.clustered import clustered, ids_of, space_of_vectors
from tests.library.conftest import WORDS, dated, paper
from tests.ranks import Verb
from tests.tiny import save_tiny_model


@pytest.fixture
def library(make: Callable[..., Library], monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(searching, "_FEW", 10)
    return make([paper(i, year=2000 + i % 10) for i in range(1100)], tasks=["search"])


@pytest.mark.long
def test_a_library_uses_its_index(library: Library) -> None:
    with pytest.raises(ConfigError, match="no approximate index.*scimult library index"):
        library.search("graph", method="approximate")
    facts = library.index(target_recall=0.9)
    assert isinstance(facts, IndexFacts)
    assert facts.recall >= 0.9
    found, wanted = library.search("graph", k=50), library.search("graph", k=50, method="exact")
    assert (found.exact, wanted.exact) == (False, True)
    assert len({*found.ids} & {*wanted.ids}) >= 40
    assert "approximate" in repr(found)
    for text in WORDS:
        pages = [library.search(text, k=5, offset=start).ids for start in range(0, 60, 5)]
        assert len(set().union(*pages)) == 60
    # More than the lists that are read for ten results hold.
    everything = [library.search("graph", k=100, offset=start) for start in range(0, 1100, 100)]
    assert len({name for page in everything for name in page.ids}) == 1100
    assert not any(page.exact for page in everything)
    late = paper(5000, 1, year=2003)
    library.add([late])
    library.remove(wanted.ids[:3])
    vector_D = library.model.encode([late], task="search", role="candidate")[0]
    again = library.search(vector=vector_D, k=1)
    assert (again.exact, again.ids) == (False, ["p5000"])
    assert not {*wanted.ids[:3]} & {*library.search("graph", k=50).ids}
    some = library.search("graph", where={"year": 2003}, method="approximate", k=5)
    assert {hit.columns["year"] for hit in some} == {2003}
    library.compact()
    assert not library.search("graph").exact


def test_words_bring_back_what_an_index_missed(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.index()
    wanted = library.search("graph 7", words=0.5, method="exact")
    missed = library.state.rows_of(wanted.ids[:3])

    def missing(self: ApproximateSearch, queries: FloatArray, k: int, allowed: Any) -> Any:
        return self._exact.best(queries, k, allowed & ~np.isin(np.arange(len(allowed)), missed))

    monkeypatch.setattr(ApproximateSearch, "best", missing)
    found = library.search("graph 7", words=0.5)
    assert (found.exact, found.as_dicts()) == (False, wanted.as_dicts())


def test_an_index_follows_the_library(library: Library) -> None:
    facts = library.index(target_recall=0.9)
    assert isinstance(facts, IndexFacts)

    def kept() -> IndexFacts:
        return IndexFacts(**library.state.manifest.indexes["search"])

    late = [paper(number, 1, year=2003) for number in range(2000, 2040)]
    library.add(late)
    assert kept() == facts
    library.add([paper(number, 1, year=2003) for number in range(3000, 3030)])
    assert (kept().rows, kept().papers) == (1170, 1170)
    assert (kept().effort, kept().recall) == (facts.effort, facts.recall)
    files = [path.name for path in (library.path / "indexes").iterdir()]
    assert files == [kept().file]
    vector_D = library.model.encode([late[7]], task="search", role="candidate")[0]
    assert library.search(vector=vector_D, k=1, method="approximate").ids == [late[7]["id"]]
    # Rows are renumbered: the index is rebuilt, though a first attempt is killed before that.
    library.remove(library.ids()[:90])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("scimult.library.library.keep_up", Mock(side_effect=KeyboardInterrupt))
        library.compact()
    library.refresh()
    assert library.search("graph").exact
    assert library.search("graph", method="approximate").exact
    # What a writer leaves if it is killed while it writes an index.
    (library.path / "indexes").mkdir()
    (library.path / "indexes" / temporary_name(Path("search.000009.faiss")).name).touch()
    assert "not built" in library.info()["approximate indexes"]["search"]
    library.remove(library.ids()[:10])
    assert (kept().rows, kept().papers, kept().recall) == (1080, 1070, facts.recall)
    assert not library.search("graph").exact
    files = [path.name for path in (library.path / "indexes").iterdir()]
    assert files == [kept().file]
    # Too few are left for one.
    library.remove(library.ids()[:200])
    library.compact()
    assert library.search("graph").exact


@pytest.mark.parametrize("kind", ["rabitq", "pq"])
@pytest.mark.parametrize("similarity", ["cosine", "l2", "dot"])
def test_merged_parts_are_the_index_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, similarity: Similarity
) -> None:
    shards, live_N = space_of_vectors(tmp_path / "space", similarity), np.ones(8000, bool)
    live_N[::7] = False
    facts = build(tmp_path / "one.faiss", kind, shards, live_N)
    parts = [Parts(tmp_path / "parts", kind, shards, live_N, 3) for _ in range(3)]
    assert not parts[2].fill(Part(2, 3))
    assert parts[2].missing() == [0, 1]
    assert not parts[0].fill(Part(0, 3))
    assert parts[1].fill(Part(1, 3))
    merged = parts[1].merge(tmp_path / "merged.faiss")
    assert replace(merged, file="") == replace(facts, file="")
    exact = ExactSearch(shards, 100.0, ids_of)
    found = []
    for path, known in ((tmp_path / "one.faiss", facts), (tmp_path / "merged.faiss", merged)):
        # Nor do the parts in which vectors are read change anything.
        monkeypatch.setattr(approximate, "_READ", 17 if found else 1 << 14)
        known = replace(known, effort=8)
        search = ApproximateSearch(path, known, shards, exact, ids_of)
        found.append(search.best(clustered(50, 3), 10, live_N))
    for (rows, scores), (others, wanted) in zip(*found, strict=True):
        np.testing.assert_array_equal(rows, others)
        np.testing.assert_array_equal(scores, wanted)


def test_full_blocks_of_codes_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss itself writes beyond its memory there, which ends the process or changes other data."""
    merge_from = faiss.IndexIVF.merge_from

    def merge_nothing(index: faiss.IndexIVF, part: faiss.IndexIVF, shift: int) -> None:
        assert part.invlists.list_size(0) == 0
        merge_from(index, part, shift)

    monkeypatch.setattr(faiss.IndexIVF, "merge_from", merge_nothing)
    monkeypatch.setattr(building, "_TRAINED_ON", 8000)
    shards, live_N = space_of_vectors(tmp_path / "space", "l2"), np.ones(8000, bool)
    build(tmp_path / "one.faiss", "pq", shards, live_N)
    parts = Parts(tmp_path / "parts", "pq", shards, live_N, 2)
    assert [parts.fill(Part(number, 2)) for number in (0, 1)] == [False, True]
    parts.merge(tmp_path / "merged.faiss")
    one, merged = (faiss.read_index(str(tmp_path / f"{name}.faiss")) for name in ("one", "merged"))
    found = [index.search(clustered(50, 3), 8000) for index in (one, merged)]
    np.testing.assert_array_equal(*(np.sort(rows) for _, rows in found))
    np.testing.assert_array_equal(*(scores for scores, _ in found))


def test_a_damaged_part_is_filled_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first settings that reach the target are chosen, not those that this machine finds faster.
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    expected = library.index(kind="pq")
    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    (meeting,) = (path for path in (library.path / "indexes").iterdir() if path.is_dir())
    part = meeting / "0000.faiss"
    part.write_bytes(part.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"damaged.*--part 0/2"):
        library.index(kind="pq", part=Part(1, 2))
    facts = library.index(kind="pq", part=Part(0, 2))
    assert isinstance(facts, IndexFacts)
    assert isinstance(expected, IndexFacts)
    assert facts.recall == expected.recall
    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    trained = meeting / "trained.faiss"
    trained.write_bytes(trained.read_bytes()[:1000])
    with pytest.raises(DataError, match="run every part again"):
        library.index(kind="pq", part=Part(1, 2))
    assert library.index(kind="pq", part=Part(0, 2)) == [1]


def test_a_library_that_changes_while_parts_are_filled_gets_no_index_of_before(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Parts.fill

    def then_changed(parts: Parts, part: Part) -> bool:
        is_whole = fill(parts, part)
        Library.open(library.path).remove([library.ids()[0]])
        return is_whole

    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    with monkeypatch.context() as patched:
        patched.setattr(Parts, "fill", then_changed)
        with pytest.raises(StorageError, match="changed while its index was built.*every part"):
            library.index(kind="pq", part=Part(1, 2))
    library.refresh()
    assert not library.state.manifest.indexes
    assert library.index(kind="pq", part=Part(1, 2)) == [0]


@pytest.mark.long
def test_two_processes_make_one_index(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = [paper(i) for i in range(1100)]
    made = Library.create(tmp_path / "library", papers, model=model_folder, tasks=["search"])
    verb = ["library", "index", str(made.path), "--kind", "rabitq", "--target-recall", "0.9"]
    processes = [
        Verb([*verb, "--part", f"{number}/2"], tmp_path / f"{number}.log") for number in (0, 1)
    ]
    codes = [process.wait(120) for process in processes]
    said = "".join(process.printed() for process in processes)
    # The last to finish builds the index; if both saw all parts, one of them.
    assert 0 in codes, said
    assert said.count("rabitq of 1,100 papers, recall") == 1
    monkeypatch.setattr(searching, "_FEW", 10)
    made.refresh()
    facts = IndexFacts(**made.state.manifest.indexes["search"])
    assert (facts.kind, facts.papers) == ("rabitq", 1100)
    assert facts.recall >= 0.9
    assert not made.search("graph").exact
    assert [path.name for path in (made.path / "indexes").iterdir()] == [facts.file]


def test_a_damaged_index_does_not_stop_a_library_from_growing(library: Library) -> None:
    facts = library.index(target_recall=0.9)
    assert isinstance(facts, IndexFacts)
    (path,) = (library.path / "indexes").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert library.add([paper(number, 1) for number in range(2000, 2060)]).added == 60
    assert IndexFacts(**library.state.manifest.indexes["search"]).papers == 1160
    assert not library.search("graph").exact


def test_parts_that_another_process_merged_are_not_merged_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    whole, merged = Parts.fill, []

    def fill(self: Parts, part: Part) -> bool:
        done = whole(self, part)
        if not merged:
            merged.append(library.state.manifest)
            Library.open(library.path, model=library.model).index(kind="pq", part=part)
        return done

    monkeypatch.setattr(Parts, "fill", fill)
    facts = library.index(kind="pq", part=Part(1, 2))
    assert facts == IndexFacts(**library.state.manifest.indexes["search"])
    assert [path.name for path in (library.path / "indexes").iterdir()] == [facts.file]


@pytest.mark.parametrize("published", [False, True])
def test_a_part_that_another_process_removed_as_damaged_is_missing(
    library: Library, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """It ended in a KeyError, or told of an earlier index."""
    if published:
        library.index(kind="pq")
    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    whole = Parts.fill

    def fill(self: Parts, part: Part) -> bool:
        done = whole(self, part)
        self._path(0).unlink()
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "fill", fill)
        assert library.index(kind="pq", part=Part(1, 2)) == [0]
    assert isinstance(library.index(kind="pq", part=Part(0, 2)), IndexFacts)


def test_a_process_killed_after_merging_loses_no_part(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes wait for the lock with the parts, and take them over."""
    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "tuned", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            library.index(kind="pq", part=Part(1, 2))
    monkeypatch.setattr(building, "_fill", Mock(side_effect=AssertionError("filled again")))
    facts = library.index(kind="pq", part=Part(0, 2))
    assert isinstance(facts, IndexFacts)
    assert [path.name for path in (library.path / "indexes").iterdir()] == [facts.file]


def test_a_full_disk_ends_the_training(tmp_path: Path) -> None:
    shards, live_N = space_of_vectors(tmp_path / "space", "cosine"), np.ones(8000, bool)
    (tmp_path / "taken").write_text("a file where the folder would be")
    with pytest.raises(StorageError):
        Parts(tmp_path / "taken" / "parts", "pq", shards, live_N, 2).fill(Part(0, 2))


def test_a_changed_library_rejects_earlier_parts(library: Library) -> None:
    assert library.index(kind="pq", part=Part(0, 2)) == [1]
    library.add([paper(4000)])
    assert library.index(kind="pq", part=Part(1, 2)) == [0]
    (meeting,) = (library.path / "indexes").iterdir()
    assert sorted(path.name for path in meeting.iterdir()) == ["0001.faiss", "trained.faiss"]
    with pytest.raises(ConfigError, match="graphs cannot be merged"):
        library.index(kind="hnsw", part=Part(0, 2))


@pytest.mark.long
def test_a_part_of_a_model_that_the_library_left_meanwhile_is_not_merged(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = save_tiny_model(tmp_path / "newer", similarity="cosine", seed=5)
    whole = Parts.fill

    def fill(self: Parts, part: Part) -> bool:
        monkeypatch.setattr(Parts, "fill", whole)
        Library.open(library.path, model=library.model).migrate(newer)
        return whole(self, part)

    monkeypatch.setattr(Parts, "fill", fill)
    library.index(kind="pq", part=Part(0, 2))
    migrated = Library.open(library.path)
    assert migrated.index(kind="pq", part=Part(1, 2)) == [0]
    assert isinstance(migrated.index(kind="pq", part=Part(0, 2)), IndexFacts)
    assert len([*(library.path / "indexes").iterdir()]) == 1


def test_a_damaged_index_is_named_and_exact_search_goes_on(library: Library) -> None:
    library.index()
    (path,) = (library.path / "indexes").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    opened = Library.open(library.path, model=library.model)
    with pytest.raises(UnreadableError, match=r"damaged approximate index.*Fix: rebuild it"):
        opened.search("graph")
    assert [error.path for error in opened.check()] == [path]
    assert len(opened.search("graph", method="exact")) == 10


def test_an_index_that_another_process_replaced_is_not_called_damaged(library: Library) -> None:
    library.index()
    opened = Library.open(library.path, model=library.model)
    library.index(kind="rabitq")
    with pytest.raises(UnreadableError, match=r"index is missing.*Fix: open the library again"):
        opened.search("graph")
    opened.refresh()
    assert not opened.search("graph").exact


def test_small_libraries_and_wrong_targets_are_refused(make: Callable[..., Library]) -> None:
    with pytest.raises(ConfigError, match="too few papers for an index"):
        make(dated(10)).index()
    with pytest.raises(ConfigError, match="not a valid target recall"):
        make(dated(3), "other").index(target_recall=1.5)


@pytest.mark.long
def test_no_index_passes_over_papers_whose_file_may_return(
    library: Library, model: SciMult
) -> None:
    library.index()
    names = [f"p{number}" for number in range(5000, 5040)]
    library.add([paper(5000 + i) for i in range(40)])
    (path,) = library.path.glob("papers/000001.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:50])
    damaged = Library.open(library.path, model=model)
    with pytest.raises(DataError, match="the library is damaged"):
        damaged.index()
    damaged.add([paper(6000 + i) for i in range(150)])
    path.write_bytes(content)
    restored = Library.open(library.path, model=model)
    found = [restored.search("a", only=[name], method="approximate").ids for name in names]
    assert found == [[name] for name in names]
