"""Teacher scores: lookups match a dictionary, from a column of raw tables to a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.ragged import Ragged
from scimult.data.teacher import FILE_NAME, TeacherScores, read_teacher_scores, scored_share
from scimult.errors import DataError
from scimult.preparation.dataset import build_dataset
from tests.raw_corpus import CLICKS, raw_config, write_raw, write_tsv

PAIRS = st.dictionaries(
    st.tuples(st.integers(0, 9), st.integers(0, 9)), st.floats(-5, 5, width=32), max_size=20
)


def scores_of(pairs: dict[tuple[int, int], float]) -> TeacherScores:
    columns = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return TeacherScores(columns[:, 0], columns[:, 1], np.array(list(pairs.values())))


@given(PAIRS)
def test_lookup_and_round_trip(
    tmp_path_factory: pytest.TempPathFactory, pairs: dict[tuple[int, int], float]
) -> None:
    folder = tmp_path_factory.mktemp("teacher")
    scores_of(pairs).write(folder)
    back = read_teacher_scores(folder)
    assert back is not None
    assert len(back) == len(pairs)
    queries, candidates = (grid.ravel() for grid in np.mgrid[0:12, 0:12])
    expected = [pairs.get(pair, np.nan) for pair in zip(queries, candidates, strict=True)]
    for scores in (scores_of(pairs), back):
        assert np.array_equal(scores(queries, candidates), np.float32(expected), equal_nan=True)


def test_a_pair_has_one_score() -> None:
    rows = np.array([3, 3, 1]), np.array([4, 4, 4])
    assert len(TeacherScores(*rows, np.array([0.5, 0.5, 2.0]))) == 2
    with pytest.raises(DataError, match=r"two different teacher scores.*\[3, 4, 0.75, 0.5\]"):
        TeacherScores(*rows, np.array([0.75, 0.5, 2.0]))
    with pytest.raises(DataError, match="not finite"):
        TeacherScores(*rows, np.array([0.5, 0.5, np.inf]))


def test_share_of_groups_with_a_scored_positive_and_negative() -> None:
    positives = Ragged.from_lists([[10, 11], [10], [12], [13]])
    negatives = Ragged.from_lists([[20, 21], [20], [], [21]])
    file = PairFile("s", "t", "train", np.array([1, 2, 3, 4]), positives, negatives)
    pairs = {(1, 11): 1.0, (1, 20): 0.0, (2, 10): 1.0, (2, 21): 0.0, (3, 12): 1.0, (4, 21): 0.0}
    assert scored_share(scores_of(pairs), file) == 1 / 4


def scored_clicks(root: Path, score: str = "{}") -> None:
    """Score every click except each query's last, by ``score`` of its position in the file."""
    rows = [
        (*click, score.format(number) if number % 4 < 3 else "")
        for number, click in enumerate(CLICKS)
    ]
    write_tsv(root / "clicks.tsv", ("query-id", "paper-id", "clicked", "teacher"), rows)


@pytest.mark.long
def test_a_column_of_the_answers_becomes_scores(tmp_path: Path) -> None:
    root = write_raw(tmp_path / "raw")
    plain = build_dataset(raw_config(root), tmp_path / "plain")[0]
    assert plain.teacher_scores() is None
    scored_clicks(root)
    data = build_dataset(raw_config(root), tmp_path / "out")[0]
    scores = data.teacher_scores()
    assert scores is not None
    for number, (query, paper, _) in enumerate(CLICKS):
        rows = [data.texts.row(f"toy/query:{query}"), data.texts.row(f"toy:{paper}")]
        found = scores(*(np.array([row]) for row in rows))[0]
        assert found == number if number % 4 < 3 else np.isnan(found)
    counts = data.manifest.sources[0].counts
    assert counts["scored by a teacher"] == len(scores) == len(CLICKS) * 3 // 4
    # Scores change what a run learns: the folder has another fingerprint, and the same pairs.
    assert data.fingerprint != plain.fingerprint
    assert [len(file) for file in data.pairs("train")] == [
        len(file) for file in plain.pairs("train")
    ]
    assert PreparedData.open(tmp_path / "out").manifest.files["teacher.arrow"].bytes > 0


def test_scores_written_again_leave_those_of_the_steps_alone(tmp_path: Path) -> None:
    """Folders of a preparation share their files by hard links."""
    step, folder = tmp_path / "step", tmp_path / "folder"
    scores_of({(0, 1): 0.5}).write(step)
    folder.mkdir()
    (folder / FILE_NAME).hardlink_to(step / FILE_NAME)
    scores_of({(0, 1): 0.75}).write(folder)
    for place, score in (step, 0.5), (folder, 0.75):
        scores = read_teacher_scores(place)
        assert scores is not None
        assert scores(np.array([0]), np.array([1])).tolist() == [score]


def test_a_score_that_is_no_number_names_its_line(tmp_path: Path) -> None:
    root = write_raw(tmp_path / "raw")
    scored_clicks(root, score="high")
    with pytest.raises(DataError, match=r"clicks\.tsv:2: .*'teacher'.*a finite number.*'high'"):
        build_dataset(raw_config(root), tmp_path / "out")


def test_two_scores_of_a_pair_name_their_lines(tmp_path: Path) -> None:
    root = write_raw(tmp_path / "raw")
    scored_clicks(root)
    path = root / "clicks.tsv"
    path.write_text(path.read_text() + "\t".join([*map(str, CLICKS[1]), "7.5"]) + "\n")
    where = rf"clicks\.tsv:{len(CLICKS) + 2}: .*two different teacher.*7\.5.*in line 3"
    with pytest.raises(DataError, match=where):
        build_dataset(raw_config(root), tmp_path / "out")
