"""Merging against tensor arithmetic, torch's own averaging, and round trips."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from scimult import SciMult
from scimult.checkpoints import Pretrained, load_pretrained, save_pretrained
from scimult.checkpoints.arithmetic import add_task_vectors, average, depth_factors, slerp
from scimult.checkpoints.fold import fold
from scimult.checkpoints.merge import merge, share_experts, split_experts
from scimult.errors import SciMultError
from scimult.types import FloatArray, Role
from tests.tiny import save_tiny_model

PAPERS = [{"title": f"Paper {n}", "abstract": "We lay out graphs." * n} for n in range(1, 5)]


def _linears(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(5, 3) for _ in range(count)]


def _written(folder: Path, model: Pretrained) -> Path:
    save_pretrained(folder, model.model.state_dict(), model.tokenizer, model.config)
    return folder


def _embeddings(path: Path, task: str) -> FloatArray:
    role: Role = "query" if task == "classification" else "candidate"
    return SciMult.from_pretrained(path).encode(PAPERS, task=task, role=role)


def test_tokenizers_of_equal_size_are_told_apart(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    path = tmp_path / "two" / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    swapped = text.replace("##8", "@@").replace("##9", "##8").replace("@@", "##9")
    path.write_text(swapped, encoding="utf-8")
    one, two = (load_pretrained(tmp_path / name).tokenizer for name in ("one", "two"))
    assert one.vocab_size == two.vocab_size
    prints = f"fingerprint of the tokenizer '{one.fingerprint}' and '{two.fingerprint}'"
    with pytest.raises(SciMultError, match=prints):
        merge([tmp_path / "one", tmp_path / "two"], [1, 1])


def test_an_average_is_torchs() -> None:
    models = _linears(3)
    theirs = AveragedModel(models[0])
    for model in models:
        theirs.update_parameters(model)
    ours = average([model.state_dict() for model in models], [1, 1, 1])
    for name, tensor in theirs.module.state_dict().items():
        # Theirs is a running mean in float32: a rounding of 2^-24 for each of three models.
        torch.testing.assert_close(ours[name], tensor, rtol=3 * 2**-24, atol=3 * 2**-24)


def test_shares_and_task_vectors_are_sums_of_tensors() -> None:
    a, b, c = ({k: v.double() for k, v in m.state_dict().items()} for m in _linears(3))
    for name in a:
        expected = (3 * a[name] + b[name]) / 4
        torch.testing.assert_close(average([a, b], [3, 1])[name], expected, rtol=0, atol=1e-12)
        expected = a[name] + 0.5 * (b[name] - a[name]) + 2 * (c[name] - a[name])
        found = add_task_vectors(a, [b, c], [0.5, 2])[name]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_task_vectors_scale_linearly_with_depth(tmp_path: Path) -> None:
    """The formula of LiNeS, α + β (l − 1) / (L − 1) for block l, written out weight by weight."""
    base, model = (
        save_tiny_model(tmp_path / name, variant="vanilla", seed=seed, num_blocks=5)
        for seed, name in enumerate(("base", "model"))
    )
    options: Any = {"method": "task_vectors", "base": base}
    merged = merge([model], [0.8], by_depth=(0.25, 1), **options).model.state_dict()
    theirs, ours = (load_file(path / "model.safetensors") for path in (base, model))
    layers = set()
    for name, tensor in theirs.items():
        layer = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else 1
        layers.add(layer)
        scale = 0.8 * (0.25 + 0.75 * (layer - 1) / (5 - 1))
        expected = tensor.double() + scale * (ours[name].double() - tensor.double())
        torch.testing.assert_close(merged[name].double(), expected, rtol=0, atol=1e-7)
    assert layers == {1, 2, 3, 4, 5}
    plain = merge([model], [0.8], **options).model.state_dict()
    for name, tensor in (
        merge([model], [0.8], by_depth=(1, 1), **options).model.state_dict().items()
    ):
        assert torch.equal(tensor, plain[name]), name


def test_tasks_are_those_of_the_models_not_of_the_base(tmp_path: Path) -> None:
    base, model = (save_tiny_model(tmp_path / name, variant="vanilla") for name in ("base", "run"))
    config = json.loads((model / "config.json").read_text())
    search = next(task for task in config["tasks"] if task["name"] == "search")
    search["query_kind"] = "label"
    config["tasks"].sort(key=lambda task: str(task["name"]))
    (model / "config.json").write_text(json.dumps(config))
    for merged in (merge([model], [1.0], method="task_vectors", base=base), merge([model, base])):
        assert merged.tasks.names == ["classification", "link_prediction", "search"]
        assert merged.tasks["search"].query_kind == "label"
    back = merge([base], [1.0], method="task_vectors", base=model)
    assert back.tasks["search"].query_kind == "query"


def test_the_norm_after_the_last_block_counts_as_the_last_block() -> None:
    names = ["embeddings.norm.weight", "blocks.0.x", "blocks.2.x", "final_norm.weight"]
    assert list(depth_factors(names, (1, 0), 3).values()) == [1, 1, 0, 0]
    assert list(depth_factors(names[:2], (0.5, 1), 1).values()) == [0.5, 0.5]


def test_blocks_of_an_instruction_encoder_have_the_depth_of_their_originals() -> None:
    names = [f"instruction_encoder.{name}" for name in ("embeddings.x", "blocks.0.x", "blocks.1.x")]
    assert list(depth_factors(names, (0, 1), 3).values()) == [0, 0, 0.5]


def test_slerp_turns_and_stretches() -> None:
    a, b = torch.tensor([2.0, 0.0]).double(), torch.tensor([0.0, 4.0]).double()
    half = slerp({"w": a}, {"w": b}, 0.5)["w"]
    torch.testing.assert_close(half, (a + b) * math.sqrt(0.5), rtol=0, atol=1e-12)
    third = slerp({"w": a}, {"w": b}, 1 / 3)["w"]
    expected = a * math.sin(math.pi / 3) + b * math.sin(math.pi / 6)
    torch.testing.assert_close(third, expected, rtol=0, atol=1e-12)
    for parallel in (3 * a, -a, 0 * a):
        found = slerp({"w": a}, {"w": parallel}, 0.25)["w"]
        torch.testing.assert_close(found, 0.75 * a + 0.25 * parallel, rtol=0, atol=1e-12)


def test_slerp_turns_query_key_and_value_each_by_its_own_angle() -> None:
    """As tools do that merge the separate weights of a BERT; they turned as one vector."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    b[1] = 10 * a[1] + b[1]
    parts = [slerp({"w": x}, {"w": y}, 0.3)["w"] for x, y in zip(a, b, strict=True)]
    name = "blocks.0.attention.qkv.experts.0.weight"
    whole = slerp({name: a.flatten(0, 1)}, {name: b.flatten(0, 1)}, 0.3)[name]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=0, atol=1e-12)


def test_models_of_different_starts_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two random starts were averaged without a word; what one start became is meant for it."""
    one, other = (save_tiny_model(tmp_path / f"seed{seed}", seed=seed) for seed in (0, 1))
    torch.manual_seed(0)
    weights = load_file(one / "model.safetensors")
    for name in ("a", "b"):
        shutil.copytree(one, tmp_path / name)
        moved = {key: old + old.std() * torch.randn_like(old) / 3 for key, old in weights.items()}
        save_file(moved, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
    merge([tmp_path / "a", tmp_path / "b"])
    merge([tmp_path / "a"], [1.0], method="task_vectors", base=one)
    assert not caplog.messages
    merge([tmp_path / "a", other, tmp_path / "b"])
    merge([other], [1.0], method="task_vectors", base=one)
    split_experts({"search": one, "classification": other}, "mha_expert")
    pairs = [(tmp_path / "a", other), (other, one), (one, other)]
    assert len(caplog.messages) == len(pairs)
    for message, (first, second) in zip(caplog.messages, pairs, strict=True):
        assert message.startswith(f"{first} and {second} did not start from one model (cosine")


@pytest.mark.parametrize(
    ("variant", "added", "part"),
    [
        ("adapters", ".adapter.", "adapters"),
        ("fusion", ".fusion.", "fusions"),
        ("pals", "pal", "projected attention"),
        ("control_codes", "codes", "control codes"),
        ("lora", ".lora.", None),
    ],
)
def test_added_layers_of_different_starts_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, variant: str, added: str, part: str | None
) -> None:
    """They were averaged without a word, as the weights of their base are alike."""
    one, other = (save_tiny_model(tmp_path / str(n), variant=variant, seed=n) for n in (0, 1))
    weights = load_file(one / "model.safetensors")
    own = {key: new for key, new in load_file(other / "model.safetensors").items() if added in key}
    assert own
    save_file(weights | own, other / "model.safetensors", metadata={"format": "pt"})
    trained = shutil.copytree(one, tmp_path / "trained")
    torch.manual_seed(0)
    moved = {key: weights[key] + torch.randn_like(weights[key]) / 6 for key in own}
    save_file(weights | moved, trained / "model.safetensors", metadata={"format": "pt"})
    merge([one, trained])
    assert not caplog.messages
    merge([one, other])
    assert len(caplog.messages) == (part is not None)
    if part:
        words = f"{one} and {other} did not start from one model (cosine of their {part}"
        assert caplog.messages[0].startswith(words)


def test_a_model_merged_with_itself_comes_back(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", variant="mha_ffn_expert")
    before = load_pretrained(model).model.state_dict()
    found = [merge([model, model]), merge([model], [0.0], method="task_vectors", base=model)]
    for merged in [*found, merge([model, model], [1, 2], method="slerp")]:
        for name, tensor in merged.model.state_dict().items():
            assert torch.equal(tensor, before[name]), name


def test_a_base_without_experts_counts_as_equal_experts(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "base", variant="vanilla", seed=1)
    model = save_tiny_model(tmp_path / "model", variant="mha_expert", seed=2)
    only_base = _written(tmp_path / "only_base", merge([model, base], [0, 1]))
    half = merge([model, base], [1, 1]).model.state_dict()
    ours, plain = load_file(model / "model.safetensors"), load_file(base / "model.safetensors")
    for task in ("classification", "search"):
        np.testing.assert_array_equal(_embeddings(only_base, task), _embeddings(base, task))
    for route in range(3):
        name = f"blocks.1.attention.qkv.experts.{route}.weight"
        expected = (ours[name] + plain["blocks.1.attention.qkv.experts.0.weight"]) / 2
        torch.testing.assert_close(half[name], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", ["average", "task_vectors", "slerp"])
def test_low_rank_updates_merge_as_what_they_add(tmp_path: Path, method: Any) -> None:
    """Merged and folded is folded and merged; averages of the factors are something else."""
    models = [save_tiny_model(tmp_path / name, variant="lora", seed=5) for name in "ab"]
    base = save_tiny_model(tmp_path / "base", variant="vanilla", seed=5)
    torch.manual_seed(0)
    for model in models:
        weights = load_file(model / "model.safetensors")
        drawn = {name: torch.randn_like(weights[name]) for name in weights if ".lora." in name}
        save_file(weights | drawn, model / "model.safetensors", metadata={"format": "pt"})
    vectors = method == "task_vectors"
    merged = merge(models, [0.25, 0.75], method=method, base=base if vectors else None)
    layout = merged.config.encoder.lora
    assert layout is not None
    assert (layout.rank, layout.alpha) == (16, 32)
    query = "blocks.1.attention.qkv.experts.0.weight"
    plain = load_file(models[0] / "model.safetensors")[query][:16].double()
    for task in ("search", "classification"):
        ours, a, b = (
            fold(model, task)[1][query][:16].double() - plain
            for model in (merged, *map(load_pretrained, models))
        )
        expected = slerp({"w": a}, {"w": b}, 0.75)["w"] if method == "slerp" else a / 4 + 3 * b / 4
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_low_rank_update_merged_with_its_base_is_a_part_of_it(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", variant="lora")
    base = save_tiny_model(tmp_path / "base", variant="vanilla")
    path = "blocks.0.attention.qkv_update.lora.query.experts.2"
    weights = load_file(model / "model.safetensors") | load_file(base / "model.safetensors")
    weights[f"{path}.up.weight"] = torch.randn_like(weights[f"{path}.up.weight"])
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    merged = merge([base, model], [3, 1])
    layout = merged.config.encoder.lora
    assert layout is not None
    assert layout.rank == 8
    ours = merged.model.state_dict()
    for name, tensor in load_file(base / "model.safetensors").items():
        assert torch.equal(ours[name], tensor)
    quarter, whole = (
        each[f"{path}.up.weight"] @ each[f"{path}.down.weight"] for each in (ours, weights)
    )
    torch.testing.assert_close(quarter, whole / 4)


def test_experts_become_one_and_models_become_experts(tmp_path: Path) -> None:
    models = {
        task: save_tiny_model(tmp_path / task, variant="vanilla", seed=seed)
        for seed, task in enumerate(("classification", "search", "link_prediction"))
    }
    split = split_experts(models, "ffn_expert")
    assert split.tasks.names == list(models)
    merged = _written(tmp_path / "split", split)
    weights = load_file(merged / "model.safetensors")
    parts = [load_file(path / "model.safetensors") for path in models.values()]
    layer = "blocks.1.feed_forward.experts.{}.intermediate.weight"
    for route, part in enumerate(parts):
        assert torch.equal(weights[layer.format(route)], part[layer.format(0)])
    mean = torch.stack([part["blocks.0.attention.output.experts.0.weight"] for part in parts]).mean(
        0
    )
    torch.testing.assert_close(
        weights["blocks.0.attention.output.experts.0.weight"], mean, rtol=1e-6, atol=1e-7
    )
    shared = share_experts(merged, {"search": 1.0}).model.state_dict()
    assert torch.equal(shared[layer.format(0)], parts[1][layer.format(0)])
    shared = share_experts(merged).model.state_dict()
    mean = torch.stack([part[layer.format(0)] for part in parts]).mean(0)
    torch.testing.assert_close(shared[layer.format(0)], mean, rtol=1e-6, atol=1e-7)


def test_the_same_model_for_every_task_is_that_model(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", variant="vanilla")
    tasks = ("classification", "search", "link_prediction")
    split = _written(tmp_path / "split", split_experts(dict.fromkeys(tasks, model), "mha_expert"))
    back = _written(tmp_path / "back", share_experts(split))
    for task in tasks:
        np.testing.assert_array_equal(_embeddings(split, task), _embeddings(model, task))
        np.testing.assert_array_equal(_embeddings(back, task), _embeddings(model, task))


def test_models_of_one_task_each_become_experts(tmp_path: Path) -> None:
    models = {}
    for seed, task in enumerate(("search", "classification")):
        models[task] = save_tiny_model(tmp_path / task, variant="vanilla", seed=seed)
        whole = load_pretrained(models[task])
        config = whole.config.model_copy(update={"tasks": [whole.tasks[task]]})
        save_pretrained(models[task], whole.model.state_dict(), whole.tokenizer, config)
    assert split_experts(models, "mha_expert").tasks.names == ["search", "classification"]
    with pytest.raises(SciMultError, match="differ in tasks"):
        merge(list(models.values()))


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    plain = save_tiny_model(tmp_path / "plain", variant="vanilla")
    cosine = save_tiny_model(tmp_path / "cosine", similarity="cosine")
    mean = save_tiny_model(tmp_path / "mean", pooling="mean")
    adapters = save_tiny_model(tmp_path / "adapters", variant="adapters")
    broken = save_tiny_model(tmp_path / "broken")
    updates = save_tiny_model(tmp_path / "updates", variant="lora")
    update = "blocks.0.attention.qkv_update.lora.query.experts.0.up.weight"
    for path, name in ((broken, "embeddings.words.weight"), (updates, update)):
        weights = load_file(path / "model.safetensors")
        weights[name][0, 0] = math.nan
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    sided = save_tiny_model(tmp_path / "sided")
    config = json.loads((sided / "config.json").read_text())
    (sided / "config.json").write_text(json.dumps(config | {"routing": "format_and_side"}))
    mistyped: Any = "averge"
    cases = [
        (lambda: merge([model, cosine]), "similarity 'dot' and 'cosine'"),
        (lambda: merge([model, mean]), "pooling 'cls' and 'mean'"),
        (lambda: merge([model, adapters]), "adapters"),
        (lambda: merge([model, broken]), "not finite"),
        (lambda: merge([updates, updates]), "not finite"),
        (lambda: merge([model]), "at least two models"),
        (lambda: merge([]), "at least two models"),
        (lambda: merge([], method="task_vectors", base=model), "at least two models"),
        (lambda: merge([model, plain], [1.0]), "1 shares for 2 models"),
        (lambda: merge([model, plain], [1.0, -1.0]), "Fix: give shares of at least 0"),
        (lambda: merge([model, plain], [1.0, math.inf]), "Fix: give finite numbers"),
        (lambda: merge([model, plain], [1e308, 1e308]), "a share is not a finite number, or"),
        (lambda: merge([model, plain], method=mistyped), "did you mean 'average'"),
        (lambda: merge([model, plain], method="task_vectors"), "task vectors and a base"),
        (lambda: merge([model, plain], by_depth=(1, 0)), "scale task vectors only"),
        (
            lambda: merge([model], [1], method="task_vectors", base=plain, by_depth=(1, -1)),
            "negative or not finite",
        ),
        (lambda: merge([model] * 3, method="slerp"), "slerp needs exactly two models"),
        (lambda: share_experts(plain), f"{plain}: the model has no experts to share. Fix: name a"),
        (lambda: share_experts(adapters), "cannot be folded"),
        (lambda: share_experts(model, {"serach": 1}), "did you mean 'search'"),
        (lambda: share_experts(model, {"search": 2, "classification": -1}), "not be negative"),
        (lambda: share_experts(model, {"search": math.nan}), "a share is not a finite number"),
        (lambda: split_experts({"serach": plain}, "mha_expert"), "did you mean 'search'"),
        (lambda: split_experts({"serach": plain}, "mha_expert"), f"{plain}: unknown task"),
        (lambda: split_experts({"search": plain}, "vanilla"), "variant has no experts"),
        (lambda: split_experts({"search": sided}, "mha_expert"), "merge MODEL --share-experts"),
    ]
    for call, message in cases:
        with pytest.raises(SciMultError) as caught:
            call()
        assert message in str(caught.value), caught.value
