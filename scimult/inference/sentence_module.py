"""Our models inside sentence-transformers, for variants without a plain form.

The ``modules.json`` of such an export names `RoutedEncoder`; sentence-transformers imports it.

Shape legend: B rows, L tokens of the longest row, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule

from scimult.checkpoints import Pretrained, load_pretrained
from scimult.checkpoints.pretrained import write_model
from scimult.errors import ConfigError
from scimult.inference.texts import as_text
from scimult.models import PackedTexts
from scimult.types import Role

_SIDES: dict[str, Role] = {"query": "query", "document": "candidate", "candidate": "candidate"}


class RoutedEncoder(InputModule):
    """One of our models with its tokenizer and tasks; returns embeddings directly."""

    def __init__(self, pretrained: Pretrained) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.encoder = pretrained.model
        self.max_seq_length = pretrained.config.max_length
        self._pretrained = pretrained

    def route(self, task: str | None, prompt: str | None) -> tuple[str, Role]:
        """Derive task and side from the arguments of ``encode``.

        ``task`` is a task's name, followed by ``/candidate`` for its candidates; or the prompt is
        the name and ``task`` the side, as ``encode_query`` and ``encode_document`` pass them.

        Raises
        ------
        ConfigError
            If no task is named.
        """
        if prompt and task in (None, *_SIDES):
            return prompt, _SIDES[task or "query"]
        name, _, side = (task or "").partition("/")
        if name and (not side or side in _SIDES):
            return name, _SIDES[side or "query"]
        tasks = self._pretrained.tasks.names
        raise ConfigError(
            "no task given: this model embeds texts for a task",
            value=task,
            fix=f"encode(texts, task=...) with one of {', '.join(tasks)}, followed by '/candidate' "
            "for candidates; or encode_query(texts, prompt_name=...)",
        )

    def preprocess(
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        task: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return padded token ids, their mask and the route of the batch."""
        name, role = self.route(task, prompt)
        route = self._pretrained.route(name, role)
        kind = self._pretrained.tasks.kind(name, role)
        texts = [as_text(item, kind, index) for index, item in enumerate(inputs)]
        rows = self._pretrained.tokenizer.encode(texts, self.max_seq_length)
        ids_BL = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        mask_BL = torch.zeros_like(ids_BL)
        for index, row in enumerate(rows):
            ids_BL[index, : len(row)] = torch.from_numpy(row)
            mask_BL[index, : len(row)] = 1
        return {"input_ids": ids_BL, "attention_mask": mask_BL, "route": route}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, shape ``(B, D)``."""
        mask_BL = features["attention_mask"]
        tokens_T = features["input_ids"][mask_BL.bool()]
        texts = PackedTexts(tokens_T, mask_BL.sum(1).tolist())
        features["sentence_embedding"] = self.encoder(texts, features["route"])
        return features

    def get_embedding_dimension(self) -> int:
        """Return D."""
        return self._pretrained.config.encoder.width

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the model's files."""
        state, config = self.encoder.state_dict(), self._pretrained.config
        write_model(Path(output_path), state, self._pretrained.tokenizer, config)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> RoutedEncoder:
        """Load one of our folders; sentence-transformers defines the arguments."""
        folder = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        return cls(load_pretrained(folder or model_name_or_path))
