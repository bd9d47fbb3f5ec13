"""What a model's vectors depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.errors import DataError, UnknownNameError
from scimult.inference import SciMult
from scimult.inference.origin import space_of
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
