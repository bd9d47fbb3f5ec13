"""MTEB tasks with in-memory data, and their registration."""

from __future__ import annotations

import sys
from typing import Any

import datasets
import mteb
import pytest
from mteb.abstasks.retrieval import AbsTaskRetrieval

from scimult.evaluation.task_data import Dataset
from tests.benchmark_sets import CORPUS


def metadata(name: str, kind: str, main_score: str) -> Any:
    """Describe a task that is on no hub."""
    return mteb.TaskMetadata(
        name=name,
        description="made for a test",
        dataset={"path": f"local/{name}", "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=main_score,
    )


def ranking_task(data: Dataset, name: str = "LocalSearch") -> type[Any]:
    """Make a task from one of our data sets: retrieval, or reranking if it lists candidates."""
    reranks = data.lists is not None

    class Local(AbsTaskRetrieval):
        def load_data(self, *args: Any, **kwargs: Any) -> None:
            rows = [
                {"id": row["_id"], "title": row["title"], "text": row["text"]} for row in CORPUS
            ]
            asked = zip(data.query_ids, data.queries, strict=True)
            queries = [{"id": query, "text": text.joined} for query, text in asked]
            judged = zip(data.query_ids, data.qrels.rows, data.qrels.grades, strict=True)
            split = {
                "corpus": datasets.Dataset.from_list(rows),
                "queries": datasets.Dataset.from_list(queries),
                "relevant_docs": {
                    query: {
                        data.candidate_ids[row]: int(grade)
                        for row, grade in zip(found, grades, strict=True)
                    }
                    for query, found, grades in judged
                },
                "top_ranked": _listed(data),
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    kind, main = ("Reranking", "map_at_1000") if reranks else ("Retrieval", "ndcg_at_10")
    Local.metadata = metadata(name, kind, main)
    return Local


def _listed(data: Dataset) -> dict[str, list[str]] | None:
    if data.lists is None:
        return None
    return {
        query: [data.candidate_ids[row] for row in rows]
        for query, rows in zip(data.query_ids, data.lists, strict=True)
    }


def register(monkeypatch: pytest.MonkeyPatch, *tasks: type[Any]) -> None:
    """Let MTEB find the tasks by name during a test."""
    module = sys.modules["mteb.get_tasks"]
    named = {task.metadata.name: task for task in tasks}
    monkeypatch.setattr(module, "TASK_LIST", (*module.TASK_LIST, *tasks))
    monkeypatch.setattr(module, "_TASKS_REGISTRY", {**module._TASKS_REGISTRY, **named})
