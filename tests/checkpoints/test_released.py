"""Released checkpoints: equal embeddings, safe reading, and clear errors for bad files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from scimult.checkpoints import load_pretrained, save_pretrained
from scimult.checkpoints.pretrained import Pretrained
from scimult.checkpoints.released import read_released
from scimult.checkpoints.released_export import write_released
from scimult.checkpoints.released_keys import to_released, usual_heads
from scimult.errors import SciMultError
from scimult.models import Encoder, EncoderConfig, pack, variant_layouts
from tests.models.variants import FLOAT64
from tests.released import (
    HEADS,
    bert_config,
    expert_as_bert,
    released_encoder,
    released_state,
    save_released,
)
from tests.tiny import save_tiny_model, tiny_tokenizer

VOCABULARY = tiny_tokenizer().vocab_size
FORMS = [(None, 3), ("mod2:attn", 3), ("mod2:fwd", 3), ("mod4:attn", 3), ("mod3:fwd", 2)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save(folder)
    return folder


def tokens(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, size=length) for length in (5, 1, 40, 64)]


@torch.no_grad()
def embed(pretrained: Pretrained, expert: int) -> torch.Tensor:
    embeddings: torch.Tensor = pretrained.model.double()(pack(tokens()), expert)
    return embeddings


@pytest.mark.parametrize(("moe_type", "experts"), FORMS)
def test_every_expert_computes_what_the_file_says(
    tmp_path: Path, tokenizer: Path, moe_type: str | None, experts: int
) -> None:
    encoder = released_encoder(VOCABULARY, moe_type, experts)
    file = save_released(tmp_path / "scimult", released_state(encoder, moe_type, experts))
    names = ["query", "passage"] if experts == 2 else None
    read, report = read_released(file, tokenizer, tasks=names, num_heads=HEADS)
    known = names or ["search", "link_prediction", "classification"]
    assert read.tasks.names == report.tasks == known
    for number, task in enumerate(known):
        bert = expert_as_bert(encoder, VOCABULARY, number).double()
        found = embed(read, read.route(task))
        for row, ids in enumerate(tokens()):
            state = bert(torch.from_numpy(ids)[None]).last_hidden_state[0, 0]
            assert (found[row] - state).abs().max() <= FLOAT64 * max(1, state.abs().max())


def test_report_says_what_was_found_and_left_out(tmp_path: Path, tokenizer: Path) -> None:
    encoder = released_encoder(VOCABULARY)
    file = save_released(tmp_path / "scimult_moe", released_state(encoder))
    read, report = read_released(file, tokenizer, num_heads=HEADS)
    in_file = sum(v.numel() for k, v in encoder.items() if k != "embeddings.position_ids")
    pooler = 16 * 16 + 16
    assert (report.variant, report.moe_type) == ("mha_expert", "mod2:attn")
    assert read.config.encoder.attention_dropout == read.config.encoder.dropout == 0.1
    assert (report.parameters_in_file, report.parameters) == (in_file, in_file - pooler)
    assert report.optimizer_bytes == 8 * (in_file + 64)
    text = "\n".join(report.lines())
    assert f"{in_file:,} in the file; {in_file - pooler:,} kept, {pooler:,} of the pooler" in text
    assert "0 = search, 1 = link_prediction, 2 = classification" in text
    assert "epoch 20, offset 0" in text
    assert f"{report.optimizer_bytes:,} of {report.file_bytes:,} bytes: optimizer state" in text
    assert "BiomedBERT-base-uncased-abstract" in text
    released = read.config.provenance["released"]
    assert released["encoder_params"]["num_expert"] == 3
    assert (released["epoch"], released["file"]) == (20, "scimult_moe")


def test_saved_and_exported_again_it_is_the_same_file(tmp_path: Path, tokenizer: Path) -> None:
    state = released_state(released_encoder(VOCABULARY))
    file = save_released(tmp_path / "scimult_moe", state)
    read, _ = read_released(file, tokenizer, num_heads=HEADS)
    save_pretrained(tmp_path / "m", read.model.state_dict(), read.tokenizer, read.config)
    write_released(tmp_path / "again", load_pretrained(tmp_path / "m"))
    again = torch.load(tmp_path / "again", weights_only=True)
    assert again.keys() == state.keys()
    # Two heads are not what BERT of this width has: our file says so, the original cannot.
    parameters = OmegaConf.to_container(state["encoder_params"])
    assert again["encoder_params"] == {**parameters, "num_attention_heads": HEADS}
    assert (again["epoch"], again["offset"]) == (20, 0)
    assert again["model_dict"].keys() == state["model_dict"].keys()
    for key, value in state["model_dict"].items():
        expected = torch.zeros_like(value) if "pooler" in key else value
        assert torch.equal(again["model_dict"][key], expected), key
    # Both towers are one set of tensors on disk, as in the original.
    assert (tmp_path / "again").stat().st_size < 1.6 * (
        tmp_path / "m" / "model.safetensors"
    ).stat().st_size


@pytest.mark.parametrize("variant", ["vanilla", "mha_expert", "ffn_expert"])
def test_our_models_come_back_from_the_released_form(
    tmp_path: Path, tokenizer: Path, variant: str
) -> None:
    ours = load_pretrained(save_tiny_model(tmp_path / "m", variant=variant))
    turned = ours.config.model_copy(deep=True)
    turned.tasks = [turned.tasks[number] for number in (2, 0, 1)]
    notes = write_released(tmp_path / "file", Pretrained(ours.model, ours.tokenizer, turned))
    back, report = read_released(tmp_path / "file", tokenizer, num_heads=2)
    assert report.variant == variant
    assert (notes[0] == "experts 0 = search, 1 = link_prediction, 2 = classification") == (
        variant != "vanilla"
    )
    assert not any("tokens" in note for note in notes)
    turned.max_length = 20  # which the form cannot say
    notes = write_released(tmp_path / "short", Pretrained(ours.model, ours.tokenizer, turned))
    assert any("20 tokens" in note and "read with 64" in note for note in notes)
    for number, task in enumerate(turned.tasks):
        expert = number if variant != "vanilla" else 0
        assert torch.equal(embed(back, back.route(task.name)), embed(ours, expert)), task.name


@pytest.mark.parametrize(
    ("variant", "parameters"), [("vanilla", 109_482_240), ("mha_expert", 137_830_656)]
)
def test_released_form_of_the_released_sizes_has_their_parameters(
    variant: str, parameters: int
) -> None:
    """Counts of the published files; our encoder lacks only the pooler (590,592)."""
    encoder = EncoderConfig(
        vocab_size=30522,
        hidden_size=768,
        num_blocks=12,
        num_heads=12,
        intermediate_size=3072,
        **variant_layouts(variant, {}, 3, 12),
    )
    with torch.device("meta"):
        ours = Encoder(encoder)
    theirs = to_released(ours.state_dict(), encoder)
    pooler = 768 * 768 + 768
    assert pooler == 590_592
    assert sum(weight.numel() for weight in theirs.values()) + pooler == parameters
    assert sum(weight.numel() for weight in ours.parameters()) + pooler == parameters


def test_layouts_without_a_released_name_are_refused(tmp_path: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m", variant="mha_ffn_expert"))
    with pytest.raises(SciMultError, match="no name for this expert layout.*another format"):
        write_released(tmp_path / "file", model)
    assert not (tmp_path / "file").exists()


def test_config_beside_the_tokenizer_tells_the_heads(tmp_path: Path, tokenizer: Path) -> None:
    file = save_released(tmp_path / "f", released_state(released_encoder(VOCABULARY)))
    with pytest.raises(SciMultError, match=r"number of attention heads.*width 16.*--num-heads"):
        read_released(file, tokenizer)
    tiny_tokenizer().save(tmp_path / "t")
    bert_config(VOCABULARY).save_pretrained(tmp_path / "t")
    assert read_released(file, tmp_path / "t")[0].config.encoder.num_heads == HEADS
    ours = save_tiny_model(tmp_path / "ours")  # its config has our own form
    assert load_pretrained(ours).config.encoder.hidden_size == 16
    heads = load_pretrained(ours).config.encoder.num_heads
    assert read_released(file, ours)[0].config.encoder.num_heads == heads


def test_config_beside_the_tokenizer_tells_the_activation(tmp_path: Path) -> None:
    encoder = released_encoder(VOCABULARY)
    file = save_released(tmp_path / "f", released_state(encoder))
    tiny_tokenizer().save(tmp_path)
    config = bert_config(VOCABULARY)
    config.hidden_act = "gelu_new"
    config.save_pretrained(tmp_path)
    read, _ = read_released(file, tmp_path)
    bert = expert_as_bert(encoder, VOCABULARY, 0, config).double()
    state = bert(torch.from_numpy(tokens()[0])[None]).last_hidden_state[0, 0]
    assert (embed(read, 0)[0] - state).abs().max() <= FLOAT64 * max(1, state.abs().max())
    config.hidden_act = "relu"
    config.save_pretrained(tmp_path)
    with pytest.raises(SciMultError, match="hidden_act of this checkpoint is not supported.*relu"):
        read_released(file, tmp_path)


def test_our_files_tell_the_heads(tmp_path: Path, tokenizer: Path) -> None:
    model = load_pretrained(save_tiny_model(tmp_path / "m"))
    notes = write_released(tmp_path / "file", model)
    assert any("2 attention heads from the config of" in note for note in notes), notes
    back, report = read_released(tmp_path / "file", tokenizer)
    assert back.config.encoder.num_heads == model.config.encoder.num_heads == 2
    assert not [note for note in report.notes if "heads" in note]
    assert not any("bert-base-uncased" in note for note in report.notes)


@pytest.mark.parametrize(("width", "heads"), [(128, 2), (256, 4), (512, 8), (768, 12), (1024, 16)])
def test_usual_heads_are_those_of_the_published_berts(width: int, heads: int) -> None:
    """Their configs: BERT-tiny, -mini, -medium, -base and -large (64 wide each)."""
    assert usual_heads(width) == heads == width // 64
    assert usual_heads(384) is None  # MiniLM has 12 there, other models 6


MEMORY = """
import sys
from pathlib import Path
from scimult.checkpoints.released import read_released

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return {l.split()[0]: int(l.split()[1]) for l in lines if l.startswith(("RssAnon", "RssFile"))}

read_released(sys.argv[1], sys.argv[3], num_heads=2)
before = anonymous()
read_released(sys.argv[2], sys.argv[3], num_heads=2)
after = anonymous()
print(sum(after.values()) - sum(before.values()))
assert "omegaconf" not in sys.modules
"""


@pytest.mark.ranks
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_optimizer_state_takes_no_memory_and_omegaconf_is_not_needed(
    tmp_path: Path, tokenizer: Path, repository: Path
) -> None:
    state = released_state(released_encoder(VOCABULARY))
    small = save_released(tmp_path / "small", state)
    state["optimizer_dict"]["state"][0]["exp_avg"] = torch.zeros(30_000_000)
    large = save_released(tmp_path / "large", state)
    assert large.stat().st_size > 120_000_000
    command = [sys.executable, "-c", MEMORY, str(small), str(large), str(tokenizer)]
    grown = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 20_000  # kB


class RunsCode:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("arbitrary code ran",))


class RunsShell:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return (os.system, ("echo arbitrary code ran",))


@pytest.mark.parametrize(
    ("evil", "wanted"), [(RunsCode(), "'print'"), (RunsShell(), r"'posix\.system'")]
)
@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_that_wants_to_run_code_is_refused(
    tmp_path: Path,
    tokenizer: Path,
    capfd: pytest.CaptureFixture[str],
    evil: object,
    wanted: str,
    zipped: bool,
) -> None:
    state = released_state(released_encoder(VOCABULARY)) | {"offset": evil}
    torch.save(state, tmp_path / "evil", _use_new_zipfile_serialization=zipped)
    with pytest.raises(SciMultError, match=f"refused: .* could run code .value: {wanted}"):
        read_released(tmp_path / "evil", tokenizer, num_heads=HEADS)
    assert "arbitrary code ran" not in capfd.readouterr().out


def test_files_of_old_pytorch_are_read(tmp_path: Path, tokenizer: Path) -> None:
    state = released_state(released_encoder(VOCABULARY))
    torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)
    _, report = read_released(tmp_path / "old", tokenizer, num_heads=HEADS)
    assert report.epoch == 20


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
def test_truncated_file_is_refused(tmp_path: Path, tokenizer: Path, kept: float) -> None:
    file = save_released(tmp_path / "f", released_state(released_encoder(VOCABULARY)))
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SciMultError, match="f: file is damaged"):
        read_released(file, tokenizer, num_heads=HEADS)


def both(key: str, change: Callable[[dict[str, Any], str], object]) -> Callable[..., None]:
    """Return a change of one key in both towers."""

    def apply(state: dict[str, Any]) -> None:
        for tower in ("question_model", "ctx_model"):
            change(state["model_dict"], f"{tower}.encoder.{key}")

    return apply


def add(key: str, shape: tuple[int, ...]) -> Callable[..., None]:
    value = torch.zeros(shape)
    return both(key, lambda weights, name: weights.update({name: value}))


def drop(key: str) -> Callable[..., None]:
    return both(key, lambda weights, name: weights.pop(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model_dict"), "holds no model_dict.*scimult_vanilla"),
        (lambda s: s["model_dict"].clear(), "hold different keys.*incomplete"),
        (
            drop("embeddings.word_embeddings.weight"),
            r"lacks ctx_model\.encoder\.embeddings\.word_embeddings\.weight",
        ),
        (drop("embeddings.LayerNorm.bias"), r"missing: embeddings\.norm\.bias"),
        (
            drop("encoder.layer.1.attention.self.moe_key.2.bias"),
            r"missing: blocks\.1\.attention\.qkv\.experts\.2\.bias; unexpected: enc.*moe_query",
        ),
        (drop("encoder.layer.1.attention.self.moe_query.2.weight"), "expert layers differ"),
        (add("encoder.extra.weight", (2, 2)), r"unexpected: encoder\.extra\.weight"),
        (add("encoder.layer.x.weight", (2, 2)), r"unexpected: encoder\.layer\.x\.weight"),
        (add("encode_proj.weight", (2, 2)), r"unexpected: encode_proj\.weight"),
        (
            add("encoder.layer.0.output.dense.weight", (16, 25)),
            r"shape: .*output\.weight \(16, 25\) instead of \(16, 24\)",
        ),
        (lambda s: s["model_dict"].update(reader=torch.zeros(1)), "below question.*: 'reader'"),
        (
            lambda s: s["model_dict"].update({"ctx_model.encoder.x": torch.ones(2).to_sparse()}),
            r"than dense tensors .*value: 'ctx_model\.encoder\.x'",
        ),
        (
            lambda s: s["model_dict"].update(
                {"ctx_model.encoder.embeddings.LayerNorm.bias": torch.ones(16)}
            ),
            r"question_model and ctx_model differ.*embeddings\.LayerNorm\.bias",
        ),
        (
            lambda s: s["model_dict"].pop("ctx_model.encoder.pooler.dense.bias"),
            r"different keys .value: 'pooler\.dense\.bias'",
        ),
        (lambda s: s["encoder_params"].update(projection_dim=64), r"'projection_dim': 64"),
        (lambda s: s["encoder_params"].update(shared_encoder=False), "'shared_encoder': False"),
        (
            lambda s: s["encoder_params"].update(moe_type="mod4:attn"),
            r"'mod4:attn' contradicts the weights.*attention in layers \[1, 3\]",
        ),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, tokenizer: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    state = released_state(released_encoder(VOCABULARY))
    change(state)
    file = save_released(tmp_path / "f", state)
    with pytest.raises(SciMultError, match=message):
        read_released(file, tokenizer, num_heads=HEADS)


def test_expert_flag_without_experts_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    state = released_state(released_encoder(VOCABULARY, None), None, use_moe=True)
    file = save_released(tmp_path / "f", state)
    with pytest.raises(SciMultError, match="says use_moe, but there are no expert weights"):
        read_released(file, tokenizer, num_heads=HEADS)


def test_number_of_experts_must_fit_the_tasks(tmp_path: Path, tokenizer: Path) -> None:
    state = released_state(released_encoder(VOCABULARY, "mod2:fwd", 2), "mod2:fwd", 2)
    file = save_released(tmp_path / "f", state)
    with pytest.raises(SciMultError, match="has 2 experts.*name their tasks in order: --task"):
        read_released(file, tokenizer, num_heads=HEADS)
    with pytest.raises(SciMultError, match="has 2 experts, 1 tasks were given"):
        read_released(file, tokenizer, tasks=["search"], num_heads=HEADS)


def test_what_does_not_fit_the_file_is_refused(
    tmp_path: Path, tokenizer: Path, minilm: Path
) -> None:
    file = save_released(tmp_path / "f", released_state(released_encoder(VOCABULARY)))
    with pytest.raises(SciMultError, match="not a multiple of num_heads 3"):
        read_released(file, tokenizer, num_heads=3)
    with pytest.raises(
        SciMultError, match=f"30522 tokens, the checkpoint embeds {VOCABULARY}.*BiomedBERT"
    ):
        read_released(file, minilm, num_heads=HEADS)
    with pytest.raises(SciMultError, match="file does not exist"):
        read_released(tmp_path / "absent", minilm)
    with pytest.raises(SciMultError, match="is a folder"):
        read_released(tmp_path, minilm)
