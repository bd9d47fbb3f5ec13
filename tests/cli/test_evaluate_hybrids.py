"""Ensembles, fusion, reranking and BM25 with other analyses in ``scimult evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import evaluated
from tests.tiny import save_cross_encoder, save_static_embeddings, save_tiny_model


def test_two_models_are_evaluated_as_one(suite: Path) -> None:
    one, two = (save_tiny_model(suite.parent / f"m{seed}", seed=seed) for seed in (0, 1))
    found = evaluated(
        suite, "--sets", "links", "--model", f"both={one}+{two},combine=concatenation"
    )
    assert found.exit_code == 0, found.output
    assert "both" in found.stdout


def test_hybrids_are_scored_next_to_their_members(suite: Path) -> None:
    model = save_tiny_model(suite.parent / "model")
    cross = save_cross_encoder(suite.parent / "cross")
    found = evaluated(
        suite,
        *("--sets", "search", "--bm25", "--model", f"tiny={model}"),
        *("--fuse", "hybrid=BM25+tiny", "--fuse", "tuned=BM25+tiny,by=weights"),
        *("--rerank", f"better=hybrid+{cross},top=2"),
    )
    assert found.exit_code == 0, found.stderr
    out = suite.parent / "out"
    settings = {
        name: json.loads((out / name / "result.json").read_text())["settings"]
        for name in ("hybrid", "tuned", "better")
    }
    assert settings["hybrid"]["members"].keys() == {"BM25", "tiny"}
    assert settings["tuned"]["by"] == "weights"
    assert settings["better"]["first"]["hybrid"]["by"] == "rank"
    assert json.loads((out / "better" / "result.json").read_text())["sets"]["search"]["scores"]


def test_a_weight_is_tuned_on_dev_queries(suite: Path) -> None:
    model = save_tiny_model(suite.parent / "model")
    fuse = ("--fuse", "tuned=BM25+tiny,by=weights,dev=dev")
    call = (suite, "--sets", "search", "--bm25", "--model", f"tiny={model}", *fuse)
    missing = evaluated(*call)
    assert missing.exit_code == 1
    assert "qrels/dev.tsv" in missing.output
    assert not (suite.parent / "out" / "BM25").exists()
    folder = suite.parent / "data" / "search"
    with (folder / "queries.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "q4", "text": "drawing"}) + "\n")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td4\t1\n")
    found = evaluated(*call)
    assert found.exit_code == 0, found.output
    result = json.loads((suite.parent / "out" / "tuned" / "result.json").read_text())
    assert result["settings"]["dev"] == "dev"
    assert result["sets"]["search"]["counts"]["queries"] == 3


def test_static_embeddings_alone_and_fused_with_bm25(suite: Path) -> None:
    static = save_static_embeddings(suite.parent / "static")
    found = evaluated(
        *(suite, "--sets", "search", "--sets", "rerank", "--lexical", "beir=beir"),
        *("--encoder", f"static={static}", "--fuse", "hybrid=beir+static,by=weights"),
    )
    assert found.exit_code == 0, found.stderr
    result = json.loads((suite.parent / "out" / "static" / "result.json").read_text())
    assert result["settings"]["encoders"][0]["model"] == str(static)
    assert result["sets"].keys() == {"search", "rerank"}
    nowhere = evaluated(suite, "--encoder", f"gone={suite.parent}/nowhere")
    assert nowhere.exit_code == 1
    assert "cannot load the encoder" in nowhere.output


def test_bm25_with_an_analyser_next_to_the_plain_one(suite: Path) -> None:
    stemmed = "stemmed=words,stemmer=english,stop_words=english,k1=1.2,b=0.75"
    found = evaluated(
        *(suite, "--sets", "search", "--bm25", "--lexical", "beir=beir", "--lexical", stemmed)
    )
    assert found.exit_code == 0, found.stderr
    settings = {
        name: json.loads((suite.parent / "out" / name / "result.json").read_text())["settings"]
        for name in ("BM25", "beir", "stemmed")
    }
    assert settings["BM25"].keys() == {"kind", "variant", "k1", "b", "tokens"}
    assert (settings["beir"]["stemmer"], settings["beir"]["k1"]) == ("lucene", 0.9)
    assert (settings["stemmed"]["stop_words"], settings["stemmed"]["b"]) == ("english", 0.75)


@pytest.mark.parametrize(
    ("lexical", "problem"),
    [
        ("x=bier", "did you mean 'beir'"),
        ("x=words,stem=english", "unknown option of a system"),
        ("x=words,stemmer=englsh", "did you mean 'english'"),
        ("x=words,b=2", "b is out of range"),
        ("x=words,k1=high", "k1 is out of range"),
        ("BM25=words", "two systems have the same name"),
    ],
)
def test_invalid_settings_of_bm25(suite: Path, lexical: str, problem: str) -> None:
    found = evaluated(suite, "--bm25", "--lexical", lexical)
    assert found.exit_code == 1
    assert problem in found.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--fuse", "hybrid=BM25+tin"), "did you mean"),
        (("--fuse", "hybrid=BM25"), "needs at least two systems"),
        (("--fuse", "hybrid=BM25+BM25"), "needs at least two systems"),
        (("--fuse", "BM25=BM25+other"), "unknown system"),
        (("--fuse", "hybrid=BM25+tiny,dev=dev"), "dev= can only be used with by=weights"),
        (("--fuse", "hybrid=BM25+tiny,by=weights,dev="), "dev= names no split"),
        (("--rerank", "better=BM25"), "no model to rerank with is named"),
        (("--rerank", "better=BM25+x,top=many"), "top is not a positive number"),
        (("--rerank", "better=BM25+x,top=0"), "top is not a positive number"),
        (("--rerank", "better=BM25+x,depth=3"), "unknown option of a system"),
    ],
)
def test_invalid_hybrids(suite: Path, arguments: tuple[str, ...], problem: str) -> None:
    stored = ("--embeddings", "tiny=nowhere")
    found = evaluated(suite, "--bm25", *stored, *arguments)
    assert found.exit_code != 0
    assert problem in found.stderr
