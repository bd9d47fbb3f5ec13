"""A process forked from one that has computed: Celery's, gunicorn's with ``--preload``, pools."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.tiny import save_tiny_model

PARTS = {
    "encode": """
model = SciMult.from_pretrained(folder, device="cpu")
texts = [f"{'graph drawing ' * 20}{number}" for number in range(64)]
result = lambda: model.encode(texts, task="search")
""",
    "exact search": """
index = ExactIndex([str(row) for row in range(len(many))], many, "dot")
result = lambda: index.search(many[:200], k=5).scores_QK
""",
    "approximate search": """
lists = faiss_library().index_factory(64, "IVF16,Flat")
lists.train(many)
lists.add(many)
result = lambda: lists.search(many[:200], 5)[0]
""",
    "filter": """
papers = [{"id": str(n), "title": f"graph {n}", "year": 2000 + n} for n in range(9)]
library = Library.create(folder + "-library", papers, model=folder)
result = lambda: library.search("graph", k=9, where="year >= 2003").scores
""",
}
# A process that computes nothing forks one for each part, which has two threads, and ends as others
# do; that one computes, and forks its child.
PROGRAM = """
import json, os, sys, time
import numpy as np
from scimult import Library, SciMult
from scimult.library.approximate import faiss_library
from scimult.retrieval import ExactIndex
folder = sys.argv[1]
many = np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32)

def status_of(child):
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, 9)
    return "hangs"

def forked(part):
    exec(part, globals())
    expected = result()
    child = os.fork()
    if child:
        print(json.dumps(status_of(child)), flush=True)
    else:
        np.testing.assert_allclose(result(), expected, rtol=0, atol=1e-5)
    sys.exit()

for part in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        forked(part)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return how the child of each part ended: 0 is well."""
    model = str(save_tiny_model(tmp_path_factory.mktemp("forks") / "tiny"))
    command = [sys.executable, "-c", PROGRAM, model, json.dumps(list(PARTS.values()))]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    statuses = list(map(json.loads, done.stdout.splitlines()))
    assert len(statuses) == len(PARTS), done.stderr[-2000:]
    return dict(zip(PARTS, statuses, strict=True))


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenMP's pool of Linux")
@pytest.mark.parametrize("part", PARTS)
def test_a_forked_process_computes(statuses: dict[str, object], part: str) -> None:
    """It waited for threads of its parent forever (see scimult.forks), and ends as others do.

    float32's sums of other numbers of threads, in another order, differ by less than 1e-5.
    """
    assert statuses[part] == 0
