"""Import the checkpoint files that SciMult's authors released."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scimult import __version__
from scimult.checkpoints.config import FORMAT, PretrainedConfig
from scimult.checkpoints.families import export_config
from scimult.checkpoints.hf_options import activation
from scimult.checkpoints.pickles import OMEGACONF, check_sums, load_pickle, plain, tensor_bytes
from scimult.checkpoints.pretrained import Pretrained
from scimult.checkpoints.reading import CONFIG_FILE
from scimult.checkpoints.released_keys import (
    HEADS,
    find_layout,
    from_released,
    moe_type_contradicts,
    usual_heads,
)
from scimult.checkpoints.weights import is_dense, load_strictly
from scimult.config import validate
from scimult.data.tokenization import TextTokenizer
from scimult.errors import CheckpointError, ConfigError
from scimult.files import read_json, sha256
from scimult.models import Encoder, EncoderConfig
from scimult.models.variants import variant_of
from scimult.tasks import TaskSet, default_tasks, named_tasks

BASE = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
QUESTION, CONTEXT = "question_model.encoder.", "ctx_model.encoder."
POSITION_IDS = "embeddings.position_ids"
_INCOMPLETE = "download the file again: it is incomplete"
_UNSUPPORTED = {"factor_rep": False, "per_layer_gating": False, "projection_dim": 0}


@dataclass(frozen=True)
class ReleasedReport:
    """The content of a released file, and what was imported."""

    variant: str
    moe_type: str | None
    tasks: list[str]
    parameters_in_file: int
    pooler_parameters: int
    parameters: int
    epoch: Any
    offset: Any
    optimizer_bytes: int
    file_bytes: int
    base: str | None
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        experts = ", ".join(f"{number} = {name}" for number, name in enumerate(self.tasks))
        has_experts = self.variant != "vanilla"
        return [
            f"variant      {self.variant}"
            + (f" (moe_type {self.moe_type})" if has_experts else ""),
            f"experts      {experts if has_experts else 'none; tasks ' + ', '.join(self.tasks)}",
            f"parameters   {self.parameters_in_file:,} in the file; {self.parameters:,} kept, "
            f"{self.pooler_parameters:,} of the pooler dropped (embeddings do not use it)",
            f"training     epoch {self.epoch}, offset {self.offset}",
            f"skipped      {self.optimizer_bytes:,} of {self.file_bytes:,} bytes: optimizer state",
            f"base model   {self.base or 'not named'}",
            *(f"note         {note}" for note in self.notes),
        ]


def read_released(
    path: Path | str,
    tokenizer: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    num_heads: int | None = None,
) -> tuple[Pretrained, ReleasedReport]:
    """Read a released file safely: no pickled code runs, and optimizer state is not read.

    Parameters
    ----------
    path : path
        ``scimult_vanilla``, ``scimult_moe`` or another file of that structure.
    tokenizer : path
        Folder of the base model's tokenizer, which the file lacks. If it also has the base
        model's ``config.json``, heads, activation and dropout come from there.
    tasks : sequence of str, optional
        Tasks of the experts in order; needed unless there are three. Default: search,
        link_prediction, classification, the order of the released models.
    num_heads : int, optional
        Attention heads; default: from the file, else the config next to the tokenizer, else those
        of BERT's own model of this width.

    Raises
    ------
    CheckpointError
        If the file is damaged, tries to run code or has an unexpected content, or the tokenizer
        does not fit.
    """
    path = Path(path)
    state = load_pickle(path, OMEGACONF)
    check_sums(path)
    if not isinstance(state, dict) or not isinstance(state.get("model_dict"), dict):
        fix = "use scimult_vanilla, scimult_moe or a file of that structure"
        raise CheckpointError("holds no model_dict", path=path, fix=fix)
    parameters = plain(state.get("encoder_params")) or {}
    _check_parameters(parameters, path)
    weights = _context_weights(state["model_dict"], path)
    notes: list[str] = []
    text_tokenizer = TextTokenizer.from_folder(tokenizer)
    encoder = _encoder_config(weights, parameters, path, Path(tokenizer), num_heads, notes)
    _check_vocabulary(text_tokenizer, encoder, parameters, tokenizer, notes)
    task_set = _name_experts(encoder, tasks, path)
    model = Encoder(encoder)
    load_strictly(model, from_released(weights, encoder), path)
    report = ReleasedReport(
        variant=variant_of(encoder),
        moe_type=parameters.get("moe_type"),
        tasks=task_set.names,
        parameters_in_file=_count(weights),
        pooler_parameters=_count({k: v for k, v in weights.items() if k.startswith("pooler.")}),
        parameters=_count(dict(model.named_parameters())),
        epoch=plain(state.get("epoch")),
        offset=plain(state.get("offset")),
        optimizer_bytes=tensor_bytes(state.get("optimizer_dict")),
        file_bytes=path.stat().st_size,
        base=parameters.get("pretrained_model_cfg"),
        notes=notes,
    )
    config = PretrainedConfig(
        encoder=encoder,
        tasks=list(task_set),
        max_length=encoder.max_positions,
        provenance=_provenance(path, report, parameters),
    )
    return Pretrained(model.eval(), text_tokenizer, config), report


def _provenance(path: Path, report: ReleasedReport, parameters: dict[str, Any]) -> dict[str, Any]:
    released = {
        "file": path.name,
        "sha256": sha256(path),
        "epoch": report.epoch,
        "offset": report.offset,
        "encoder_params": parameters,
    }
    return {
        "scimult": __version__,
        "base": report.base,
        "variant": report.variant,
        "released": released,
    }


def _count(weights: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in weights.values())


def _check_parameters(parameters: dict[str, Any], path: Path) -> None:
    wrong = {
        name: parameters[name]
        for name, expected in _UNSUPPORTED.items()
        if parameters.get(name) not in (None, expected)
    }
    if parameters.get("shared_encoder") is False:
        wrong["shared_encoder"] = False
    if wrong:
        raise CheckpointError(
            "encoder_params has settings that SciMult's released models do not have",
            path=path,
            value=wrong,
            fix="expected one shared encoder without projection, factors or gating",
        )


def _context_weights(model_dict: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the encoder under ``ctx_model.``, checked to equal that under ``question_model.``."""
    sides: dict[str, dict[str, Tensor]] = {QUESTION: {}, CONTEXT: {}}
    for key, value in model_dict.items():
        prefix = next((prefix for prefix in sides if str(key).startswith(prefix)), None)
        if prefix is None or not is_dense(value):
            raise CheckpointError(
                f"model_dict holds more than dense tensors below {QUESTION} and {CONTEXT}",
                path=path,
                value=key,
                fix="use a file of SciMult's encoder; other parts cannot be imported",
            )
        sides[prefix][key.removeprefix(prefix)] = value
    question, context = sides[QUESTION], sides[CONTEXT]
    one_sided = sorted(question.keys() ^ context.keys())
    if not context or (question and one_sided):
        raise CheckpointError(
            "question_model and ctx_model hold different keys",
            path=path,
            value=one_sided[0] if one_sided else None,
            fix=_INCOMPLETE,
        )
    for key, value in question.items():
        other = context[key]
        is_shared = value.data_ptr() == other.data_ptr() and value.shape == other.shape
        if not is_shared and not torch.equal(value, other):
            raise CheckpointError(
                "question_model and ctx_model differ; SciMult has one encoder for both",
                path=path,
                value=key,
                fix="use a model with one encoder; two cannot be imported",
            )
    return {key: value for key, value in context.items() if key != POSITION_IDS}


def _encoder_config(
    weights: dict[str, Tensor],
    parameters: dict[str, Any],
    path: Path,
    tokenizer: Path,
    num_heads: int | None,
    notes: list[str],
) -> EncoderConfig:
    """Infer the sizes from the weights; everything else comes from the base's config."""
    layout = find_layout(list(weights), path)
    if parameters.get("use_moe") is True and layout is None:
        problem = "encoder_params says use_moe, but there are no expert weights"
        raise CheckpointError(problem, path=path, fix=_INCOMPLETE)
    words = _shape(weights, "embeddings.word_embeddings.weight", path)
    matches = (re.match(r"encoder\.layer\.(\d+)\.", key) for key in weights)
    num_blocks = 1 + max((int(match[1]) for match in matches if match), default=-1)
    moe_type = parameters.get("moe_type")
    if layout and isinstance(moe_type, str) and moe_type_contradicts(moe_type, layout, num_blocks):
        raise CheckpointError(
            f"moe_type {moe_type!r} contradicts the weights, which have experts of "
            f"{' and '.join(layout.sublayers)} in layers {layout.blocks}",
            path=path,
            fix="do not use the file: it is not what its encoder_params say",
        )
    plain_keys = (f"encoder.layer.{n}.intermediate.dense.weight" for n in range(num_blocks))
    expert = "encoder.layer.0.moe_layer.interm_layers.0.dense.weight"
    intermediate = next((key for key in plain_keys if key in weights), expert)
    base = _base_config(tokenizer, words[1])
    heads = num_heads or parameters.get(HEADS) or base.get("num_attention_heads")
    if heads is None:
        heads = usual_heads(words[1])
        if heads is None:
            raise CheckpointError(
                f"the number of attention heads is not in the file (width {words[1]})",
                path=path,
                fix="give --num-heads, or a tokenizer folder with the base model's config.json",
            )
        notes.append(f"assumed {heads} attention heads, as in BERT's own model of this width")
    sizes = {
        "vocab_size": words[0],
        "hidden_size": words[1],
        "num_blocks": num_blocks,
        "num_heads": heads,
        "intermediate_size": _shape(weights, intermediate, path)[0],
        "max_positions": _shape(weights, "embeddings.position_embeddings.weight", path)[0],
        "token_types": _shape(weights, "embeddings.token_type_embeddings.weight", path)[0],
        "pooling": "mean" if parameters.get("mean_pool") else "cls",
        "experts": layout,
        "activation": activation(base, "hidden_act", tokenizer / CONFIG_FILE),
        "norm_eps": base.get("layer_norm_eps", 1e-12),
        "dropout": base.get("hidden_dropout_prob", 0.1),
        "attention_dropout": base.get("attention_probs_dropout_prob", 0.1),
        "initializer_range": base.get("initializer_range", 0.02),
    }
    return validate(EncoderConfig, sizes, path)


def _base_config(tokenizer: Path, width: int) -> dict[str, Any]:
    """Return the base's settings under Hugging Face's names, if the folder has a config of them."""
    path = tokenizer / CONFIG_FILE
    raw = read_json(path) if path.is_file() else {}
    if not isinstance(raw, dict):
        return {}
    if raw.get("format") == FORMAT:
        raw = export_config(validate(PretrainedConfig, raw, path).encoder)
    return raw if raw.get("hidden_size") == width else {}


def _shape(weights: dict[str, Tensor], key: str, path: Path) -> tuple[int, ...]:
    if key not in weights or weights[key].dim() != 2:
        raise CheckpointError(f"lacks {CONTEXT}{key}", path=path, fix=_INCOMPLETE)
    return tuple(weights[key].shape)


def _check_vocabulary(
    tokenizer: TextTokenizer,
    encoder: EncoderConfig,
    parameters: dict[str, Any],
    path: Path | str,
    notes: list[str],
) -> None:
    base = parameters.get("pretrained_model_cfg") or BASE
    if tokenizer.vocab_size != encoder.vocab_size:
        raise CheckpointError(
            f"tokenizer has {tokenizer.vocab_size} tokens, the checkpoint embeds "
            f"{encoder.vocab_size}",
            path=path,
            fix=f"give the tokenizer of {base}",
        )
    alike = " (bert-base-uncased has as many tokens)" if tokenizer.vocab_size == 30_522 else ""
    notes.append(
        f"the tokenizer's size fits, but the file cannot tell whether it is {base}'s{alike}"
    )


def _name_experts(encoder: EncoderConfig, names: Sequence[str] | None, path: Path) -> TaskSet:
    defaults = default_tasks()
    if names is None and encoder.experts is not None and encoder.experts.count != len(defaults):
        raise ConfigError(
            f"the checkpoint has {encoder.experts.count} experts, not one each for "
            f"{', '.join(defaults.names)}",
            path=path,
            fix="name their tasks in order: --task FIRST --task SECOND ...",
        )
    if names is None:
        return defaults
    if encoder.experts is not None and encoder.experts.count != len(names):
        raise ConfigError(
            f"the checkpoint has {encoder.experts.count} experts, {len(names)} tasks were given",
            path=path,
            value=list(names),
            fix="give one task per expert, in order",
        )
    return named_tasks(names)
