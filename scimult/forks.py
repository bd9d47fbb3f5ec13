"""Processes that are forked from one that has computed on several threads."""

from __future__ import annotations

import os
import sys
from functools import cache


@cache
def survive_forks() -> None:
    """Let processes that are forked from now on compute, on one thread each.

    The threads of OpenMP's pool stay with the parent, and a child would wait for them forever
    (huggingface/sentence-transformers#1318).
    """
    os.register_at_fork(after_in_child=_use_one_thread)


def _use_one_thread() -> None:
    torch, faiss = map(sys.modules.get, ("torch", "faiss"))
    if torch is not None:
        torch.set_num_threads(1)
    if faiss is not None:
        faiss.omp_set_num_threads(1)
