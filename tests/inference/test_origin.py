"""What a model's vectors depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.checkpoints import PretrainedConfig, read_config
from scimult.errors import DataError, UnknownNameError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.inference.origin import fingerprint_of, space_of
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
    with pytest.raises(UnknownNameError, match="unknown precision.*float16, float32"):
        space_of(model, "search", "candidate", "float64")  # type: ignore[arg-type]


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


def test_the_fingerprint_follows_all_that_vectors_depend_on(tmp_path: Path) -> None:
    """Else vectors of one model would be taken from a cache, or joined to a library, of another."""
    config = read_config(save_tiny_model(tmp_path, variant="vanilla", similarity="dot"))
    name, kind, data = "weight", "torch.float32", memoryview(bytes(8))

    def changed(**values: Any) -> PretrainedConfig:
        return config.model_copy(update=values)

    encoder = config.encoder.model_copy(update={"pooling": "mean"})
    instructed = [task.model_copy(update={"instruction": "Find"}) for task in config.tasks]
    found = [
        fingerprint_of(one, tokenizer, dtype, weights)
        for one, tokenizer, dtype, weights in (
            (config, "tokens", "float32", [(name, kind, data)]),
            (config, "others", "float32", [(name, kind, data)]),
            (config, "tokens", "tf32", [(name, kind, data)]),
            (config, "tokens", "int8", [(name, kind, data)]),
            (config, "tokens", "float32", [("bias", kind, data)]),
            (config, "tokens", "bfloat16", [(name, "torch.bfloat16", data)]),
            (config, "tokens", "float32", [(name, kind, memoryview(bytes(7) + b"1"))]),
            (changed(max_length=65), "tokens", "float32", [(name, kind, data)]),
            (changed(normalise=True), "tokens", "float32", [(name, kind, data)]),
            (changed(encoder=encoder), "tokens", "float32", [(name, kind, data)]),
            (changed(tasks=instructed), "tokens", "float32", [(name, kind, data)]),
        )
    ]
    assert len(set(found)) == len(found)
    # How vectors are compared, and what made the model, change none.
    for same in (changed(similarity="l2"), changed(provenance={"seed": 1})):
        assert fingerprint_of(same, "tokens", "float32", [(name, kind, data)]) == found[0]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, "2d374b354cfeb864"),
        (
            {"experts": {"count": 3, "blocks": [1], "sublayers": ["attention"]}},
            "4034859a3f33ed0f",
        ),
    ],
)
def test_a_fingerprint_is_still_that_of_24_november(more: dict[str, Any], wanted: str) -> None:
    """A change, such as a new field of the settings, refuses every library and cache there is.

    If it is meant, because vectors change, the changelog says how to make them again.
    """
    sizes = {"vocab_size": 10, "hidden_size": 4, "num_blocks": 2, "num_heads": 2}
    names = ["classification", "link_prediction", "search"]
    settings = {
        "encoder": {**sizes, "intermediate_size": 8, **more},
        "tasks": [task.model_dump() for task in named_tasks(names)],
        "routing": "task",
        "similarity": "dot",
        "max_length": 64,
    }
    config = PretrainedConfig.model_validate(settings)
    weights = [("weight", "torch.float32", memoryview(bytes(8)))]
    assert fingerprint_of(config, "tokens", "float32", weights) == wanted
