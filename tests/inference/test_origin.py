"""What a model's vectors depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.errors import DataError, UnknownNameError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.inference.origin import space_of
from scimult.tasks import named_tasks
from scimult.tasks.catalogue import DEFAULT
from tests.tiny import save_tiny_model


def test_a_space_depends_on_weights_settings_task_and_role_and_on_no_name(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a")
    model = SciMult.from_pretrained(folder)
    space = space_of(model, "search", "candidate")
    same = SciMult.from_pretrained(folder, name="by another name")
    assert space_of(same, "search", "candidate") == space
    assert (space.width, space.similarity, space.model) == (16, "dot", "a")
    others = {
        "weights": SciMult.from_pretrained(save_tiny_model(tmp_path / "b", seed=1)),
        "pooling": SciMult.from_pretrained(folder, pooling="mean"),
        "similarity": SciMult.from_pretrained(folder, similarity="cosine"),
        "width": SciMult.from_pretrained(folder, dims=8),
        "computed_in": SciMult.from_pretrained(folder, dtype="bfloat16"),
    }
    for name, other in others.items():
        with pytest.raises(DataError, match=rf"\b{name} "):
            space.check_same(space_of(other, "search", "candidate"), tmp_path)
    for task, role in (("link_prediction", "candidate"), ("link_prediction", "query")):
        with pytest.raises(DataError, match="task"):
            space.check_same(space_of(model, task, role), tmp_path)
    with pytest.raises(UnknownNameError, match="did you mean 'search'"):
        space_of(model, "serach", "candidate")


@pytest.mark.parametrize("names", [DEFAULT, ["one", "two", "three"]])
def test_fingerprint_follows_the_experts_of_tasks(tmp_path: Path, names: list[str]) -> None:
    """The same weights under tasks in another order: a task has another expert."""
    folder = save_tiny_model(tmp_path, variant="mha_expert")
    config = read_json(folder / "config.json")
    tasks = [task.model_dump() for task in named_tasks(names)]
    models, papers = [], ["Graph drawing"]
    for order in (tasks, tasks[::-1]):
        write_json(folder / "config.json", {**config, "tasks": order})
        models.append(SciMult.from_pretrained(folder))
    first, second = (model.encode(papers, task=names[0]) for model in models)
    assert (first != second).any()
    assert models[0].fingerprint != models[1].fingerprint
