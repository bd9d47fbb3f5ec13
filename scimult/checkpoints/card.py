"""Write the model card: a README.md that describes a model folder and its use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.hub import is_hub_name
from scimult.models import EncoderConfig
from scimult.models.variants import variant_of
from scimult.table import escaped

CARD_FILE = "README.md"
_COMPARE = {
    "dot": "dot product",
    "cosine": "cosine",
    "l2": "negative Euclidean distance",
}


def title_of(folder: Path | str) -> str:
    """Return a model card's title: the folder's name, or for a run's ``model`` the run's name."""
    path = Path(folder).absolute()
    return path.parent.name if path.name == "model" else path.name


def own_card(config: PretrainedConfig, weights: Mapping[str, Tensor], name: str) -> str:
    """Return the card of a folder in our own format."""
    task = config.tasks[0].name
    usage = f"""\
```python
from scimult import SciMult

model = SciMult.from_pretrained("{name}")
papers = [{{"title": "Graph drawing", "abstract": "We lay out large graphs."}}]
embeddings = model.encode(papers, task="{task}", role="candidate")  # float32, order kept
```

Texts are formatted and lower-cased as in training; an unknown task is an error.
`scimult export` writes the model for sentence-transformers, ONNX and others."""
    return model_card(config, weights, name=name, library="scimult", usage=usage)


def model_card(
    config: PretrainedConfig,
    weights: Mapping[str, Tensor],
    *,
    name: str,
    library: str,
    usage: str,
    notes: str = "",
) -> str:
    """Return a model card as Markdown with YAML front matter, titled ``name``.

    ``library`` is the front matter's ``library_name``; ``usage`` and ``notes`` are Markdown, on use
    and on the folder's format.
    """
    encoder = config.encoder
    front: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "feature-extraction",
        "tags": ["scimult", "scientific-documents", *(task.name for task in config.tasks)],
    }
    base = config.provenance.get("base")
    if isinstance(base, str) and is_hub_name(base):
        front["base_model"] = base
    parameters = sum(tensor.numel() for tensor in weights.values())
    sections = [
        "---\n" + yaml.safe_dump(front, sort_keys=False, allow_unicode=True) + "---",
        f"# {escaped(name)}",
        "A bi-encoder of scientific text: it embeds papers, "
        "labels and queries as vectors, and the nearest vectors are the best matches.",
        "## Tasks\n\n" + _task_table(config),
        "## Model\n\n"
        f"- variant: {variant_of(encoder)}; {_routed(config)}\n"
        f"- {encoder.num_blocks} blocks, {encoder.hidden_size} wide, {encoder.num_heads} heads, "
        f"{encoder.vocab_size:,} tokens, {parameters:,} parameters\n"
        f"- embedding: {_pooling(encoder)}; {encoder.width} dimensions\n"
        f"- compared by {_COMPARE[config.similarity]}; "
        f"{'scaled to length 1' if config.unit_vectors else 'not scaled to length 1'}\n"
        f"- longest text: {config.max_length} tokens; longer ones are cut",
        "## Use\n\n" + usage,
        *([notes] if notes else []),
        "## Provenance\n\n" + _provenance(config),
    ]
    return "\n\n".join(sections) + "\n"


def text_format(separator: str, lowercase: bool) -> str:
    """Return the section on how to format texts for other libraries."""
    casing = "The tokenizer lower-cases all text." if lowercase else "Case is kept."
    return f"""\
## How to write texts

The model was trained on one string per text, which other libraries do not build for you:

| text | string |
|---|---|
| paper | `title{separator}abstract` |
| label | `name{separator}definition` |
| query | the query itself |

If a part is missing, leave out the separator, too. {separator} becomes the special token.
{casing}"""


def _routed(config: PretrainedConfig) -> str:
    """Describe what differs by route."""
    encoder = config.encoder
    if not encoder.is_routed:
        return "all tasks share every weight"
    kind = encoder.routed[0]
    settings = {
        key: value
        for key, value in getattr(encoder, kind).model_dump(exclude_none=True).items()
        if key != "count" and value is not False
    }
    details = "; ".join(
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in settings.items()
    )
    return f"{kind} for {', '.join(config.routes)}" + (f" ({details})" if details else "")


def _pooling(encoder: EncoderConfig) -> str:
    if encoder.pooling == "mean":
        return "the mean over all tokens"
    position = encoder.pooling_position if encoder.pooling == "position" else 0
    if position == 0:
        return "the state of the first token"
    return f"the state of the token at position {position}"


def _task_table(config: PretrainedConfig) -> str:
    lines = ["| task | query | candidate | format | instruction |", "|---|---|---|---|---|"]
    lines += [
        f"| {task.name} | {task.query_kind} | {task.candidate_kind} | {task.format} "
        f"| {escaped(task.instruction) or '–'} |"
        for task in config.tasks
    ]
    return "\n".join(lines)


def _provenance(config: PretrainedConfig) -> str:
    """List the scalar values; the config has the rest, such as the run's settings."""
    single: dict[str, Any] = {
        key: value
        for key, value in config.provenance.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
    released = config.provenance.get("released")
    if isinstance(released, dict):
        single |= {f"released {key}": released.get(key) for key in ("file", "sha256", "epoch")}
    lines = [f"- {escaped(f'{key}: {value}')}" for key, value in single.items()]
    return "\n".join([*(lines or ["- not recorded"]), "", "`config.json` has the full record."])
