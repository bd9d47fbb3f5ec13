"""Benchmarks encoded with another task's route."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from scimult.evaluation.results import load_results
from scimult.evaluation.routes import FixedRoute, cross_tables
from scimult.inference import SciMult
from scimult.types import Text
from tests.benchmark_sets import PAPERS, write_fields, write_links, write_search
from tests.command import completed, refused
from tests.tiny import save_tiny_model


def test_a_fixed_route_encodes_as_the_task_it_is_fixed_to(tmp_path: Path) -> None:
    model = SciMult.from_pretrained(save_tiny_model(tmp_path / "model"))
    texts = [Text("paper", str(paper["title"]), str(paper["abstract"])) for paper in PAPERS]
    fixed = FixedRoute(model, "search")
    as_search = model.encode(texts, task="search", role="candidate")
    for task in model.tasks.names:
        found = fixed.encode(texts, task=task, role="candidate")
        np.testing.assert_array_equal(found, as_search)
    other = model.encode(texts, task="classification", role="candidate")
    assert not np.allclose(other, as_search)


def test_cross_routes_scores_each_set_under_each_route(tmp_path: Path) -> None:
    model, root = save_tiny_model(tmp_path / "tiny"), tmp_path
    made = [write(root / "data") for write in (write_fields, write_links, write_search)]
    benchmarks = {entry.folder: entry.model_dump(mode="json") for entry in made}
    tree = {"name": "own", "description": "", "how_to_get": "", "benchmarks": benchmarks}
    (root / "own.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    common = ["--suite", str(root / "own.yaml"), "--data", str(root / "data")]
    options = [*common, "--model", str(model), "--out", str(root / "crossed")]
    completed("cross-routes", *options)
    plain = ["evaluate", *common, "--model", f"tiny={model}", "--out", str(root / "plain")]
    completed(*plain)
    (usual,) = load_results(root / "plain")
    results = load_results(root / "crossed")
    (grid,) = cross_tables(results)
    assert grid.headings[grid.labels :] == ["search", "link_prediction", "classification"]
    assert {row[1].text for row in grid.rows} == set(usual.sets)
    differ = 0
    for task, name, _, *cells in grid.rows:
        entry = usual.sets[name.text]
        own = cells[grid.headings[3:].index(task.text)]
        assert own.value == entry.scores[entry.main_metric], "a task's own route is the usual one"
        differ += len({cell.value for cell in cells}) > 1
    assert differ
    identity = {name: usual.settings[name] for name in ("fingerprint", "dtype")}
    for result in results:
        # Scores of two number types may differ.
        assert identity.items() <= result.settings.items()
        for entry in result.sets.values():
            assert entry.cost["index_bytes"] == entry.counts["candidates"] * 16 * 4
            assert entry.cost["tokens"] > entry.cost["texts"]
    first = usual.sets["fields"]
    assert first.cost["texts"] == first.counts["queries"] + first.counts["candidates"]
    assert first.cost["tokens"] > first.cost["texts"]


def test_results_by_route_do_not_go_into_a_library(tmp_path: Path) -> None:
    model, out = save_tiny_model(tmp_path / "tiny"), tmp_path / "out"
    out.mkdir()
    (out / "library.json").write_text("{}", encoding="utf-8")
    command = ["cross-routes", "--model", str(model), "--data", str(tmp_path), "--out", str(out)]
    assert "output exists already" in refused(*command)


def test_a_model_without_routes_is_refused(tmp_path: Path) -> None:
    """Its table had the same score in every column, as if tasks did not matter."""
    model, out = save_tiny_model(tmp_path / "plain", variant="vanilla"), tmp_path / "out"
    command = ["cross-routes", "--model", str(model), "--data", str(tmp_path), "--out", str(out)]
    error = refused(*command)
    assert "all tasks of this model take one route" in error
    assert "scimult evaluate" in error
    assert not out.exists()
