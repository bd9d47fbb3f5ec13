"""A tiny model and papers for library tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scimult.inference import SciMult
from scimult.library import Library
from scimult.library.encoding import create_library
from tests.tiny import save_tiny_model

WORDS = "graph protein matrix kernel vision speech token network plasma quantum".split()


def paper(number: int, version: int = 0, **columns: Any) -> dict[str, Any]:
    """Return one of many different papers."""
    words = [WORDS[(number * step + version) % len(WORDS)] for step in (1, 3, 7)]
    return {
        "id": f"p{number:03d}",
        "title": f"{words[0]} {number} of {words[1]} {version}",
        "abstract": "" if number % 3 == 0 else f"We study {words[2]}.",
        **columns,
    }


def dated(count: int) -> list[dict[str, Any]]:
    """Return papers with a year, a venue and labels."""
    return [
        paper(i, year=2000 + i % 10, venue="ACL" if i % 2 else None, labels=[WORDS[i % 4]])
        for i in range(count)
    ]


PAPERS = dated(40)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", similarity="cosine")


@pytest.fixture(scope="session")
def model(model_folder: Path) -> SciMult:
    return SciMult.from_pretrained(model_folder)


def made(
    folder: Path,
    model: SciMult,
    papers: list[dict[str, Any]],
    tasks: Sequence[str] = (),
    **options: Any,
) -> Library:
    """Create a library with an open model."""
    create_library(
        folder, model, folder.parent / "model", {}, tasks, options.get("precision", "float32")
    )
    library = Library.open(folder, model=model)
    library.add(papers)
    return library


def small_library(root: Path, count: int, dtype: str = "auto") -> Library:
    """Create a library of dated papers in ``root``, next to a tiny model."""
    model = save_tiny_model(root / "model", similarity="cosine")
    return Library.create(root / "library", dated(count), model=model, dtype=dtype)


@pytest.fixture(scope="session")
def dated_library(model: SciMult, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Return a library of ``PAPERS``, which no test may change."""
    return made(tmp_path_factory.mktemp("dated") / "library", model, PAPERS)


def scores_of(model: SciMult, query: str) -> dict[str, float]:
    """Return the score of each of ``PAPERS``, by id."""
    papers_ND = model.encode(PAPERS, task="search", role="candidate")
    scores_N = papers_ND @ model.encode([query], task="search")[0]
    return {row["id"]: float(score) for row, score in zip(PAPERS, scores_N, strict=True)}


@pytest.fixture
def make(model: SciMult, tmp_path: Path) -> Callable[..., Library]:
    """Return a function that creates a library of papers."""

    def make_one(papers: list[dict[str, Any]], name: str = "library", **options: Any) -> Library:
        return made(tmp_path / name, model, papers, **options)

    return make_one


def contents(library: Library) -> dict[str, tuple[Any, ...]]:
    """Return every paper's title, abstract and columns, by id."""
    rows = library.state.live_rows()
    table = library.state.papers.table(rows).to_pylist()
    assert len({row["id"] for row in table}) == len(table)
    return {row["id"]: (row["title"], row["abstract"], row.get("year")) for row in table}
