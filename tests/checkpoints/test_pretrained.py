"""Model folders: round trips, and clear errors for misfits."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from scimult.checkpoints import load_pretrained, save_pretrained, weights
from scimult.checkpoints.weights import read_weights
from scimult.errors import CheckpointError, ConfigError, SciMultError, StorageError
from tests.base_models import save_base_model
from tests.tiny import save_tiny_model


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("variant", ["vanilla", "mha_expert", "ffn_expert"])
def test_saved_and_loaded_again_is_the_same(tmp_path: Path, variant: str) -> None:
    first = load_pretrained(save_tiny_model(tmp_path / "one", variant=variant, pooling="mean"))
    save_pretrained(tmp_path / "two", first.model.state_dict(), first.tokenizer, first.config)
    second = load_pretrained(tmp_path / "two")
    assert second.config == first.config
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint
    weights = second.model.state_dict()
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weights[name], weight), name
    assert second.route("classification") == (0 if variant == "vanilla" else 2)


def test_all_files_of_a_model_have_the_usual_mode(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m")
    (tmp_path / "plain").touch()
    modes = {file.stat().st_mode for file in [*folder.iterdir(), tmp_path / "plain"]}
    assert len(modes) == 1


def test_run_folder_stands_for_its_model(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "run" / "model")
    assert load_pretrained(tmp_path / "run").tasks.names[0] == "search"


def test_unknown_task_lists_the_known_ones(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    with pytest.raises(SciMultError, match="classification, link_prediction, search"):
        model.route("tagging")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("embeddings.norm.bias"), r"missing: embeddings\.norm\.bias"),
        (lambda w: w.update(extra=torch.zeros(1)), "unexpected: extra"),
        (
            lambda w: w.update({"embeddings.words.weight": torch.zeros(3, 16)}),
            r"shape: embeddings\.words\.weight \(3, 16\) instead of",
        ),
        (
            lambda w: w.update({"embeddings.norm.bias": w["embeddings.norm.bias"].char()}),
            r"type: embeddings\.norm\.bias torch\.int8",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    folder = save_tiny_model(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("queries", "keys"), [((32,), (32, 32)), ((), (32, 32)), ((64, 32), (0, 32))]
)
def test_queries_and_keys_of_other_shapes_are_named(
    tmp_path: Path, queries: tuple[int, ...], keys: tuple[int, ...]
) -> None:
    """Joined, longer queries and shorter keys have the right shape."""
    folder = save_base_model(tmp_path / "hf", "bert")
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self"
    weights |= {f"{name}.query.weight": torch.zeros(queries)}
    weights |= {f"{name}.key.weight": torch.zeros(keys)}
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"missing: .*qkv.*unexpected: .*{name}\.query"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ({1: torch.zeros(1)}, "1"),
        ({"w": torch.zeros(2, 2).to_sparse(), "v": torch.zeros(1)}, "'w'"),
        ({"w": torch.zeros(2, device="meta")}, "'w'"),
        ([torch.zeros(1)], "list"),
    ],
)
def test_a_file_of_other_things_than_named_dense_tensors_is_refused(
    tmp_path: Path, content: object, value: str
) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=rf"than dense tensors by name \(value: .?{value}"):
        read_weights(tmp_path)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: file is damaged"):
        load_pretrained(folder)


class RunsCode:
    """Unpickling this unsafely would call ``print``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("arbitrary code ran",))


def test_pickle_that_wants_to_run_code_is_refused(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(minilm, folder)
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"weights": RunsCode()}, file)
    with pytest.raises(CheckpointError, match="damaged or holds more than tensors"):
        load_pretrained(folder)
    assert "arbitrary code ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value"),
    [("model_type", "albert"), ("hidden_act", "relu"), ("position_embedding_type", "relative")],
)
def test_other_architectures_are_refused(
    minilm: Path, tmp_path: Path, key: str, value: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(minilm, folder)
    change_config(folder, lambda content: content.update({key: value}))
    with pytest.raises(CheckpointError, match=f"{key} of this checkpoint.*{value}"):
        load_pretrained(folder)


def test_config_of_another_version_or_with_unknown_keys_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m")
    change_config(folder, lambda content: content["encoder"].update(hidden_sise=1))
    with pytest.raises(ConfigError, match=r"encoder\.hidden_sise: unknown key.*'hidden_size'"):
        load_pretrained(folder)
    folder = save_tiny_model(tmp_path / "later")
    change_config(folder, lambda content: content.update(version=2))
    with pytest.raises(ConfigError, match=r"version.*1.*2"):
        load_pretrained(folder)


def test_longer_texts_than_the_encoder_has_positions_for_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m")
    change_config(folder, lambda content: content.update(max_length=65))
    with pytest.raises(ConfigError, match="max_length 65 is more than the encoder's 64"):
        load_pretrained(folder)


def test_expert_block_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m")
    change_config(folder, lambda content: content["encoder"]["experts"].update(blocks=[7]))
    with pytest.raises(ConfigError, match="names a block that does not exist; blocks are 0 to 1"):
        load_pretrained(folder)


def test_tokenizer_with_more_tokens_than_the_model_is_refused(minilm: Path, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm / name, folder / name)
    with pytest.raises(CheckpointError, match="tokenizer has 30522 tokens, the model embeds"):
        load_pretrained(folder)


@pytest.mark.parametrize("content", [None, "{}", '{"format": 3}'])
def test_folders_without_a_model_are_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"folder holds no model|neither ours nor"):
        load_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="folder does not exist"):
        load_pretrained(tmp_path / "absent")


def test_full_disk_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_model(tmp_path / "m", seed=1)
    model = load_pretrained(folder)
    before = (folder / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("scimult.checkpoints.weights.save_file", full)
    with pytest.raises(StorageError, match=r"No space left on device.*free disk space"):
        save_pretrained(folder, model.model.state_dict(), model.tokenizer, model.config)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_a_checkpoint_for_two_tokens_is_refused(minilm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(minilm, folder)
    change_config(folder, lambda content: content.update(max_position_embeddings=2))
    with pytest.raises(
        CheckpointError, match=r"config\.json: this checkpoint reads at most 2 tokens\. Fix:"
    ):
        load_pretrained(folder)


def test_weights_that_are_read_stay_in_their_file(tmp_path: Path) -> None:
    """The model's tensors lie in the file's mapping, as Linux lists it."""
    folder = save_tiny_model(tmp_path / "m")
    model = load_pretrained(folder).model
    maps = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in maps if str(folder) in line]
    assert spans, "the weights were copied"
    inside = [
        any(int(a, 16) <= weight.data_ptr() < int(b, 16) for a, b in spans)
        for weight in model.state_dict().values()
    ]
    assert all(inside)


def test_a_model_of_few_dimensions_gets_no_more(tmp_path: Path) -> None:
    """A run with ``model.dims`` has weights for more, but its loss never saw them."""
    short = load_pretrained(save_tiny_model(tmp_path / "m"), dims=8)
    weights = short.model.state_dict()
    save_pretrained(tmp_path / "short", weights, short.tokenizer, short.config)
    assert load_pretrained(tmp_path / "short", dims=8).config.encoder.width == 8
    assert load_pretrained(tmp_path / "short", dims=4).config.encoder.width == 4
    with pytest.raises(ConfigError, match=r"more than the 8 dimensions.*value: 9.*at most 8"):
        load_pretrained(tmp_path / "short", dims=9)


def test_a_file_is_told_from_a_missing_folder(tmp_path: Path) -> None:
    file = save_tiny_model(tmp_path / "m") / "model.safetensors"
    with pytest.raises(CheckpointError, match="is a file, not the folder of a model"):
        load_pretrained(file)
    with pytest.raises(CheckpointError, match="folder does not exist"):
        load_pretrained(file.parent / "x")


def test_weights_that_may_not_be_read_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To safetensors they do not exist: "copy or download it again"."""
    folder = save_tiny_model(tmp_path / "model")

    def load_file(path: Path) -> None:
        raise FileNotFoundError(f"No such file or directory: {path}")

    monkeypatch.setattr(weights, "load_file", load_file)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(CheckpointError, match=r"safetensors: file may not.*Fix: .*permissions"):
        load_pretrained(folder)
