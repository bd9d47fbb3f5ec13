"""Mining that was interrupted goes on, and a second one with the same inputs mines nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining import steps as mining_steps
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.mine import mine_again
from scimult.preparation.mining.pools import Groups, mine_pools
from scimult.preparation.mining.veto import content_of_model
from scimult.preparation.steps import Steps
from scimult.types import FloatArray, Role, Similarity, Text
from tests.raw_corpus import CITATIONS, raw_config, write_raw, write_tsv

RULES = {
    "citations": ["cited_by_cited", {"rule": "dense", "model": "m", "ranks": [2, 9], "count": 3}],
    "neighbours": [{"source": "toy", "ranks": [2, 4], "negatives": ["random"]}],
    "embedding": {"width": 4},
}


class _Lengths:
    """Encodes a text by its length, and counts what it encoded."""

    name = "lengths"
    similarity: Similarity = "l2"

    def __init__(self, fingerprint: str = "a") -> None:
        self.fingerprint, self.encoded = fingerprint, 0

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        self.encoded += len(texts)
        return np.array([[len(text.title + text.body)] for text in texts], dtype=np.float32)


@pytest.fixture
def mined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take blocks of 7 groups, and return the list that gets the name of each that is mined."""
    names: list[str] = []

    def recorded(groups: Groups, *arguments: Any, what: str, **choices: Any) -> Any:
        names.append(what)
        return mine_pools(groups, *arguments, what=what, **choices)

    monkeypatch.setattr(mining_steps, "GROUPS_PER_BLOCK", 7)
    monkeypatch.setattr(mining_steps, "mine_pools", recorded)
    return names


def _config(root: Path, **mining: Any) -> DatasetConfig:
    return raw_config(root, mining={**RULES, **mining})


def _content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, mined: list[str], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    config, encoder = _config(write_raw(tmp_path / "raw")), _Lengths()
    steps, out = tmp_path / "steps", tmp_path / "out"
    recorded = mining_steps.mine_pools

    def interrupted(*arguments: Any, **choices: Any) -> Any:
        if len(mined) == at:
            raise KeyboardInterrupt
        return recorded(*arguments, **choices)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mining_steps, "mine_pools", interrupted)
        build_dataset(config, out, steps=steps, open_encoder=lambda rule: encoder)
    assert not out.exists()
    build_dataset(config, out, steps=steps, open_encoder=lambda rule: encoder)
    assert len(set(mined)) == len(mined), "no block is mined twice"
    resumed, encoder.encoded = encoder.encoded, 0
    build_dataset(config, tmp_path / "whole", open_encoder=lambda rule: encoder)
    assert resumed <= encoder.encoded, "no text was encoded twice"
    assert _content(out) == _content(tmp_path / "whole")
    assert not list(steps.glob("*.blocks"))


def test_only_what_inputs_changed_is_mined_again(tmp_path: Path, mined: list[str]) -> None:
    root, steps = write_raw(tmp_path / "raw"), tmp_path / "steps"

    def mined_by(fingerprint: str = "a", **mining: Any) -> set[str]:
        mined.clear()
        config = _config(root, **mining)
        choices: dict[str, Any] = {"open_encoder": lambda rule: _Lengths(fingerprint)}
        build_dataset(config, tmp_path / "out", steps=steps, **choices)
        names = {what.split(" to ")[0] for what in mined}
        build_dataset(config, tmp_path / "new", **choices)
        assert _content(tmp_path / "out") == _content(tmp_path / "new")
        return names

    citations = {"toy.link_prediction"}
    everything = {
        *citations,
        "toy.classification",
        "toy.search",
        "toy-neighbours.link_prediction",
    }
    assert mined_by() == everything
    assert mined_by() == set()
    assert mined_by(queries=["random"]) == {"toy.search"}
    assert mined_by("b", queries=["random"]) == citations, "another model under the same name"
    assert mined_by("b", max_negatives=2) == everything
    write_tsv(root / "citations.tsv", ("citing", "cited"), CITATIONS[1:])
    assert mined_by("b", max_negatives=2) == everything


def test_mining_again_keeps_what_stays_the_same(tmp_path: Path, mined: list[str]) -> None:
    out, steps = tmp_path / "out", tmp_path / "steps"
    build_dataset(raw_config(write_raw(tmp_path / "raw")), out, steps=steps)
    mined.clear()
    before = PreparedData.open(out).fingerprint
    mine_again(out, MiningConfig(), steps=Steps(steps))
    assert mined == []
    assert PreparedData.open(out).fingerprint == before
    mine_again(out, validate(MiningConfig, {"labels": ["venue"]}), steps=Steps(steps))
    assert {what.split(" to ")[0] for what in mined} == {"toy.classification"}


def test_a_veto_depends_on_what_its_folder_holds(tmp_path: Path) -> None:
    assert content_of_model("cross-encoder/some-name") == "cross-encoder/some-name"
    (tmp_path / "config.json").write_text("1")
    first = content_of_model(str(tmp_path))
    (tmp_path / "config.json").write_text("2")
    assert content_of_model(str(tmp_path)) != first
