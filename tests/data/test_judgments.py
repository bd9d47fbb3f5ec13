"""Judgments are equal in every layout, and TREC's equal pytrec_eval's."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import pytrec_eval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scimult.data.judgments import PAPER, QUERY, grade_of, read_judgments
from scimult.data.records import Rejects
from scimult.errors import DataError
from tests.raw_corpus import write_jsonl

Pairs = dict[tuple[str, str], int]
IDS = st.text("abq7-_.", min_size=1, max_size=4)
PAIRS = st.dictionaries(st.tuples(IDS, IDS), st.integers(-1, 3), min_size=1, max_size=12)
LAYOUTS = {
    "beir.tsv": ("query-id\tcorpus-id\tscore\n", "{q}\t{d}\t{s}\n"),
    "beir.csv": ("query-id,corpus-id,score\n", "{q},{d},{s}\n"),
    "quoted.csv": ('"query-id";"corpus-id";"score"\n', '"{q}";"{d}";{s}\n'),
    "plain.csv": ("", "{q},{d},{s}\n"),
    "plain.tsv": ("", "{q}\t{d}\t{s}\n"),
    "trec.tsv": ("", "{q} 0 {d} {s}\n"),
    "trec_tabs.tsv": ("", "{q}\t0\t{d}\t{s}\n"),
    "trec_aligned.tsv": ("", "{q}   0  {d}  {s} \n"),
    "test.qrel": ("", "{q} 0 {d} {s}\n"),
    "spaced.qrel": ("", "{q}  0 {d} {s} \n"),
    # As pandas writes a column with an empty value.
    "beir_floats.tsv": ("query-id\tcorpus-id\tscore\n", "{q}\t{d}\t{s}.0\n"),
    "trec_floats.tsv": ("", "{q} 0 {d} {s}.00\n"),
}


def _read(path: Path, rejects: Rejects | None = None) -> Pairs:
    rows = read_judgments(path, rejects or Rejects())
    return {(row.identifier(QUERY), row.identifier(PAPER)): grade_of(row) for row in rows}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None
)
@given(PAIRS)
def test_every_layout_says_the_same(tmp_path: Path, pairs: Pairs) -> None:
    for name, (head, line) in LAYOUTS.items():
        text = head + "".join(line.format(q=q, d=d, s=s) for (q, d), s in pairs.items())
        (tmp_path / name).write_text(text)
        assert _read(tmp_path / name) == pairs, name
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        assert _read(tmp_path / f"{name}.gz") == pairs, name
    rows = [{"query_id": q, "cand_id": d, "score": float(s)} for (q, d), s in pairs.items()]
    write_jsonl(tmp_path / "qrel.jsonl", rows)
    assert _read(tmp_path / "qrel.jsonl") == pairs
    with (tmp_path / "trec.tsv").open() as file:
        theirs = pytrec_eval.parse_qrel(file)
    assert {(q, d): s for q, judged in theirs.items() for d, s in judged.items()} == pairs


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.tsv", "query-id\tscore\nq\t1\n", "file lacks the column corpus-id"),
        ("a.tsv", "query-id\tcorpus-id\tscore\nq\td\n", "a.tsv:2: wrong number of values"),
        ("a.qrel", "q 0 d 1\nq 0 d\n", "a.qrel:2: wrong number of values"),
        ("a.qrel", "q 0 d 1\nq 0 e high\n", "a.qrel:2: field 'score' is not an integer"),
        ("a.qrel", "q 0 d nan\n", "a.qrel:1: field 'score' is not an integer"),
        ("a.qrel", "q 0 d 1\nq 0 e 0.5\n", "a.qrel:2: field 'score' is not whole"),
        ("a.jsonl", '{"query_id": "q", "cand_id": "d", "score": 0.5}\n', "'score' is not whole"),
        ("a.jsonl", '{"query_id": "q", "cand_id": "d", "score": 1e300}\n', "not a 64-bit integer"),
        ("a.jsonl", '{"query_id": "q", "score": 1}\n', "missing field 'cand_id'.*add 'cand_id'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=problem):
        _read(tmp_path / name)
