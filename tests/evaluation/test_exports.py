"""Exports are read by the tools that own their formats: csv, mteb, pytrec_eval."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import pytrec_eval

from scimult.errors import DataError
from scimult.evaluation.exports import export_results
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.results import Result, load_results, save_result
from scimult.evaluation.suites import load_suite
from scimult.evaluation.systems import BM25System
from tests.benchmark_sets import write_search
from tests.command import completed, refused
from tests.evaluation.reporting.scored import write_results


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_results(tmp_path_factory.mktemp("scored"))


def _result(out: Path, system: str) -> Result:
    return next(result for result in load_results(out) if result.system == system)


def test_csv_has_every_score(written: tuple[Path, Path], tmp_path: Path) -> None:
    out, _ = written
    (path,) = export_results([out], "csv", tmp_path)
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["system"], row["set"], row["metric"]): float(row["score"]) for row in rows}
    assert found == {
        (result.system, name, metric): score
        for result in load_results(out)
        for name, entry in result.sets.items()
        for metric, score in entry.scores.items()
    }
    assert sum(int(row["main"]) for row in rows) == sum(len(r.sets) for r in load_results(out))


def test_f1_of_one_label_does_not_go_by_the_name_of_mtebs_macro_f1(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    result = _result(written[0], "words")
    entry = result.sets["coarse"]
    scores = {"macro_f1": 0.5, "f1": 0.3, "f1+24shot": 0.2, "macro_f1+24shot": 0.4}
    sets = {"coarse": entry.model_copy(update={"scores": scores})}
    save_result(result.model_copy(update={"sets": sets}), tmp_path / "in")
    (path,) = export_results([tmp_path / "in"], "mteb", tmp_path / "out")
    (found,) = json.loads(path.read_text())["scores"]["test"]
    wanted = {"f1": 0.5, "f1_positive": 0.3, "f1_positive+24shot": 0.2, "f1+24shot": 0.4}
    assert {key: found[key] for key in wanted} == wanted
    assert found["main_score"] == 0.5


def test_mteb_reads_its_files(written: tuple[Path, Path], tmp_path: Path) -> None:
    from mteb.cache import ResultCache
    from mteb.results import TaskResult

    out, _ = written
    # Current names of MTEB have dots and hyphens.
    call = ["export-results", str(out), "--to", "mteb", "--out", str(tmp_path)]
    chosen = ["--systems", "words", "--names", "search=SCIDOCS-NL.v2"]
    completed(*call, *chosen)
    paths = sorted((tmp_path / "results").glob("*/*/[!m]*.json"))
    entries = _result(out, "words").sets
    for path in paths:
        read = TaskResult.from_disk(path, load_historic_data=False)
        entry = entries["search" if read.task_name == "SCIDOCS-NL.v2" else read.task_name]
        (scores,) = read.scores["test"]
        assert scores["main_score"] == entry.scores[entry.main_metric]
        assert read.get_score() == entry.scores[entry.main_metric]
    assert len(paths) == len(entries)
    cache = ResultCache(cache_path=tmp_path)
    (model,) = cache.load_results(include_remote=False).model_results
    assert model.model_name == "scimult/words"
    assert {result.task_name for result in model.task_results} == {path.stem for path in paths}


@pytest.mark.parametrize("system", ["BM25", "words"])
def test_runs_score_the_same_in_trec_eval(
    written: tuple[Path, Path], tmp_path: Path, system: str
) -> None:
    """BEIR and PMC-Patients score the JSON this way; absolute tolerance 1e-9 over few queries."""
    out, data = written
    paths = export_results([out], "beir", tmp_path, systems=[system], sets=["search"])
    run = json.loads(paths[0].read_text(encoding="utf-8"))
    qrels: dict[str, dict[str, int]] = {}
    with open(data / "search" / "qrels" / "test.tsv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            qrels.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    entry = _result(out, system).sets["search"]
    names = {"ndcg@10": "ndcg_cut_10", "recall@2": "recall_2"}
    measures = {"ndcg_cut.10", "recall.2"}
    found = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    assert names.keys() == entry.scores.keys()
    for ours in names:
        mean = sum(scores[names[ours]] for scores in found.values()) / len(qrels)
        assert entry.scores[ours] == pytest.approx(mean, abs=1e-9)


def test_what_has_no_ranked_lists_is_told(
    written: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = shutil.copytree(written[0], tmp_path / "both")
    shutil.rmtree(both / "words" / "runs")
    (both / "BM25" / "runs" / "search.run").unlink()
    paths = export_results([both], "beir", tmp_path / "out", sets=["search", "links"])
    assert [path.relative_to(tmp_path / "out").as_posix() for path in paths] == ["BM25/links.json"]
    told = sorted(record.getMessage() for record in caplog.records)
    assert told == [
        "BM25: without ranked lists (--save-runs): search",
        "words: without ranked lists (--save-runs): links, search",
    ]


def test_a_query_with_an_empty_list_counts_in_beirs_mean(tmp_path: Path) -> None:
    write_search(tmp_path / "data")
    with open(tmp_path / "data/search/queries.jsonl", "a", encoding="utf-8") as file:
        file.write('{"_id": "q9", "text": "zzz"}\n')
    with open(tmp_path / "data/search/qrels/test.tsv", "a", encoding="utf-8") as file:
        file.write("q9\td1\t1\n")
    suite = load_suite(str(tmp_path / "data/search"))
    sets = load_sets(suite, tmp_path)
    result = evaluate(BM25System(), suite, sets, tmp_path / "out", save_runs=True)
    (path,) = export_results([tmp_path / "out"], "beir", tmp_path / "theirs")
    qrels = {"q1": {"d1": 2, "d4": 1}, "q2": {"d3": 1}, "q3": {"d2": 1}, "q9": {"d1": 1}}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"})
    found = evaluator.evaluate(json.loads(path.read_text()))
    mean = sum(scores["ndcg_cut_10"] for scores in found.values()) / len(found)
    assert result.sets["search"].scores["ndcg@10"] == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize("score", [71.2, -1.5])
def test_a_percentage_written_by_hand_is_no_score(
    written: tuple[Path, Path], tmp_path: Path, score: float
) -> None:
    tree = _result(written[0], "words").model_dump(mode="json")
    tree["sets"]["search"]["scores"]["ndcg@10"] = score
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "result.json").write_text(json.dumps(tree))
    place = rf"words/result.json: .*sets.search.scores.ndcg@10: .*1.*value: {score}"
    with pytest.raises(DataError, match=place):
        export_results([tmp_path], "csv", tmp_path / "out")
    tree["sets"]["search"]["scores"]["ndcg@10"] = 1 + 2**-52  # a mean of ones
    (tmp_path / "words" / "result.json").write_text(json.dumps(tree))
    export_results([tmp_path], "csv", tmp_path / "out")


def test_what_cannot_be_exported_is_named(written: tuple[Path, Path], tmp_path: Path) -> None:
    out, _ = written
    for arguments, problem in (
        (["--systems", "wrds"], "did you mean 'words'"),
        (["--sets", "serch"], "did you mean 'search'"),
        (["--names", "search"], "a name is SET=NAME"),
        (["--names", "search=../up"], "a name is SET=NAME"),
        (["--names", "serch=SciFact"], "did you mean 'search'"),
        (["--to", "csv", "--out", "r.csv"], "--out is a folder, into which files go"),
        (["--names", "search=SciFact", "--to", "csv"], "--names can only be used with --to mteb"),
    ):
        call = ["export-results", str(out), "--to", "mteb", "--out", str(tmp_path / "x")]
        assert problem in refused(*call, *arguments)
    bare, _ = write_results(tmp_path, save_runs=False)
    with pytest.raises(DataError, match="evaluate again with --save-runs"):
        export_results([bare], "beir", tmp_path / "y")
    with pytest.raises(DataError, match="two results would be the same file"):
        export_results([out, out], "beir", tmp_path / "two")
    theirs = _result(out, "words").model_copy(update={"settings": {"kind": "mteb"}})
    save_result(theirs, tmp_path / "by_mteb")
    with pytest.raises(DataError, match=r"MTEB itself scored .*'words'.*take MTEB's own files"):
        export_results([tmp_path / "by_mteb"], "mteb", tmp_path / "z")
    damaged, _ = write_results(tmp_path / "damaged", save_runs=True)
    (damaged / "BM25" / "runs" / "search.run").write_text("q Q0\n")
    with pytest.raises(DataError, match="evaluate again with --save-runs, or write"):
        export_results([damaged], "beir", tmp_path / "d")
    called = completed("export-results", out, "--to", "beir", "--out", tmp_path / "z")
    assert "files in" in called.output


@pytest.mark.parametrize("form", ["csv", "mteb", "beir"])
def test_systems_without_a_chosen_set_are_left_out(
    written: tuple[Path, Path], tmp_path: Path, form: str
) -> None:
    """Only they gave an empty table, or "these results have no ranked lists"."""
    folder = shutil.copytree(written[0], tmp_path / "in")
    for system, kept in (("BM25", "coarse"), ("words", "search")):
        result = _result(folder, system)
        save_result(result.model_copy(update={"sets": {kept: result.sets[kept]}}), folder)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"no result of these sets .*'search'"):
        export_results([folder], form, out, systems=["BM25"], sets=["search"])
    assert not out.exists()
    (path,) = export_results([folder], form, out, sets=["search"])
    assert not list(out.glob("**/*BM25*"))
    assert "BM25" not in path.read_text(encoding="utf-8")


def test_names_in_others_results_do_not_lead_out_of_the_folder(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    """A set of such a name was written there, and anything of a fingerprint."""
    result, out = _result(written[0], "words"), tmp_path / "a" / "b" / "out"
    name, entry = next(iter(result.sets.items()))
    odd = "../" * 5 + "x"
    suite = result.suite | {"benchmarks": {odd: result.suite["benchmarks"][name]}}
    for changes in (
        {"sets": {odd: entry}, "suite": suite},
        {"settings": result.settings | {"fingerprint": odd}},
        {"settings": result.settings | {"fingerprint": str(tmp_path / "x")}},
    ):
        save_result(result.model_copy(update=changes), tmp_path / "in")
        with pytest.raises(DataError, match="leads out of the folder"):
            export_results([tmp_path / "in"], "mteb", out)
    assert not list(tmp_path.rglob("x*"))
