"""A pretrained encoder as a folder: weights, config, tokenizer, tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from scimult.checkpoints.families import Family, family_of
from scimult.checkpoints.warm_start import warm_start
from scimult.checkpoints.weights import load_strictly, read_weights
from scimult.config import StrictConfig, validate
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError
from scimult.files import atomic_folder, read_json, write_json
from scimult.models import Encoder, EncoderConfig
from scimult.models.config import Pooling
from scimult.tasks import Task, TaskSet, default_tasks
from scimult.types import Similarity

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
FORMAT = "scimult-encoder"


class PretrainedConfig(StrictConfig):
    """``config.json`` of a saved encoder."""

    format: str = FORMAT
    version: int = 1
    encoder: EncoderConfig
    tasks: list[Task]
    similarity: Similarity = "dot"
    max_length: int = Field(512, ge=3)
    provenance: dict[str, Any] = Field(default_factory=dict)


@dataclass
class Pretrained:
    """An encoder with everything that its use needs."""

    model: Encoder
    tokenizer: TextTokenizer
    config: PretrainedConfig

    @property
    def tasks(self) -> TaskSet:
        """Tasks in expert order."""
        return TaskSet(self.config.tasks)

    def expert(self, task: str) -> int:
        """Return the expert that serves ``task``; 0 for a model without experts.

        Raises
        ------
        UnknownNameError
            If the model does not know the task.
        """
        expert = self.tasks.expert(task)
        return expert if self.config.encoder.experts else 0


def load_pretrained(
    path: Path | str, *, pooling: Pooling | None = None, similarity: Similarity | None = None
) -> Pretrained:
    """Load our folder, a run folder (its ``model``), or a Hugging Face folder.

    Parameters
    ----------
    path : path
        The folder. A Hugging Face folder (families: `checkpoints.families`) knows the
        default tasks, without experts.
    pooling, similarity : optional
        Replace the checkpoint's own; for a Hugging Face folder they default to ``cls`` and ``dot``.

    Raises
    ------
    CheckpointError
        If the folder holds no model, or one that does not fit its config.
    """
    folder = find_model_folder(path)
    pretrained_config, weights = _read(folder, pooling or "cls")
    if similarity is not None:
        pretrained_config.similarity = similarity
    if pooling is not None:
        pretrained_config.encoder.pooling = pooling
    model = Encoder(pretrained_config.encoder)
    load_strictly(model, weights, folder)
    tokenizer = TextTokenizer.from_folder(folder)
    vocabulary = pretrained_config.encoder.vocab_size
    if tokenizer.vocab_size > vocabulary:
        raise CheckpointError(
            f"tokenizer has {tokenizer.vocab_size} tokens, the model embeds {vocabulary}",
            path=folder,
            fix="use the tokenizer that the model was trained with",
        )
    model.eval()
    return Pretrained(model, tokenizer, pretrained_config)


def start_from(path: Path | str, config: PretrainedConfig) -> Pretrained:
    """Build the encoder that ``config`` describes and warm-start it from a folder."""
    folder = find_model_folder(path)
    _, weights = _read(folder, config.encoder.pooling)
    model = Encoder(config.encoder)
    warm_start(model, weights, folder)
    return Pretrained(model, TextTokenizer.from_folder(folder), config)


def read_config(path: Path | str) -> PretrainedConfig:
    """Read the config of a folder without its weights (pooling ``cls`` for a Hugging Face one)."""
    return _read_config(find_model_folder(path), "cls")[0]


def save_pretrained(
    folder: Path | str,
    weights: dict[str, Tensor],
    tokenizer: TextTokenizer,
    config: PretrainedConfig,
) -> None:
    """Write the folder atomically: float32 safetensors, config, tokenizer files.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    with atomic_folder(folder) as temporary:
        tensors = {key: value.detach().float().contiguous() for key, value in weights.items()}
        save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        write_json(temporary / CONFIG_FILE, config.model_dump(mode="json"))
        tokenizer.save(temporary)


def find_model_folder(path: Path | str) -> Path:
    """Return ``path`` or its ``model`` subfolder, whichever holds a ``config.json``."""
    path = Path(path)
    for folder in (path / "model", path):
        if (folder / CONFIG_FILE).is_file():
            return folder
    problem = "folder holds no model" if path.is_dir() else "folder does not exist"
    raise CheckpointError(
        problem, path=path, fix="name a run, a saved model or a Hugging Face folder"
    )


def _read(folder: Path, pooling: Pooling) -> tuple[PretrainedConfig, dict[str, Tensor]]:
    config, family = _read_config(folder, pooling)
    weights = read_weights(folder)
    return config, weights if family is None else family.from_hf(weights, config.encoder)


def _read_config(folder: Path, pooling: Pooling) -> tuple[PretrainedConfig, Family | None]:
    """Return the config and, for a folder that is not ours, the family that it belongs to."""
    path = folder / CONFIG_FILE
    raw = read_json(path)
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        return validate(PretrainedConfig, raw, path), None
    if not isinstance(raw, dict) or not raw.keys() & {"model_type", "num_hidden_layers"}:
        raise CheckpointError("config.json is neither ours nor Hugging Face's", path=folder)
    # SciBERT's config.json is older than the key; only BERT existed then.
    family = family_of({"model_type": "bert", **raw}, path)
    try:
        encoder = family.encoder_config(raw, pooling, path)
    except KeyError as error:
        raise CheckpointError(
            f"config.json lacks {error}", path=folder, fix="use a complete checkpoint"
        ) from error
    except ValidationError as error:
        problem = "; ".join(f"{d['loc']}: {d['msg']}" for d in error.errors())
        raise CheckpointError(f"config.json is not valid: {problem}", path=folder) from error
    config = PretrainedConfig(
        encoder=encoder, tasks=list(default_tasks()), max_length=encoder.max_positions
    )
    return config, family
