"""A suite of many sets, killed anywhere, ends with the same numbers and encodes nothing twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scimult.evaluation.harness import evaluate
from scimult.evaluation.results import Result, load_results
from scimult.evaluation.systems import DenseSystem
from scimult.retrieval.store import StoringEncoder
from tests.evaluation.killed_suite import BLOCK, SETS, Counting, load

# Renames at which the processes of a chain kill themselves: odd before, even after it; of about
# 100 that an undisturbed evaluation makes. The last chains are drawn.
DRAW = random.Random(22)
DRAWN = [",".join(str(DRAW.randint(1, 30)) for _ in range(3)) for _ in range(3)]
CHAINS = ["1", "2", "3", "4", "55", "5,9,6,3,8,2,21", "2,2,2,2,30,1", *DRAWN]

pytestmark = pytest.mark.ranks


def _numbers(result: Result) -> dict[str, dict[str, float]]:
    return {name: entry.scores for name, entry in result.sets.items()}


def _per_query(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("out/*/per_query/*")}


def test_a_suite_that_is_killed_anywhere_ends_as_one_that_is_not(
    tmp_path: Path, repository: Path
) -> None:
    script = repository / "tests" / "evaluation" / "killed_suite.py"
    found = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *CHAINS],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    (whole,) = load_results(tmp_path / "0" / "out")
    assert len(whole.sets) == SETS
    undisturbed = (tmp_path / "0" / "log").read_text().splitlines()
    assert max(Counter(undisturbed).values()) == 1
    tokens = {key: int(count) for _, key, count in map(str.split, undisturbed)}
    assert sum(tokens.values()) == sum(entry.cost["tokens"] for entry in whole.sets.values()) > 0
    for chain in CHAINS:
        assert report["kills"][chain] == len(chain.split(",")), "every process was killed"
        (result,) = load_results(tmp_path / chain / "out")
        assert _numbers(result) == _numbers(whole)
        assert result.averages == whole.averages
        assert _per_query(tmp_path / chain) == _per_query(tmp_path / "0")
        _check_encoded(tmp_path / chain / "log", tokens, report["kills"][chain])


def _check_encoded(log: Path, tokens: dict[str, int], kills: int) -> None:
    """No stored token is encoded again; a kill loses the block that it interrupts."""
    stored: set[str] = set()
    encoded: Counter[str] = Counter()
    again = 0
    for line in log.read_text().splitlines():
        event, key, count = line.split()
        assert int(count) == tokens[key]
        if event == "stored":
            stored.add(key)
        else:
            assert key not in stored
            again += int(count) if encoded[key] else 0
            encoded[key] += 1
    assert set(encoded) == stored == set(tokens)
    assert encoded.total() <= len(tokens) + kills * BLOCK
    assert again <= kills * BLOCK * max(tokens.values())


def test_with_the_store_a_second_run_encodes_no_token(tmp_path: Path) -> None:
    """Into another folder, from another process: same numbers, zero tokens for every set."""
    suite, sets = load(tmp_path)
    results = []
    for run in ("first", "second"):
        encoder = Counting(tmp_path / f"{run}.log")
        stored = StoringEncoder(encoder, tmp_path / "store", "print")
        system = DenseSystem(stored, {"fingerprint": "print"})
        results.append(evaluate(system, suite, sets, tmp_path / run))
        tokens = sum(entry.cost["tokens"] for entry in results[-1].sets.values())
        assert tokens == encoder.tokens_encoded
    assert sum(entry.cost["tokens"] for entry in results[0].sets.values()) > 0
    for entry in results[1].sets.values():
        assert entry.cost["tokens"] == entry.cost["texts"] == 0
    assert not (tmp_path / "second.log").exists()
    assert _numbers(results[1]) == _numbers(results[0])
