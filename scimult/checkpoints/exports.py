"""Exports that need none of our code: a plain BERT folder, and one with a route per task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from scimult.checkpoints.card import CARD_FILE, model_card, text_format
from scimult.checkpoints.fold import assert_plain, fold, plain_model
from scimult.checkpoints.pretrained import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Pretrained,
    PretrainedConfig,
    title_of,
)
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError
from scimult.files import atomic_folder, write_json, write_text
from scimult.types import Similarity

# sentence-transformers' names of our similarities; its Euclidean one is the negative distance.
_SIMILARITIES: dict[Similarity, str] = {"dot": "dot", "cosine": "cosine", "l2": "euclidean"}
# Names that versions 2 to 6 of sentence-transformers all understand.
_TRANSFORMER, _POOLING = (f"sentence_transformers.models.{n}" for n in ("Transformer", "Pooling"))
_ROUTER = "sentence_transformers.models.Router"  # from version 5 on


def export_folded(folder: Path | str, pretrained: Pretrained, task: str | None) -> None:
    """Write one task's experts as a plain BERT folder.

    ``transformers``, sentence-transformers and text-embeddings-inference load it, and so
    does :func:`load_pretrained`, with embeddings equal to the last bit.

    Parameters
    ----------
    folder : path
        To be written.
    pretrained : Pretrained
        The model.
    task : str, optional
        Needed if the model has experts.

    Raises
    ------
    ConfigError, UnknownNameError, CheckpointError
        If the task is missing or unknown, or the model cannot be folded.
    StorageError
        If the folder cannot be written.
    """
    with atomic_folder(folder) as temporary:
        _write_folded(temporary, pretrained, task, title_of(folder))


def export_sentence_transformers(folder: Path | str, pretrained: Pretrained) -> None:
    """Write a sentence-transformers folder that routes by task: ``encode(texts, task=...)``.

    It uses the library's own ``Router`` (version 5 and later; no code of ours is needed).
    Every route is a whole folded model, so what the tasks share is on disk and in memory
    once per task; a model without experts is there once, whatever the task.

    Raises
    ------
    CheckpointError
        If the model cannot be folded, or a task's name cannot be a route.
    StorageError
        If the folder cannot be written.
    """
    names = pretrained.tasks.names
    for name in names:
        if not re.fullmatch(r"[\w-]+", name):
            fix = "rename the task: letters, digits, _ and - only"
            raise CheckpointError("task name cannot be a route", value=name, fix=fix)
    assert_plain(pretrained.config)
    shared = pretrained.config.encoder.experts is None
    places = {name: "all-tasks" if shared else name for name in names}
    with atomic_folder(folder) as temporary:
        for place in dict.fromkeys(places.values()):
            (temporary / place).mkdir()
            task = None if shared else place
            _write_folded(temporary / place, pretrained, task, f"{title_of(folder)}/{place}")
        types: dict[str, str] = {}
        for place in dict.fromkeys(places.values()):
            types |= {place: _TRANSFORMER, f"{place}/1_Pooling": _POOLING}
        router = {
            "types": types,
            "structure": {name: [place, f"{place}/1_Pooling"] for name, place in places.items()},
            # No default: without a task, encode() is an error and not some expert.
            "parameters": {"default_route": None, "allow_empty_key": False},
        }
        write_json(temporary / "router_config.json", router)
        write_json(temporary / "modules.json", [_module(0, "", _ROUTER)])
        _write_similarity(temporary, pretrained.config)
        card = _router_card(pretrained, title_of(folder), shared)
        write_text(temporary / CARD_FILE, card)


def folder_bytes(folder: Path | str) -> int:
    """Return how many bytes the files below ``folder`` take."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def sentence_usage(name: str, task: str | None, similarity: Similarity, separator: str) -> str:
    """Return the section on use with sentence-transformers."""
    argument = "" if task is None else f', task="{task}"'
    return f"""\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
papers = ["Graph drawing {separator} We lay out large graphs."]
embeddings = model.encode(papers{argument})
scores = model.similarity(embeddings, embeddings)  # {_SIMILARITIES[similarity]}
```"""


def _write_folded(folder: Path, pretrained: Pretrained, task: str | None, title: str) -> None:
    config, weights = fold(pretrained, task)
    tokenizer = pretrained.tokenizer
    hf_config, theirs = plain_model(config, weights, tokenizer.pad_id)
    tensors = {key: value.contiguous() for key, value in theirs.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(folder / CONFIG_FILE, hf_config)
    tokenizer.save_plain(folder)
    write_json(folder / "modules.json", [_module(0, "", _TRANSFORMER), _pooling_module()])
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": config.max_length, "do_lower_case": False},
    )
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", _pooling(config))
    _write_similarity(folder, config)
    write_text(folder / CARD_FILE, _folded_card(config, weights, tokenizer, title))


def _folded_card(
    config: PretrainedConfig, weights: dict[str, Any], tokenizer: TextTokenizer, title: str
) -> str:
    served = ", ".join(task.name for task in config.tasks)
    notes = f"""\
{text_format(tokenizer.separator, tokenizer.lowercase)}

## What this folder is

A plain BERT with the experts of: {served}. transformers, sentence-transformers and
text-embeddings-inference load it without custom code. The pooler (`pooler_output`) is zero and
not part of the embedding."""
    usage = sentence_usage(title, None, config.similarity, tokenizer.separator)
    return model_card(
        config, weights, name=title, library="sentence-transformers", usage=usage, notes=notes
    )


def _router_card(pretrained: Pretrained, title: str, shared: bool) -> str:
    config, tokenizer = pretrained.config, pretrained.tokenizer
    disk = (
        "All routes lead to the same files in `all-tasks/`."
        if shared
        else "Each subfolder is the whole model of one task, and can be loaded alone: what the "
        "tasks share is on disk and in memory once per task."
    )
    notes = f"""\
{text_format(tokenizer.separator, tokenizer.lowercase)}

## What this folder is

A sentence-transformers `Router` (version 5 or later, no custom code) with one route per task:
{", ".join(pretrained.tasks.names)}. `encode` without `task`, or with another one, is an error.
{disk}"""
    usage = sentence_usage(title, pretrained.tasks.names[0], config.similarity, tokenizer.separator)
    return model_card(
        config,
        pretrained.model.state_dict(),
        name=title,
        library="sentence-transformers",
        usage=usage,
        notes=notes,
    )


def _module(number: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": number, "name": str(number), "path": path, "type": kind}


def _pooling_module() -> dict[str, Any]:
    return _module(1, "1_Pooling", _POOLING)


def _pooling(config: PretrainedConfig) -> dict[str, Any]:
    mean = config.encoder.pooling == "mean"
    return {
        "word_embedding_dimension": config.encoder.hidden_size,
        "pooling_mode_cls_token": not mean,
        "pooling_mode_mean_tokens": mean,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }


def _write_similarity(folder: Path, config: PretrainedConfig) -> None:
    content = {"prompts": {}, "similarity_fn_name": _SIMILARITIES[config.similarity]}
    write_json(folder / "config_sentence_transformers.json", content)
