"""A library reuses vectors that scimult encode wrote, and encodes the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.inference.bulk import BulkEncoder, Part, encode_shards
from scimult.library import Library
from scimult.library.records import as_papers
from scimult.retrieval.shards import Shards, publish, write_shard
from scimult.retrieval.space import Precision
from tests.library.conftest import dated, paper

Make = Callable[..., Library]


def _encoded(folder: Path, model: SciMult, papers: list[dict[str, Any]], task: str = "all") -> Path:
    """Encode papers in shards of three, with other ids and in another order."""
    texts = [(f"x{number}", made.text) for number, made in enumerate(as_papers(papers[::-1]))]
    bulk = BulkEncoder(model, folder, task=task, role="candidate")
    encode_shards(bulk, texts, rows=3)
    return folder


def test_no_text_is_encoded_twice(make: Make, model: SciMult, tmp_path: Path) -> None:
    papers = dated(8)
    anew = make(papers, "anew")
    vectors = _encoded(tmp_path / "vectors", model, [*papers[:5], papers[3]])
    library = make([], "taken")
    changes = library.add(papers, vectors=vectors)
    assert (changes.added, changes.texts_encoded) == (8, 3)
    for task in library.state.manifest.sides:
        rows, wanted = (one.state.shards(task).rows(np.arange(8)) for one in (library, anew))
        np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-5)
    assert library.check() == []
    # Vectors in the library itself are preferred to the folder's.
    changed = [paper(0, 1), *papers[1:]]
    assert library.sync(changed, vectors=vectors).texts_encoded == 1
    assert library.sync(changed, vectors=_encoded(tmp_path / "more", model, changed)).added == 0


def test_a_library_is_created_from_vectors_alone(
    model_folder: Path, model: SciMult, tmp_path: Path
) -> None:
    papers = dated(5)
    vectors = _encoded(tmp_path / "vectors", model, papers, "search")
    made = Library.create(
        tmp_path / "library",
        papers,
        model=model_folder,
        dtype=model.dtype,
        tasks=["search"],
        vectors=vectors,
    )
    assert made.model.tokens_encoded == 0
    assert len(made) == 5


def test_vectors_of_another_origin_are_refused(make: Make, model: SciMult, tmp_path: Path) -> None:
    papers = dated(4)
    library = make(papers)
    one = _encoded(tmp_path / "one", model, papers, "search")
    with pytest.raises(DataError, match=r"no vectors for .*link_prediction"):
        library.add(dated(5), vectors=one)
    with pytest.raises(DataError, match="no vectors here"):
        library.add(dated(5), vectors=library.path)
    searched = make([], "searched", tasks=["search"])
    space = Shards(one).space
    alien = type(space)(**{**vars(space), "made_by": {**space.made_by, "weights": "other"}})
    shard = write_shard(tmp_path / "alien", 0, alien, ["a"], np.ones((1, space.width)), ["0" * 32])
    publish(tmp_path / "alien", alien, [shard])
    with pytest.raises(DataError, match="differ in weights 'other'"):
        searched.add(papers, vectors=tmp_path / "alien")
    bare = write_shard(tmp_path / "bare", 0, space, ["a"], np.ones((1, space.width)))
    publish(tmp_path / "bare", space, [bare])
    with pytest.raises(DataError, match="vectors of unknown texts"):
        searched.add(papers, vectors=tmp_path / "bare")
    assert len(searched) == 0


@pytest.mark.parametrize(("theirs", "ours"), [("float16", "float32"), ("float32", "float16")])
def test_vectors_of_another_precision_name_the_option(
    make: Make, model: SciMult, tmp_path: Path, theirs: Precision, ours: Precision
) -> None:
    bulk = BulkEncoder(model, tmp_path / "v", task="search", role="candidate", precision=theirs)
    encode_shards(bulk, [("x", made.text) for made in as_papers(dated(1))])
    library = make([], tasks=["search"], precision=ours)
    options = f"create the library with --precision {theirs}, or encode with --precision {ours}"
    with pytest.raises(DataError, match=f"stored as {theirs}.* as {ours}. Fix: {options}"):
        library.add(dated(1), vectors=tmp_path / "v")
    fitting = make([], "fitting", tasks=["search"], precision=theirs)
    assert fitting.add(dated(1), vectors=tmp_path / "v").texts_encoded == 0


def test_vectors_with_a_part_missing_are_refused(
    make: Make, model: SciMult, tmp_path: Path
) -> None:
    """The library would encode all papers, hours of work that the other parts have done."""
    papers = dated(8)
    texts = [(f"x{number}", made.text) for number, made in enumerate(as_papers(papers))]
    bulk = BulkEncoder(model, tmp_path / "vectors", task="search", role="candidate")
    assert encode_shards(bulk, texts, rows=3, part=Part(0, 2)).missing == [1]
    library = make([], tasks=["search"])
    with pytest.raises(DataError, match="embeddings are not complete"):
        library.add(papers, vectors=tmp_path / "vectors")
    encode_shards(bulk, texts, rows=3, part=Part(1, 2))
    assert library.add(papers, vectors=tmp_path / "vectors").texts_encoded == 0


def test_a_damaged_shard_costs_its_own_texts(make: Make, model: SciMult, tmp_path: Path) -> None:
    papers = dated(7)
    vectors = _encoded(tmp_path / "vectors", model, papers, "search")
    (vectors / "000001.npy").write_bytes(b"no vectors")
    library = make([], tasks=["search"])
    assert library.add(papers, vectors=vectors).texts_encoded == 3
