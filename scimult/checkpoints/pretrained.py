"""A pretrained encoder as a folder: weights, config, tokenizer, tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from scimult.checkpoints.bert_keys import bert_config, from_bert
from scimult.checkpoints.card import CARD_FILE, own_card
from scimult.checkpoints.hub import local_folder
from scimult.checkpoints.warm_start import warm_start
from scimult.checkpoints.weights import load_strictly, read_weights
from scimult.config import StrictConfig, validate
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError
from scimult.files import atomic_folder, read_json, write_json, write_text
from scimult.models import Encoder, EncoderConfig
from scimult.models.config import Pooling
from scimult.tasks import Task, TaskSet, default_tasks
from scimult.types import Similarity

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
FORMAT = "scimult-encoder"
# Key of a folded export's config.json that tells what a BERT config cannot.
FOLDED_KEY = "scimult"


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
    """Load our folder, a run folder (its ``model``), or a Hugging Face BERT.

    Parameters
    ----------
    path : path
        The folder, or ``organisation/name`` on the hub. A BERT knows the default tasks,
        without experts; a folded export only the tasks that it was made for.
    pooling, similarity : optional
        Replace the checkpoint's own; for a BERT they default to ``cls`` and ``dot``.

    Raises
    ------
    CheckpointError
        If the folder holds no model, or one that does not fit its config.
    """
    folder = find_model_folder(path)
    pretrained_config, weights = _read(folder, pooling)
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
    """Read the config of a folder without its weights (pooling ``cls`` for a BERT folder)."""
    return _read_config(find_model_folder(path), None)[0]


def save_pretrained(
    folder: Path | str,
    weights: dict[str, Tensor],
    tokenizer: TextTokenizer,
    config: PretrainedConfig,
) -> None:
    """Write the folder atomically: float32 safetensors, config, tokenizer files, model card.

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
        write_text(temporary / CARD_FILE, own_card(config, tensors, title_of(folder)))


def find_model_folder(path: Path | str) -> Path:
    """Return ``path`` or its ``model`` subfolder, whichever holds a ``config.json``.

    A name that is no folder but looks like ``organisation/name`` is downloaded from the hub.
    """
    root = local_folder(path)
    for folder in (root / "model", root):
        if (folder / CONFIG_FILE).is_file():
            return folder
    problem = "folder holds no model" if root.is_dir() else "folder does not exist"
    fix = "name a run, a saved model, a Hugging Face BERT folder or organisation/name on the hub"
    if (root / "checkpoints").is_dir():
        fix = (
            "the run has not ended; scimult export RUN --step N --to pretrained reads a checkpoint"
        )
    raise CheckpointError(problem, path=path, fix=fix)


def title_of(folder: Path | str) -> str:
    """Return what a model card calls the folder: its name, for a run's ``model`` the run's."""
    path = Path(folder).absolute()
    return path.parent.name if path.name == "model" else path.name


def _read(folder: Path, pooling: Pooling | None) -> tuple[PretrainedConfig, dict[str, Tensor]]:
    config, is_bert = _read_config(folder, pooling)
    weights = read_weights(folder)
    if is_bert:
        weights = from_bert(weights, config.encoder.num_blocks)
    return config, weights


def _read_config(folder: Path, pooling: Pooling | None) -> tuple[PretrainedConfig, bool]:
    file = folder / CONFIG_FILE
    raw = read_json(file)
    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        return validate(PretrainedConfig, raw, file), False
    if not isinstance(raw, dict) or "model_type" not in raw:
        raise CheckpointError("config.json is neither ours nor Hugging Face's", path=folder)
    folded = dict(raw.get(FOLDED_KEY) or {})
    pooling = pooling or folded.pop("pooling", None) or "cls"
    try:
        encoder = bert_config(raw, pooling, file)
    except KeyError as error:
        raise CheckpointError(
            f"config.json lacks {error}", path=folder, fix="use a complete BERT checkpoint"
        ) from error
    if folded:
        folded.pop("pooling", None)
        tree = {**folded, "encoder": encoder.model_dump(mode="json")}
        return validate(PretrainedConfig, tree, file), True
    return (
        PretrainedConfig(
            encoder=encoder, tasks=list(default_tasks()), max_length=encoder.max_positions
        ),
        True,
    )
