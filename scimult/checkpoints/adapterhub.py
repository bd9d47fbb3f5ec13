"""Import bottleneck adapters in AdapterHub's format, such as SPECTER2's, one per route.

A folder holds ``adapter_config.json`` and ``pytorch_adapter.bin`` (or ``adapter.safetensors``).
Supported are Pfeiffer adapters (``seq_bn`` there): after the feed-forward sub-layer with output h,
input x and LayerNorm LN, ``a = up(relu(down(LN(h + x))))`` and the block's output is
``LN(h + a + x)``. Our variant ``adapters`` computes the same with placement ``pfeiffer``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from scimult import __version__
from scimult.checkpoints.config import PretrainedConfig
from scimult.checkpoints.hub import local_folder
from scimult.checkpoints.pretrained import Pretrained, read_folder, tokenizer_for
from scimult.checkpoints.reading import find_model_folder
from scimult.checkpoints.weights import load_strictly, read_weights_file
from scimult.config import validate
from scimult.errors import CheckpointError, ConfigError, one_of
from scimult.files import read_json, sha256
from scimult.models import Encoder, EncoderConfig
from scimult.tasks import Routing, TaskSet, named_tasks, route_names
from scimult.types import Role, Similarity

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILES = ("adapter.safetensors", "pytorch_adapter.bin")
_FAMILIES = ("bert", "roberta", "xlm-roberta")

# Options that change the computation, with the values that our adapters implement. The library
# has no default, or a different one, for the first group; for the second, ours is its default.
_STATED: dict[str, Any] = {
    "mh_adapter": False,
    "output_adapter": True,
    "non_linearity": "relu",
    "original_ln_before": True,
}
_DEFAULT: dict[str, Any] = {
    "architecture": None,
    "original_ln_after": True,
    "residual_before_ln": True,
    "ln_before": False,
    "ln_after": False,
    "is_parallel": False,
    "scaling": 1.0,
    "use_gating": False,
    "cross_adapter": False,
    "leave_out": [],
    "phm_layer": False,
    "inv_adapter": None,
    "invertible_adapter": None,
}
# Training options, and options that only matter if one of the above is set.
_NO_EFFECT = re.compile(
    r"dropout|stochastic_depth|init_weights|init_weights_seed|adapter_residual_before_ln"
    r"|inv_adapter_reduction_factor|learn_phm|hypercomplex_nonlinearity"
    r"|(shared|factorized)_(phm_rule|phm_W|W_phm)"
    r"|phm_(dim|c_init|init_range|rank|bias)"
)


@dataclass(frozen=True)
class HubAdapter:
    """One adapter of a folder; ``weights`` by block and name inside our adapter."""

    folder: Path
    name: str
    trained_on: str
    width: int
    sha256: str
    weights: dict[tuple[int, str], Tensor]


def import_adapters(
    base: Path | str,
    adapters: Mapping[str, Path | str],
    *,
    similarity: Similarity = "dot",
) -> tuple[Pretrained, dict[str, HubAdapter]]:
    """Combine a base model and AdapterHub adapters into one model of variant ``adapters``.

    Return it, and the adapter of each route.

    Parameters
    ----------
    base : path
        Hugging Face folder or name of the model that the adapters were trained on.
    adapters : mapping
        Folder or hub name of the adapter of each task (``classification``), or of one side of it
        (``search/query``). If any key names a side, all tasks distinguish sides.
    similarity : {"dot", "cosine", "l2"}
        How the model compares embeddings.

    Raises
    ------
    ConfigError
        If a side has no adapter, or an adapter serves no side.
    CheckpointError
        If a file is damaged or tries to run code, or an adapter is of an unsupported form, does
        not fit the base, or differs in width from the others.
    """
    tasks, routing, paths = _route_adapters(adapters)
    folder = find_model_folder(base)
    plain, weights = read_folder(folder, "cls", similarity)
    _check_base(plain.encoder, folder)
    by_path = {path: _read_adapter(path, plain.encoder) for path in dict.fromkeys(paths.values())}
    by_route = {route: by_path[path] for route, path in paths.items()}
    tree = plain.model_dump() | {
        "tasks": [task.model_dump() for task in tasks],
        "routing": routing,
        "similarity": similarity,
        "normalise": None,
        "provenance": _provenance(base, by_route),
    }
    tree["encoder"]["adapters"] = {"count": len(by_route), "width": _common_width(by_route)}
    config = validate(PretrainedConfig, tree, "imported model")
    model = Encoder(config.encoder)
    for route, adapter in enumerate(by_route.values()):
        for (block, name), tensor in adapter.weights.items():
            bank = f"blocks.{block}.feed_forward.experts.0.adapter.bank"
            weights[f"{bank}.experts.{route}.{name}"] = tensor
    load_strictly(model, weights, folder)
    return Pretrained(model.eval(), tokenizer_for(config.encoder, folder), config), by_route


def _route_adapters(
    adapters: Mapping[str, Path | str],
) -> tuple[TaskSet, Routing, dict[str, Path | str]]:
    """Return tasks, routing, and the adapter of each route in route order."""
    sides = get_args(Role)
    for key in adapters:
        side = key.partition("/")[2]
        if "/" in key:
            one_of(f"side of the adapter {key!r}", side, sides)
    names = list(dict.fromkeys(key.partition("/")[0] for key in adapters))
    tasks = named_tasks(names)
    routing: Routing = "task_and_side" if any("/" in key for key in adapters) else "task"
    paths, used = {}, set()
    for route in route_names(tasks, routing):
        key = route if route in adapters else route.partition("/")[0]
        if key not in adapters:
            raise ConfigError(
                f"{route} has no adapter", fix=f"give one too: --adapter {route}=FOLDER"
            )
        paths[route] = adapters[key]
        used.add(key)
    if unused := sorted(adapters.keys() - used):
        raise ConfigError(
            "an adapter serves no side: both sides of its task have their own",
            value=unused,
            fix="leave it out",
        )
    return tasks, routing, paths


def _check_base(encoder: EncoderConfig, folder: Path) -> None:
    if encoder.family not in _FAMILIES or encoder.is_routed:
        raise CheckpointError(
            "the base of AdapterHub adapters must be a plain BERT, RoBERTa or XLM-R",
            path=folder,
            value="a model with routes" if encoder.is_routed else encoder.family,
            fix="use the model that the adapters were trained on",
        )


def _read_adapter(path: Path | str, base: EncoderConfig) -> HubAdapter:
    folder = local_folder(path, WEIGHTS_FILES[1])
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(f"holds no {CONFIG_FILE}", path=path, fix="give an adapter's folder")
    raw = read_json(file)
    options = raw.get("config") if isinstance(raw, dict) else None
    if not isinstance(options, dict) or not isinstance(raw.get("name"), str):
        is_peft = isinstance(raw, dict) and "peft_type" in raw
        fix = (
            "scimult evaluate --encoder supports PEFT adapters (docs/suites.md)"
            if is_peft
            else "use an adapter saved by the library adapters"
        )
        raise CheckpointError("describes no AdapterHub adapter", path=file, fix=fix)
    _check_options(options, file)
    trained_on = str(raw.get("model_name") or "not named")
    for key, ours in (("model_type", base.family), ("hidden_size", base.hidden_size)):
        if raw.get(key) != ours:
            raise CheckpointError(
                f"the adapter is for {key} {raw.get(key)}, the base has {ours}",
                path=file,
                fix=f"use the base that it was trained on ({trained_on})",
            )
    weights_file = next(
        (folder / name for name in WEIGHTS_FILES if (folder / name).is_file()), None
    )
    if weights_file is None:
        raise CheckpointError(
            "holds no adapter weights", path=path, fix=f"expected {' or '.join(WEIGHTS_FILES)}"
        )
    width = max(1, int(base.hidden_size // options["reduction_factor"]))
    weights = _renamed(read_weights_file(weights_file), raw["name"], weights_file)
    _check_shapes(weights, width, base, weights_file)
    return HubAdapter(
        folder=folder,
        name=raw["name"],
        trained_on=trained_on,
        width=width,
        sha256=sha256(weights_file),
        weights=weights,
    )


def _check_options(options: Mapping[str, Any], file: Path) -> None:
    """Raise with every option that our adapters do not implement."""
    expected = _STATED | _DEFAULT
    actual = {**dict.fromkeys(_STATED), **_DEFAULT, **options}
    wrong = {key: actual[key] for key, ours in expected.items() if actual[key] != ours}
    factor = options.get("reduction_factor")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor > 0:
        wrong["reduction_factor"] = factor
    for key in options.keys() - expected.keys() - {"reduction_factor"}:
        if not _NO_EFFECT.fullmatch(key):
            wrong[key] = options[key]
    if wrong:
        raise CheckpointError(
            "the adapter is of a form that is not supported",
            path=file,
            value=dict(sorted(wrong.items())),
            fix="only Pfeiffer adapters (seq_bn) with ReLU and one reduction factor can be read",
        )


def _renamed(weights: Mapping[str, Tensor], name: str, file: Path) -> dict[tuple[int, str], Tensor]:
    """Return the weights by block and name inside our adapter."""
    pattern = re.compile(
        rf"(?:\w+\.)?encoder\.layer\.(\d+)\.output\.adapters\.{re.escape(name)}\."
        r"adapter_(?:(down)\.0|(up))\.(weight|bias)"
    )
    renamed = {}
    for key, tensor in weights.items():
        match = pattern.fullmatch(key)
        if match is None:
            raise CheckpointError(
                f"holds a weight that does not belong to the adapter {name}",
                path=file,
                value=key,
                fix="only adapters after feed-forward sub-layers can be read",
            )
        renamed[int(match[1]), f"{match[2] or match[3]}.{match[4]}"] = tensor
    return renamed


def _check_shapes(
    weights: Mapping[tuple[int, str], Tensor], width: int, base: EncoderConfig, file: Path
) -> None:
    """Check the adapter's weights here: in the whole model, the base would seem not to fit."""
    outer = base.hidden_size
    shapes = {
        "down.weight": (width, outer),
        "down.bias": (width,),
        "up.weight": (outer, width),
        "up.bias": (outer,),
    }
    expected = {(block, name): shapes[name] for block in range(base.num_blocks) for name in shapes}
    actual = {key: tuple(weight.shape) for key, weight in weights.items()}
    for block, name in sorted(expected.keys() | actual.keys()):
        theirs, ours = actual.get((block, name)), expected.get((block, name))
        if theirs != ours:
            raise CheckpointError(
                f"the adapter does not fit the base in layer {block}",
                path=file,
                value=f"{name} {theirs or 'missing'} instead of {ours or 'none'}",
                fix="use the base that it was trained on, and a complete file",
            )


def _common_width(by_route: Mapping[str, HubAdapter]) -> int:
    widths = {route: adapter.width for route, adapter in by_route.items()}
    if len(set(widths.values())) > 1:
        raise CheckpointError(
            "adapters of different widths cannot be in one model",
            value=widths,
            fix="import adapters with one reduction factor",
        )
    return next(iter(widths.values()))


def _provenance(base: Path | str, by_route: Mapping[str, HubAdapter]) -> dict[str, Any]:
    adapters = {
        route: {
            "folder": str(adapter.folder),
            "name": adapter.name,
            "trained_on": adapter.trained_on,
            "sha256": adapter.sha256,
        }
        for route, adapter in by_route.items()
    }
    return {
        "scimult": __version__,
        "base": str(base),
        "variant": "adapters",
        "adapterhub": adapters,
    }


def adapter_lines(by_route: Mapping[str, HubAdapter]) -> list[str]:
    """Return a line of text per route, with its adapter."""
    return [
        f"{route:<24} {adapter.name}, trained on {adapter.trained_on}, from {adapter.folder}"
        for route, adapter in by_route.items()
    ]
