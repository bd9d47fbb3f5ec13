"""Third-party encoders: any sentence-transformers or Hugging Face model, described by a file.

``presets/`` has the papers' baselines. Encoders differ only in data: how a text is formatted
(separator, prefixes), which token embeddings are pooled, how embeddings are compared, and which
adapter serves which task and side.

Shape legend: N texts, D width.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scimult.config import StrictConfig, apply_overrides, load_config, validate
from scimult.errors import CheckpointError, one_of
from scimult.inference.sentence_model import check_weights, load_model, own_similarity
from scimult.progress import is_watched
from scimult.reach import offline_if_cut_off
from scimult.retrieval.embeddings import unit_rows
from scimult.tasks import catalogue
from scimult.types import FloatArray, Role, Similarity, Text

SEPARATOR_TOKEN = "sep_token"
_UNKNOWN = ""
# Settings that change no embedding, or that the weights' own types say.
_NOT_HASHED = ("batch_size", "paper", "similarity", "dtype")
# Entries of a config that say where it comes from.
_NAMES = (
    *("_name_or_path", "architectures", "base_model_name_or_path", "dtype", "torch_dtype"),
    *("peft_version", "revision", "transformers_version"),
)


class EncoderSpec(StrictConfig):
    """One encoder, as data.

    Keys of ``prefixes`` and ``adapters`` are ``task/role`` (``search/query``), a task, a role or
    ``default``; the first of these that is present applies.

    Attributes
    ----------
    model : str
        A folder, or a name on the hub.
    revision : str, optional
        Commit or tag on the hub.
    pooling : {"own", "cls", "mean", "max", "lasttoken"}
        ``own``: as the model's sentence-transformers files say, ``mean`` without them.
    similarity : {"dot", "cosine", "l2"}, optional
        How two embeddings are compared. None: as the model's files say with pooling ``own``, else
        by cosine.
    separator : str
        Between title and body; ``sep_token`` means the tokenizer's own.
    prefixes : dict
        Text to prepend, instead of the model's own prompts.
    adapters : dict
        PEFT adapter (folder or hub name) to switch on.
    max_length : int, optional
        Most tokens of a text, up to the model's positions; None: the model's own limit.
    normalise : bool, optional
        Whether to scale embeddings to length 1. None: as the model's files say with pooling
        ``own``, else if the similarity is cosine.
    batch_size : int
        Texts per forward pass.
    dtype : {"float32", "bfloat16", "float16"}, optional
        What weights and products are rounded to. None: as the model's files are.
    paper : str
        Where the encoder and these settings are described.
    """

    model: str
    revision: str | None = None
    pooling: Literal["own", "cls", "mean", "max", "lasttoken"] = "own"
    similarity: Similarity | None = None
    separator: str = SEPARATOR_TOKEN
    prefixes: dict[str, str] = {}
    adapters: dict[str, str] = {}
    max_length: int | None = Field(default=None, ge=8)
    normalise: bool | None = None
    batch_size: int = Field(default=32, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    paper: str = ""

    @property
    def unit_vectors(self) -> bool:
        """Whether to scale embeddings here; the model's own modules may do so before."""
        by_cosine = self.similarity in (None, "cosine") and self.pooling != "own"
        return by_cosine if self.normalise is None else self.normalise


def preset_names() -> list[str]:
    """Return the names of the encoders that scimult ships."""
    return sorted(path.name.removesuffix(".yaml") for path in _presets().iterdir())


def load_spec(name_or_path: str, overrides: Sequence[str] = ()) -> EncoderSpec:
    """Return an encoder's description: a preset by name, a YAML file, or a model as is.

    A model is a folder, or a hub name with its organisation; its own files say how it pools and
    normalises. Static embeddings (model2vec) work like other models.

    Raises
    ------
    ConfigError
        If the file is not such a description.
    UnknownNameError
        If there is no such preset.
    """
    if name_or_path.endswith((".yaml", ".yml")):
        return load_config(EncoderSpec, name_or_path, overrides)
    if "/" in name_or_path or Path(name_or_path).is_dir():
        return validate(EncoderSpec, apply_overrides({"model": name_or_path}, overrides))
    one_of("encoder", name_or_path, preset_names())
    with resources.as_file(_presets() / f"{name_or_path}.yaml") as path:
        return load_config(EncoderSpec, path, overrides)


class SentenceEncoder:
    """A ``TextEncoder`` around a sentence-transformers model.

    Parameters
    ----------
    spec : EncoderSpec
        Describes the encoder.
    name : str
        Display name in reports.
    device : str, optional
        Defaults to the first GPU, else the CPU.

    Raises
    ------
    CheckpointError
        If the model or an adapter cannot be loaded, some of its weights would be random, its
        tokenizer knows no words, or its own similarity is not supported.
    """

    def __init__(self, spec: EncoderSpec, *, name: str, device: str | None = None) -> None:
        import torch

        self.name, self.spec = name, spec
        self._model = load_model(spec, device)
        self._similarity = spec.similarity or own_similarity(spec, self._model)
        # Loading an adapter switches it on: the active one is unknown until the first switch.
        self._active: str | None = _UNKNOWN
        for number, adapter in enumerate(dict.fromkeys(spec.adapters.values())):
            self._load_adapter(adapter, number)
        if spec.dtype is not None:
            self._model.to(getattr(torch, spec.dtype))

    def __repr__(self) -> str:
        width, model = self._model.get_embedding_dimension(), self._model
        computed = f"{str(model.dtype).removeprefix('torch.')} on {model.device}"
        space = f"width {width}, {self.similarity}"
        return f"SentenceEncoder({self.name!r}: {self.spec.model!r}; {space}; {computed})"

    @property
    def similarity(self) -> Similarity:
        """How two embeddings are compared."""
        return self._similarity

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        """Return float32 embeddings of `Text` objects, not strings: shape ``(N, D)``.

        Raises
        ------
        CheckpointError
            If the model lacks a route for this side, or a module does not fit the others.
        """
        from scimult.hardware import naming_full_memory

        if not texts:
            width = self._model.get_embedding_dimension() or 0
            return np.zeros((0, width), dtype=np.float32)
        if self.spec.adapters:
            self._switch(_most_specific(self.spec.adapters, task, role))
        try:
            with naming_full_memory("lower batch_size of this encoder, or use another device"):
                embeddings_ND = self._encode_for(task, role)(
                    [self._format(text) for text in texts],
                    prompt=_most_specific(self.spec.prefixes, task, role),
                    batch_size=self.spec.batch_size,
                    normalize_embeddings=self.spec.unit_vectors,
                    show_progress_bar=show_progress and is_watched(),
                    convert_to_numpy=True,
                )
        except (KeyError, ValueError) as error:
            problem = f"sentence-transformers cannot encode with this model: {error}"
            fix = "use --model for one of ours that routes by task, or another encoder"
            raise CheckpointError(problem, path=self.spec.model, fix=fix) from error
        vectors_ND = np.asarray(embeddings_ND, dtype=np.float32)
        # The library scales in 16 bits, where lengths, and so cosines, are up to 0.4 % off.
        return unit_rows(vectors_ND) if self._half_unit_vectors else vectors_ND

    def _encode_for(self, task: str, role: Role) -> Callable[..., Any]:
        """Return the library's function for one side: the model's own prompts and routes differ.

        The library has sides for search; for papers about papers, or classes, it advises
        ``encode``.
        """
        tasks = catalogue()
        if task not in tasks.names or tasks.kind(task, "query") != "query":
            return self._model.encode
        return self._model.encode_query if role == "query" else self._model.encode_document

    def task_for(self, task: str, fallback: str) -> str:
        """Return ``task`` if it has a prefix or an adapter, else ``fallback``."""
        named = {key.partition("/")[0] for key in (*self.spec.prefixes, *self.spec.adapters)}
        return task if task in named else fallback

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights, adapters, tokenizer and settings: all that an embedding depends on."""
        import torch

        settings = self.spec.model_dump(mode="json", exclude=set(_NOT_HASHED))
        settings["normalise"] = self.spec.unit_vectors
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        digest.update(str(self._model.max_seq_length).encode())
        digest.update(_as_text(self._model.tokenizer).encode())
        side = getattr(self._model.tokenizer, "truncation_side", "right")
        if side != "right":
            digest.update(f"cut on the {side}".encode())
        digest.update(json.dumps(self._steps(), sort_keys=True, default=_plain).encode())
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(f"{name} {tensor.dtype}".encode())
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().data)
        return digest.hexdigest()[:16]

    def _steps(self) -> list[Any]:
        """Return what is done around the weights: modules' settings, sizes, prompts, a cut."""
        from sentence_transformers.base.modules.module import Module

        steps, configs = [], {}
        for module in self._model.modules():
            if isinstance(module, Module):
                # Routers have keys that JSON lacks.
                steps.append([type(module).__name__, str(sorted(module.get_config_dict().items()))])
            # Parts of a transformer share its config; adapters have one each.
            for config in (getattr(module, "config", None), *_adapter_configs(module)):
                if hasattr(config, "to_dict"):
                    configs[id(config)] = config
        settings = [_without_names(config) for config in configs.values()]
        prompts = [self._model.prompts, self._model.default_prompt_name]
        return [steps, settings, prompts, self._model.truncate_dim]

    @cached_property
    def _half_unit_vectors(self) -> bool:
        """Whether embeddings leave the model at length 1, scaled to it in 16 bits."""
        import torch
        from sentence_transformers.base.modules import Normalize

        # Modules after the scaling change lengths, and so does a cut.
        ends_scaled = isinstance([*self._model.children()][-1], Normalize)
        scaled = self.spec.unit_vectors or (ends_scaled and self._model.truncate_dim is None)
        return scaled and self._model.dtype in (torch.bfloat16, torch.float16)

    def _format(self, text: Text) -> str:
        """Join title and body by the separator, which also replaces a literal ``[SEP]``."""
        token = getattr(self._model.tokenizer, "sep_token", None) or ""
        own = self.spec.separator == SEPARATOR_TOKEN
        separator = (f" {token} " if token else " ") if own else self.spec.separator
        parts = [part for part in (text.title, text.body) if part]
        return separator.join(part.replace(" [SEP] ", separator) for part in parts)

    def _load_adapter(self, adapter: str, number: int) -> None:
        try:
            with offline_if_cut_off(adapter):
                self._model.load_adapter(adapter, adapter_name=f"adapter_{number}")
        except Exception as error:  # the libraries raise anything
            problem = f"cannot load the adapter: {error}"
            fix = "name the folder of a PEFT adapter; pip install peft"
            raise CheckpointError(problem, path=adapter, fix=fix) from error
        check_weights(self._model, adapter, is_adapter=True)

    def _switch(self, adapter: str | None) -> None:
        """Make one adapter active, or none.

        PEFT's layers are asked themselves: transformers 5.24 refuses every PEFT on the index.
        """
        if adapter == self._active:
            return
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils import ModulesToSaveWrapper

        names = list(dict.fromkeys(self.spec.adapters.values()))
        for module in self._model.modules():
            if isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper)):
                module.enable_adapters(adapter is not None)
                if adapter is not None:
                    module.set_adapter(f"adapter_{names.index(adapter)}")
        self._active = adapter


def _most_specific(entries: dict[str, str], task: str, role: Role) -> str | None:
    for key in (f"{task}/{role}", task, role, "default"):
        if key in entries:
            return entries[key]
    return None


def _presets() -> Any:
    return resources.files("scimult.inference") / "presets"


def check_keys(spec: EncoderSpec, tasks: Sequence[str]) -> None:
    """Refuse prefixes and adapters for tasks that do not exist.

    Raises
    ------
    UnknownNameError
        Naming the key.
    """
    known = {"default", "query", "candidate", *tasks}
    known |= {f"{task}/{role}" for task in tasks for role in ("query", "candidate")}
    for key in (*spec.prefixes, *spec.adapters):
        one_of("task or side", key, known)


def _as_text(tokenizer: Any) -> str:
    """Return what a tokenizer does, without the settings that its last call left in it."""
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(fast, "to_str"):
        return json.dumps([type(tokenizer).__name__, tokenizer.get_vocab()], sort_keys=True)
    content = json.loads(fast.to_str())
    return json.dumps({**content, "truncation": None, "padding": None})


def _adapter_configs(module: Any) -> list[Any]:
    adapters = getattr(module, "peft_config", None)
    return list(adapters.values()) if isinstance(adapters, dict) else []


def _without_names(config: Any) -> dict[str, Any]:
    """Return a config's settings; a transformer's only where they differ from the defaults."""
    settings = getattr(config, "to_diff_dict", config.to_dict)()
    return {key: value for key, value in settings.items() if key not in _NAMES}


def _plain(value: Any) -> Any:
    """Return what JSON lacks in a form that is the same in every process."""
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)
