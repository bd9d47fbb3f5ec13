"""Layouts of search data: BEIR, MS MARCO, DPR, sentence-transformers, unarXive, InPars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scimult.config import apply_overrides
from scimult.errors import ConfigError, DataError
from tests.public import Content, run, table

QRELS = ("query-id", "corpus-id", "score")
BEIR: dict[str, Content] = {
    "corpus.jsonl": [
        {"_id": "d1", "title": "One", "text": "First.", "metadata": {}},
        {"_id": "d2", "title": "", "text": "Second."},
        {"_id": "d3", "title": "Three", "text": ""},
    ],
    "queries.jsonl": [{"_id": f"q{i}", "text": f"find {i}"} for i in range(4)],
    "qrels/train.tsv": table(QRELS, ("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d3", 0)),
    "qrels/test.tsv": table(QRELS, ("q3", "d3", 1)),
}


def test_beir_takes_the_queries_that_a_split_answers(tmp_path: Path) -> None:
    found = run(tmp_path, "beir", BEIR, name="mini")
    assert found.rows("mini", "queries") == [{"id": "q1", "text": "find 1"}]
    assert found.pairs("mini", "judgments") == [("q1", "d1", "2"), ("q1", "d2", "0")]
    assert found.counts("mini") == {
        "queries": 1,
        "queries without a positive": 3,
        "papers": 3,
        "papers with empty abstract": 1,
        "judgments": 2,
        "judgments of queries without a positive": 1,
    }


def test_beir_merges_splits_and_reads_gzip(tmp_path: Path) -> None:
    files = {f"{name}.gz": rows for name, rows in BEIR.items() if name.endswith(".jsonl")}
    files |= {name: rows for name, rows in BEIR.items() if name.endswith(".tsv")}
    found = run(tmp_path, "beir", files, splits=["train", "test"], score_threshold=1)
    assert [row["id"] for row in found.rows("beir", "queries")] == ["q1", "q3"]


HEADERLESS = {
    "three columns": "q1\td1\t2\nq1\td2\t0\nq2\td3\t0\n",
    "TREC, tabs": "q1\t0\td1\t2\nq1\t0\td2\t0\nq2\t0\td3\t0\n",
    "TREC, spaces": "q1 Q0 d1 2\nq1 Q0 d2 0\nq2 Q0 d3 0\n",
}


@pytest.mark.parametrize("kind", list(HEADERLESS))
def test_qrels_without_a_header_are_read_as_those_with_one(tmp_path: Path, kind: str) -> None:
    with_header = run(tmp_path / "a", "beir", BEIR)
    without = run(tmp_path / "b", "beir", BEIR | {"qrels/train.tsv": HEADERLESS[kind]})
    assert without.pairs("beir", "judgments") == with_header.pairs("beir", "judgments")
    assert without.counts("beir") == with_header.counts("beir")


def test_a_folder_without_the_split_names_those_that_are_there(tmp_path: Path) -> None:
    files = {name: rows for name, rows in BEIR.items() if name != "qrels/train.tsv"}
    with pytest.raises(DataError) as caught:
        run(tmp_path, "beir", files | {"qrels/dev.tsv": table(QRELS)})
    message = str(caught.value)
    assert "qrels/train.tsv: file does not exist" in message
    assert "splits=[dev, test]" in message.partition("Fix: ")[2]
    assert "download" not in message.partition("Fix: ")[2]


MARCO: dict[str, Content] = {
    "collection.tsv": table(*[(i, f'passage "{i}" text') for i in range(6)]),
    "queries.train.tsv": table((100, "what is a cat"), (101, "who was that"), (102, "why")),
}
MARCO_KINDS: dict[str, dict[str, Content]] = {
    "ids": {"qidpidtriples.train.full.2.tsv": table((100, 1, 2), (100, 1, 3), (101, 4, 1))},
    "mined": {
        "msmarco-hard-negatives.jsonl.gz": [
            {"qid": 100, "pos": [1], "neg": {"bm25": [2, 5], "dense": [3, 2]}},
            {"qid": 101, "pos": [4], "neg": {"bm25": [1]}},
            {"qid": 102, "pos": [], "neg": {"bm25": [1]}},
        ]
    },
}


@pytest.mark.parametrize("kind", list(MARCO_KINDS))
def test_msmarco_triples_by_id(tmp_path: Path, kind: str) -> None:
    # Of query 100 only the two first negatives: 2 and 3 (the best of each system).
    found = run(tmp_path, "msmarco", MARCO | MARCO_KINDS[kind], max_negatives=2)
    assert found.pairs("msmarco", "judgments") == [
        ("100", "1", "1"),
        ("100", "2", "0"),
        ("100", "3", "0"),
        ("101", "1", "0"),
        ("101", "4", "1"),
    ]
    assert found.rows("msmarco", "papers")[0] == {
        "id": "0",
        "title": "",
        "abstract": 'passage "0" text',
    }
    assert [row["id"] for row in found.rows("msmarco", "queries")] == ["100", "101"]
    counts = found.counts("msmarco")
    assert (counts["triples"], counts["queries"], counts["papers"]) == (3, 2, 6)
    assert counts.get("triples without a positive", 0) == (kind == "mined")
    assert counts.get("negatives above max_negatives", 0) == (kind == "mined")


def test_a_quote_in_msmarco_is_a_character(tmp_path: Path) -> None:
    """A quoted field would end at the next quote, passages later."""
    passages = ['"To be', "or not", 'to be" he said', '"quoted"', "x", "y"]
    collection = {"collection.tsv": table(*enumerate(passages))}
    found = run(tmp_path, "msmarco", MARCO | MARCO_KINDS["ids"] | collection)
    assert [row["abstract"] for row in found.rows("msmarco", "papers")] == passages


def test_msmarco_triples_as_texts(tmp_path: Path) -> None:
    rows = (("cats?", "Cats are.", "Dogs are."), ("cats?", "Cats are.", "Cows are."))
    found = run(tmp_path, "msmarco", {"triples.train.small.tsv": table(*rows)})
    text = {row["id"]: row["text"] for row in found.rows("msmarco", "queries")}
    text |= {row["id"]: row["abstract"] for row in found.rows("msmarco", "papers")}
    judged = {(text[q], text[p], score) for q, p, score in found.pairs("msmarco", "judgments")}
    assert judged == {
        ("cats?", "Cats are.", "1"),
        ("cats?", "Dogs are.", "0"),
        ("cats?", "Cows are.", "0"),
    }


DPR = [
    {
        "question": "who?",
        "answers": ["she"],
        "positive_ctxs": [{"title": "She", "text": "She did.", "passage_id": 7}],
        "negative_ctxs": [{"title": "No", "text": "Nobody.", "passage_id": 8}],
        "hard_negative_ctxs": [{"title": "He", "text": "He did not."}],
    },
    {"question": "when?", "positive_ctxs": [], "hard_negative_ctxs": []},
]


@pytest.mark.parametrize(
    ("negatives", "titles"),
    [(["hard_negative_ctxs"], {"He"}), (["hard_negative_ctxs", "negative_ctxs"], {"He", "No"})],
)
def test_dpr(tmp_path: Path, negatives: list[str], titles: set[str]) -> None:
    found = run(tmp_path, "dpr", {"train.json": DPR}, negatives=negatives)
    papers = {row["id"]: row["title"] for row in found.rows("dpr", "papers")}
    judged = found.pairs("dpr", "judgments")
    assert {papers[p] for _, p, score in judged if score == "1"} == {"She"}
    assert {papers[p] for _, p, score in judged if score == "0"} == titles
    assert found.counts("dpr")["questions without a positive"] == 1


SENTENCES: list[tuple[str, Any]] = [
    ("train.jsonl", [["a", "p", "n"], ["b", "p"]]),
    ("train.jsonl.gz", [{"query": "a", "pos": ["p"], "neg": ["n"]}, {"query": "b", "pos": ["p"]}]),
    ("train.csv", "anchor,positive,negative\na,p,n\nb,p,n\n"),
    ("train.parquet", [{"anchor": "a", "positive": "p", "negative_1": "n"}]),
]


@pytest.mark.parametrize(("name", "rows"), SENTENCES)
def test_sentence_transformers_rows(tmp_path: Path, name: str, rows: Any) -> None:
    found = run(tmp_path, "sentence-triples", {name: rows}, files=[name])
    source = "sentence-triples"
    text = {row["id"]: row["text"] for row in found.rows(source, "queries")}
    text |= {row["id"]: row["abstract"] for row in found.rows(source, "papers")}
    judged = {
        (text[query], text[positive], score, text.get(negative, ""))
        for query, positive, score, negative in found.pairs(source, "judgments")
    }
    assert ("a", "p", "1", "n") in judged
    assert judged <= {("a", "p", "1", "n"), ("b", "p", "1", "n"), ("b", "p", "1", "")}


def test_sentence_transformers_papers_and_sets(tmp_path: Path) -> None:
    rows = [{"set": ["T [SEP] body", "U [SEP] other", "V"]}]
    options = apply_overrides({}, ["anchor=paper", "separator=[SEP]"])
    found = run(tmp_path, "sentence-triples", {"train.jsonl": rows}, **options)
    papers = {row["id"]: row for row in found.rows("sentence-triples", "papers")}
    links = found.pairs("sentence-triples", "links")
    named = {(papers[a]["title"], papers[b]["abstract"]) for a, b, _, _ in links}
    assert named == {("T", "other"), ("T", "V")}


CONTEXTS: dict[str, Content] = {
    "collection.tsv": table(
        ("1001.1", '"A ""quoted"" title"', "Text.", "cs.CL"),
        ("1002.2", "Two", "Text.", "cs.IR"),
        ("1003.3", "Three", "Text.", "cs.IR"),
    ),
    "contexts.jsonl": [
        {"text": "It was shown twice.", "cited_ids": ["1001.1", "1002.2"]},
        {"text": "And once.", "cited_ids": ["1003.3"]},
    ],
}


def test_contexts_of_unarxive_and_papers_cited_together(tmp_path: Path) -> None:
    found = run(tmp_path, "multi-objective-contexts", CONTEXTS)
    assert found.rows("unarxive-context2doc", "papers")[0]["title"] == 'A "quoted" title'
    text = {row["id"]: row["text"] for row in found.rows("unarxive-context2doc", "queries")}
    judged = found.pairs("unarxive-context2doc", "judgments")
    assert {(text[query], paper) for query, paper, _ in judged} == {
        ("It was shown twice.", "1001.1"),
        ("It was shown twice.", "1002.2"),
        ("And once.", "1003.3"),
    }
    assert found.pairs("unarxive-doc2doc", "links") == [("1001.1", "1002.2", "1")]
    assert [found.counts(name)["contexts"] for name in found.conversion.counts] == [2, 2]
    with pytest.raises(DataError, match="use scimult prepare multi-objective-contexts"):
        run(tmp_path / "former", "unarxive", CONTEXTS)


INPARS = [
    {"query": "good query", "doc_id": "d1", "doc_text": "First.", "log_probs": [-0.1, -0.3]},
    {"query": "bad query", "doc_id": "d2", "doc_text": "Second.", "log_probs": [-2.0]},
    {"question": "fair query", "doc_id": "d1", "doc_text": "First.", "log_probs": [-0.9, -0.1]},
]


def test_columns_of_other_toolkits_are_left_out_when_asked(tmp_path: Path) -> None:
    """FlagEmbedding's training files have four more columns."""
    row = {"query": "who?", "pos": ["a", "b"], "neg": ["c"], "pos_scores": [1, 1], "prompt": "x"}
    files = {"train.jsonl": [row]}
    found = run(tmp_path, "sentence-triples", files, ignore=["pos_scores", "prompt"])
    judged = found.pairs("sentence-triples", "judgments")
    assert sorted(row[2] for row in judged) == ["0", "1", "1"]


def test_inpars_keeps_the_likeliest_queries(tmp_path: Path) -> None:
    found = run(tmp_path, "inpars", {"queries.jsonl": INPARS}, keep_top=2)
    queries = [row["text"] for row in found.rows("inpars", "queries")]
    assert queries == ["good query", "fair query"]
    assert {paper for _, paper, _ in found.pairs("inpars", "judgments")} == {"d1"}
    assert found.counts("inpars")["rows below keep_top"] == 1


def test_inpars_counts_a_row_that_it_cannot_score_once(tmp_path: Path) -> None:
    rows = [*INPARS, {"query": "unscored", "doc_id": "d3", "doc_text": "Third."}]
    found = run(tmp_path, "inpars", {"queries.jsonl": rows}, skip_bad=True, keep_top=2)
    assert found.conversion.rejects.counts == {"row has no list of log_probs": 1}
    assert found.counts("inpars")["rows below keep_top"] == 1


def test_inpars_of_two_collections_that_share_ids_are_not_mixed(tmp_path: Path) -> None:
    # Files as in github.com/zetaalphavector/InPars; FiQA and SciFact both have a document 11.
    row = {"query": "what is a split", "doc_id": "11", "doc_text": "Shares.", "log_probs": [-0.1]}
    other = {**row, "query": "does zinc bind insulin", "doc_text": "Zinc."}
    files: dict[str, Content] = {"fiqa/queries.jsonl": [row, row], "scifact/queries.jsonl": [other]}
    with pytest.raises(DataError, match=r"scifact/queries\.jsonl:1: doc_id has two texts"):
        run(tmp_path, "inpars", files, files=sorted(files))


def test_inpars_finds_documents_in_a_corpus(tmp_path: Path) -> None:
    files = {"queries.jsonl": INPARS, "corpus.jsonl": BEIR["corpus.jsonl"]}
    found = run(tmp_path, "inpars", files, corpus="corpus.jsonl")
    assert found.rows("inpars", "papers")[0]["title"] == "One"
    assert len(found.pairs("inpars", "judgments")) == 3


@pytest.mark.parametrize(
    ("source", "files", "problem"),
    [
        ("beir", {k: v for k, v in BEIR.items() if k != "qrels/train.tsv"}, "qrels/train.tsv"),
        ("beir", BEIR | {"qrels/train.tsv": "q1\td1\tyes\n"}, "file lacks the column query-id"),
        ("beir", BEIR | {"qrels/train.tsv": "q1\td1\n"}, "file lacks the column query-id"),
        ("beir", BEIR | {"qrels/train.tsv": table(QRELS, ("q1", "d9", 1))}, "(value: 'd9')"),
        ("beir", BEIR | {"qrels/train.tsv": table(QRELS, ("q9", "d1", 1))}, "(value: 'q9')"),
        ("beir", BEIR | {"qrels/train.tsv": table(QRELS, ("q1", "d1", "x"))}, "finite number"),
        ("beir", BEIR | {"qrels/train.tsv": table(QRELS, ("", "d1", 1))}, "is empty"),
        ("beir", BEIR | {"queries.jsonl": [{"id": "q1", "text": "x"}]}, "missing field '_id'"),
        ("msmarco", MARCO, "holds no triples"),
        ("msmarco", MARCO_KINDS["ids"], "file does not exist"),
        ("dpr", {"train.json": '[{"question": "who?"'}, "JSON file is cut off or damaged"),
        ("dpr", {"train.json": [{"question": "who?"}]}, "'positive_ctxs' is not a list"),
        ("sentence-triples", {"train.jsonl": [["alone"]]}, "at least one positive"),
        (
            "sentence-triples",
            {"train.jsonl": [{"anchor": "a", "positive": "p", "score": 0.1}]},
            "unknown column (value: 'score')",
        ),
        (
            "multi-objective-contexts",
            CONTEXTS | {"collection.tsv": "1001.1\tTitle\n"},
            "wrong number of values",
        ),
        (
            "multi-objective-contexts",
            CONTEXTS | {"contexts.jsonl": [{"text": "x", "cited_ids": ["9"]}]},
            "without a text",
        ),
        ("inpars", {"queries.jsonl": [{"query": "x"}]}, "missing field 'text'"),
    ],
)
def test_bad_downloads(
    tmp_path: Path, source: str, files: dict[str, Content], problem: str
) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, source, files)
    assert problem in str(caught.value)
    assert str(caught.value).count("Fix: ") == 1
    assert not (tmp_path / "raw").exists()


def test_options_are_strict(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'splits'"):
        run(tmp_path, "beir", {}, split=["train"])


def test_skipped_rows_are_counted_and_named(tmp_path: Path) -> None:
    qrels = table(QRELS, ("q1", "d1", 1), ("q1", "d9", 1), ("q1", "d2", "?"), ("", "d2", 1))
    found = run(tmp_path, "beir", BEIR | {"qrels/train.tsv": qrels}, skip_bad=True)
    assert found.pairs("beir", "judgments") == [("q1", "d1", "1")]
    lines = (found.folder / "rejects.jsonl").read_text().splitlines()
    assert sorted((json.loads(line)["line"], json.loads(line)["reason"]) for line in lines) == [
        (3, "pair names a paper without a text"),
        (4, "field 'score' is not a finite number"),
        (5, "field 'query-id' is empty"),
    ]
