"""A process forked from one that has computed: Celery's, gunicorn's with ``--preload``, pools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import save_tiny_model

PARTS = {
    "encode": """
from scimult import SciMult
model = SciMult.from_pretrained(sys.argv[1], device="cpu")
texts = [f"{'graph drawing ' * 20}{number}" for number in range(64)]
result = lambda: model.encode(texts, task="search")
""",
    "exact search": """
from scimult.retrieval import ExactIndex
index = ExactIndex([str(row) for row in range(len(many))], many, "dot")
result = lambda: index.search(many[:200], k=5).scores_QK
""",
    "approximate search": """
from scimult.library.approximate import faiss_library
lists = faiss_library().index_factory(64, "IVF16,Flat")
lists.train(many)
lists.add(many)
result = lambda: lists.search(many[:200], 5)[0]
""",
    "filter": """
from scimult import Library
papers = [{"id": str(n), "title": f"graph {n}", "year": 2000 + n} for n in range(9)]
library = Library.create(sys.argv[1] + "-library", papers, model=sys.argv[1])
result = lambda: library.search("graph", k=9, where="year >= 2003").scores
""",
}
# In a process of its own, with two threads and none of other tests.
PROGRAM = """
import os, sys, time
import numpy as np
many = np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32)
{part}
expected = result()
child = os.fork()
if not child:
    np.testing.assert_allclose(result(), expected, rtol=0, atol=1e-5)
    sys.exit()
for _ in range(600):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit("the child ended with an error" if status else 0)
    time.sleep(0.1)
os.kill(child, 9)
sys.exit("the child hangs")
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenMP's pool of Linux")
@pytest.mark.parametrize("part", PARTS)
def test_a_forked_process_computes(tmp_path: Path, part: str) -> None:
    """It waited for threads of its parent forever (see scimult.forks), and ends as others do.

    float32's sums of other numbers of threads, in another order, differ by less than 1e-5.
    """
    model = str(save_tiny_model(tmp_path / "tiny"))
    command = [sys.executable, "-c", PROGRAM.format(part=PARTS[part]), model]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
