"""Interrupted mining resumes, and mining again with the same inputs does nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.config import validate
from scimult.data.pairs import SPLITS
from scimult.data.prepared import PreparedData
from scimult.errors import ConfigError, DataError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining import steps as mining_steps
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.dense import content_of_model
from scimult.preparation.mining.hashing import ALL_KEYS, key
from scimult.preparation.mining.mine import mine_again, mine_shard
from scimult.preparation.mining.pools import BlockMiner
from scimult.preparation.mining.steps import Shard
from scimult.preparation.steps import Steps
from scimult.types import FloatArray, Role, Similarity, Text
from tests.prepared_folders import contents
from tests.ranks import SERVER
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
    """Use blocks of 7 groups, and return a list of the blocks mined."""
    names: list[str] = []
    mine = mining_steps.mine_block

    def recorded(miner: BlockMiner, start: int, stop: int, folder: Path) -> None:
        _, *name, split, _ = folder.parent.name.split(".")
        names.append(f"{'.'.join(name)} {split} to {stop}")
        mine(miner, start, stop, folder)

    monkeypatch.setattr(mining_steps, "GROUPS_PER_BLOCK", 7)
    monkeypatch.setattr(mining_steps, "mine_block", recorded)
    return names


def _config(root: Path, **mining: Any) -> DatasetConfig:
    return raw_config(root, mining={**RULES, **mining})


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, mined: list[str], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    config, encoder = _config(write_raw(tmp_path / "raw")), _Lengths()
    steps, out = tmp_path / "steps", tmp_path / "out"
    recorded = mining_steps.mine_block

    def interrupted(*arguments: Any) -> None:
        if len(mined) == at:
            raise KeyboardInterrupt
        recorded(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mining_steps, "mine_block", interrupted)
        build_dataset(config, out, steps=steps, open_encoder=lambda rule: encoder)
    assert not out.exists()
    build_dataset(config, out, steps=steps, open_encoder=lambda rule: encoder)
    assert len(set(mined)) == len(mined), "no block is mined twice"
    resumed, encoder.encoded = encoder.encoded, 0
    build_dataset(config, tmp_path / "whole", open_encoder=lambda rule: encoder)
    assert resumed <= encoder.encoded, "no text was encoded twice"
    assert contents(out) == contents(tmp_path / "whole")
    assert not list(steps.glob("*.blocks"))


@pytest.mark.long
def test_only_what_inputs_changed_is_mined_again(tmp_path: Path, mined: list[str]) -> None:
    root, steps = write_raw(tmp_path / "raw"), tmp_path / "steps"

    def mined_by(fingerprint: str = "a", **mining: Any) -> set[str]:
        mined.clear()
        config = _config(root, **mining)
        choices: dict[str, Any] = {"open_encoder": lambda rule: _Lengths(fingerprint)}
        build_dataset(config, tmp_path / "out", steps=steps, **choices)
        names = {what.split(" ")[0] for what in mined}
        if names != everything:
            build_dataset(config, tmp_path / "new", **choices)
            assert contents(tmp_path / "out") == contents(tmp_path / "new")
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
    search = {"exact_below": 10, "lists": 4, "probes": 1, "spare": 0, "overfetch": 1}
    found = mined_by("b", max_negatives=2, search={"dense": search})
    assert "toy-neighbours.link_prediction" in found, "neighbours are found by another search"
    write_tsv(root / "citations.tsv", ("citing", "cited"), CITATIONS[1:])
    assert mined_by("b", max_negatives=2) == everything


@pytest.mark.long
def test_mining_again_keeps_what_stays_the_same(tmp_path: Path, mined: list[str]) -> None:
    out, steps = tmp_path / "out", tmp_path / "steps"
    build_dataset(raw_config(write_raw(tmp_path / "raw")), out, steps=steps)
    mined.clear()
    before = PreparedData.open(out).fingerprint
    mine_again(out, MiningConfig(), steps=Steps(steps))
    assert mined == []
    assert PreparedData.open(out).fingerprint == before
    mine_again(out, validate(MiningConfig, {"labels": ["venue"]}), steps=Steps(steps))
    assert {what.split(" ")[0] for what in mined} == {"toy.classification"}


@pytest.mark.long
def test_shards_together_are_the_whole(tmp_path: Path, mined: list[str]) -> None:
    out, steps = tmp_path / "out", Steps(tmp_path / "steps")
    build_dataset(raw_config(write_raw(tmp_path / "raw")), out)
    config = validate(MiningConfig, {"citations": ["co_cited", "random"], "max_negatives": 5})
    before = contents(out)
    mined.clear()
    for index in (2, 0, 1):
        mine_shard(out, config, Shard(index, 3), steps)
    assert contents(out) == before, "shards leave the folder alone"
    assert len(set(mined)) == len(mined), "no block is mined twice"
    (damaged,) = steps.folder.glob("mined.toy.link_prediction.train.blocks/7/values.npy")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    mined.clear()
    mine_again(out, config, steps=steps)
    assert mined == ["toy.link_prediction train to 14"], "what does not agree is mined again"
    build_dataset(raw_config(tmp_path / "raw"), tmp_path / "whole")
    mine_again(tmp_path / "whole", config)
    assert contents(out) == contents(tmp_path / "whole")
    with pytest.raises(ConfigError, match="neighbours"):
        mine_shard(out, validate(MiningConfig, RULES), Shard(0, 2), steps)


@pytest.mark.long
@pytest.mark.parametrize("limit", [1, 12, 10_000])
def test_a_budget_leaves_whole_queries_and_what_they_would_get_without_it(
    tmp_path: Path, limit: int
) -> None:
    out, steps = tmp_path / "out", Steps(tmp_path / "steps")
    build_dataset(raw_config(write_raw(tmp_path / "raw")), out)
    rules = {"citations": ["co_cited", "bm25", "random"], "labels": ["random"], "max_negatives": 5}
    rules.update({"neighbours": RULES["neighbours"], "embedding": RULES["embedding"]})
    mine_again(out, validate(MiningConfig, rules), steps=steps)
    whole, content = PreparedData.open(out), contents(out)
    files = {(pairs.name, pairs.split): pairs for s in SPLITS for pairs in whole.pairs(s)}
    config = validate(MiningConfig, {**rules, "max_groups": limit})
    mine_again(out, config, steps=steps)
    part = PreparedData.open(out)
    for pairs in [pairs for split in SPLITS for pairs in part.pairs(split)]:
        all_of_them = files[pairs.name, pairs.split]
        stay = np.isin(all_of_them.queries, pairs.queries)
        most = max(len(f) for f in files.values() if (f.task, f.split) == (pairs.task, "train"))
        share = min(1.0, limit / most) if pairs.split == "train" else 1.0
        chosen = key(0, all_of_them.queries) < round(share * ALL_KEYS)
        assert stay.tolist() == chosen.tolist()
        for name in ("positives", "negatives"):
            expected = getattr(all_of_them, name).take(np.flatnonzero(stay))
            assert getattr(pairs, name).values.tolist() == expected.values.tolist()
            assert getattr(pairs, name).offsets.tolist() == expected.offsets.tolist()
    name = "pairs/toy.link_prediction.train.arrow"
    (entry,) = [e for e in part.manifest.pairs if e.file == name]
    assert entry.groups == len(part.open_pairs(entry)) <= len(CITATIONS)
    assert (out / "whole").exists() == (limit < 10_000)
    near = [e for e in part.manifest.pairs if e.part == "neighbours"]
    assert [e.neighbours_of for e in near] == ["toy", "toy"]
    if limit < 10_000:
        with pytest.raises(DataError, match="holds only a part of its groups"):
            mine_shard(out, config.model_copy(update={"neighbours": []}), Shard(0, 2), steps)
    mine_again(out, validate(MiningConfig, rules), steps=steps)
    assert contents(out) == content, "the other groups come back"


def _mine(root: Path, out: Path, kept: Path, blocks: int) -> None:
    """Prepare and mine, and kill this process after so many blocks of 7 groups."""
    mine = mining_steps.mine_block
    left = blocks

    def killed(miner: BlockMiner, start: int, stop: int, folder: Path) -> None:
        nonlocal left
        mine(miner, start, stop, folder)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    mining_steps.GROUPS_PER_BLOCK, mining_steps.mine_block = 7, killed
    build_dataset(raw_config(root), out, steps=kept)


@pytest.mark.ranks
def test_killed_at_any_block_it_ends_with_the_same_bytes(root: Path, tmp_path: Path) -> None:

    def build(name: str, blocks: int) -> int | None:
        arguments = (root, tmp_path / name, tmp_path / f"{name}.steps", blocks)
        process = SERVER.Process(target=_mine, args=arguments)
        process.start()
        process.join()
        return process.exitcode

    assert build("whole", -1) == 0
    # Of eleven blocks: the second, then the third of those left, and so on.
    for blocks in (2, 3, 4):
        assert build("killed", blocks) == -signal.SIGKILL
        assert not (tmp_path / "killed").exists()
    assert build("killed", -1) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_veto_depends_on_what_its_folder_holds(tmp_path: Path) -> None:
    assert content_of_model("cross-encoder/some-name") == "cross-encoder/some-name"
    (tmp_path / "config.json").write_text("1")
    first = content_of_model(str(tmp_path))
    (tmp_path / "config.json").write_text("2")
    assert content_of_model(str(tmp_path)) != first
