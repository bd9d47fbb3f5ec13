"""AdapterHub adapters: embeddings equal a naive forward pass, and clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertModel

from scimult.checkpoints import load_pretrained, save_pretrained
from scimult.checkpoints.adapterhub import import_adapters
from scimult.checkpoints.pretrained import start_from
from scimult.errors import SciMultError
from scimult.models import pack
from tests.base_models import save_base_model
from tests.checkpoints.adapterhub import adapter_weights, naive_cls, save_adapter
from tests.models.variants import FLOAT64

# SPECTER2's names: the adapters of its four formats.
NAMES = {"prx": "[PRX]", "clf": "[CLF]", "rgn": "[RGN]", "qry": "[QRY]"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base_model(tmp_path_factory.mktemp("base"), "bert")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        key: save_adapter(root / key, name, adapter_weights(name, seed=place))
        for place, (key, name) in enumerate(NAMES.items())
    }


def test_every_route_computes_what_the_library_does(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    named = {
        "search/query": adapters["qry"],
        "search/candidate": adapters["prx"],
        "link_prediction": adapters["prx"],
        "classification": adapters["clf"],
        "regression": adapters["rgn"],
    }
    imported, by_route = import_adapters(base, named, similarity="l2")
    save_pretrained(
        tmp_path / "m", imported.model.state_dict(), imported.tokenizer, imported.config
    )
    model = load_pretrained(tmp_path / "m")
    assert model.config.similarity == "l2"
    assert model.tasks["regression"].format == "regression"
    bert = BertModel.from_pretrained(base, attn_implementation="eager").eval().double()
    ids = torch.randint(1, 77, (3, 20), generator=torch.Generator().manual_seed(0))
    expected = {
        f"{task}/{role}": key
        for task, role, key in [
            ("search", "query", "qry"),
            ("search", "candidate", "prx"),
            ("link_prediction", "query", "prx"),
            ("link_prediction", "candidate", "prx"),
            ("classification", "query", "clf"),
            ("classification", "candidate", "clf"),
            ("regression", "query", "rgn"),
            ("regression", "candidate", "rgn"),
        ]
    }
    assert {route: a.name for route, a in by_route.items()} == {
        route: NAMES[key] for route, key in expected.items()
    }
    seen = {}
    for route, key in expected.items():
        task, role = route.split("/")
        number = model.route(task, role)  # type: ignore[arg-type]
        with torch.no_grad():
            ours = model.model.double()(pack(list(ids.numpy())), number)
        float32 = adapter_weights(NAMES[key], seed=list(NAMES).index(key))
        weights = {name: weight.double() for name, weight in float32.items()}
        theirs = naive_cls(bert, weights, NAMES[key], ids)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=FLOAT64)
        seen[key] = ours
    # The adapters matter: no two give the same embeddings.
    assert min((seen["prx"] - seen[key]).abs().max() for key in ("clf", "rgn", "qry")) > 0.01


def test_safetensors_and_one_adapter_per_task(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    safe = save_adapter(tmp_path / "safe", "[CLF]", {})
    (safe / "pytorch_adapter.bin").unlink()
    save_file(adapter_weights("[CLF]", seed=1), safe / "adapter.safetensors")
    models = [
        import_adapters(base, {"classification": folder, "search": adapters["qry"]})[0]
        for folder in (safe, adapters["clf"])
    ]
    assert models[0].config.routes == ["classification", "search"]
    for key, value in models[0].model.state_dict().items():
        assert torch.equal(value, models[1].model.state_dict()[key])


def test_an_imported_model_is_a_base_of_runs(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    imported, _ = import_adapters(base, {"search": adapters["qry"], "regression": adapters["rgn"]})
    weights = imported.model.state_dict()
    save_pretrained(tmp_path / "m", weights, imported.tokenizer, imported.config)
    # Tasks in another order: weights go by name.
    config = imported.config.model_copy(update={"tasks": imported.config.tasks[::-1]})
    started = start_from(tmp_path / "m", config)
    bank = "blocks.2.feed_forward.experts.0.adapter.bank.experts.{}.up.weight"
    assert torch.equal(started.model.state_dict()[bank.format(0)], weights[bank.format(1)])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"non_linearity": "swish"}, "'non_linearity': 'swish'"),
        ({"mh_adapter": True}, "'mh_adapter': True"),
        ({"original_ln_before": False}, "'original_ln_before': False"),
        # What is not said has the library's default, which is not what ours do.
        ({"original_ln_before": "absent"}, "'original_ln_before': None"),
        ({"residual_before_ln": "post_add"}, "'residual_before_ln': 'post_add'"),
        ({"ln_after": True}, "'ln_after': True"),
        ({"is_parallel": True, "scaling": 4.0}, "'is_parallel': True, 'scaling': 4.0"),
        ({"use_gating": True}, "'use_gating': True"),
        ({"leave_out": [0]}, "'leave_out': [0]"),
        ({"phm_layer": True}, "'phm_layer': True"),
        ({"inv_adapter": "nice"}, "'inv_adapter': 'nice'"),
        ({"reduction_factor": {"default": 4}}, "'reduction_factor': {'default': 4}"),
        ({"reduction_factor": float("nan")}, "'reduction_factor': nan"),
        ({"architecture": "lora"}, "'architecture': 'lora'"),
        ({"of_next_year": 1}, "'of_next_year': 1"),
    ],
)
def test_what_we_would_compute_otherwise_is_refused_by_name(
    base: Path, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    folder = save_adapter(tmp_path / "a", "x", adapter_weights("x", seed=0), options=options)
    with pytest.raises(SciMultError, match="of a form that is not supported") as error:
        import_adapters(base, {"search": folder})
    assert named in str(error.value)


def change_head(weights: dict[str, Any]) -> None:
    weights["heads.x.1.weight"] = torch.zeros(2, 32)


def drop_one(weights: dict[str, Any]) -> None:
    del weights["bert.encoder.layer.3.output.adapters.x.adapter_up.bias"]


def add_layer(weights: dict[str, Any]) -> None:
    last = {key: value for key, value in weights.items() if ".layer.3." in key}
    weights.update({key.replace(".3.", ".4."): value for key, value in last.items()})


def widen_one(weights: dict[str, Any]) -> None:
    key = "bert.encoder.layer.3.output.adapters.x.adapter_down.0.weight"
    weights[key] = torch.zeros(9, 32)


class Runs:
    """Would create a file when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("/nonexistent/harm", "w"))


@pytest.mark.parametrize(
    ("change", "described", "message"),
    [
        (change_head, {}, "holds a weight that does not belong to the adapter x.*heads.x.1.weight"),
        (
            drop_one,
            {},
            r"adapter\.bin: .* base in layer 3 \(value: 'up.bias missing instead of \(32,\)",
        ),
        (widen_one, {}, r"in layer 3 .*down.weight \(9, 32\) instead of \(8, 32\)"),
        (add_layer, {}, r"in layer 4 .*down.bias \(8,\) instead of none"),
        (lambda weights: weights.update(x=Runs()), {}, "refused: .* run code"),
        (lambda weights: None, {"hidden_size": 768}, r"for hidden_size 768.*\(someone/base\)"),
        (lambda weights: None, {"model_type": "roberta"}, "for model_type roberta"),
        (lambda weights: None, {"peft_type": "LORA", "config": None}, "PEFT adapters"),
    ],
)
def test_files_that_do_not_fit(
    base: Path, tmp_path: Path, change: Any, described: dict[str, Any], message: str
) -> None:
    weights: dict[str, Any] = dict(adapter_weights("x", seed=0))
    change(weights)
    folder = save_adapter(tmp_path / "a", "x", weights, described=described)
    with pytest.raises(SciMultError, match=message):
        import_adapters(base, {"search": folder})


def test_adapters_that_do_not_fit_together(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(SciMultError, match="search/candidate has no adapter"):
        import_adapters(base, {"search/query": adapters["qry"]})
    with pytest.raises(SciMultError, match="serves no side.*search"):
        both = {"search/query": adapters["qry"], "search/candidate": adapters["prx"]}
        import_adapters(base, {"search": adapters["prx"], **both})
    with pytest.raises(SciMultError, match="unknown side.*did you mean 'query'"):
        import_adapters(base, {"search/qury": adapters["qry"]})
    weights = adapter_weights("x", seed=0, factor=2)
    wide = save_adapter(tmp_path / "wide", "x", weights, options={"reduction_factor": 2})
    with pytest.raises(SciMultError, match="different widths"):
        import_adapters(base, {"search": adapters["prx"], "classification": wide})
    with pytest.raises(SciMultError, match="holds no adapter_config.json"):
        import_adapters(base, {"search": base})
    imported, _ = import_adapters(base, {"search": adapters["prx"]})
    weights = imported.model.state_dict()
    save_pretrained(tmp_path / "m", weights, imported.tokenizer, imported.config)
    with pytest.raises(SciMultError, match="a plain BERT, RoBERTa or XLM-R.*routes"):
        import_adapters(tmp_path / "m", {"search": adapters["prx"]})
