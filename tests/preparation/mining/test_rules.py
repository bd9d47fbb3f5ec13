"""The pools of a folder are those of the rules in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.preparation.dataset import build_dataset
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.mine import mine_again
from tests.preparation.mining.naive import World, known_of, pool
from tests.raw_corpus import raw_config, write_raw

LIMIT, NEAR, SEED = 6, 2, 5
RULES: dict[str, list[dict[str, Any]]] = {
    "citations": [
        # More draws than any rule of the files that are mined before.
        {"rule": "same_field", "field": "venue", "count": 10},
        {"rule": "co_cited", "count": 2},
        {"rule": "other_field"},
        {"rule": "cited_by_cited"},
        {"rule": "random", "count": 1},
        {"rule": "same_field", "count": 2},
    ],
    "labels": [{"rule": name} for name in ("author", "cited", "venue", "random")],
    "queries": [{"rule": "shown"}, {"rule": "random", "count": 4}],
}
PARTS = {"citations": "link_prediction", "labels": "classification", "queries": "search"}


def _found(world: World, rule: dict[str, Any], number: int, seed: int) -> set[int]:
    """Return the candidates of a rule for a group."""
    name, count = rule["rule"], rule.get("count", LIMIT)
    kind = "venue" if rule.get("field") == "venue" else "label"
    match name:
        case "random":
            return world.random(number, count, seed)
        case "same_field":
            return world.same_field(number, kind, count, seed)
        case "other_field":
            return world.other_field(number, kind, count, seed)
        case "co_cited":
            return world.co_cited(number, NEAR, seed)
        case "cited_by_cited":
            return world.cited_by_cited(number)
        case "shown":
            return world.shown_for(number)
    return world.labels_of(number, name, NEAR, SEED)


@pytest.mark.long
@pytest.mark.parametrize("exclude_known", [True, False])
def test_pools_of_a_folder(tmp_path: Path, exclude_known: bool) -> None:
    root = write_raw(tmp_path / "raw")
    build_dataset(raw_config(root, max_pairs_per_label="all"), tmp_path / "out")
    options = {"exclude_known": exclude_known}
    lists = {part: [{**rule, **options} for rule in rules] for part, rules in RULES.items()}
    sizes = {"max_negatives": LIMIT, "max_neighbours": NEAR, "seed": SEED}
    mine_again(tmp_path / "out", validate(MiningConfig, {**lists, **sizes}))
    data = PreparedData.open(tmp_path / "out")
    for split in ("train", "dev"):
        for part, task in PARTS.items():
            world = World.of(data, task, split)
            known = known_of(data, task, part) if exclude_known else set()
            (file,) = [file for file in data.pairs(split) if file.task == task]
            assert file.found_by is not None
            for number, negatives in enumerate(file.negatives):
                finds = [
                    (_found(world, rule, number, SEED + 1000 * place), rule.get("count", LIMIT))
                    for place, rule in enumerate(RULES[part], start=1)
                ]
                expected, kept = pool(world, number, finds, known, LIMIT, SEED)
                assert negatives.tolist() == sorted(expected)
                bits = file.found_by[slice(*file.negatives.offsets[number : number + 2])]
                for place, rows in enumerate(kept):
                    given = {
                        row for row, bit in zip(negatives, bits, strict=True) if bit >> place & 1
                    }
                    assert given == rows & expected
            assert len(file.negatives.values)
