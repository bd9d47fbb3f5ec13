"""Save and load a pretrained encoder as a folder: weights, config, tokenizer, tasks."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from scimult.checkpoints.card import CARD_FILE, own_card, title_of
from scimult.checkpoints.config import FORMAT, PretrainedConfig
from scimult.checkpoints.families import Family
from scimult.checkpoints.reading import CONFIG_FILE, chosen_config, config_of, find_model_folder
from scimult.checkpoints.sentence_folder import SentenceFolder, lowercases
from scimult.checkpoints.warm_start import warm_start
from scimult.checkpoints.weights import (
    digest_of,
    empty_model,
    load_strictly,
    read_weights,
    write_weights,
)
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError, ConfigError
from scimult.files import FolderKind, atomic_folder, read_json, write_json, write_text
from scimult.models import Encoder, EncoderConfig
from scimult.models.config import Pooling
from scimult.tasks import Task, TaskSet
from scimult.types import Role, Similarity, Text, TokenIds

MODEL = FolderKind(
    "a model of ours", lambda folder: read_json(folder / CONFIG_FILE).get("format") == FORMAT
)
_WHOLE_VALUE = re.compile(r"\.fusion\.experts\.\d+\.value\.weight$")


@dataclass
class Pretrained:
    """An encoder with its tokenizer and config.

    ``base_digest`` tells the weights that it was warm-started from, and the order of their routes;
    empty if it was not.
    """

    model: Encoder
    tokenizer: TextTokenizer
    config: PretrainedConfig
    base_digest: str = ""

    def __post_init__(self) -> None:
        if self.config.encoder.instructions is not None:
            self.model.set_instructions(self._instruction_rows())

    @property
    def tasks(self) -> TaskSet:
        """The model's tasks."""
        return TaskSet(self.config.tasks)

    def route(self, task: str, role: Role = "query") -> int:
        """Return the route of one side of ``task``; see `PretrainedConfig.route`."""
        return self.config.route(task, role)

    def routes(self, task: str) -> tuple[int, int]:
        """Return the routes of a task's queries and of its candidates."""
        return self.route(task, "query"), self.route(task, "candidate")

    def instruction_row(self, instruction: str) -> TokenIds:
        """Return the token ids of an instruction.

        Raises
        ------
        ConfigError
            If it is empty or longer than the model's context.
        """
        text, limit = instruction.strip(), self.config.encoder.max_positions
        if not text:
            raise ConfigError(
                "an instruction is empty", fix="give every task of the model an instruction"
            )
        row = self.tokenizer.encode([Text("query", text)], sys.maxsize)[0]
        if len(row) > limit:
            raise ConfigError(
                f"an instruction has {len(row)} tokens, the model's context is {limit}",
                value=f"{text[:60]}...",
                fix="shorten it",
            )
        return row

    def replacement_row(self, instruction: str) -> TokenIds:
        """Return the token ids of an instruction that replaces a task's own.

        Raises
        ------
        ConfigError
            If the model reads none, or it is not a string, empty or longer than the model's
            context.
        """
        if self.config.encoder.instructions is None:
            fix = "leave instruction out, or use a model of variant instruction or prefix"
            raise ConfigError("the model reads no instructions", value=instruction, fix=fix)
        if not isinstance(instruction, str):
            raise ConfigError("instruction is not a string", value=instruction, fix="pass a str")
        return self.instruction_row(instruction)

    def _instruction_rows(self) -> list[TokenIds]:
        first: dict[int, Task] = {}
        for task in self.config.tasks:
            for role in get_args(Role):
                first.setdefault(self.route(task.name, role), task)
        without = list(dict.fromkeys(t.name for t in first.values() if not t.instruction.strip()))
        if without:
            raise ConfigError(
                "an instruction is empty",
                value=without,
                fix="give these tasks a key instruction, or choose a variant that reads none",
            )
        return [self.instruction_row(task.instruction) for _, task in sorted(first.items())]


def load_pretrained(
    path: Path | str,
    *,
    pooling: Pooling | None = None,
    similarity: Similarity | None = None,
    normalise: bool | None = None,
    dims: int | None = None,
    tokenizer: Path | str | None = None,
) -> Pretrained:
    """Load our folder, a run folder (its ``model``), or a Hugging Face folder.

    Parameters
    ----------
    path : path
        The folder, or ``organisation/name`` on the hub. A Hugging Face model (families:
        `checkpoints.families`) has the default tasks, without experts; a folded export only the
        tasks that it serves.
    pooling, similarity, normalise : optional
        Override the settings of the checkpoint or its sentence-transformers folder; the defaults
        of other Hugging Face folders are ``cls`` and ``dot``. Overriding the similarity also
        decides about scaling to length 1, unless the folder itself scales embeddings.
    dims : int, optional
        Keep only the first dimensions of the embeddings (for models trained with
        ``loss.matryoshka``), which are scaled to length 1 after that.
    tokenizer : path, optional
        A folder with a copy of the model's tokenizer, such as one that opens faster.

    Raises
    ------
    ConfigError, UnknownNameError
        If ``dims`` is more than the model has, or an option has a wrong type or value.
    CheckpointError
        If the folder holds no model, or one that does not fit its config or is not supported.
    """
    folder = find_model_folder(path)
    config, family = chosen_config(
        folder, pooling=pooling, similarity=similarity, normalise=normalise, dims=dims
    )
    model = empty_model(config.encoder)
    load_strictly(model, _our_weights(folder, config, family), folder, assign=True)
    text_tokenizer = tokenizer_for(config.encoder, Path(tokenizer or folder))
    return Pretrained(model.eval(), text_tokenizer, config)


def tokenizer_for(encoder: EncoderConfig, folder: Path) -> TextTokenizer:
    """Load the tokenizer of a model's folder.

    Raises
    ------
    CheckpointError
        If it has more tokens than the model embeds.
    """
    tokenizer = TextTokenizer.from_folder(folder, lowercase=lowercases(folder))
    if tokenizer.vocab_size > encoder.vocab_size:
        raise CheckpointError(
            f"tokenizer has {tokenizer.vocab_size} tokens, the model embeds {encoder.vocab_size}",
            path=folder,
            fix="use the tokenizer that the model was trained with",
        )
    return tokenizer


def start_from(path: Path | str, config: PretrainedConfig, *, seed: int = 0) -> Pretrained:
    """Build the encoder of ``config`` and warm-start it from a folder.

    Routes are matched by name: the folder's tasks may be in another order. ``seed`` draws what
    the folder lacks (adapters, control codes and the like).

    Raises
    ------
    CheckpointError
        If the folder does not fit, or has routes for some tasks but not for all of ``config``.
    """
    folder = find_model_folder(path)
    base, weights = read_folder(folder, config.encoder.pooling)
    model = Encoder(config.encoder)
    model.initialise(seed)
    digest, routes = digest_of(weights), matching_routes(base, config, folder)
    if routes != sorted(routes):
        digest = hashlib.sha256(f"{digest} {routes}".encode()).hexdigest()
    warm_start(model, weights, folder, routes)
    return Pretrained(model, tokenizer_for(config.encoder, folder), config, digest)


def matching_routes(
    base: PretrainedConfig, config: PretrainedConfig, folder: Path | str
) -> list[int]:
    """Return, for each route of ``config``, the index of the base's route of that name.

    Raises
    ------
    CheckpointError
        If the base has routes for some tasks, but not for all of ``config``.
    """
    theirs, ours = base.routes, config.routes
    if not (base.encoder.is_routed and config.encoder.is_routed):
        return list(range(len(ours)))
    unknown = [name for name in ours if name not in theirs]
    if unknown or base.routing != config.routing:
        raise CheckpointError(
            f"this base has weights for {', '.join(theirs)}, not for "
            f"{', '.join(unknown) or f'routing by {config.routing}'}",
            path=folder,
            fix="scimult grow-task adds a task; or start from a vanilla checkpoint",
        )
    return [theirs.index(name) for name in ours]


def save_pretrained(
    folder: Path | str,
    weights: dict[str, Tensor],
    tokenizer: TextTokenizer,
    config: PretrainedConfig,
    *,
    replace: bool = True,
) -> None:
    """Write the folder atomically: float32 safetensors, config, tokenizer files, model card.

    Raises
    ------
    StorageError
        If the folder holds anything but a model of ours, or one and not ``replace``, or cannot be
        written.
    """
    with atomic_folder(folder, MODEL if replace else None) as temporary:
        write_model(temporary, weights, tokenizer, config)
        write_text(temporary / CARD_FILE, own_card(config, weights, title_of(folder)))


def write_model(
    folder: Path, weights: dict[str, Tensor], tokenizer: TextTokenizer, config: PretrainedConfig
) -> None:
    """Write the files that `load_pretrained` reads into an existing folder."""
    write_weights(folder, weights)
    write_json(folder / CONFIG_FILE, config.model_dump(mode="json"))
    tokenizer.save(folder)


def read_folder(
    folder: Path, pooling: Pooling | None = None, similarity: Similarity | None = None
) -> tuple[PretrainedConfig, dict[str, Tensor]]:
    """Read a folder returned by `find_model_folder`: its config, and its weights by our names.

    ``pooling`` and ``similarity`` apply to a Hugging Face folder; by default those of a folded
    export or sentence-transformers folder, else ``cls`` and ``dot``.
    """
    config, family = config_of(folder, pooling, similarity, SentenceFolder.find(folder))
    return config, _our_weights(folder, config, family)


def _our_weights(
    folder: Path, config: PretrainedConfig, family: Family | None
) -> dict[str, Tensor]:
    weights = read_weights(folder)
    return (
        _with_value_changes(weights) if family is None else family.from_hf(weights, config.encoder)
    )


def _with_value_changes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert the value matrices V of old fusions, which were saved whole, to V - I."""
    changed = {}
    for name, weight in weights.items():
        if _WHOLE_VALUE.search(name):
            name = name.replace(".value.weight", ".value_change.weight")
            weight = weight - torch.eye(len(weight), dtype=weight.dtype)
        changed[name] = weight
    return changed
