"""``scimult match-reviewers``, as a chair calls it."""

from __future__ import annotations

import csv
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from scimult.cli import match_reviewers
from scimult.unfinished import unfinished
from tests.command import completed, invoke
from tests.matching.made_up import note, write_venue


def match(model: Path, folder: Path, *options: str) -> Any:
    paths = ("--model", str(model), "--venue", str(folder), "--out", str(folder / "out"))
    return invoke("match-reviewers", *paths, "--no-cache", *options)


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_scores_assignment_and_evidence(model: Path, tmp_path: Path) -> None:
    folder = write_venue(tmp_path)
    conflicts = folder / "conflicts.csv"
    conflicts.write_text("s2,~Cyd_N2\n")
    loads = ("--reviewers", "1", "--max-papers", "2", "--conflicts", str(conflicts))
    result = match(model, folder, *loads)
    assert result.exit_code == 0, result.output
    assert "~Idle_O1" in result.stderr
    scores = {(s, r): float(value) for s, r, value in rows(folder / "out" / "scores.csv")}
    # An author and a conflict have no score.
    assert set(scores) == {
        ("s1", "~Ada_L1"),
        ("s1", "~Cyd_N2"),
        ("s2", "~Ada_L1"),
        ("s2", "~Bob_M1"),
        ("s3", "~Ada_L1"),
        ("s3", "~Bob_M1"),
        ("s3", "~Cyd_N2"),
    }
    assigned = [(s, r) for s, r, _ in rows(folder / "out" / "assignment.csv")]
    assert [s for s, _ in assigned] == ["s1", "s2", "s3"]
    assert set(assigned) <= set(scores)
    matches = [json.loads(line) for line in (folder / "out" / "matches.jsonl").open()]
    for found, (_, reviewer) in zip(matches, assigned, strict=True):
        (entry,) = found["reviewers"]
        assert entry["reviewer"] == reviewer
        assert entry["score"] == pytest.approx(scores[found["id"], reviewer], abs=1e-6)
        cosines = [reason["cosine"] for reason in entry["because"]]
        # The mean of the best three, or of fewer if there are fewer.
        assert entry["score"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-4)
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert (summary["submissions"], summary["reviewers"], summary["conflicts"]) == (3, 3, 2)
    settings = summary["settings"]
    assert settings["encoder"]["task"] == "link_prediction"
    assert settings["encoder"]["fingerprint"]
    assert (settings["score"]["best"], settings["assignment"]["most"]) == (3, 2)
    # A second call replaces the folder of the first.
    before = (folder / "out" / "scores.csv").read_bytes()
    assert match(model, folder, *loads).exit_code == 0
    assert (folder / "out" / "scores.csv").read_bytes() == before


def test_an_assignment_without_scipy_is_refused_before_texts_are_encoded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.delitem(sys.modules, "scimult.matching.assignment", raising=False)
    monkeypatch.setattr(match_reviewers, "open_model", None)
    result = match(model, write_venue(tmp_path), "--reviewers", "1", "--max-papers", "2")
    assert result.exit_code == 1
    fix = "pip install 'scimult[tagging]' (in a checkout '.[tagging]')"
    assert result.stderr == f"error: scipy is not installed. Fix: {fix}\n"


def test_weights_of_venues_scale_scores(model: Path, tmp_path: Path) -> None:
    folder = write_venue(tmp_path)
    known = folder / "archives" / "~Ada_L1.jsonl"
    known.write_text(json.dumps(note("a1", "Galaxies", venue="AAS 2020")) + "\n")

    def score(*options: str) -> float:
        assert match(model, folder, *options).exit_code == 0
        found = {(s, r): float(v) for s, r, v in rows(folder / "out" / "scores.csv")}
        return found["s3", "~Ada_L1"]

    weights = folder / "weights.csv"
    weights.write_text("AAS*,0.25\nAAS 2019,3\n")
    plain = score()
    assert plain > 0
    assert score("--venue-weights", str(weights)) == pytest.approx(plain / 4, abs=1e-5)
    result = match(model, folder, "--venue-weights", str(weights))
    assert "venues without a publication: AAS 2019\n" in result.stderr


def test_old_publications_count_less_by_their_half_life(model: Path, tmp_path: Path) -> None:
    """Also where none has its whole weight."""
    folder, now = write_venue(tmp_path), datetime.now(timezone.utc)
    for number, path in enumerate(sorted((folder / "archives").glob("*.jsonl")), start=1):
        dated = note(f"a{number}", "Galaxies of stars")
        day = now.replace(year=now.year - 3 * number, day=1)
        path.write_text(json.dumps({**dated, "cdate": int(1000 * day.timestamp())}) + "\n")

    def scores(*options: str) -> dict[str, float]:
        assert match(model, folder, *options).exit_code == 0
        return {r: float(v) for s, r, v in rows(folder / "out" / "scores.csv") if s == "s3"}

    plain, weighted = scores(), scores("--half-life", "3")
    assert len(plain) == 4
    for number, name in enumerate(sorted(plain), start=1):
        assert weighted[name] == pytest.approx(plain[name] / 2**number, abs=1e-5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("ACL,1e300\n", "weight is out of range"),
        ("ACL,-1\n", "weight is out of range"),
        ("ACL,nan\n", "not a finite number"),
        ("ACL,2\nACL,3\n", "weights.csv:2: venue has two weights"),
    ],
)
def test_weights_that_are_none(model: Path, tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "weights.csv").write_text(lines)
    options = ("--venue-weights", str(tmp_path / "weights.csv"))
    result = match(model, write_venue(tmp_path), *options)
    assert result.exit_code == 1
    assert message in result.stderr


def test_years_that_are_not_there_weigh_nothing(model: Path, tmp_path: Path) -> None:
    folder = write_venue(tmp_path)
    line = json.dumps(note("a1", "Galaxies")) + "\n"
    (folder / "archives" / "~Ada_L1.jsonl").write_text(line)
    result = match(model, folder, "--half-life", "5")
    assert result.exit_code == 1
    assert "no publication has a year" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reviewers", "2"), "needs --reviewers and --max-papers"),
        (("--min-papers", "1"), "needs --reviewers and --max-papers"),
        (("--score", "best"), "unknown scoring rule"),
        (("--papers", "x.csv"), "exactly one source of submissions is needed"),
        (("--reviewers", "4", "--max-papers", "9"), "needs 4 reviewers, but only 3 have publicat"),
        (("--reviewers", "2", "--max-papers", "1"), "6 reviews are needed, but reviewers take"),
    ],
)
def test_mistakes(model: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    result = match(model, write_venue(tmp_path), *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("Fix: ") == 1
    assert not (tmp_path / "out").exists()


def test_impossible_loads_are_refused_before_anything_is_encoded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_reviewers, "embed", lambda *_: pytest.fail("encoded"))
    loads = ("--reviewers", "2", "--max-papers", "9", "--min-papers", "3")
    result = match(model, write_venue(tmp_path), *loads)
    assert "require at least 9 reviews, but only 6 are needed" in result.output


def test_a_second_call_is_refused_before_texts_are_encoded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_venue(tmp_path)

    def fail(*_: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr(match_reviewers, "open_model", fail)
    with unfinished(folder / "out"):
        refused = match(model, folder)
    assert "another process is writing here" in refused.stderr, refused.exception


def test_another_folder_is_not_replaced_nor_anything_encoded_for_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_reviewers, "embed", lambda *_: pytest.fail("encoded"))
    folder = write_venue(tmp_path)
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("precious")
    result = match(model, folder)
    assert result.exit_code == 1
    assert (folder / "out" / "thesis.tex").read_text() == "precious"


def test_submissions_come_from_a_venue_or_from_tables(model: Path, tmp_path: Path) -> None:
    (tmp_path / "papers.csv").write_text("id,title\ns1,Graphs\ns2,Stars\n")
    lines = "reviewer,id,title\nada,p1,Nodes\nbob,p2,Galaxies\n"
    (tmp_path / "publications.csv").write_text(lines)
    papers = ["--papers", str(tmp_path / "papers.csv")]
    publications = ["--publications", str(tmp_path / "publications.csv")]
    verb = ["match-reviewers", "--model", str(model), "--no-cache", "--out", str(tmp_path / "out")]
    for given in ([], papers, publications, [*papers, *publications, "--venue", str(tmp_path)]):
        refused = invoke(*verb, *given)
        assert "exactly one source of submissions is needed" in refused.stderr
    completed(*verb, *papers, *publications)
    (scores,) = (tmp_path / "out").glob("*scores*.csv")
    pairs = {(row[0], row[1]) for row in rows(scores)}
    assert {(s, r) for s in ("s1", "s2") for r in ("ada", "bob")} <= pairs


def test_a_task_for_other_texts_names_those_that_fit(model: Path, tmp_path: Path) -> None:
    result = match(model, write_venue(tmp_path), "--task", "search")
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert "the query of task 'search' is a query, not a paper" in said
    assert "Fix: use one of the tasks link_prediction, classification" in said
