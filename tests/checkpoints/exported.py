"""Small models of every family and variant with distinct routes, for tests of exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scimult.checkpoints import Pretrained, PretrainedConfig, read_config
from scimult.checkpoints.pretrained import start_from
from scimult.inference import SciMult
from scimult.models import EncoderConfig, variant_layouts
from scimult.tasks import Routing, Task, TaskSet, default_tasks, route_names
from scimult.types import FloatArray, Role, Text
from tests.base_models import save_base_model

# Two tasks of one format; an instruction for models that read one.
TASKS = [
    *default_tasks(),
    Task(name="recommendation", instruction="Find papers to read.", format="proximity"),
]
TEXTS = [
    Text("paper", "Graph attention networks", "We classify naïve papers. " * 3),
    Text("paper", "Only a title"),
    Text("paper", "Too long " * 20, "never reached"),
]


def routed_model(
    folder: Path,
    variant: str,
    options: dict[str, Any] | None = None,
    *,
    family: str = "bert",
    routing: Routing = "task",
    **changes: object,
) -> Pretrained:
    """Return a model on a random two-block base; ``changes`` go to its encoder's config."""
    base = save_base_model(folder / "base", family, num_hidden_layers=2)
    routes = len(route_names(TaskSet(TASKS), routing))
    layouts = variant_layouts(variant, options or {}, routes, 2)
    sizes = read_config(base).encoder.model_dump()
    encoder = EncoderConfig.model_validate(sizes | layouts | changes)
    config = PretrainedConfig(
        encoder=encoder, tasks=TASKS, routing=routing, max_length=encoder.max_text_length
    )
    model = start_from(base, config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    model.model.eval()
    return model


def embed(pretrained: Pretrained, task: str, side: Role = "query") -> FloatArray:
    """Embed ``TEXTS`` as users do."""
    return SciMult(pretrained, name="x", device="cpu").encode(TEXTS, task=task, role=side)


def strings(pretrained: Pretrained) -> list[str]:
    """Write ``TEXTS`` by the rule of the model card, independently of our tokenizer."""
    separator = pretrained.tokenizer.separator
    return [separator.join(part for part in (t.title, t.body) if part) for t in TEXTS]
