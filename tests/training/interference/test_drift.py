"""How far training moved embeddings, and which bases can be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scimult.config import save_config
from scimult.data.batches import Batch
from scimult.errors import SciMultError
from scimult.files import read_json, write_json
from scimult.models import pack
from scimult.training.build import build_model
from scimult.training.interference.drift import linear_cka, measure_drift
from scimult.training.interference.gradients import training_rounds
from scimult.training.interference.run import run_interference
from scimult.training.plan import plan_run
from tests.tiny import save_tiny_model
from tests.training.corpus import run_config


def test_linear_cka_is_that_of_gram_matrices() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)), rng.normal(size=(40, 9))
    y[:, :6] += x
    centre = np.eye(40) - 1 / 40

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        return float(np.trace(k @ centre @ m @ centre))

    grams = x @ x.T, y @ y.T
    naive = hsic(*grams) / np.sqrt(hsic(grams[0], grams[0]) * hsic(grams[1], grams[1]))
    assert linear_cka(x, y) == pytest.approx(naive, abs=1e-12)
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    assert linear_cka(x, 3 * x @ turn + 2) == pytest.approx(1, abs=1e-12)


def test_linear_cka_of_equal_embeddings_is_undefined() -> None:
    """One text gave NaN with numpy's warning; a collapsed model's was that of rounding."""
    rng = np.random.default_rng(0)
    x, equal = rng.normal(size=(40, 6)), np.repeat(rng.normal(size=(1, 9)), 40, axis=0)
    rounded = equal * (1 + rng.uniform(-1.2e-7, 1.2e-7, equal.shape))
    for first, second in ((x[:1], equal[:1]), (x, equal), (rounded, x), (0 * equal, x)):
        assert np.isnan(linear_cka(first, second))
    assert 0 < linear_cka(x, equal * (1 + rng.uniform(-1e-4, 1e-4, equal.shape))) < 1


def test_a_base_is_checked_before_gradients_are_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(folder, "run", model={"variant": "vanilla"})
    save_config(config, tmp_path / "run.yaml")
    monkeypatch.setattr("scimult.training.interference.run.measure", None)
    other, routed = save_tiny_model(tmp_path / "other"), save_tiny_model(tmp_path / "routed")
    short = save_tiny_model(tmp_path / "short")
    fewer = read_json(short / "config.json")
    fewer["encoder"]["max_positions"] = fewer["max_length"] = 16
    write_json(short / "config.json", fewer)
    weights = load_file(short / "model.safetensors")
    weights["embeddings.positions.weight"] = weights["embeddings.positions.weight"][:16].clone()
    save_file(weights, short / "model.safetensors")
    tokenizer = read_json(other / "tokenizer.json")
    tokenizer["normalizer"]["lowercase"] = False
    write_json(other / "tokenizer.json", tokenizer)
    settings = read_json(routed / "config.json")
    settings["tasks"][0]["name"] = "find"
    write_json(routed / "config.json", settings)
    for base, message in (
        (other, f"{other}: base and model have different tokenizers"),
        (short, rf"{short}: data.max_length exceeds the base's 16 positions .*max_length=16"),
        (routed, f"{routed}: unknown task of the base .*'search'"),
    ):
        with pytest.raises(SciMultError, match=message):
            run_interference(
                folder / "base", tmp_path / "out", config=tmp_path / "run.yaml", base=base
            )


def test_drift_shows_what_moved(folder: Path) -> None:
    config = run_config(folder, "run", model={"variant": "vanilla", "dropout": 0.0})
    base, moved = build_model(config), build_model(config)
    rounds = training_rounds(config, plan_run(config), base, ["search"], 2)
    micro_batches = [
        micro_batch
        for of_round in rounds
        for micro_batches in of_round
        for micro_batch in micro_batches
    ]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moved.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    drifts = measure_drift(base, moved, ["search"], micro_batches)
    assert [(drift.task, drift.role) for drift in drifts] == [
        ("search", "query"),
        ("search", "candidate"),
    ]
    for drift, side in zip(drifts, ("query_B", "candidate_C"), strict=True):
        distinct = {
            part.rows[index].tobytes(): part.rows[index]
            for micro_batch in micro_batches
            for part in micro_batch.parts
            if isinstance(part, Batch)
            for index in getattr(part, side).tolist()
        }
        rows = list(distinct.values())
        assert drift.texts == len(rows) > 5
        with torch.no_grad():
            before, after = (one.model.eval()(pack(rows), 0) for one in (base, moved))
        cosine = float(torch.cosine_similarity(before, after).mean())
        assert drift.cosine == pytest.approx(cosine, abs=1e-5)  # float32, other batches
        assert 0 < drift.cosine < 0.999
        assert 0 < drift.cka < 0.999
