"""MTEB tasks run by MTEB: our harness on the same data, its files, its cache, our result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import mteb
import pytest
from huggingface_hub import is_offline_mode

from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.mteb_suite import (
    MtebSet,
    as_ours,
    make_suite,
    score,
    set_result,
)
from scimult.evaluation.rankings import rerank, search
from scimult.evaluation.results import Result, load_result
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset
from scimult.inference import SciMult
from scimult.inference.mteb_model import MtebEncoder
from scimult.inference.mteb_tasks import find_tasks, scientific_tasks
from scimult.tasks import catalogue
from tests.benchmark_sets import CORPUS, write_rerank, write_search
from tests.command import completed, invoke, refused
from tests.file_server import cut_off_hub
from tests.local_mteb import metadata, ranking_task, register
from tests.tiny import save_tiny_model

HALF_A_DIGIT = 5.001e-6  # MTEB rounds its scores to five places


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def model(folder: Path) -> SciMult:
    return SciMult.from_pretrained(folder, device="cpu")


def _score(model: SciMult, folder: Path, *tasks: Any, out: str = "out", **options: Any) -> Result:
    """Let MTEB score tasks below a folder, as the system ``tiny``."""
    system = "tiny", {"fingerprint": model.fingerprint}
    encoder = options.pop("encoder", None) or MtebEncoder(model)
    return score(*system, encoder, tasks, folder / out, folder / "cache", **options)


def _data(folder: Path, kind: str) -> tuple[Any, Dataset]:
    made = (write_search if kind == "search" else write_rerank)(folder / kind)
    data = read_dataset(kind, made, folder / kind, "", Rejects())
    assert isinstance(data, Dataset)
    return made, data


@pytest.mark.skipif(sys.version_info < (3, 11), reason="MTEB 2.26 needs Python 3.11")
def test_every_listed_task_is_one_of_the_installed_mteb() -> None:
    listed = scientific_tasks()
    for name, task in listed.tasks.items():
        theirs = mteb.get_task(name).metadata
        assert theirs.name == name  # another one would be a former name
        assert theirs.superseded_by is None, name
        assert theirs.type == task.type, name
        assert "text" in theirs.modalities
        assert task.route in catalogue().names
        assert task.group in listed.groups
    wanted = {"LitSearchRetrieval", "BIRCO-DorisMae", "SciFact", "NFCorpus", "TRECCOVID", "SCIDOCS"}
    wanted |= {"CUREv1", "ChemNQRetrieval", "IFIRScifact", "R2MEDBiologyRetrieval"}
    wanted |= {"ArXivHierarchicalClusteringP2P", "BiorxivClusteringP2P.v2"}
    wanted |= {"MedrxivClusteringP2P.v2", "ArxivClassification.v2"}
    wanted |= {"SciRepEvalBiomimicryClassification", "SciRepEvalDRSMClassification"}
    assert wanted <= set(listed.tasks)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="MTEB 2.26 needs Python 3.11")
def test_our_encoder_takes_the_listed_routes(model: SciMult) -> None:
    encoder = MtebEncoder(model)
    for name, task in scientific_tasks().tasks.items():
        theirs = mteb.get_task(name).metadata
        assert encoder.route(theirs, mteb.types.PromptType.query) == (task.route, "query")
        documents = encoder.route(theirs, mteb.types.PromptType.document)
        assert documents == (task.route, "candidate")
    assert encoder.route(metadata("New", "Retrieval", "ndcg_at_10"))[0] == "search"


@pytest.mark.long
def test_groups_languages_and_unknown_names() -> None:
    chosen = find_tasks(["small", "CUREv1", "NanoSciFactRetrieval"], ["eng"])
    names = [task.metadata.name for task in chosen]
    assert names == [
        "NanoSCIDOCSRetrieval",
        "NanoSciFactRetrieval",
        "NanoNFCorpusRetrieval",
        "CUREv1",
    ]
    assert chosen[-1].hf_subsets == ["en"]
    assert set(find_tasks(["CUREv1"], ["eng", "spa"])[0].hf_subsets) != {"en"}
    with pytest.raises(UnknownNameError, match="LitSearchRetrieval") as found:
        find_tasks(["LitSearch"], ["eng"])
    assert len(str(found.value)) < 400  # not the 1,835 names of all tasks
    with pytest.raises(ConfigError, match="has nothing in eng.*cmn"):
        find_tasks(["MedicalRetrieval"], ["eng"])


def test_a_group_names_what_an_older_mteb_does_not_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = ["NanoSCIDOCSRetrieval", "NanoSciFactRetrieval"]
    installed = [task for task in mteb.get_tasks() if task.metadata.name in kept]
    monkeypatch.setattr("mteb.get_tasks", lambda **_: installed)
    assert [task.metadata.name for task in find_tasks(["small"], ["eng"])] == kept
    assert "NanoNFCorpusRetrieval" in caplog.text


@pytest.mark.parametrize("kind", ["search", "rerank"])
def test_mteb_scores_our_model_as_our_harness_does(
    tmp_path: Path, model: SciMult, kind: str
) -> None:
    made, data = _data(tmp_path, kind)
    measures = ["ndcg@10", "recall@5", "map@1000" if kind == "rerank" else "map"]
    made = made.model_copy(update={"metrics": measures})
    ranks = search if kind == "search" else rerank
    routes = {"LocalSearch": data.task}
    ours = ranks(made, data, DenseSystem(model).ranker(data)).scores
    task = ranking_task(data)()
    found = _score(model, tmp_path, task, encoder=MtebEncoder(model, routes))
    entry = found.sets["LocalSearch"]
    for measure in entry.scores.keys() & ours.keys():
        assert entry.scores[measure] == pytest.approx(ours[measure], abs=HALF_A_DIGIT)
        assert entry.scores[measure] == pytest.approx(round(ours[measure], 5), abs=1e-9)
    assert {"ndcg@10", "recall@5"} <= entry.scores.keys() & ours.keys()
    assert entry.task == data.task
    assert entry.cost["texts"] == len(data.query_ids) + len(data.candidate_ids)


def test_rankings_of_mteb_give_our_scores_to_every_digit(tmp_path: Path, model: SciMult) -> None:
    """MTEB's rankings, scored by pytrec_eval, which does not round."""
    import pytrec_eval

    made, data = _data(tmp_path, "search")
    ours = search(made, data, DenseSystem(model).ranker(data)).scores
    mteb.evaluate(
        MtebEncoder(model),
        ranking_task(data)(),
        cache=None,
        encode_kwargs={},
        prediction_folder=tmp_path / "predictions",
        show_progress_bar=False,
    )
    [path] = (tmp_path / "predictions").rglob("*.json")
    run = json.loads(path.read_text())["default"]["test"]
    judged = {
        query: {data.candidate_ids[row]: int(g) for row, g in zip(rows, grades, strict=True)}
        for query, rows, grades in zip(
            data.query_ids, data.qrels.rows, data.qrels.grades, strict=True
        )
    }
    scores = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(run)
    theirs = sum(row["ndcg_cut_10"] for row in scores.values()) / len(scores)
    assert theirs == pytest.approx(ours["ndcg@10"], abs=1e-6)


def test_files_are_mtebs_and_a_second_run_encodes_nothing(tmp_path: Path, model: SciMult) -> None:
    _, data = _data(tmp_path, "search")
    kind = ranking_task(data)
    out, cache = tmp_path / "out", tmp_path / "cache"
    first = _score(model, tmp_path, kind())
    kept = mteb.ResultCache(cache_path=cache)
    meta = MtebEncoder(model).mteb_model_meta
    theirs = kept.load_task_result("LocalSearch", meta.name, meta.revision, raise_if_not_found=True)
    saved = load_result(out / "tiny" / "result.json").sets["LocalSearch"]
    assert saved.scores["ndcg@10"] == pytest.approx(theirs.get_score(), abs=1e-12)
    assert saved.scores["ndcg@10"] == theirs.scores["test"][0]["main_score"]
    before = model.tokens_encoded
    second = _score(model, tmp_path, kind())
    assert model.tokens_encoded == before
    assert second.sets["LocalSearch"].scores == first.sets["LocalSearch"].scores
    _score(model, tmp_path, kind(), again=True)
    assert model.tokens_encoded > before
    with pytest.raises(ConfigError, match="differs in fingerprint"):
        score("tiny", {"fingerprint": "x"}, MtebEncoder(model), [kind()], out, cache)


def test_a_score_from_the_cache_is_of_the_same_set(
    tmp_path: Path, model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although MTEB does not tell how many texts had no word."""
    _, data = _data(tmp_path, "search")
    empty = {**CORPUS[0], "title": "", "text": ""}
    monkeypatch.setattr("tests.local_mteb.CORPUS", [empty, *CORPUS[1:]])
    kind = ranking_task(data)
    encoded, cached = (_score(model, tmp_path, kind(), out=out) for out in ("first", "second"))
    first, second = encoded.sets["LocalSearch"], cached.sets["LocalSearch"]
    assert first.facts == second.facts
    assert set(first.details.items()) - set(second.details.items()) == {
        ("texts without a word, encoded as a full stop", 1)
    }


def test_scores_of_another_revision_of_the_data_are_not_kept(
    tmp_path: Path, model: SciMult
) -> None:
    _, data = _data(tmp_path, "search")
    kind = ranking_task(data)
    _score(model, tmp_path, kind())
    changed = {"path": "local/LocalSearch", "revision": "2"}
    kind.metadata = kind.metadata.model_copy(update={"dataset": changed})
    for encoded in (True, False):
        before = model.tokens_encoded
        found = _score(model, tmp_path, kind())
        assert (model.tokens_encoded > before) == encoded
        assert found.sets["LocalSearch"].files == {"local/LocalSearch": "2"}


def test_what_was_scored_before_a_kill_is_not_scored_again(tmp_path: Path, model: SciMult) -> None:
    _, data = _data(tmp_path, "search")
    first, second = ranking_task(data), ranking_task(data, "LocalOther")
    loads = second.load_data

    def is_killed(self: Any, *args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    second.load_data = is_killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        _score(model, tmp_path, first(), second())
    kept = load_result(tmp_path / "out" / "tiny" / "result.json")
    assert list(kept.sets) == ["LocalSearch"]
    second.load_data = loads  # type: ignore[method-assign]
    encoder = MtebEncoder(model)
    found = _score(model, tmp_path, first(), second(), encoder=encoder)
    assert list(encoder.work) == ["LocalOther"]
    assert list(found.sets) == ["LocalSearch", "LocalOther"]
    assert found.sets["LocalSearch"].scores == kept.sets["LocalSearch"].scores
    assert found.sets["LocalSearch"].cost == kept.sets["LocalSearch"].cost


def test_without_a_network_mteb_does_not_wait_for_one(
    tmp_path: Path, model: SciMult, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data = _data(tmp_path, "search")
    local, offline = ranking_task(data), []

    def fails(self: Any, *args: Any, **kwargs: Any) -> None:
        offline.append((datasets.config.HF_HUB_OFFLINE, is_offline_mode()))
        raise ConnectionError("no route to host")

    local.load_data = fails  # type: ignore[method-assign]
    cut_off_hub(monkeypatch)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match=r"cannot load the data .*no route to host.*the connection"):
        score("tiny", {}, MtebEncoder(model), [local()], tmp_path / "out", tmp_path / "cache")
    assert offline == [(True, True)]
    assert not is_offline_mode()


def test_scores_are_means_over_splits_and_subsets() -> None:
    """The parts of CUREv1, averaged as in MTEB's own result."""
    task = find_tasks(["CUREv1"], ["eng"])[0]
    parts = {
        split: {"en": {"main_score": 0.1 * place, "ndcg_at_10": 0.1 * place, "f1": 0.5}}
        for place, split in enumerate(task.eval_splits)
    }
    theirs = mteb.TaskResult.from_task_results(task, parts, evaluation_time=1.0)
    entry = MtebSet(
        task="search",
        type="Retrieval",
        main_metric="ndcg@10",
        source="x",
        revision="1",
        subsets=["en"],
        splits=list(task.eval_splits),
    )
    ours = set_result(theirs.to_dict(), entry)
    assert ours.scores["ndcg@10"] == pytest.approx(theirs.get_score(), abs=1e-12)
    assert len(ours.details["by_part"]) == len(task.eval_splits)
    with pytest.raises(DataError, match="has 11 of 22 parts"):
        set_result(theirs.to_dict(), entry.model_copy(update={"subsets": ["en", "es"]}))


def test_sizes_are_those_that_mteb_publishes(model: SciMult) -> None:
    from scimult.evaluation.mteb_suite import _counts

    task = find_tasks(["SciFact"], ["eng"])[0]
    entry = make_suite(MtebEncoder(model), [task]).benchmarks["SciFact"]
    counts = _counts(task.metadata.descriptive_stats, entry)
    assert counts == {"queries": 300, "candidates": 5183, "relevant": 339}
    assert as_ours("map_at_1000") == "map@1000"
    assert as_ours("cosine_spearman") == "cosine_spearman"


def test_documents_without_words_are_ranked_too(model: SciMult) -> None:
    encoder = MtebEncoder(model)
    found = encoder.encode(
        [{"text": ["graphs", ""], "title": ["graphs", ""], "body": ["", ""]}],
        task_metadata=metadata("Empty", "Retrieval", "ndcg_at_10"),
        prompt_type=mteb.types.PromptType.document,
    )
    assert found.shape == (2, model.width)
    assert encoder.work["Empty"].empty == 1


@pytest.mark.long
def test_the_verb_scores_names_failures_and_can_be_reported(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data = _data(tmp_path, "search")
    broken = ranking_task(data, "LocalBroken")

    def fails(self: Any, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route to host")

    broken.load_data = fails  # type: ignore[method-assign]
    register(monkeypatch, ranking_task(data), broken)
    out = tmp_path / "out"
    command = ["mteb", str(folder), "--out", str(out), "--name", "tiny", "--dtype", "float32"]
    command += ["--tasks", "LocalSearch", "--device", "cpu"]
    done = invoke(*command, "--tasks", "LocalBroken")
    assert done.exit_code == 1
    assert "cannot load the data of LocalBroken (local/LocalBroken): ConnectionError" in done.output
    assert "1 task failed: LocalBroken" in done.output
    result = load_result(out / "tiny" / "result.json")
    assert list(result.sets) == ["LocalSearch"]
    assert list(result.failed) == ["LocalBroken"]
    completed(*command)
    completed("report", out, "--out", tmp_path / "page")
    assert "LocalSearch" in (tmp_path / "page" / "report.md").read_text()
    shown = f"{100 * result.sets['LocalSearch'].scores['ndcg@10']:.2f}"
    assert shown in (out / "table.md").read_text()
    for words in (["mteb"], [*command, "--route", "SCIDOCS"]):
        assert invoke(*words).exit_code == 1
    error = refused(*command, "--route", "LocalSerch=search")
    assert "unknown task or type in --route (value: 'LocalSerch')" in error
    assert "did you mean 'LocalSearch'" in error


def test_the_list_needs_no_model() -> None:
    shown = invoke("mteb", "--list", "--json")
    rows = [json.loads(line) for line in shown.output.splitlines()]
    assert {"name", "group", "type", "route", "what"} == rows[0].keys()
    assert len(rows) == len(scientific_tasks().tasks)
    assert "LitSearchRetrieval" in invoke("mteb", "--list").output


def test_results_do_not_go_into_a_library(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "library.json").write_text("{}", encoding="utf-8")
    command = ["mteb", str(folder), "--tasks", "SCIDOCS", "--out", str(tmp_path)]
    assert "output exists already" in refused(*command)
    assert [path.name for path in tmp_path.iterdir()] == ["library.json"]
