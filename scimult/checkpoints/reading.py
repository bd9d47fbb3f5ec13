"""Read a model folder's config: tasks, sizes, pooling, similarity. Weights are not read.

Needs no torch, so that searching a library does not load it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from scimult.checkpoints.config import FORMAT, SHORTEST, PretrainedConfig
from scimult.checkpoints.families import Family, family_of
from scimult.checkpoints.hub import local_folder
from scimult.checkpoints.sentence_folder import SentenceFolder
from scimult.config import validate
from scimult.errors import CheckpointError, ConfigError, one_of
from scimult.files import read_json
from scimult.models.config import EncoderConfig, Pooling
from scimult.progress import note
from scimult.tasks import default_tasks
from scimult.types import Similarity

CONFIG_FILE = "config.json"
# Key of a folded export's config.json for settings that transformers' configs lack.
FOLDED_KEY = "scimult"
_FOLDED_ENCODER = ("pooling", "pooling_position")


def find_model_folder(path: Path | str) -> Path:
    """Return ``path`` or its ``model`` subfolder, whichever holds a ``config.json``.

    A name of the form ``organisation/name`` that is no folder is downloaded from the hub.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(
            "the model's folder is not a path", value=path, fix="pass a str or a Path"
        )
    root = local_folder(path)
    for folder in (root / "model", root):
        if (folder / CONFIG_FILE).is_file():
            return folder
    problem = "folder holds no model" if root.is_dir() else "folder does not exist"
    if root.is_file():
        problem = "is a file, not the folder of a model"
    fix = "use a run, a saved model, a Hugging Face folder or organisation/name on the hub"
    if (root / "checkpoints").is_dir():
        fix = (
            "the run has not ended; scimult export RUN --step N --to pretrained reads a checkpoint"
        )
    elif (settings := SentenceFolder.find(root)) is not None:
        problem, fix = "encoder is in a subfolder", settings.subfolder_fix
    raise CheckpointError(problem, path=path, fix=fix)


def chosen_config(
    folder: Path,
    *,
    pooling: Pooling | None = None,
    similarity: Similarity | None = None,
    normalise: bool | None = None,
    dims: int | None = None,
) -> tuple[PretrainedConfig, Family | None]:
    """Read the config of a folder returned by `find_model_folder`, with the user's overrides.

    The options are those of `pretrained.load_pretrained`. The family is None for a folder in our
    format, whose weights have our names.

    Raises
    ------
    ConfigError, UnknownNameError
        If an option has a wrong type or value, or ``dims`` is more than the model has.
    CheckpointError
        If the config is not valid or not supported.
    """
    if pooling is not None:
        one_of("pooling", pooling, get_args(Pooling))
    if similarity is not None:
        one_of("similarity", similarity, get_args(Similarity))
    if not (normalise is None or isinstance(normalise, bool)):
        raise ConfigError("normalise is not a boolean", value=normalise, fix="pass True or False")
    config, family = config_of(folder, pooling, similarity, SentenceFolder.find(folder))
    if similarity is not None:
        config.similarity = similarity
        config.normalise = config.normalise or None
    if pooling is not None:
        config.encoder.pooling = pooling
    if normalise is not None:
        config.normalise = normalise
    if dims is not None:
        width, tree = config.encoder.width, config.encoder.model_dump() | {"dims": dims}
        config.encoder = validate(EncoderConfig, tree, "dims")
        if config.encoder.width > width:
            # Trained on its first dimensions, it has more of them, but never shaped those.
            problem = f"dims is more than the {width} dimensions of the model's embeddings"
            raise ConfigError(problem, path=folder, value=dims, fix=f"use at most {width}")
    return config, family


def read_config(path: Path | str) -> PretrainedConfig:
    """Read the config of a folder.

    For a Hugging Face folder, sentence-transformers files set the length, but not the pooling,
    which is ``cls``.
    """
    folder = find_model_folder(path)
    config, family = config_of(folder)
    if family is not None and (settings := SentenceFolder.find(folder)) is not None:
        config.max_length = settings.longest(config.encoder.max_text_length)
    return config


def config_of(
    folder: Path,
    pooling: Pooling | None = None,
    similarity: Similarity | None = None,
    settings: SentenceFolder | None = None,
) -> tuple[PretrainedConfig, Family | None]:
    """Read the config and, for a Hugging Face folder, its family.

    ``settings`` supply what a Hugging Face ``config.json`` lacks; our own needs nothing.
    """
    path = folder / CONFIG_FILE
    raw = read_json(path)
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        return validate(PretrainedConfig, raw, path), None
    if not isinstance(raw, dict) or not raw.keys() & {"model_type", "num_hidden_layers"}:
        fix = "use a saved model, or a Hugging Face checkpoint"
        raise CheckpointError(
            "config.json is neither ours nor Hugging Face's", path=folder, fix=fix
        )
    # SciBERT's config.json predates the key, when there was only BERT.
    raw.setdefault("model_type", "bert")
    family = family_of(raw, path)
    folded = raw.get(FOLDED_KEY) or {}
    if not isinstance(folded, dict):
        fix = "use a complete export, or remove the key to read the encoder alone"
        raise CheckpointError(f"{FOLDED_KEY} is not a mapping", path=path, value=folded, fix=fix)
    folded = dict(folded)
    own = {key: folded.pop(key) for key in _FOLDED_ENCODER if key in folded}
    try:
        encoder = family.encoder_config(raw, pooling or "cls", path)
    except KeyError as error:
        raise CheckpointError(
            f"config.json lacks {error}", path=folder, fix="use a complete checkpoint"
        ) from error
    except ValidationError as error:
        reasons = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        details = "; ".join(": ".join(filter(None, reason)) for reason in reasons)
        fix = "correct it, or use a complete checkpoint"
        problem = f"config.json is not valid: {details}"
        raise CheckpointError(problem, path=folder, fix=fix) from error
    if encoder.max_text_length < SHORTEST:
        raise CheckpointError(
            f"this checkpoint reads at most {encoder.max_text_length} tokens",
            path=path,
            fix=f"use one that reads {SHORTEST} tokens (cls, a word, sep) or more",
        )
    if folded:
        if pooling is not None:
            own["pooling"] = pooling
        tree = {**folded, "encoder": encoder.model_dump(mode="json") | own}
        config = validate(PretrainedConfig, tree, path)
    else:
        config = PretrainedConfig(
            encoder=encoder, tasks=list(default_tasks()), max_length=encoder.max_positions
        )
    if settings is not None:
        _apply_settings(config, settings, pooling, similarity)
    return config, family


def _apply_settings(
    config: PretrainedConfig,
    settings: SentenceFolder,
    pooling: Pooling | None,
    similarity: Similarity | None,
) -> None:
    """Apply a sentence-transformers folder's settings, except those that the user overrides.

    Those of a folded export are our own, unless the library has saved it again with others.
    """
    if pooling is None:
        config.encoder.pooling, config.encoder.pooling_position = settings.pooling
    if similarity is None:
        config.similarity = settings.similarity
    config.normalise = settings.normalises
    if settings.dims is not None and settings.dims < config.encoder.width:
        config.encoder.dims = settings.dims
    config.max_length = settings.longest(config.encoder.max_text_length)
    if settings.prompts:
        note(
            f"{settings.folder}: its prompts ({', '.join(settings.prompts)}) are not prepended; "
            "write them into the texts, or use --encoder"
        )
