"""Inputs of `encode`: tables of several libraries, generators in blocks, common method names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from scimult.errors import ConfigError, DataError
from scimult.inference import SciMult
from scimult.types import Text
from tests.tiny import save_tiny_model

LINK = "link_prediction"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SciMult:
    return SciMult.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("m") / "tiny"))


FRAME = pd.DataFrame({"title": ["graphs", "trees"], "abstract": ["drawn", None], "year": [1, 2]})
TABLES = {
    "pandas": FRAME,
    "pandas without its index": FRAME.sort_index(ascending=False).iloc[::-1],
    "Arrow": pa.Table.from_pandas(FRAME),
    "Arrow batch": pa.RecordBatch.from_pandas(FRAME),
    "Arrow reader": pa.Table.from_pandas(FRAME),
    "datasets": Dataset.from_pandas(FRAME),
    "datasets, a slice": Dataset.from_pandas(FRAME)[:2],
    "datasets, a slice of arrays": Dataset.from_pandas(FRAME).with_format("numpy")[:2],
    "datasets, a slice of tensors": Dataset.from_pandas(FRAME).with_format("torch")[:2],
    "columns of pandas": {"title": FRAME["title"], "abstract": FRAME["abstract"]},
    "columns of polars": pl.from_pandas(FRAME).to_dict(),
    "datasets, streaming": Dataset.from_pandas(FRAME).to_iterable_dataset(),
    **{
        f"datasets, {kind} of {name}": table.with_format(kind)
        for kind in ("numpy", "torch", "pandas", "arrow", "polars")
        for name, table in {
            "a set": Dataset.from_pandas(FRAME),
            "a stream": Dataset.from_pandas(FRAME).to_iterable_dataset(),
        }.items()
    },
    "datasets, own function": Dataset.from_dict({"text": ["graphs", "trees"]}).with_transform(
        lambda rows: {
            "title": rows["text"],
            "abstract": ["drawn" if text == "graphs" else None for text in rows["text"]],
        }
    ),
    "columns": {"title": ["graphs", "trees"], "abstract": ("drawn", None)},
    "rows": [{"title": "graphs", "abstract": "drawn"}, {"title": "trees"}],
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_row_by_row(model: SciMult, name: str) -> None:
    """Iterating over a frame yields its column names, here as many as rows."""
    table: Any = TABLES[name].to_reader() if name == "Arrow reader" else TABLES[name]
    wanted_ND = model.encode([Text("paper", "graphs", "drawn"), Text("paper", "trees")], task=LINK)
    assert np.array_equal(model.encode(table, task=LINK), wanted_ND)


def test_columns_and_other_tables(model: SciMult) -> None:
    titles_ND = model.encode(list(FRAME["title"]), task=LINK)
    assert np.array_equal(model.encode(FRAME["title"], task=LINK), titles_ND)
    assert np.array_equal(model.encode((title for title in FRAME["title"]), task=LINK), titles_ND)
    for column in (pa.array(FRAME["title"]), pa.chunked_array([["graphs"], ["trees"]])):
        assert np.array_equal(model.encode(column, task=LINK), titles_ND)
    with pytest.raises(DataError, match="columns have different lengths .*'title': 2.*Fix: "):
        model.encode({"title": ["a", "b"], "abstract": ["c"]}, task=LINK)
    with pytest.raises(DataError, match=r"is a table \(Frame\)\. Fix: pass its rows"):
        model.encode(type("Frame", (), {"columns": ["title"]})(), task=LINK)
    with pytest.raises(DataError, match=r"a lazy frame has no rows yet\. Fix: .*collect\(\)"):
        model.encode(pl.from_pandas(FRAME).lazy(), task=LINK)
    with pytest.raises(DataError, match=r"several splits .*\['train'\].*Fix: pass one"):
        model.encode(DatasetDict({"train": Dataset.from_pandas(FRAME)}), task=LINK)


def test_two_columns_of_one_name_are_refused(model: SciMult) -> None:
    """Rows become mappings, in which only the last of them would be left."""
    twice = pd.concat([FRAME[["title"]], FRAME[["title"]]], axis=1)
    arrow = pa.table([pa.array(["graphs"])] * 2, names=["title", "title"])
    for table in (twice, arrow, arrow.to_batches()[0]):
        with pytest.raises(DataError, match=r"columns have the same name .value: \['title'\]"):
            model.encode(table, task=LINK)


def test_a_generator_is_read_a_block_at_a_time(model: SciMult) -> None:
    taken: list[int] = []

    def titles() -> Iterator[str]:
        for number in range(7):
            taken.append(number)
            yield f"graphs {number}"

    blocks = model.encode_blocks(titles(), task=LINK, role="candidate", block=3)
    first_BD = next(blocks)
    assert taken == [0, 1, 2]
    found_ND = np.concatenate([first_BD, *blocks])
    alone = [model.encode([title], task=LINK, role="candidate") for title in titles()]
    np.testing.assert_allclose(found_ND, np.concatenate(alone), atol=1e-5)
    assert model.encode(iter([]), task=LINK).shape == (0, model.width)
    with pytest.raises(DataError, match="text 4 .paper. is empty"):
        list(model.encode_blocks(["a", "b", "c", "d", " "], task=LINK, block=2))
    with pytest.raises(ConfigError, match="a block has no texts"):
        list(model.encode_blocks(["a"], task=LINK, block=0))


def test_names_of_sentence_transformers(model: SciMult) -> None:
    papers = ["graphs", {"title": "trees", "abstract": "drawn"}]
    for task in ("search", "classification"):
        query_ND = model.encode(["graphs"], task=task, role="query")
        assert np.array_equal(model.encode_query(["graphs"], task=task), query_ND)
    candidate_ND = model.encode(papers, task="search", role="candidate")
    assert np.array_equal(model.encode_document(papers), candidate_ND)
    assert np.array_equal(model.encode_query(["graphs"]), model.encode(["graphs"], task="search"))
