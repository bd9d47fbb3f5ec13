"""Ensembles: combining the members' embeddings, and members that cannot be combined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scimult.cli.systems import _folders
from scimult.errors import ConfigError, UnknownNameError
from scimult.inference import Ensemble, SciMult
from scimult.types import Text
from tests.benchmark_sets import WordEncoder
from tests.tiny import save_tiny_model

TEXTS = [Text("paper", "graphs", "of things"), Text("paper", "other")]


@pytest.fixture
def members(tmp_path: Path) -> list[SciMult]:
    return [
        SciMult.from_pretrained(save_tiny_model(tmp_path / str(seed), seed=seed)) for seed in (0, 1)
    ]


def test_mean_and_concatenation(members: list[SciMult]) -> None:
    one, two = (m.encode(TEXTS, task="search", role="candidate") for m in members)
    mean = Ensemble(members, name="both").encode(TEXTS, task="search", role="candidate")
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, (one + two) / 2, atol=1e-6)
    joined = Ensemble(members, name="both", combine="concatenation")
    embedded = joined.encode(TEXTS, task="search", role="candidate")
    assert np.array_equal(embedded, np.concatenate([one, two], axis=1))


def test_its_representation_names_members_and_comparison(members: list[SciMult]) -> None:
    assert repr(Ensemble(members, name="both")) == "Ensemble('both': mean of '0', '1'; dot)"
    unit = Ensemble(members, name="unit", combine="concatenation", normalise=True)
    assert repr(unit) == "Ensemble('unit': concatenation of '0', '1'; dot, unit vectors)"


def test_texts_are_queries_unless_said_otherwise(members: list[SciMult]) -> None:
    both = Ensemble(members, name="both")
    queries = both.encode([Text("query", "graphs")], task="search")
    np.testing.assert_array_equal(
        both.encode([Text("query", "graphs")], task="search", role="query"), queries
    )


def test_the_task_is_one_that_all_members_know(members: list[SciMult]) -> None:
    assert Ensemble(members, name="both").task_for("classification", "search") == "classification"
    assert Ensemble(members, name="both").task_for("regression", "search") == "search"
    mixed = Ensemble([members[0], WordEncoder()], name="mixed")
    assert mixed.task_for("classification", "search") == "search"


def test_every_member_reads_all_texts_of_a_generator(members: list[SciMult]) -> None:
    both = Ensemble(members, name="both")
    wanted = both.encode(TEXTS, task="search", role="candidate")
    table = pa.Table.from_pylist([{"title": text.title, "abstract": text.body} for text in TEXTS])
    once: list[Any] = [iter(TEXTS), table.to_reader(max_chunksize=1)]
    for texts in once:
        np.testing.assert_array_equal(both.encode(texts, task="search", role="candidate"), wanted)


def test_tokens_count_once_per_member_if_all_count_them(members: list[SciMult]) -> None:
    both = Ensemble(members, name="both")
    both.encode(TEXTS, task="search", role="candidate")
    assert both.tokens_encoded == 2 * members[0].tokens_encoded > 0
    other = Ensemble([members[0], WordEncoder()], name="other")
    assert other.tokens_encoded is None


def test_what_cannot_be_combined_is_refused(members: list[SciMult], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least two members"):
        Ensemble(members[:1], name="one")
    cosine = SciMult.from_pretrained(tmp_path / "0", similarity="cosine")
    with pytest.raises(ConfigError, match="compare embeddings differently"):
        Ensemble([cosine, members[1]], name="mixed")
    short = SciMult.from_pretrained(tmp_path / "0", dims=4)
    with pytest.raises(ConfigError, match=r"\[4, 16\] dimensions: no mean"):
        Ensemble([short, members[1]], name="mixed").encode(TEXTS, task="search", role="query")
    with pytest.raises(UnknownNameError, match="unknown combination.*'sum'"):
        Ensemble(members, name="both", combine="sum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="encodes for one task"):
        Ensemble(members, name="both").encode(TEXTS, task="all")


def test_folder_with_a_plus_in_its_name_is_one_model(tmp_path: Path) -> None:
    (tmp_path / "a+b").mkdir()
    assert _folders(tmp_path / "a+b") == [tmp_path / "a+b"]
    assert _folders(Path("x/a+y/b")) == [Path("x/a"), Path("y/b")]


def test_members_compared_by_cosine_give_unit_vectors(
    members: list[SciMult], tmp_path: Path
) -> None:
    units = [SciMult.from_pretrained(tmp_path / str(n), similarity="cosine") for n in (0, 1)]
    for combine in ("mean", "concatenation"):
        found = Ensemble(units, name="both", combine=combine)  # type: ignore[arg-type]
        rows = found.encode(TEXTS, task="search", role="query")
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
        raw = Ensemble(units, name="x", combine=combine, normalise=False)  # type: ignore[arg-type]
        lengths = np.linalg.norm(raw.encode(TEXTS, task="search", role="query"), axis=1)
        assert abs(lengths - 1).min() > 1e-3
