"""The tables of a prepared folder, as rules see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.errors import StorageError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining.engine import Limits, open_duckdb
from scimult.preparation.mining.tables import Tables
from tests.raw_corpus import raw_config, write_tsv


def test_sources_whose_names_differ_only_in_case_have_tables_of_their_own(
    root: Path, tmp_path: Path
) -> None:
    """SQL does not tell names by case: a known answer of one would be a negative of the other."""
    linked = {"toy": [("p0", "p1", 1)], "Toy": [("p2", "p3", 1), ("p2", "p4", 1)]}
    tree = raw_config(root).model_dump(exclude_unset=True)
    tree["sources"] = []
    for name, rows in linked.items():
        write_tsv(root / f"{name}.tsv", ("query-id", "paper-id", "score"), rows)
        files = {"papers": "papers.jsonl", "links": f"{name}.tsv"}
        tree["sources"].append({"name": name, "namespace": "both", **files})
    tree["dev_fraction"] = 0
    data, _ = build_dataset(DatasetConfig(**tree), tmp_path / "out")
    with open_duckdb(tmp_path, Limits(threads=1)) as engine:
        selects = Tables(data, engine).known("link_prediction", "links")
        known = engine.fetch(" UNION ALL ".join(selects))
    ids = data.texts.ids
    found = {(ids[q], ids[p]) for q, p in zip(known["query"], known["paper"], strict=True)}
    wanted = {(f"both:{q}", f"both:{p}") for rows in linked.values() for q, p, _ in rows}
    assert found == wanted


def test_a_folder_that_the_engine_cannot_open_is_named(tmp_path: Path) -> None:
    """It took the question mark for the start of its options: a traceback."""
    folder = tmp_path / "why?" / "mining"
    message = r"why\?/mining: a path with a question mark.*Fix: rename"
    with pytest.raises(StorageError, match=message), open_duckdb(folder, Limits(threads=1)):
        pass
