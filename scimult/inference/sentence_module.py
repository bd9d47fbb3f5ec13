"""Our models inside sentence-transformers, for variants that have no plain form.

``modules.json`` of such an export names `RoutedEncoder`; sentence-transformers imports it.

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
    """A model of ours with its tokenizer and tasks; gives the embedding itself.

    Parameters
    ----------
    pretrained : Pretrained
        The model.
    """

    def __init__(self, pretrained: Pretrained) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.encoder = pretrained.model
        self.max_seq_length = pretrained.config.max_length
        self._pretrained = pretrained

    def route(self, task: str | None, prompt: str | None) -> tuple[str, Role]:
        """Return task and side from what ``encode`` was given.

        ``task`` is the name of a task, for its candidates with ``/candidate`` behind it; or
        the name is the prompt and ``task`` the side, as ``encode_query`` and
        ``encode_document`` have it.

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
            "this model embeds texts for a task, and none is named",
            value=task,
            fix=f"encode(texts, task=...) with one of {', '.join(tasks)}, '/candidate' behind it "
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
        known = self._pretrained.tasks[name]
        kind = known.query_kind if role == "query" else known.candidate_kind
        texts = [as_text(item, kind, place) for place, item in enumerate(inputs)]
        rows = self._pretrained.tokenizer.encode(texts, self.max_seq_length)
        ids_BL = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
        mask_BL = torch.zeros_like(ids_BL)
        for number, row in enumerate(rows):
            ids_BL[number, : len(row)] = torch.from_numpy(row)
            mask_BL[number, : len(row)] = 1
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
        """Write the files of the model."""
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
        """Load a folder of ours; the arguments are the library's."""
        folder = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        return cls(load_pretrained(folder or model_name_or_path))
