"""A trained model as a text encoder: load once, encode texts for a task.

Shape legend: R routes, N texts, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import torch

from scimult.checkpoints import Pretrained, load_pretrained
from scimult.checkpoints.hub import name_of
from scimult.errors import ConfigError, one_of
from scimult.forks import survive_forks
from scimult.hardware import (
    multiplies_bfloat16,
    naming_full_memory,
    products_in_tf32,
    usable_device,
)
from scimult.heap import keep_freed_memory
from scimult.inference.origin import INT8_STEPS, Configured, fingerprint_of, stored_tensors
from scimult.inference.precision import (
    AUTO,
    DTYPES,
    INT8,
    TF32,
    converted,
    resolve_dtype,
    rounded_copy,
)
from scimult.inference.texts import Texts, as_texts, in_blocks, made_ahead
from scimult.models import embed_tokens_each
from scimult.models.config import Pooling
from scimult.products import largest_weight, pack_linears
from scimult.progress import warn
from scimult.retrieval.embeddings import check_finite, unit_rows
from scimult.tasks import ALL
from scimult.types import FloatArray, Role, Similarity, Text, TokenIds

_CUDA_TEXTS = 1 << 11  # tokenised at once, while a GPU embeds those before
_LESS_MEMORY = "free it, use another device, or construct SciMult with fewer max_tokens_per_batch"
# Texts in memory, and sorted by length, together in `encode_blocks`.
BLOCK = 1 << 16


class SciMult(Configured):
    """A bi-encoder of papers, labels and queries; a ``TextEncoder``.

    Parameters
    ----------
    pretrained : Pretrained
        Model, tokenizer, tasks and settings; see `from_pretrained`.
    name : str
        Display name in reports.
    device : str or torch.device, optional
        Defaults to the first GPU, else the CPU.
    dtype : {"float32", "tf32", "bfloat16", "float16", "int8", "auto"} or torch.dtype
        Type of weights and activations; embeddings are always returned as float32. ``tf32``
        keeps float32 and lets a GPU round the factors of its products; ``int8`` keeps float32 and
        lets a CPU round weights and inputs of linears, and attend in bfloat16 where it multiplies
        that. ``auto`` is bfloat16 where the device supports it natively, else float32. Whatever
        changes numbers is a copy: ``pretrained`` keeps its weights.
    max_tokens_per_batch : int, optional
        Token budget of one forward pass; default: what suits the device. On a CPU the passes of all
        threads together have no more, or 32,768.

    Attributes
    ----------
    config, tokenizer
        The model's tasks and settings, and its tokenizer.
    tokens_encoded : int
        Tokens of all texts so far.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        *,
        name: str,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "float32",
        max_tokens_per_batch: int | None = None,
    ) -> None:
        requested = one_of("dtype", str(dtype).removeprefix("torch."), (*DTYPES, AUTO))
        self.name = name
        self._pretrained = pretrained
        self.config, self.tokenizer = pretrained.config, pretrained.tokenizer
        self._max_tokens = max_tokens_per_batch
        self.tokens_encoded = 0
        self._device = usable_device(device)
        self._dtype = resolve_dtype(requested, self._device)
        if self._device.type == "cpu":
            keep_freed_memory()
            survive_forks()
            if self._dtype in ("bfloat16", "float16") and not multiplies_bfloat16(self._device):
                warn(f"{self._dtype} products are emulated on this CPU, slower than float32")
        # On a CPU tokenising overlaps with nothing, and sorting all texts by length pads less.
        self._texts_at_once = _CUDA_TEXTS if self._device.type == "cuda" else None
        with naming_full_memory(_LESS_MEMORY):
            self._model = converted(pretrained.model, self._device, DTYPES[self._dtype]).eval()
        self._int8_steps = INT8_STEPS
        if self._dtype == INT8:
            self._int8_steps = largest_weight() or INT8_STEPS
            self._model = rounded_copy(self._model, self._int8_steps)

    @classmethod
    def from_pretrained(
        cls,
        path: Path | str,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "float32",
        pooling: Pooling | None = None,
        similarity: Similarity | None = None,
        normalise: bool | None = None,
        dims: int | None = None,
        name: str | None = None,
        tokenizer: Path | str | None = None,
    ) -> SciMult:
        """Load a run, a saved model, or a Hugging Face or sentence-transformers folder.

        Parameters
        ----------
        path : path
            A folder, a name on the hub, or ``package:NAME`` as installed by `scimult package`.
        device, dtype
            See the class.
        pooling, similarity : optional
            Override the checkpoint's. A plain Hugging Face folder has none: ``cls`` and ``dot``.
        normalise : bool, optional
            Whether to scale embeddings to length 1. Default: if the similarity is cosine, or as
            the modules of a sentence-transformers folder say.
        dims : int, optional
            Keep only the first dimensions of each embedding (before scaling).
        name : str, optional
            Default: the last part of ``path`` as given, also where that is a link.
        tokenizer : path, optional
            Folder with a copy of the model's tokenizer (`save_tokenizer`).

        Raises
        ------
        CheckpointError
            If the folder holds no suitable model.
        ConfigError, UnknownNameError
            If an option has a wrong type or value.
        """
        pretrained = load_pretrained(
            path,
            pooling=pooling,
            similarity=similarity,
            normalise=normalise,
            dims=dims,
            tokenizer=tokenizer,
        )
        model = cls(pretrained, name=name or name_of(path), device=device, dtype=dtype)
        # Nobody else holds this model and could change its weights.
        if model.dtype != INT8:
            pack_linears(model._model)
            pretrained.model = model._model
        return model

    def __repr__(self) -> str:
        lengths = ", unit vectors" if self.unit_vectors else ""
        return (
            f"SciMult({self.name!r}: {', '.join(self.tasks.names)}; width {self.width}, "
            f"{self.similarity}{lengths}; {self._dtype} on {self._device})"
        )

    @property
    def device(self) -> torch.device:
        """Device that encodes."""
        return self._device

    @property
    def dtype(self) -> str:
        """Type of the computation, never ``auto``."""
        return self._dtype

    @overload
    def encode(  # type: ignore[overload-overlap]
        self,
        texts: Texts,
        *,
        task: Literal["all"],
        role: Role = "query",
        instruction: None = None,
        show_progress: bool = False,
    ) -> dict[str, FloatArray]: ...

    @overload
    def encode(
        self,
        texts: Texts,
        *,
        task: str,
        role: Role = "query",
        instruction: str | None = None,
        show_progress: bool = False,
    ) -> FloatArray: ...

    def encode(
        self,
        texts: Texts,
        *,
        task: str,
        role: Role = "query",
        instruction: str | None = None,
        show_progress: bool = False,
    ) -> FloatArray | dict[str, FloatArray]:
        """Embed texts for one side of a task.

        Parameters
        ----------
        texts : iterable of Text, str or mapping; or a table
            Papers (``title``, ``abstract``), labels (``name``, ``definition``) or queries; a
            plain string is a query, title or name, depending on ``task``. Fields such as ``year``
            or ``doi`` are ignored. A table is a pandas or polars frame, an Arrow table, a
            ``datasets`` data set or a mapping of columns to lists or arrays. An iterator is read in
            blocks, as in `encode_blocks`.
        task : str
            One of ``tasks``; or ``all``, which embeds papers for every task that has papers and
            runs the blocks that the tasks share once.
        role : {"query", "candidate"}
            The side of the task that the texts are on. Under ``all`` papers are on the side
            where the task has them, and on this one where it has them on both.
        instruction : str, optional
            Replaces the task's instruction, for a model that reads instructions.
        show_progress : bool
            Show a bar on a terminal.

        Returns
        -------
        array, or dict of task to array
            float32, shape ``(N, D)``, in the order given; ``(0, D)`` for no texts. Rows have
            length 1 if the model's similarity is cosine (and ``normalise`` is not False). Under
            ``all`` one array per task, bit for bit equal to that of a separate call.

        Raises
        ------
        UnknownNameError
            If the model does not know ``task``; the message lists the known ones.
        DataError
            If a text is empty, not of a known form or has text in a field that is not read, or
            if an embedding is not finite.
        ConfigError
            If the model reads no instructions, or the instruction is too long; or if ``task`` is
            ``all`` and an instruction is given or no task has papers.
        """
        if task == ALL:
            if instruction is not None:
                fix = "name one task, or leave instruction out"
                raise ConfigError("an instruction needs one task", value=instruction, fix=fix)
            return self._encode_for_all(texts, role, show_progress)
        one_of("task", task, [*self.tasks.names, ALL])
        if isinstance(texts, Iterator):
            options: dict[str, Any] = {"instruction": instruction, "show_progress": show_progress}
            blocks = self.encode_blocks(texts, task=task, role=role, **options)
            return np.concatenate([np.zeros((0, self.width), dtype=np.float32), *blocks])
        wanted = as_texts(texts, self.kind(task, role))
        route = self._pretrained.route(task, role)
        replacement = self._pretrained.replacement_row
        instead = {} if instruction is None else {route: replacement(instruction)}
        embeddings_ND: FloatArray = self._embed(wanted, [route], instead, show_progress)[0]
        return embeddings_ND

    def encode_blocks(
        self,
        texts: Texts,
        *,
        task: str,
        role: Role = "query",
        block: int = BLOCK,
        instruction: str | None = None,
        show_progress: bool = False,
    ) -> Iterator[FloatArray]:
        """Embed any number of texts, also from a generator, a block at a time.

        Parameters
        ----------
        texts, task, role, instruction, show_progress
            As for `encode`, for one task.
        block : int
            Texts in memory, and sorted by length, together.

        Yields
        ------
        array
            float32, shape ``(block, D)``, in the order given; the last may be shorter.

        Raises
        ------
        UnknownNameError, DataError, ConfigError
            As `encode`; for a bad text when its block is reached.
        """
        for chunk in in_blocks(texts, self.kind(task, role), block):
            yield self.encode(
                chunk, task=task, role=role, instruction=instruction, show_progress=show_progress
            )

    def encode_query(self, texts: Texts, *, task: str = "search", **options: Any) -> FloatArray:
        """Embed a task's queries: `encode` with ``role="query"``, under its common name."""
        return self.encode(texts, task=task, role="query", **options)

    def encode_document(self, texts: Texts, *, task: str = "search", **options: Any) -> FloatArray:
        """Embed a task's candidates: `encode` with ``role="candidate"``."""
        return self.encode(texts, task=task, role="candidate", **options)

    def _encode_for_all(
        self, texts: Texts, role: Role, show_progress: bool
    ) -> dict[str, FloatArray]:
        sides = self.paper_sides(role)
        route_of_task = [self._pretrained.route(*side) for side in sides.items()]
        routes = sorted(set(route_of_task))
        vectors_RND = self._embed(as_texts(texts, "paper"), routes, {}, show_progress)
        # A copy per task: changing one must not change another that shares its route.
        copies = vectors_RND[[routes.index(route) for route in route_of_task]]
        return dict(zip(sides, copies, strict=True))

    def _embed(
        self,
        wanted: Sequence[Text],
        routes: Sequence[int],
        instead: Mapping[int, TokenIds],
        show_progress: bool,
    ) -> FloatArray:
        """Return the embeddings of texts for each route, shape ``(R, N, D)``."""
        if not wanted:
            return np.zeros((len(routes), 0, self.width), dtype=np.float32)
        step = self._texts_at_once or len(wanted)
        blocks = [wanted[start : start + step] for start in range(0, len(wanted), step)]
        parts = []
        for tokens in made_ahead(self._tokenise, blocks):
            self.tokens_encoded += sum(map(len, tokens))
            parts.append(self._embed_tokens(tokens, routes, instead, show_progress))
        embeddings_RND = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        for embeddings_ND in embeddings_RND:
            check_finite(embeddings_ND, f"{self.name} in {self._dtype}")
            if self.unit_vectors:
                embeddings_ND[:] = unit_rows(embeddings_ND)
        return embeddings_RND

    def _embed_tokens(
        self,
        tokens: Sequence[TokenIds],
        routes: Sequence[int],
        instead: Mapping[int, TokenIds] | None = None,
        show_progress: bool = False,
    ) -> FloatArray:
        """Return the embeddings of token ids for each route, in the model's type."""
        with products_in_tf32(self._dtype == TF32), naming_full_memory(_LESS_MEMORY):
            return embed_tokens_each(
                self._model,
                tokens,
                routes=routes,
                instead=instead,
                max_tokens_per_batch=self._max_tokens,
                show_progress=show_progress,
            )

    def _tokenise(self, texts: Sequence[Text]) -> Sequence[TokenIds]:
        return self._pretrained.tokenizer.encode(texts, self.config.max_length)

    def task_for(self, task: str, fallback: str) -> str:
        """Return ``task`` if the model knows it, else ``fallback``."""
        return task if task in self.tasks else fallback

    def paper_sides(self, role: Role) -> dict[str, Role]:
        """Return the tasks for which ``task="all"`` embeds papers, with the side of each.

        Raises
        ------
        UnknownNameError
            If ``role`` is not a side.
        ConfigError
            If no task of the model has papers.
        """
        one_of("role", role, get_args(Role))
        sides = self.tasks.paper_sides(role)
        if not sides:
            raise ConfigError(f"no task of {self.name} has papers", value=ALL, fix="name a task")
        return sides

    def save_tokenizer(self, folder: Path | str) -> None:
        """Write a copy of the tokenizer; see ``tokenizer`` of `from_pretrained`."""
        self._pretrained.tokenizer.save(folder)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything an embedding depends on: weights, architecture, texts, length 1."""
        texts, weights = self.tokenizer.fingerprint, stored_tensors(self._model.state_dict())
        return fingerprint_of(self.config, texts, self._dtype, weights, int8_steps=self._int8_steps)
