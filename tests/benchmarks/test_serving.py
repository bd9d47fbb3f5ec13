"""The load test counts wrong answers, and runs against a real service."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.app import app
from benchmarks.serving import Soak, _wrong_vectors
from benchmarks.tables import soak_table
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model
from tests.torch_threads import torch_threads


def test_a_mixed_up_answer_is_counted() -> None:
    vectors = np.eye(3, dtype=np.float32)
    answers = [{"vectors": base64.b64encode(row.tobytes()).decode()} for row in vectors]
    assert _wrong_vectors(answers, vectors, 1e-4) == 0
    assert _wrong_vectors([answers[1], answers[0], answers[2]], vectors, 1e-4) == 2
    assert _wrong_vectors([429, *answers[1:]], vectors, 1e-4) == 1


@pytest.mark.ranks
def test_a_service_under_load(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", similarity="cosine")
    rows = [{"id": str(n), "title": f"graph {n}", "abstract": f"Of {n} nodes."} for n in range(12)]
    papers = tmp_path / "papers.jsonl"
    write_jsonl(papers, rows)
    arguments = ["serve", "--model", str(model), "--papers", str(papers), "--texts", "12"]
    sizes = ["--clients", "4", "--rounds", "1", "--threads", "2", "--soak", "50"]
    sizes += ["--dtype", "float32"]
    with torch_threads(torch.get_num_threads()):  # the benchmark sets its own
        done = CliRunner().invoke(app, [*arguments, *sizes])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["serving"]["checked"], report["serving"]["wrong"]) == (12, 0)
    assert (report["soak"]["requests"], report["soak"]["wrong"]) == (50, 0)
    assert report["soak"]["refused"] == {}
    assert len(report["soak"]["megabytes"]) == 10
    assert report["machine"]["threads"] == 2
    assert report["serving"]["p50"] <= report["serving"]["p99"]


def test_a_long_run_tells_refusals_from_other_wrong_answers() -> None:
    soak = Soak(50, 5, {"429": 3, "504": 1}, 10.0, [1.0] * 10)
    (note,) = soak_table(soak).notes
    assert note == "10 requests per second, 5 wrong answers, 3 of status 429, 1 of status 504"
