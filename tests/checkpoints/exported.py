"""Small models of every family and variant with distinct routes, for tests of exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from tokenizers import Tokenizer

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
    Text("paper", "Graph attention NETWORKS", "We classify naïve papers. " * 3),
    Text("paper", "Only a title"),
    Text("paper", "", "Only an abstract"),
    Text("paper", "Too long " * 20, "never reached"),
    Text("query", "who said [SEP] here"),
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


def in_onnxruntime(folder: Path, texts: list[str]) -> FloatArray:
    """Embed texts with an exported graph as its card shows, 64 tokens at most."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(texts)
    inputs = {
        "input_ids": np.array([text.ids for text in encoded]),
        "attention_mask": np.array([text.attention_mask for text in encoded]),
    }
    embeddings: FloatArray = session.run(None, inputs)[0]
    return embeddings


def difference(found: FloatArray, wanted: FloatArray) -> float:
    """Return the largest difference, relative to the largest entry if that is above 1.

    Other libraries compute in float32, in another order: roundings to 2**-24, which two blocks
    blow up 16 times (1e-6 at most, on three kinds of kernels). Tests allow ten times as much.
    """
    return float(np.abs(found - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
