"""Our vanilla encoder against transformers' BertModel: outputs and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from scimult.checkpoints import load_pretrained
from scimult.checkpoints.bert_keys import bert_config, from_bert, to_bert
from scimult.models import Encoder, pack
from tests.models.variants import FLOAT64, random_weights

LENGTHS = (5, 64, 23, 23, 1, 40, 64, 2)


def small_bert(seed: int) -> BertModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    model: BertModel = BertModel(config, add_pooling_layer=False).double()
    return model


def ours_from(bert: BertModel) -> Encoder:
    config = bert_config(bert.config.to_dict(), "cls", "test")
    encoder = Encoder(config).double()
    encoder.load_state_dict(from_bert(bert.state_dict(), config))
    return encoder


def rows_of(lengths: tuple[int, ...], vocabulary: int) -> list[np.ndarray]:
    # Not 0: transformers freezes the embedding of the padding token.
    rng = np.random.default_rng(0)
    return [rng.integers(1, vocabulary, size=length) for length in lengths]


def padded(rows: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.from_numpy(row)
        mask[i, : len(row)] = 1
    return ids, mask


@pytest.mark.parametrize("seed", [0, 1])
def test_token_states_equal_those_of_padded_bert(seed: int) -> None:
    bert = small_bert(seed)
    encoder, rows = ours_from(bert), rows_of(LENGTHS, 97)
    ids, mask = padded(rows)
    theirs = bert(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    ours = encoder.token_states(pack(rows))
    assert (ours - theirs).abs().max() <= FLOAT64


def test_gradients_equal_those_of_padded_bert() -> None:
    bert = small_bert(2)
    encoder, rows = ours_from(bert), rows_of(LENGTHS, 97)
    ids, mask = padded(rows)
    weights = random_weights(int(mask.sum()), 32)
    states = bert(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    (states * weights).sum().backward()
    (encoder.token_states(pack(rows)) * weights).sum().backward()
    theirs = from_bert({n: p.grad for n, p in bert.named_parameters()}, encoder.config)
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        # Sums over 200 tokens: relative to the largest entry of the tensor.
        scale = max(1.0, float(theirs[name].abs().max()))
        assert (parameter.grad - theirs[name]).abs().max() <= FLOAT64 * scale, name


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_real_checkpoint_gives_bert_embeddings(minilm: Path, pooling: str) -> None:
    model = load_pretrained(minilm, pooling=pooling).model.double()
    bert = AutoModel.from_pretrained(minilm, attn_implementation="eager").eval().double()
    rows = rows_of((7, 130, 31, 256), 30000)
    ids, mask = padded(rows)
    with torch.no_grad():
        states = bert(input_ids=ids, attention_mask=mask).last_hidden_state
        ours = model(pack(rows))
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    theirs = states[:, 0] if pooling == "cls" else mean
    assert (ours - theirs).abs().max() <= FLOAT64


def test_weights_survive_the_way_to_bert_and_back() -> None:
    bert = small_bert(3)
    encoder = ours_from(bert)
    returned = to_bert(encoder.state_dict(), encoder.config)
    original = bert.state_dict()
    assert returned.keys() == {k for k in original if k != "embeddings.position_ids"}
    assert all(torch.equal(returned[key], original[key]) for key in returned)
