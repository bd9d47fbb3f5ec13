"""Moving a library to another model: encoding it again, or through an adapter."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge

from scimult.errors import ConfigError, DataError
from scimult.inference import SciMult
from scimult.library import Library, compaction, migration, writing
from scimult.library.drift import best_rows, fit_adapter, of_rank, procrustes, ridge
from scimult.library.tuning import Question
from scimult.types import Similarity
from tests.library.conftest import dated, made, paper
from tests.library.test_changes import Killed
from tests.tiny import save_tiny_model

Make = Callable[..., Library]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(
        tmp_path_factory.mktemp("newer") / "newer", similarity="cosine", seed=5, pooling="mean"
    )


def test_a_migrated_library_equals_one_created_with_the_new_model(
    make: Make, newer: Path, tmp_path: Path
) -> None:
    library = make(dated(20))
    library.remove(["p003"])
    done = library.migrate(newer, dtype="float32")
    assert (done.papers, done.texts_encoded) == (19, 19)
    model = SciMult.from_pretrained(newer)
    anew = made(tmp_path / "anew", model, [row for row in dated(20) if row["id"] != "p003"])
    again = Library.open(library.path)
    assert again.state.manifest.model["name"] == "newer"
    for one in (library, again):
        found, wanted = one.search("graph", k=19), anew.search("graph", k=19)
        assert found.ids == wanted.ids
        assert found.scores == pytest.approx(wanted.scores, abs=1e-5)
    assert len(list((library.path / "vectors").iterdir())) == 1
    assert library.check() == []
    moved = shutil.copytree(newer, tmp_path / "moved")
    assert library.migrate(moved, dtype="float32").texts_encoded == 0
    assert Library.open(library.path).state.manifest.model["path"] == str(moved)
    assert library.add([paper(77)]).added == 1


def test_a_killed_migration_resumes_and_the_library_stays_searchable(
    make: Make, newer: Path, monkeypatch: pytest.MonkeyPatch, model: SciMult
) -> None:
    monkeypatch.setattr(writing, "SEGMENT_ROWS", 5)
    monkeypatch.setattr(compaction, "SEGMENT_ROWS", 5)
    library = make(dated(20))
    before = library.search("graph", k=20)
    encode, calls = migration.encode_papers, []

    def encode_or_die(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 3:
            raise Killed
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(migration, "encode_papers", encode_or_die)
    with pytest.raises(Killed):
        library.migrate(newer, dtype="float32")
    half = Library.open(library.path, model=model)
    assert half.search("graph", k=20).scores == before.scores
    done = half.migrate(newer, dtype="float32")
    assert (done.papers, done.texts_encoded) == (20, 10)
    assert half.check() == []


def test_an_adapter_lets_queries_of_a_newer_model_search(
    make: Make, newer: Path, model: SciMult
) -> None:
    library = make([paper(i) for i in range(120)], tasks=["search", "link_prediction"])
    with pytest.raises(DataError, match="differ in weights"):
        Library.open(library.path, model=newer).search("graph")
    adapters = library.adapt(newer, dtype="float32")
    assert set(adapters) == {"search", "link_prediction"}
    adapted = Library.open(library.path, model=newer)
    query = SciMult.from_pretrained(newer).encode(["graph"], task="search")
    mapped = adapters["search"](query)[0]
    assert adapted.search("graph").ids == library.search(vector=mapped).ids
    assert len(adapted.recommend(title="graph")) == 10
    with pytest.raises(DataError, match="differ in weights"):
        adapted.add([paper(500)])
    # Labels of one model would be compared with papers of the other.
    with pytest.raises(DataError, match="differ in weights"):
        adapted.tag(["Graphs"], ids=["p001"])
    assert (
        library.search("graph").ids == Library.open(library.path, model=model).search("graph").ids
    )
    adapted.migrate(newer, dtype="float32")
    assert adapted.add([paper(500)]).added == 1


def test_an_adapters_model_by_name_is_opened_as_it_was_fitted(
    make: Make, newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = make([paper(i) for i in range(120)], tasks=["search"])
    opened = SciMult.from_pretrained
    options: list[dict[str, Any]] = []

    def by_name(name: Path | str, **given: Any) -> SciMult:
        assert str(name) == "package:newer"
        options.append(given)
        return opened(newer, **given)

    monkeypatch.setattr(SciMult, "from_pretrained", by_name)
    library.adapt("package:newer", dtype="float32", settings={"pooling": "mean"})
    assert len(Library.open(library.path, model="package:newer").search("graph")) == 10
    assert options[0] == options[-1]
    assert options[-1]["pooling"] == "mean"


def test_another_similarity_cannot_be_adapted(make: Make, tmp_path: Path) -> None:
    library = make([paper(i) for i in range(60)])
    dot = save_tiny_model(tmp_path / "dot", similarity="dot")
    with pytest.raises(ConfigError, match="compares by cosine, the model by dot"):
        library.adapt(dot)
    with pytest.raises(DataError, match="too few papers to fit an adapter"):
        make(dated(20), "small").adapt(dot, settings={"similarity": "cosine"})
    with pytest.raises(ConfigError, match="needs a task that searches for papers"):
        make(dated(5), "tags", tasks=["classification"]).adapt(dot)


def test_maps_are_those_of_scipy_and_sklearn() -> None:
    generator = np.random.default_rng(0)
    new_NM, old_ND = generator.standard_normal((2, 200, 12))
    assert np.allclose(procrustes(new_NM, old_ND), orthogonal_procrustes(new_NM, old_ND)[0])
    strength = 0.1 * np.trace(new_NM.T @ new_NM) / 12
    fitted = Ridge(alpha=strength, fit_intercept=False).fit(new_NM, old_ND).coef_.T
    assert np.allclose(ridge(new_NM, old_ND, 0.1), fitted)


def test_a_map_of_low_rank_is_the_closest_on_the_vectors() -> None:
    generator = np.random.default_rng(0)
    new_NM, matrix_MD = generator.standard_normal((200, 12)), generator.standard_normal((12, 8))
    reduced_MD = of_rank(matrix_MD, new_NM, 3)
    assert np.linalg.matrix_rank(reduced_MD) == 3
    left, singular, right = np.linalg.svd(new_NM @ matrix_MD, full_matrices=False)
    closest_ND = left[:, :3] * singular[:3] @ right[:3]
    assert np.allclose(new_NM @ reduced_MD, closest_ND)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "l2"])
def test_the_best_papers_of_a_sample_are_those_of_its_similarity(similarity: Similarity) -> None:
    generator = np.random.default_rng(0)
    vectors_ND = generator.standard_normal((60, 8)) * generator.uniform(0.5, 3, (60, 1))
    own_Q = np.arange(5)
    queries_QD = vectors_ND[own_Q] + 0.1
    found_QK = best_rows(queries_QD, vectors_ND, similarity, own_Q)
    for own, query_D, found_K in zip(own_Q, queries_QD, found_QK, strict=True):
        scores_N = {
            "cosine": vectors_ND @ query_D / np.linalg.norm(vectors_ND, axis=1),
            "dot": vectors_ND @ query_D,
            "l2": -np.linalg.norm(vectors_ND - query_D, axis=1),
        }[similarity]
        best = [row for row in np.argsort(-scores_N) if row != own][:10]
        assert sorted(found_K) == sorted(best)


def test_a_rotation_is_undone() -> None:
    generator = np.random.default_rng(0)
    old_ND = generator.standard_normal((300, 16)).astype(np.float32)
    turn_DD = np.linalg.qr(generator.standard_normal((16, 16)))[0]
    adapter = fit_adapter((old_ND @ turn_DD).astype(np.float32), old_ND, "cosine")
    assert adapter.recall == pytest.approx(1.0)
    unit_ND = old_ND / np.linalg.norm(old_ND, axis=1, keepdims=True)
    assert np.allclose(adapter((unit_ND @ turn_DD).astype(np.float32)), unit_ND, atol=0.01)


def test_a_mean_that_only_the_old_model_has_is_no_obstacle() -> None:
    """Old vectors lie around one direction, new ones do not: a rotation alone is not enough."""
    generator = np.random.default_rng(0)
    new_ND = generator.standard_normal((600, 16)).astype(np.float32)
    turn_DD = np.linalg.qr(generator.standard_normal((16, 16)))[0]
    old_ND = (new_ND @ turn_DD + 4 * generator.standard_normal(16)).astype(np.float32)
    adapter = fit_adapter(new_ND, old_ND, "cosine")
    assert "of the mean" in adapter.kind
    queries_QD = generator.standard_normal((200, 16)).astype(np.float32)
    none_Q = np.zeros(200, dtype=np.int64)
    wanted = best_rows(queries_QD, new_ND, "cosine", none_Q)
    turned_QD = (queries_QD @ procrustes(new_ND, old_ND)).astype(np.float32)
    shares = [
        np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(found, wanted, strict=True)])
        for found in (
            best_rows(adapter(queries_QD), old_ND, "cosine", none_Q),
            best_rows(turned_QD, old_ND, "cosine", none_Q),
        )
    ]
    assert shares[0] > shares[1] + 0.1, shares


def test_a_repeated_migration_removes_what_a_kill_left(make: Make, newer: Path) -> None:
    library = make(dated(20))
    library.migrate(newer, dtype="float32")
    left = library.path / "vectors" / "former"
    left.mkdir()
    (library.path / "adapter.000001.npz").write_bytes(b"")
    assert library.migrate(newer, dtype="float32").texts_encoded == 0
    assert [left.exists(), *library.path.glob("adapter.*")] == [False]
    assert library.check() == []


def test_an_open_library_follows_a_migration_by_another_process(
    model_folder: Path, newer: Path, tmp_path: Path
) -> None:
    """It used to go on with the model that it had opened, as if the user had given that one."""
    papers = dated(12)
    made_here = Library.create(tmp_path / "library", papers, model=model_folder)
    opened = Library.open(made_here.path)
    given = Library.open(made_here.path, model=model_folder)
    for library in (opened, given):
        library.search("graph", k=1)
    Library.open(made_here.path).migrate(newer)
    wanted = Library.open(made_here.path).search("graph", k=5)
    for library in (made_here, opened):
        library.refresh()
        found = library.search("graph", k=5)
        assert found.ids == wanted.ids
        assert found.scores == pytest.approx(wanted.scores, abs=1e-6)
    assert made_here.add([paper(77)]).added == 1
    stale = Library.open(made_here.path)
    stale.search("graph", k=1)
    Library.open(made_here.path).migrate(model_folder)
    with pytest.raises(DataError, match="vectors of 'newer', here of 'tiny'"):
        stale.index()
    Library.open(made_here.path).migrate(newer)
    # The model that a user names is another now.
    given.refresh()
    with pytest.raises(DataError, match="vectors of 'tiny', here of 'newer'"):
        given.search("graph", k=1)


def test_a_model_stays_open_while_the_vectors_stay(model_folder: Path, tmp_path: Path) -> None:
    library = Library.create(tmp_path / "library", dated(5), model=model_folder)
    model = library.model
    library.add([paper(50)])
    library.refresh()
    library.remove(["p050"])
    assert library.model is model


def test_compacting_again_removes_what_a_killed_attempt_left(make: Make) -> None:
    library = make(dated(12))
    library.remove(["p003"])
    old = {path: path.read_bytes() for path in library.path.rglob("0*.*")}
    library.compact()
    kept = set(library.path.rglob("*"))
    gone = {path: content for path, content in old.items() if not path.exists()}
    assert gone
    for path, content in gone.items():
        path.write_bytes(content)
    library.compact()
    assert set(library.path.rglob("*")) == kept


def test_a_share_tuned_with_a_former_model_is_not_stored(make: Make, newer: Path) -> None:
    library = make(dated(12))
    Library.open(library.path).migrate(newer)
    with pytest.raises(DataError, match="has another model now"):
        library.tune_words([Question(row["title"], [row["id"]]) for row in dated(12)])
    assert Library.open(library.path).state.manifest.words == {}
