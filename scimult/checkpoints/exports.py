"""Export models for other libraries: one route as a plain encoder, or all routes in a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from scimult.checkpoints.card import CARD_FILE, model_card, text_format, title_of
from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.fold import fold, named_pooling, not_plain, plain_model
from scimult.checkpoints.pretrained import Pretrained, write_model
from scimult.checkpoints.reading import CONFIG_FILE
from scimult.checkpoints.sentence_folder import (
    LENGTH_FILE,
    MODULES_FILE,
    SIMILARITY_FILE,
    SIMILARITY_NAMES,
)
from scimult.checkpoints.weights import write_weights
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError
from scimult.files import atomic_folder, write_json, write_text
from scimult.tasks import tells_sides
from scimult.types import Role

# Names that sentence-transformers 2 to 6 understand.
_TRANSFORMER, _POOLING, _NORMALIZE = (
    f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize")
)
_POOLING_FOLDER, _NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
_ROUTER = "sentence_transformers.models.Router"  # from version 5 on
_OURS = "scimult.inference.sentence_module.RoutedEncoder"  # version 6
# A subfolder, and the task and side folded into it.
_Route = tuple[str, str | None, Role | None]


def export_folded(
    folder: Path | str, pretrained: Pretrained, task: str | None, side: Role | None = None
) -> None:
    """Write one route as a plain folder of the encoder's family (BERT, RoBERTa, ...).

    ``transformers``, sentence-transformers and text-embeddings-inference can load it, as can
    `load_pretrained`, with bit-identical embeddings (up to float32 rounding with low-rank
    updates). ``task`` and ``side`` choose the route (`fold.fold`).

    Raises
    ------
    ConfigError, UnknownNameError, CheckpointError
        If the route is missing or unknown, or the model cannot be folded.
    StorageError
        If the folder cannot be written.
    """
    with atomic_folder(folder) as temporary:
        _write_folded(temporary, pretrained, task, side, title_of(folder))


def export_sentence_transformers(folder: Path | str, pretrained: Pretrained) -> list[str]:
    """Write a sentence-transformers folder that routes by task: ``encode(texts, task=...)``.

    A model that can be folded becomes the library's own ``Router`` over plain encoders, which
    needs none of our code but repeats shared weights for every route. Any other model becomes a
    folder in our format, which our module runs inside sentence-transformers. Return notes on the
    folder for the user.

    Raises
    ------
    CheckpointError
        If a task's name cannot be a route.
    StorageError
        If the folder cannot be written.
    """
    for name in pretrained.tasks.names:
        if not re.fullmatch(r"[\w-]+", name):
            fix = "rename the task: letters, digits, _ and - only"
            raise CheckpointError("task name cannot be a route", value=name, fix=fix)
    with atomic_folder(folder) as temporary:
        _write_similarity(temporary, pretrained.config, {})
        if not_plain(pretrained.config):
            return _write_ours(temporary, pretrained, title_of(folder))
        return _write_router(temporary, pretrained, title_of(folder))


def _write_router(folder: Path, pretrained: Pretrained, title: str) -> list[str]:
    routes = _routes(pretrained)
    subfolders = {name: (task, side) for name, task, side in routes.values()}
    for name, (task, side) in subfolders.items():
        (folder / name).mkdir()
        _write_folded(folder / name, pretrained, task, side, f"{title}/{name}")
    kinds = {"": _TRANSFORMER} | _modules_after(pretrained.config)
    parts = {name: [f"{name}/{path}".rstrip("/") for path in kinds] for name in subfolders}
    types = {
        path: kind
        for paths in parts.values()
        for path, kind in zip(paths, kinds.values(), strict=True)
    }
    router = {
        "types": types,
        "structure": {route: parts[name] for route, (name, *_) in routes.items()},
        # No default: without a task, encode() raises instead of using some expert.
        "parameters": {"default_route": None, "allow_empty_key": False},
    }
    write_json(folder / "router_config.json", router)
    _write_modules(folder, {"": _ROUTER})
    notes = f"""\
A sentence-transformers `Router` (version 5 or later, no custom code). Its routes:
{", ".join(routes)}. `encode` without `task`, or with another one, is an error. Each subfolder is a
complete plain model and can be loaded on its own."""
    model = pretrained.config, pretrained.model.state_dict(), pretrained.tokenizer
    _write_card(folder, *model, title, notes, next(iter(routes)))
    if len(subfolders) == 1:
        return ["all routes are one plain model; needs none of our code"]
    return [
        f"{len(subfolders)} plain models; needs none of our code, but repeats shared weights "
        f"{len(subfolders)} times"
    ]


def _routes(pretrained: Pretrained) -> dict[str, _Route]:
    """Return the subfolder and route to fold for each ``task`` argument of ``encode``."""
    config = pretrained.config
    routes: dict[str, _Route] = {}
    for task in pretrained.tasks.names:
        if not config.encoder.is_routed:
            routes[task] = ("all-tasks", None, None)
        elif tells_sides(config.routing):
            for side in get_args(Role):
                routes[f"{task}/{side}"] = (f"{task}-{side}", task, side)
        else:
            routes[task] = (config.routes[pretrained.route(task)], task, None)
    return routes


def _write_ours(folder: Path, pretrained: Pretrained, title: str) -> list[str]:
    config, tokenizer = pretrained.config, pretrained.tokenizer
    weights = pretrained.model.state_dict()
    write_model(folder, weights, tokenizer, config)
    after = {path: kind for path, kind in _modules_after(config).items() if kind != _POOLING}
    _write_modules(folder, {"": _OURS} | after)
    _write_similarity(folder, config, {name: name for name in pretrained.tasks.names})
    notes = f"""\
A folder of `scimult`, which must be installed: its module runs the model inside
sentence-transformers (version 6 or later), which requires `trust_remote_code=True` to import
third-party code. `task` is one of {", ".join(pretrained.tasks.names)}; append `/candidate` for the
candidate side. `encode_query` and `encode_document` take the task as `prompt_name`."""
    task, options = pretrained.tasks.names[0], ", trust_remote_code=True"
    _write_card(folder, config, weights, tokenizer, title, notes, task, options)
    return [
        f"{', '.join(sorted(not_plain(config)))}: no plain form, so our module runs the model; "
        "needs scimult installed and trust_remote_code=True"
    ]


def _write_folded(
    folder: Path, pretrained: Pretrained, task: str | None, side: Role | None, title: str
) -> None:
    config, weights = fold(pretrained, task, side)
    tokenizer = pretrained.tokenizer
    hf_config, hf_weights = plain_model(config, weights, tokenizer.pad_id)
    write_weights(folder, hf_weights)
    write_json(folder / CONFIG_FILE, hf_config)
    tokenizer.save_plain(folder, config.max_length)
    _write_modules(folder, {"": _TRANSFORMER} | _modules_after(config))
    write_json(folder / LENGTH_FILE, {"max_seq_length": config.max_length, "do_lower_case": False})
    write_json(folder / _POOLING_FOLDER / CONFIG_FILE, _pooling(config))
    _write_similarity(folder, config, {})
    tasks = ", ".join(task.name for task in config.tasks) + (f" ({side})" if side else "")
    notes = f"""\
A plain {config.encoder.family} model that serves: {tasks}. transformers, sentence-transformers and
text-embeddings-inference load it without custom code. `pooler_output`, if present, is not the
embedding."""
    _write_card(folder, config, weights, tokenizer, title, notes)


def _write_card(
    folder: Path,
    config: PretrainedConfig,
    weights: dict[str, Tensor],
    tokenizer: TextTokenizer,
    title: str,
    notes: str,
    task: str | None = None,
    options: str = "",
) -> None:
    argument = "" if task is None else f', task="{task}"'
    usage = f"""\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{title}"{options})
texts = ["Graph drawing{tokenizer.separator}We lay out large graphs."]
embeddings = model.encode(texts{argument})
scores = model.similarity(embeddings, embeddings)  # {SIMILARITY_NAMES[config.similarity]}
```"""
    texts = text_format(tokenizer.separator, tokenizer.lowercase)
    notes = f"{texts}\n\n## What this folder is\n\n{notes}"
    library = "sentence-transformers"
    card = model_card(config, weights, name=title, library=library, usage=usage, notes=notes)
    write_text(folder / CARD_FILE, card)


def _modules_after(config: PretrainedConfig) -> dict[str, str]:
    """Return the types of the modules that follow the encoder, by subfolder."""
    scaling = {_NORMALIZE_FOLDER: _NORMALIZE} if config.unit_vectors else {}
    return {_POOLING_FOLDER: _POOLING} | scaling


def _write_modules(folder: Path, kinds: dict[str, str]) -> None:
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / MODULES_FILE, modules)


def _pooling(config: PretrainedConfig) -> dict[str, Any]:
    pooling = named_pooling(config.encoder)
    return {
        "word_embedding_dimension": config.encoder.hidden_size,
        "pooling_mode_cls_token": pooling == "first",
        "pooling_mode_mean_tokens": pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_lasttoken": pooling == "last",
    }


def _write_similarity(folder: Path, config: PretrainedConfig, prompts: dict[str, str]) -> None:
    content = {"prompts": prompts, "similarity_fn_name": SIMILARITY_NAMES[config.similarity]}
    write_json(folder / SIMILARITY_FILE, content)
