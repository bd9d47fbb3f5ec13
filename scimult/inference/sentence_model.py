"""Load third-party encoders through sentence-transformers, and refuse what it only warns of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scimult.checkpoints.sentence_folder import SIMILARITY_NAMES
from scimult.errors import CheckpointError
from scimult.reach import hub_advice, offline_if_cut_off
from scimult.retrieval.cross_encoder import (
    MERGE_ADAPTER,
    drawn_weights,
    knows_no_words,
    learned_positions,
)
from scimult.types import Similarity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from scimult.inference.sentence_encoder import EncoderSpec


def load_model(spec: EncoderSpec, device: str | None) -> SentenceTransformer:
    """Load an encoder with its own pooling or another one, on ``device`` (None: a GPU if any).

    Raises
    ------
    CheckpointError
        If it cannot be loaded, some of its weights would be random, its tokenizer knows no words,
        or it cannot cut texts as the description says.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    try:
        with offline_if_cut_off(spec.model):
            if spec.pooling == "own":
                model = SentenceTransformer(spec.model, device=device, revision=spec.revision)
            else:
                # Unlike the constructor, it reads the model's longest text and casing.
                body = Transformer.load(spec.model, revision=spec.revision)
                pooling = Pooling(body.get_embedding_dimension(), pooling_mode=spec.pooling)
                model = SentenceTransformer(modules=[body, pooling], device=device)
    except Exception as error:  # damaged folders raise RuntimeError, SafetensorError and others
        problem = f"cannot load the encoder: {str(error).partition(chr(10))[0].rstrip('.')}"
        fix = f"name a folder{hub_advice(spec.model)}; --model takes those of scimult"
        raise CheckpointError(problem, path=spec.model, fix=fix) from error
    check_weights(model, spec.model)
    if knows_no_words(model.tokenizer):
        fix = "copy its files there, such as tokenizer.json"
        raise CheckpointError("the tokenizer knows no words", path=spec.model, fix=fix)
    longest = [spec.max_length or model.max_seq_length, learned_positions(model)]
    limit = min((number for number in longest if number), default=None)
    if limit != model.max_seq_length:
        try:
            model.max_seq_length = limit
        except AttributeError as error:  # static embeddings
            problem = "this model reads texts of any length"
            raise CheckpointError(
                problem, path=spec.model, value=limit, fix="leave max_length out"
            ) from error
    return model


def check_weights(model: SentenceTransformer, path: str, *, is_adapter: bool = False) -> None:
    """Refuse random weights of the files at ``path``, but for poolers: embeddings use none.

    Raises
    ------
    CheckpointError
        If there are some.
    """
    names = [name for name in drawn_weights(model) if "pooler" not in name]
    if names:
        problem = f"the files lack {len(names)} weights, which would be random"
        fix = "use complete files, whose names are those of the model's config.json"
        if is_adapter:  # transformers 5.24 does not read DoRA's under the names of PEFT 0.21
            fix = f"use complete files of an adapter of this model, or {MERGE_ADAPTER}"
        raise CheckpointError(problem, path=path, value=names[:3], fix=fix)


def own_similarity(spec: EncoderSpec, model: SentenceTransformer) -> Similarity:
    """Return how the model's own files compare embeddings.

    Raises
    ------
    CheckpointError
        If we do not support it.
    """
    for ours, theirs in SIMILARITY_NAMES.items():
        if model.similarity_fn_name == theirs:
            return ours
    problem, fix = "this model's similarity is not supported", "choose one, such as similarity=l2"
    raise CheckpointError(problem, path=spec.model, value=model.similarity_fn_name, fix=fix)
