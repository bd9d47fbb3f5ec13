"""``encode(task="all")``: papers for every task in one pass, equal to separate calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.types import Role, Similarity
from tests.inference.test_encoder import LINK, PAPERS, TASKS
from tests.tiny import save_tiny_model


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("role", ["query", "candidate"])
def test_all_tasks_at_once_equal_separate_calls(
    folder: Path, similarity: Similarity, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SciMult.from_pretrained(folder, device="cpu", similarity=similarity)
    before = model.tokens_encoded
    by_task = model.encode(PAPERS * 3, task="all", role=role)
    assert list(by_task) == list(TASKS)
    # Papers are search candidates, classification queries, and both sides of a link.
    sides: dict[str, Role] = {"search": "candidate", LINK: role, "classification": "query"}
    once = model.tokens_encoded - before
    for task, embeddings_ND in by_task.items():
        assert np.array_equal(
            embeddings_ND, model.encode(PAPERS * 3, task=task, role=sides[task])
        ), task
    assert model.tokens_encoded - before == 4 * once
    monkeypatch.setattr(model, "_texts_at_once", 2)
    for task, cut_ND in model.encode(PAPERS * 3, task="all", role=role).items():
        np.testing.assert_allclose(cut_ND, by_task[task], atol=1e-5)


@pytest.mark.parametrize("variant", ["vanilla", "ffn_expert", "instruction"])
def test_all_tasks_by_format(tmp_path: Path, variant: str) -> None:
    path = save_tiny_model(tmp_path / "m", variant=variant)
    config = read_json(path / "config.json")
    config["routing"] = "format"
    # Four tasks of three formats: as many routes as before.
    config["tasks"].append(config["tasks"][1] | {"name": "co_view"})
    write_json(path / "config.json", config)
    model = SciMult.from_pretrained(path, device="cpu")
    by_task = model.encode(PAPERS, task="all")
    assert list(by_task) == [*TASKS, "co_view"]
    assert np.array_equal(by_task["co_view"], by_task[LINK])
    by_task["co_view"] += 1
    for task in TASKS:
        role: Role = "candidate" if task == "search" else "query"
        assert np.array_equal(by_task[task], model.encode(PAPERS, task=task, role=role)), task


def test_all_tasks_need_papers_and_no_instruction(model: SciMult, tmp_path: Path) -> None:
    assert {x_ND.shape for x_ND in model.encode([], task="all").values()} == {(0, 16)}
    with pytest.raises(DataError, match=r"text 0 \(paper\) is empty"):
        model.encode([""], task="all")
    with pytest.raises(UnknownNameError, match="candidate, query"):
        model.encode(PAPERS, task="all", role="both")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"needs one task \(value: 'Find'\)\. Fix: name one task"):
        model.encode(PAPERS, task="all", instruction="Find")  # type: ignore[call-overload]
    with pytest.raises(UnknownNameError, match="use one of all, classification"):
        model.encode(PAPERS, task="al")
    path = save_tiny_model(tmp_path / "m", variant="vanilla")
    config = read_json(path / "config.json")
    config["tasks"] = [config["tasks"][0] | {"candidate_kind": "query"}]
    write_json(path / "config.json", config)
    with pytest.raises(ConfigError, match="no task of m has papers.*Fix: name a task"):
        SciMult.from_pretrained(path, device="cpu").encode(PAPERS, task="all")
    config["tasks"][0]["name"] = "all"
    write_json(path / "config.json", config)
    with pytest.raises(ConfigError, match="no task can be called all"):
        SciMult.from_pretrained(path, device="cpu")
