"""Raw files of every converter: complete or absent, in any order, and trainable."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.config import load_config
from scimult.data.batches import BatchBuilder, all_known_positives
from scimult.data.pair_streams import pair_streams
from scimult.data.records import Record, Rejects
from scimult.data.sampler import PlannedPart
from scimult.errors import DataError, StorageError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.sources import SOURCES, convert
from scimult.preparation.sources.raw import RawSource
from tests.public import Content, run, table, write_files
from tests.tiny import tiny_tokenizer

Steps = list[tuple[str, Any]]
PLACE = Record(Path("made-up.jsonl"), 1, {})


@pytest.mark.long
@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 6), unique=True, min_size=1),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_pairs_may_come_before_their_papers(
    tmp_path_factory: pytest.TempPathFactory,
    papers: list[int],
    links: list[tuple[int, int]],
    random: Any,
) -> None:
    steps: Steps = [("paper", paper) for paper in papers] + [("link", link) for link in links]
    random.shuffle(steps)
    folder = tmp_path_factory.mktemp("raw")
    with RawSource(folder, "x", Rejects(skip_bad=True)) as raw:
        for what, value in steps:
            if what == "paper":
                raw.paper(PLACE, str(value), "A title", "")
            else:
                raw.link(PLACE, str(value[0]), str(value[1]), 1)
        raw.finish()
    known = [(a, b) for a, b in links if a != b and {a, b} <= set(papers)]
    itself = sum(a == b for a, b in links)
    assert raw.counts["links"] == len(known)
    assert raw.counts["pairs of a paper with itself"] == itself
    assert raw.counts["links without a text"] == len(links) - len(known) - itself
    assert not list((folder / "x").glob("all.*"))


# Fields of a paper record; every value may be missing.
RECORDS = st.fixed_dictionaries(
    {
        "title": st.sampled_from(["A title", "a  TITLE", "Another"]),
        "abstract": st.sampled_from(["", "Words.", "Other words."]),
        "authors": st.lists(st.sampled_from("abc"), max_size=3, unique=True),
        "venue": st.sampled_from(["", "V", "W"]),
        "year": st.sampled_from([None, 2000, 2001]),
        "doi": st.sampled_from(["", "10.1/x"]),
        "labels": st.lists(st.sampled_from("xyz"), max_size=3, unique=True),
    }
)


@pytest.mark.long
@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["p", "q"]), RECORDS), min_size=1, max_size=8))
def test_a_repeated_paper_has_what_all_its_records_say(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, dict[str, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("raw")
    with RawSource(folder, "x", Rejects()) as raw:
        for line, (name, fields) in enumerate(records, start=1):
            raw.paper(Record(PLACE.path, line, {}), name, **fields)
        raw.finish()
    rows = pq.read_table(folder / "x" / "papers.parquet").to_pylist()
    written = {paper["id"]: paper for paper in rows}
    assert list(written) == list(dict.fromkeys(name for name, _ in records))
    conflicts = Counter[str]()
    for name, paper in written.items():
        of = [fields for other, fields in records if other == name]
        for field in ("authors", "labels"):
            every = {value for fields in of for value in fields[field]}
            assert set(paper[field] or ()) == every
            assert len(paper[field] or ()) == len(every)
        for field in ("title", "abstract", "venue", "year", "doi"):
            values = [fields[field] for fields in of if fields[field] not in ("", None)]
            assert (paper.get(field) or None) == (values[0] if values else None)
            different = {str(value).casefold().replace("  ", " ") for value in values}
            conflicts[f"papers with more than one {field}"] += len(different) > 1
    assert {k: v for k, v in raw.counts.items() if "more than one" in k} == +conflicts
    assert sum("more than one" in note for note in raw.notes) == len(+conflicts)
    assert raw.counts["papers"] + raw.counts["papers repeated"] == len(records)
    without = sum(not paper["abstract"] for paper in written.values())
    assert raw.counts["papers with empty abstract"] == without
    assert [path.name for path in (folder / "x").iterdir()] == ["papers.parquet"]


def test_another_title_and_year_are_counted_and_named(tmp_path: Path) -> None:
    with RawSource(tmp_path, "x", Rejects()) as raw:
        raw.paper(PLACE, "p", "One title", "Words.", year=2001)
        raw.paper(Record(PLACE.path, 7, {}), "p", "Two", "words.", year=2002)
        raw.finish()
    assert raw.notes == [
        "papers with more than one title: 1, such as made-up.jsonl:7: 'Two' for 'p', which keeps "
        "'One title'",
        "papers with more than one year: 1, such as made-up.jsonl:7: 2002 for 'p', which keeps "
        "2001",
    ]


def test_another_name_of_a_label_is_counted_and_named(tmp_path: Path) -> None:
    with RawSource(tmp_path, "x", Rejects()) as raw:
        raw.label(PLACE, "l", "Optics")
        raw.label(PLACE, "l", "Optics ")
        raw.label(Record(PLACE.path, 7, {}), "l", "Photonics")
        raw.label(Record(PLACE.path, 8, {}), "l", "Light")
    assert (raw.counts["labels"], raw.counts["labels repeated"]) == (1, 3)
    assert raw.counts["labels with more than one name"] == 2
    (note,) = raw.notes
    assert note.endswith("made-up.jsonl:7: 'Photonics' for 'l', which keeps 'Optics'")


@pytest.mark.parametrize("identifier", ["a\tb", "a\nb", "a\r"])
def test_an_id_that_would_break_a_table_is_refused(tmp_path: Path, identifier: str) -> None:
    with RawSource(tmp_path, "x", Rejects()) as raw:
        with pytest.raises(DataError, match="line break or control"):
            raw.paper(PLACE, identifier, "A title", "")
        with pytest.raises(DataError, match="line break or control"):
            raw.link(PLACE, "1", identifier, 1)


def test_nothing_but_a_raw_folder_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "thesis.tex").write_text("years of work")
    with pytest.raises(StorageError, match="not a folder of raw files"):
        run(tmp_path, "dpr", {})
    assert (tmp_path / "raw" / "thesis.tex").is_file()


def test_every_source_says_where_it_comes_from_and_is_documented(repository: Path) -> None:
    page = (repository / "docs" / "sources.md").read_text(encoding="utf-8")
    for name in SOURCES:
        source = SOURCES[name]
        assert source.name == name
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for needed in ("* Get it: ", "* Licence: ", "* Expected", f"scimult prepare {name} "):
            assert needed in section, (name, needed)
        assert source.url.split(" ")[0].strip("()") in page or name == "table"


LONG = "many words " * 2000


def _big(source: str, count: int) -> dict[str, Content]:
    """Return a download of ``count`` papers with texts of 22 kB."""
    ids = [f"paper-{i}" for i in range(count)]
    if source == "specter":
        links = {a: {b: {"count": 5}} for a, b in pairwise(ids)}
        metadata = {name: {"title": name, "abstract": LONG} for name in ids}
        return {"data.json": links, "metadata.json": metadata}
    qrels = [("query-id", "corpus-id", "score"), *(("q", name, 1) for name in ids)]
    return {
        "corpus.jsonl": [{"_id": name, "title": name, "text": LONG} for name in ids],
        "queries.jsonl": [{"_id": "q", "text": "words"}],
        "qrels/train.tsv": table(*qrels),
    }


@pytest.mark.long
@pytest.mark.parametrize("source", ["specter", "beir"])
def test_memory_grows_with_ids_and_not_with_texts(tmp_path: Path, source: str) -> None:
    peaks = []
    for count in (200, 800):
        download = write_files(tmp_path / f"in{count}", _big(source, count))
        public = SOURCES[source]
        tracemalloc.start()
        convert(public, public.options(), download, tmp_path / f"raw{count}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # An id in a set takes about 150 bytes; 2 kB leave room, a text has 22 kB.
    assert peaks[1] - peaks[0] < 600 * 2_000


JUDGED: dict[str, Content] = {
    "corpus.jsonl": [{"_id": f"d{i}", "title": f"Title {i}", "text": "words"} for i in range(3)],
    "queries.jsonl": [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)],
    "qrels/train.tsv": table(
        ("query-id", "corpus-id", "score"),
        *(("q0", "d0", 1), ("q0", "gone", 1), ("q1", "gone", 1), ("q1", "d1", 0), ("q2", "d2", 0)),
    ),
}


def test_a_query_whose_only_answer_is_dropped_goes_with_its_judgments(tmp_path: Path) -> None:
    found = run(tmp_path, "beir", JUDGED, dangling={"judgments": "drop"})
    assert found.pairs("beir", "judgments") == [("q0", "d0", "1")]
    assert [row["id"] for row in found.rows("beir", "queries")] == ["q0"]
    assert found.counts("beir") == {
        "papers": 3,
        "queries": 1,
        "judgments": 1,
        "judgments without a text": 2,
        "judgments of queries without a positive": 2,
        "queries without a positive": 2,
    }
    assert found.prepare(tmp_path / "out").pairs("train")


def test_parquet_that_no_conversion_wrote_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    found = run(tmp_path, "beir", JUDGED, dangling={"judgments": "drop"})
    path = found.folder / "beir" / "papers.parquet"
    whole = path.read_bytes()
    for content, problem in ((whole[:-9], "cut off or damaged"), (whole, "not text but Parquet")):
        path.write_bytes(content)
        if content == whole:
            pq.write_table(pq.read_table(path).replace_schema_metadata(), path)
        with pytest.raises(DataError, match=problem) as caught:
            found.prepare(tmp_path / "out")
        assert caught.value.path == path
        assert str(caught.value).count("Fix: ") == 1


def test_from_a_download_to_a_training_batch(tmp_path: Path) -> None:
    qrels = ("query-id", "corpus-id", "score")
    files = {
        "corpus.jsonl": [
            {"_id": f"d{i}", "title": "graph node", "text": f"data {i}"} for i in range(6)
        ],
        "queries.jsonl": [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)],
        "qrels/train.tsv": table(
            qrels, *[(f"q{i}", f"d{2 * i + k}", 1 - k) for i in range(3) for k in (0, 1)]
        ),
    }
    found = run(tmp_path, "beir", files)
    # The file that the converter wrote is a configuration of prepare.
    config = load_config(DatasetConfig, found.folder / "sources.yaml", ["dev_fraction=0"])
    tokenizer = tiny_tokenizer()
    data, rejects = build_dataset(config, tmp_path / "out", tokenizer=tokenizer)
    assert rejects.counts == {}
    sources = data.pairs("train")
    planned = PlannedPart(0, pair_streams(sources, 0)[0].rows(0, 3))
    builder = BatchBuilder(
        sources, data.tokens(tokenizer), all_known_positives(data), max_length=32
    )
    (batch,) = builder.micro_batch([planned], 0).parts
    ids = data.texts.ids
    pairs = {
        (ids[int(query)], ids[int(batch.candidate_ids_C[row])])
        for row, query in enumerate(batch.query_ids_B)
    }
    assert pairs == {(f"beir/query:q{i}", f"beir:d{2 * i}") for i in range(3)}
    hard = {
        (ids[int(batch.query_ids_B[row])], ids[int(batch.candidate_ids_C[3 + k])])
        for k, row in enumerate(batch.negative_rows_H)
    }
    assert hard == {(f"beir/query:q{i}", f"beir:d{2 * i + 1}") for i in range(3)}
