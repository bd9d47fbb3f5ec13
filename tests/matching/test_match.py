"""What a matching without an assignment lists, against cosines by numpy."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from scimult.matching.affinity import Rule
from scimult.matching.match import Weighting, match
from scimult.matching.venue import Publication, Venue
from scimult.types import Text


@pytest.mark.parametrize(("top", "listed"), [(100, 10), (4, 4)])
def test_the_ten_best_reviewers_are_listed_with_their_closest_papers(
    tmp_path: Path, top: int, listed: int
) -> None:
    """Twelve reviewers of five papers each; the submission's author is not listed."""
    rng = np.random.default_rng(0)
    submissions_SD, papers_PD = rng.normal(size=(2, 8)), rng.normal(size=(60, 8))
    names = [f"r{row}" for row in range(12)]
    venue = Venue(
        submissions={"s0": Text("paper", "First"), "s1": Text("paper", "Second")},
        authors={"s0": ["r3"]},
        publications={f"p{row}": Publication(Text("paper", f"T{row}")) for row in range(60)},
        reviewers={name: [f"p{5 * row + i}" for i in range(5)] for row, name in enumerate(names)},
    )
    vectors = submissions_SD.astype(np.float32), papers_PD.astype(np.float32)
    match(venue, vectors, tmp_path / "out", rule=Rule.parse("max"), weighting=Weighting(), top=top)
    unit_SD, unit_PD = (
        x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True) for x_ND in (submissions_SD, papers_PD)
    )
    cosines_SP = unit_SD @ unit_PD.T
    best_SR = cosines_SP.reshape(2, 12, 5).max(axis=2)
    best_SR[0, 3] = -np.inf
    lines = (tmp_path / "out/matches.jsonl").read_text(encoding="utf-8").splitlines()
    for row, line in enumerate(map(json.loads, lines)):
        order = np.argsort(-best_SR[row])[:listed].tolist()
        assert [one["reviewer"] for one in line["reviewers"]] == [names[at] for at in order]
        scores = [one["score"] for one in line["reviewers"]]
        assert scores == pytest.approx(best_SR[row, order], abs=1e-5)
        for one, at in zip(line["reviewers"], order, strict=True):
            own = [5 * at + i for i in range(5)]
            closest = sorted(own, key=lambda paper: -cosines_SP[row, paper])[:3]
            assert [paper["id"] for paper in one["because"]] == [f"p{paper}" for paper in closest]
    with open(tmp_path / "out/scores.csv", encoding="utf-8", newline="") as file:
        written = {(submission, reviewer) for submission, reviewer, _ in csv.reader(file)}
    # A score is written if it is among the best of its submission or of its reviewer.
    assert written == {
        (f"s{row}", name) for row in range(2) for name in names if (row, name) != (0, "r3")
    }
