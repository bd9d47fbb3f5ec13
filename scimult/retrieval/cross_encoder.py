"""sentence-transformers cross-encoders: score a query and a document read together.

Shape legend: P pairs, U different ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.errors import ConfigError, DataError
from scimult.progress import is_watched
from scimult.reach import hub_advice, offline_if_cut_off
from scimult.types import FloatArray

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder
    from torch import nn

PairScorer = Callable[[Sequence[tuple[str, str]]], FloatArray]

# So many pairs are scored in seconds, without a progress bar.
_SHORT = 1_000
MERGE_ADAPTER = "merge the adapter into its base (PEFT: merge_and_unload) and name the result"
_CLASSIFIER = "ForSequenceClassification"
# Transformers' mark of weights that it has read, and of modules whose other weights it has drawn.
_READ = "_is_hf_initialized"
# What an adapter replaces, and a constant of AdaLoRA.
_NOT_ASKED_FOR = re.compile(r"\.(original_module|ranknum)\.")


def load_cross_encoder(model: str, device: str | None = None) -> PairScorer:
    """Return a scorer of (query, document) texts: float32, shape ``(P,)``, larger fits better.

    Where the model ends in a sigmoid, scores are its inputs: they have the same order, but near 1
    the sigmoids of different ones are equal in float32.

    Parameters
    ----------
    model : str
        A folder, or a name on the hub.
    device : str, optional
        Where to compute.

    Raises
    ------
    ConfigError
        If the model cannot be loaded, is a text encoder, whose scores of pairs would be random,
        lacks weights or a tokenizer, gives more than one score per pair, or cannot read pairs of
        several lengths at once.
    DataError
        From the scorer, if a score is not finite.
    """
    from torch import nn

    encoder = _checked(model, device)
    if encoder.device.type == "cpu":
        encoder.float()  # saved in bfloat16, near scores would be equal, and take longer
    if isinstance(encoder.activation_fn, nn.Sigmoid):
        encoder.activation_fn = nn.Identity()
    if positions := learned_positions(encoder):
        encoder.max_seq_length = min(encoder.max_seq_length or positions, positions)
    try:
        encoder.predict([("short", "pair"), ("a pair", "of more words")], show_progress_bar=False)
    except Exception as error:  # no padding token, among others
        problem = f"cross-encoder cannot score: {' '.join(str(error).split())}"
        fix = "mend the model's tokenizer and configuration, or use another cross-encoder"
        raise ConfigError(problem, value=model, fix=fix) from error

    def score(pairs: Sequence[tuple[str, str]]) -> FloatArray:
        # Scored twice, in other company, a pair may differ in the last bit.
        place = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        watched = len(place) > _SHORT and is_watched()
        predicted = encoder.predict(list(place), show_progress_bar=watched)
        scores_U = np.asarray(predicted, dtype=np.float32).reshape(-1)
        if not np.isfinite(scores_U).all():
            fix = "use another cross-encoder, or float32 weights"
            raise DataError("cross-encoder gave a score that is not finite", path=model, fix=fix)
        scores_P: FloatArray = scores_U[np.array([place[pair] for pair in pairs], dtype=np.int64)]
        return scores_P

    return score


def _checked(model: str, device: str | None) -> CrossEncoder:
    """Load a cross-encoder, and refuse what the library only warns of."""
    from sentence_transformers import CrossEncoder

    try:
        with offline_if_cut_off(model):
            encoder: CrossEncoder = CrossEncoder(model, device=device)
    except Exception as error:  # damaged folders raise RuntimeError, SafetensorError and others
        problem = f"cannot load cross-encoder: {' '.join(str(error).split()).rstrip('.')}"
        fix = f"name a folder or a model with one score per pair{hub_advice(model)}"
        if os.path.isfile(Path(model, "adapter_config.json")):
            fix = MERGE_ADAPTER
        raise ConfigError(problem, value=model, fix=fix) from error
    if _has_random_head(encoder):
        fix = "name a cross-encoder, which reads a query and a document together"
        raise ConfigError("model is no cross-encoder, but a text encoder", value=model, fix=fix)
    if names := drawn_weights(encoder):
        problem = f"cross-encoder: the files lack {len(names)} weights, which would be random"
        fix = f"use complete files; missing are {', '.join(names[:3])}"
        raise ConfigError(problem, value=model, fix=fix)
    if knows_no_words(encoder.tokenizer):
        fix = "copy its files there, such as tokenizer.json"
        raise ConfigError("cross-encoder: the tokenizer knows no words", value=model, fix=fix)
    if encoder.num_labels != 1:
        fix = "use one with a single score per pair"
        problem = f"cross-encoder gives {encoder.num_labels} scores per pair"
        raise ConfigError(problem, value=model, fix=fix)
    return encoder


def drawn_weights(model: nn.Module) -> list[str]:
    """Return the weights that transformers lacked in a model's files and drew at random.

    It only warns. In versions without marks, it does not say what it has read: then none are
    returned, or none of adapters.
    """
    marked = [part for part in model.modules() if hasattr(part, _READ)]
    inside = {id(weight) for part in marked for weight in part.parameters()}
    read = {
        name: bool(getattr(weight, _READ, False))
        for name, weight in model.named_parameters()
        if id(weight) in inside and not _NOT_ASKED_FOR.search(name)
    }
    configs = (getattr(part, "peft_config", None) for part in model.modules())
    adapters = {name for config in configs if isinstance(config, dict) for name in config}
    added = [name for name in read if adapters.intersection(name.split("."))]
    unknown = set() if any(read[name] for name in added) else set(added)
    return [name for name, was_read in read.items() if not was_read and name not in unknown]


def knows_no_words(tokenizer: Any) -> bool:
    """Return whether transformers made a tokenizer without its files, of special tokens alone."""
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    return bool(special) and special >= set(tokenizer.get_vocab())


def learned_positions(model: nn.Module) -> int | None:
    """Return how many tokens have learned positions; None if these are not learned.

    Those of RoBERTa, XLM-R and MPNet begin after the padding's, which sentence-transformers does
    not know: a longer text stops it.
    """
    from torch import nn

    counts = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
        for name, part in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding)
    ]
    return min(counts, default=None)


def _has_random_head(encoder: CrossEncoder) -> bool:
    """Return whether the library has added a head to a model saved without one; it only warns."""
    model = encoder.transformers_model
    is_classifier = type(model).__name__.endswith(_CLASSIFIER)
    if model is None or not is_classifier or hasattr(model, "peft_config"):
        return False
    saved = model.config.architectures or []
    return not any(name.endswith(_CLASSIFIER) for name in saved)
