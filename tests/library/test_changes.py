"""An updated library equals one created from scratch."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scimult.files
from scimult.errors import ConfigError, DataError, StorageError, UnknownNameError
from scimult.files import only_writer
from scimult.inference import SciMult
from scimult.library import Library, compaction, state, writing
from tests.library.conftest import contents, dated, made, paper

Make = Callable[..., Library]
# Papers of a moment: number to version and year.
_PAPERS = st.dictionaries(
    st.integers(0, 12), st.tuples(st.integers(0, 1), st.integers(2000, 2001)), min_size=1
)
_HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("sync"), _PAPERS),
        st.tuples(st.just("add"), _PAPERS),
        st.tuples(st.just("remove"), st.sets(st.integers(0, 12))),
        st.tuples(st.just("compact"), st.none()),
    ),
    min_size=1,
    max_size=5,
)


def _papers(chosen: dict[int, tuple[int, int]]) -> list[dict[str, Any]]:
    return [paper(number, version, year=year) for number, (version, year) in chosen.items()]


def _assert_same(library: Library, anew: Library) -> None:
    """Vectors within 1e-5: other texts in a batch change the order of float32 sums."""
    assert contents(library) == contents(anew)
    assert library.state.manifest.content == anew.state.manifest.content
    assert library.check() == []
    for task in anew.state.manifest.sides:
        found, wanted = (
            dict(
                zip(
                    one.state.papers.ids_of(one.state.live_rows()),
                    one.state.shards(task).rows(one.state.live_rows()),
                    strict=True,
                )
            )
            for one in (library, anew)
        )
        assert all(np.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)
    pages = [one.search("graph speech", k=99) for one in (library, anew)]
    assert pages[0].scores == pytest.approx(pages[1].scores, abs=1e-5)
    assert sorted(pages[0].ids) == sorted(pages[1].ids)


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(history=_HISTORY)
def test_any_history_ends_like_a_new_library(
    tmp_path_factory: pytest.TempPathFactory,
    model: SciMult,
    history: list[tuple[str, Any]],
) -> None:
    folder = tmp_path_factory.mktemp("history")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "SEGMENT_ROWS", 3)
        patch.setattr(compaction, "SEGMENT_ROWS", 4)
        patch.setattr(compaction, "MOST_SMALL", 2)
        library = made(folder / "kept", model, [])
        now: dict[int, tuple[int, int]] = {}
        for verb, given_ in history:
            if verb == "sync":
                library.sync(_papers(given_))
                now = dict(given_)
            elif verb == "add":
                library.add(_papers(given_))
                now.update(given_)
            elif verb == "remove":
                library.remove(f"p{number:03d}" for number in given_)
                now = {number: kept for number, kept in now.items() if number not in given_}
            else:
                library.compact()
            assert len(library) == len(now)
        anew = made(folder / "anew", model, _papers(now))
        _assert_same(Library.open(folder / "kept", model=model), anew)


class Killed(BaseException):
    """Simulates a kill; unlike one, it lets temporary files be removed."""


def _killed_at(write: int, work: Callable[[], object]) -> None:
    """Do ``work`` until the ``write``-th file is about to be written, if it gets there."""
    writes, replace = itertools.count(1), os.replace

    def replace_or_die(*names: Any) -> None:
        if next(writes) == write:
            raise Killed
        replace(*names)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(scimult.files.os, "replace", replace_or_die)
        work()


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(before=_PAPERS, after=_PAPERS, write=st.integers(1, 40), crowded=st.booleans())
def test_killed_at_any_write_and_repeated(
    tmp_path_factory: pytest.TempPathFactory,
    model: SciMult,
    before: dict[int, tuple[int, int]],
    after: dict[int, tuple[int, int]],
    write: int,
    crowded: bool,
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "SEGMENT_ROWS", 3)
        patch.setattr(compaction, "SEGMENT_ROWS", 4)
        patch.setattr(compaction, "MOST_SMALL", 1 if crowded else 32)
        library = made(folder / "kept", model, _papers(before))
        _killed_at(write, lambda: library.sync(_papers(after)))
        # Nothing is partial: papers are as they were or will be, each once.
        half = Library.open(folder / "kept", model=model)
        known = {row["id"]: row for row in (*_papers(before), *_papers(after))}
        assert half.check() == []
        assert set(contents(half)) <= set(known)
        half.sync(_papers(after))
        anew = made(folder / "anew", model, _papers(after))
        _assert_same(Library.open(folder / "kept", model=model), anew)
        left = {path.stem for path in (folder / "kept" / "papers").iterdir()}
        named = {part.name for part in Library.open(folder / "kept").state.manifest.segments}
        assert left == named


_KILLED = """
import itertools, os, sys
import scimult.files
from scimult.library import Library, writing
from tests.library.conftest import dated
writing.SEGMENT_ROWS = 5
library, writes, replace = Library.open(sys.argv[1]), itertools.count(1), os.replace
library.model
def replace_or_die(*names):
    if next(writes) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    replace(*names)
scimult.files.os.replace = replace_or_die
library.sync(dated(25)[5:])
"""


@pytest.mark.ranks
@pytest.mark.parametrize("write", [pytest.param(2, marks=pytest.mark.slow), 12])
def test_the_next_process_repairs_whatever_a_killed_one_leaves(
    repository: Path, model_folder: Path, model: SciMult, tmp_path: Path, write: int
) -> None:
    folder = tmp_path / "kept"
    Library.create(folder, dated(10), model=model_folder, dtype="float32")
    command = [sys.executable, "-c", _KILLED, str(folder), str(write)]
    assert subprocess.run(command, cwd=repository, check=False).returncode == -9
    library = Library.open(folder, model=model)
    assert library.check() == []
    library.sync(dated(25)[5:])
    _assert_same(library, made(tmp_path / "anew", model, dated(25)[5:]))
    assert not list(folder.rglob("*.tmp"))


def test_a_library_of_another_version_is_refused(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "library"
    Library.create(folder, dated(3), model=model_folder, dtype="float32")
    content = json.loads((folder / "library.json").read_text())
    for changed in ({**content, "version": 99}, {k: content[k] for k in content if k != "version"}):
        (folder / "library.json").write_text(json.dumps(changed))
        with pytest.raises(DataError, match="library of another version"):
            len(Library.open(folder))


def test_a_failing_reader_leaves_no_empty_library(tmp_path: Path, model_folder: Path) -> None:
    def papers() -> Iterator[dict[str, str]]:
        raise RuntimeError("the connection is lost")
        yield {}

    with pytest.raises(RuntimeError, match="connection"):
        Library.create(tmp_path / "new" / "library", papers(), model=model_folder, dtype="float32")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UnknownNameError, match="unknown precision"):
        Library.create(
            tmp_path / "new" / "library", [paper(1)], model=model_folder, precision="float8"
        )  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tasks is a string.*'search'.*pass a list"):
        Library.create(tmp_path / "new" / "library", [paper(1)], model=model_folder, tasks="search")
    assert not list(tmp_path.iterdir())


def test_one_per_cent_new_papers_cost_one_per_cent(make: Make, model: SciMult) -> None:
    papers = [paper(number) for number in range(500)]
    library = make(papers)
    tokens = model.tokens_encoded
    model.encode(papers, task="search", role="candidate")
    full = model.tokens_encoded - tokens
    new = [*papers[5:], *(paper(number) for number in range(1000, 1005))]
    changes = library.sync(new)
    assert (changes.added, changes.removed, changes.unchanged) == (5, 5, 495)
    assert changes.texts_encoded == 5
    assert changes.tokens_encoded <= 0.012 * full
    assert library.sync(new).texts_encoded == 0


def test_only_changed_texts_are_encoded(make: Make) -> None:
    library = make(dated(12))
    papers = dated(12)
    papers[3]["year"] = 1999
    papers[4]["title"] = "another title"
    changes = library.sync(papers)
    assert (changes.changed, changes.unchanged, changes.texts_encoded) == (2, 10, 1)
    assert library.search(ids=["p000"], where="year = 1999").ids == ["p003"]


def test_a_second_writer_is_refused(make: Make) -> None:
    library = make(dated(3))
    with only_writer(library.path):
        for change in (lambda: library.add([paper(9)]), lambda: library.remove(["p001"])):
            with pytest.raises(StorageError, match="another process is writing here"):
                change()
        assert len(library.search("graph")) == 3
    assert library.add([paper(9)]).added == 1


def test_a_subquery_of_a_filter_sees_no_removed_paper(make: Make) -> None:
    library = make([paper(number, year=2000 + number) for number in range(5)])
    library.remove(["p004"])
    library.add([paper(2, 1, year=2002)])
    assert library.ids(where="year = (SELECT max(year) FROM papers)") == ["p003"]
    repeated = "id IN (SELECT id FROM papers GROUP BY id HAVING count(*) > 1)"
    assert library.ids(where=repeated) == []


def test_a_reader_keeps_its_snapshot_until_it_refreshes(make: Make, model: SciMult) -> None:
    library = make(dated(6))
    reader = Library.open(library.path, model=model)
    library.sync(dated(4))
    assert (len(reader), len(reader.search("graph", k=9))) == (6, 6)
    reader.refresh()
    assert (len(reader), len(reader.search("graph", k=9))) == (4, 4)


@pytest.mark.parametrize("file", ["papers/000001.parquet", "vectors/*/search.candidate/000001.npy"])
def test_a_damaged_segment_is_named_the_rest_is_usable_and_sync_repairs_it(
    make: Make,
    model: SciMult,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    file: str,
) -> None:
    monkeypatch.setattr(writing, "SEGMENT_ROWS", 5)
    library = make(dated(15))
    (path,) = library.path.glob(file)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    damaged = Library.open(library.path, model=model)
    assert [str(path) in str(problem) for problem in damaged.check()] == [True]
    assert str(damaged.check()[0]).count("Fix:") == 1
    assert caplog.messages == []
    rest = damaged.search("graph", k=15)
    assert caplog.messages == [f"skipping papers: {damaged.check()[0]}"]
    assert sorted(rest.ids) == [f"p{i:03d}" for i in (*range(5), *range(10, 15))]
    assert damaged.search("graph", k=15, where="year >= 2000").ids == rest.ids
    changes = damaged.sync(dated(15))
    assert changes.texts_encoded == 5
    assert damaged.check() == []
    _assert_same(damaged, make(dated(15), "anew"))


@pytest.mark.parametrize("change", ["remove", "sync"])
def test_what_is_removed_while_its_file_is_damaged_does_not_return_with_it(
    make: Make, model: SciMult, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(writing, "SEGMENT_ROWS", 5)
    library = make(dated(15))
    path = library.path / "papers/000001.parquet"
    content, kept = path.read_bytes(), [one for one in dated(15) if one["id"] != "p006"]
    path.write_bytes(content[:50])
    damaged = Library.open(library.path, model=model)
    _ = damaged.remove(["p006"]) if change == "remove" else damaged.sync(kept)
    path.write_bytes(content)
    restored = Library.open(library.path, model=model)
    assert sorted(restored.ids()) == [one["id"] for one in kept]
    assert sorted(restored.search("graph", k=15).ids) == [one["id"] for one in kept]
    assert restored.check() == []


def test_another_model_or_setting_is_refused_by_name(
    make: Make, tmp_path: Path, model_folder: Path
) -> None:
    from tests.tiny import save_tiny_model

    library = make(dated(3))
    other = save_tiny_model(tmp_path / "other", similarity="cosine", seed=7)
    with pytest.raises(DataError, match=r"of 'other', here of 'tiny' differ in weights"):
        Library.open(library.path, model=other).add([paper(9)])
    pooled = SciMult.from_pretrained(model_folder, pooling="mean")
    with pytest.raises(DataError, match=r"pooling 'mean', here 'cls'"):
        Library.open(library.path, model=pooled).search("graph")
    narrow = SciMult.from_pretrained(model_folder, dims=8)
    with pytest.raises(DataError, match=r"width 8, here 16"):
        Library.open(library.path, model=narrow).search("graph")


def test_a_library_is_created_only_in_an_empty_folder(make: Make, tmp_path: Path) -> None:
    library = make(dated(2))
    with pytest.raises(StorageError, match="output exists already"):
        make(dated(2))
    with pytest.raises(DataError, match="not a library.*scimult library create"):
        Library.open(tmp_path)
    with pytest.raises(UnknownNameError, match="unknown task.*'serach'.*did you mean 'search'"):
        make(dated(2), "other", tasks=["serach"])
    assert repr(library).startswith(f"Library({str(library.path)!r}: 2 papers by 'tiny'; search")


def test_a_reader_survives_a_rewrite_while_it_opens(
    make: Make, model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = make(dated(6))
    read = state.read_manifest

    def read_then_rewritten(folder: Path) -> Any:
        found = read(folder)
        monkeypatch.setattr(state, "read_manifest", read)
        library.remove(["p001"])
        library.compact()
        return found

    monkeypatch.setattr(state, "read_manifest", read_then_rewritten)
    reader = Library.open(library.path, model=model)
    assert len(reader) == len(reader.search("graph", k=9)) == 5


def test_a_rewrite_after_opening_is_named(make: Make, model: SciMult) -> None:
    library = make(dated(6))
    reader = Library.open(library.path, model=model)
    library.remove(["p001"])
    library.compact()
    for options in ({}, {"where": "year > 2000"}):
        # In one line.
        with pytest.raises(DataError, match=r"cannot read papers: .*open the library again"):
            reader.search("graph", **options)
