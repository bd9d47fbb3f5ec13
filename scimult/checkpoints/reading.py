"""What a model's folder says of it: tasks, sizes, pooling, similarity. Its weights are not read.

Nothing here needs torch: who only searches a library does without.
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
# Key of a folded export's config.json that tells what a config of transformers cannot.
FOLDED_KEY = "scimult"
_FOLDED_ENCODER = ("pooling", "pooling_position")


def find_model_folder(path: Path | str) -> Path:
    """Return ``path`` or its ``model`` subfolder, whichever holds a ``config.json``.

    A name that is no folder but looks like ``organisation/name`` is downloaded from the hub.
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
    fix = "name a run, a saved model, a Hugging Face folder or organisation/name on the hub"
    if (root / "checkpoints").is_dir():
        fix = (
            "the run has not ended; scimult export RUN --step N --to pretrained reads a checkpoint"
        )
    elif (described := SentenceFolder.find(root)) is not None:
        problem, fix = "encoder is in a subfolder", described.elsewhere
    raise CheckpointError(problem, path=path, fix=fix)


def chosen_config(
    folder: Path,
    *,
    pooling: Pooling | None = None,
    similarity: Similarity | None = None,
    normalise: bool | None = None,
    dims: int | None = None,
) -> tuple[PretrainedConfig, Family | None]:
    """Read the config of a folder that `find_model_folder` found, as the user wants the model.

    The options are those of `pretrained.load_pretrained`. The family is None for a folder of ours,
    whose weights have our names.

    Raises
    ------
    ConfigError, UnknownNameError
        If an option is of another type or value, or ``dims`` is more than the model has.
    CheckpointError
        If the config is not valid, or of a model that we do not have.
    """
    if pooling is not None:
        one_of("pooling", pooling, get_args(Pooling))
    if similarity is not None:
        one_of("similarity", similarity, get_args(Similarity))
    if not (normalise is None or isinstance(normalise, bool)):
        raise ConfigError("normalise is not a boolean", value=normalise, fix="pass True or False")
    described = SentenceFolder.find(folder)
    config, family = config_of(folder, pooling, similarity, described)
    if similarity is not None:
        config.similarity = similarity
        config.normalise = config.normalise or None
    if pooling is not None:
        config.encoder.pooling = pooling
    if normalise is not None:
        config.normalise = normalise
    if dims is not None:
        tree = config.encoder.model_dump() | {"dims": dims}
        config.encoder = validate(EncoderConfig, tree, "dims")
    return config, family


def read_config(path: Path | str) -> PretrainedConfig:
    """Read the config of a folder without its weights; of a Hugging Face one the encoder's alone.

    (Its pooling is ``cls``, whatever sentence-transformers files say; its length is theirs.)
    """
    folder = find_model_folder(path)
    config, family = config_of(folder)
    if family is not None and (described := SentenceFolder.find(folder)) is not None:
        config.max_length = described.longest(config.encoder.max_text_length)
    return config


def config_of(
    folder: Path,
    pooling: Pooling | None = None,
    similarity: Similarity | None = None,
    described: SentenceFolder | None = None,
) -> tuple[PretrainedConfig, Family | None]:
    """Read the config and, for a folder that is not ours, the family that it belongs to.

    ``described`` fills in what Hugging Face's ``config.json`` cannot say; our own can.
    """
    path = folder / CONFIG_FILE
    raw = read_json(path)
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        return validate(PretrainedConfig, raw, path), None
    if not isinstance(raw, dict) or not raw.keys() & {"model_type", "num_hidden_layers"}:
        fix = "name a saved model, or a Hugging Face checkpoint"
        raise CheckpointError(
            "config.json is neither ours nor Hugging Face's", path=folder, fix=fix
        )
    # SciBERT's config.json is older than the key; only BERT existed then.
    family = family_of({"model_type": "bert", **raw}, path)
    folded = dict(raw.get(FOLDED_KEY) or {})
    own = {key: folded.pop(key) for key in _FOLDED_ENCODER if key in folded}
    try:
        encoder = family.encoder_config(raw, pooling or "cls", path)
    except KeyError as error:
        raise CheckpointError(
            f"config.json lacks {error}", path=folder, fix="use a complete checkpoint"
        ) from error
    except ValidationError as error:
        problem = "; ".join(f"{d['loc']}: {d['msg']}" for d in error.errors())
        raise CheckpointError(f"config.json is not valid: {problem}", path=folder) from error
    if encoder.max_text_length < SHORTEST:
        raise CheckpointError(
            f"this checkpoint reads at most {encoder.max_text_length} tokens",
            path=path,
            fix=f"use one for {SHORTEST} tokens (cls, a word, sep) or more",
        )
    if folded:
        if pooling is not None:
            own["pooling"] = pooling
        tree = {**folded, "encoder": encoder.model_dump(mode="json") | own}
        return validate(PretrainedConfig, tree, path), family
    config = PretrainedConfig(
        encoder=encoder, tasks=list(default_tasks()), max_length=encoder.max_positions
    )
    if described is not None:
        _follow(config, described, pooling, similarity)
    return config, family


def _follow(
    config: PretrainedConfig,
    described: SentenceFolder,
    pooling: Pooling | None,
    similarity: Similarity | None,
) -> None:
    """Take over what a sentence-transformers folder says, but for what the user chose."""
    if pooling is None:
        config.encoder.pooling, config.encoder.pooling_position = described.pooling
    if similarity is None:
        config.similarity = described.similarity
    config.normalise = described.normalises
    config.max_length = described.longest(config.encoder.max_text_length)
    if described.prompts:
        note(
            f"{described.folder}: its prompts ({', '.join(described.prompts)}) are not written "
            "before texts; write them into the texts, or use --encoder"
        )
