"""Processes that are forked from one whose libraries have started threads.

The threads stay with the parent, and a child would wait for them forever: at its first product
(huggingface/sentence-transformers#1318), or when it uses or closes the parent's connection to
DuckDB (duckdb/duckdb-python#292), be it at its own end.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any
from weakref import WeakSet

_OWN_ALONE: WeakSet[Any] = WeakSet()


@cache
def survive_forks() -> None:
    """Let processes that are forked from now on compute, on one thread each."""
    os.register_at_fork(after_in_child=_make_safe)


def never_close_in_forks(connection: object) -> None:
    """Keep a connection open in processes that are forked from now on; they must not use it."""
    survive_forks()
    _OWN_ALONE.add(connection)


def _make_safe() -> None:
    torch, faiss = map(sys.modules.get, ("torch", "faiss"))
    if torch is not None:
        torch.set_num_threads(1)
    if faiss is not None:
        faiss.omp_set_num_threads(1)
    for connection in _OWN_ALONE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
