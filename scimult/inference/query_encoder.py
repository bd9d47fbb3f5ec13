"""A model's query encoder without torch, for a process that answers a single question.

Each model has two encoders. `SciMult` computes anything, in batches, on any device and in
any type, and takes two to three seconds to import and open. ``QueryEncoder`` computes one text
after the other in float32 on the CPU, for the models that `models.one_text` covers, and opens in a
tenth of that. Their embeddings agree to 1e-5.

Shape legend: N texts, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.checkpoints.hub import folder_here, name_of
from scimult.checkpoints.mapped import map_weights
from scimult.checkpoints.reading import chosen_config, find_model_folder
from scimult.checkpoints.sentence_folder import lowercases
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError
from scimult.inference.origin import OF_FLOAT32, Configured, Stored, fingerprint_of
from scimult.inference.texts import Texts, as_texts
from scimult.models.one_text import Weights, embedding_of, is_covered
from scimult.retrieval.embeddings import check_finite, unit_rows
from scimult.types import FloatArray, Role

WEIGHTS_FILE = "model.safetensors"
# Numbers rounded at once: few enough for a processor's cache.
_ROUNDED = 1 << 16


class QueryEncoder(Configured):
    """Embeds queries with a model that is memory-mapped from its folder.

    Parameters
    ----------
    path : path
        The model's folder, on this machine; or a name on the hub that was downloaded before.
    dtype : str
        Computation type of the ``SciMult`` whose fingerprint this shares, for int8 on a processor
        with VNNI; here it is float32.
    tokenizer : path, optional
        Folder with a copy of the model's tokenizer.
    **settings
        ``pooling``, ``similarity``, ``normalise`` and ``dims``, overriding the model's own.

    Attributes
    ----------
    config : PretrainedConfig
        The model's tasks and settings.
    tokenizer : TextTokenizer
        Its tokenizer.

    Raises
    ------
    CheckpointError
        If the model cannot be read or computed without torch and transformers; or not at all.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        dtype: str = "float32",
        tokenizer: Path | None = None,
        **settings: Any,
    ) -> None:
        root = folder_here(path)
        if root is None:
            raise _refusal("is not on this machine", path)
        folder = find_model_folder(root)
        self.dtype = dtype
        self.name = name_of(path)
        self.config, family = chosen_config(folder, **settings)
        if not is_covered(self.config.encoder):
            raise _refusal("is of another architecture", folder)
        tokenizer = Path(tokenizer or folder)
        saved = TextTokenizer.saved(tokenizer, lowercase=lowercases(tokenizer))
        if saved is None:
            raise _refusal("has a tokenizer that needs transformers", folder)
        self.tokenizer: TextTokenizer = saved
        weights: Any = map_weights(folder / WEIGHTS_FILE)
        if family is not None:
            weights = family.from_hf(weights, self.config.encoder)
        self._weights: Weights = weights

    def encode(self, texts: Texts, *, task: str, role: Role = "query") -> FloatArray:
        """Embed texts for one side of a task, float32, shape ``(N, D)``, like ``SciMult``.

        Raises
        ------
        UnknownNameError
            If the model does not know the task.
        DataError
            If a text is empty or not of a known form, or an embedding is not finite.
        """
        encoder, route = self.config.encoder, self.config.route(task, role)
        wanted = as_texts(texts, self.kind(task, role))
        rows = [
            embedding_of(tokens_T, encoder, self._weights, route)
            for tokens_T in self.tokenizer.encode(wanted, self.config.max_length)
        ]
        embeddings_ND = np.stack(rows) if rows else np.zeros((0, self.width), dtype=np.float32)
        check_finite(embeddings_ND, f"{self.name} in float32")
        return unit_rows(embeddings_ND) if self.unit_vectors else embeddings_ND

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the ``SciMult`` that computes with this model in ``dtype``.

        Reads all weights, so another model in the folder or a damaged file changes it.
        """
        stored = _stored(self._weights, self.dtype)
        return fingerprint_of(self.config, self.tokenizer.fingerprint, self.dtype, stored)


def _stored(weights: Weights, dtype: str) -> Iterator[Stored]:
    kind = "float32" if dtype in OF_FLOAT32 else dtype
    for name, weight in sorted(weights.items()):
        numbers_N = np.ascontiguousarray(weight).reshape(-1)
        data = (
            _upper_halves(numbers_N) if kind == "bfloat16" else numbers_N.astype(kind, copy=False)
        )
        yield name, f"torch.{kind}", data.data


def _upper_halves(numbers_N: FloatArray) -> NDArray[np.uint16]:
    """Round float32 numbers to the bits of bfloat16, ties to even; numpy lacks the type."""
    halves_N = np.empty(len(numbers_N), dtype=np.uint16)
    for start in range(0, len(numbers_N), _ROUNDED):
        bits = numbers_N[start : start + _ROUNDED].view(np.uint32)
        halves_N[start : start + _ROUNDED] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return halves_N


def _refusal(reason: str, path: Path | str) -> CheckpointError:
    return CheckpointError(
        f"needs torch: the model {reason}", path=path, fix="open it with SciMult"
    )
