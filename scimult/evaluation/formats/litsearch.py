"""LitSearch in its authors' format on the Hugging Face hub (Ajith et al. 2024).

``query.jsonl`` has questions (``query``, ``corpusids`` of the answers, ``query_set``, and
``specificity``: 0 for broad, 1 for specific questions), ``corpus.jsonl`` papers (``corpusid``,
``title``, ``abstract``). Scores by set and specificity are in ``details``.
"""

from __future__ import annotations

from pathlib import Path

from scimult.data.lines import read_jsonl
from scimult.data.records import Record
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.records import Judgments, by_id, request
from scimult.evaluation.task_data import Dataset
from scimult.types import Text

BREADTH = {"0": "broad", "1": "specific"}


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files of queries and texts."""
    return [benchmark.queries or "query.jsonl", benchmark.texts or "corpus.jsonl"]


def read(source: Source) -> Dataset:
    """Read questions, numbered in file order; each searches the whole corpus."""
    path, texts = source.paths
    documents = by_id(texts, "corpusid", _paper, source.rejects)
    queries: dict[str, Text] = {}
    judgments: Judgments = {}
    groups: dict[str, str] = {}
    numbered = enumerate(read_jsonl(path, source.rejects), start=1)
    for number, question, answers, group in source.rejects.keep(numbered, _question):
        query = f"q{number}"
        queries[query], groups[query] = question, group
        judgments[query] = dict.fromkeys(answers, 1)
    return source.ranked_set(
        queries,
        documents,
        source.known_documents(judgments, documents),
        groups=groups,
    )


def _question(numbered: tuple[int, Record]) -> tuple[int, Text, list[str], str]:
    """Return a question's number, its text, the ids of its answers, and its group."""
    number, record = numbered
    breadth = str(record.fields.get("specificity"))
    group = f"{record.text('query_set')}, {BREADTH.get(breadth, breadth)}"
    return number, request(record, "query"), record.identifiers("corpusids"), group


def _paper(record: Record) -> Text:
    title, abstract = (record.fields.get(field) or "" for field in ("title", "abstract"))
    return Text("paper", str(title), str(abstract))
