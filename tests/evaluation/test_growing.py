"""Results that grow set by set: parts of a suite, failures, and systems of the same name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from scimult.errors import ConfigError, DataError
from scimult.evaluation import harness
from scimult.evaluation.growing import Earlier, scored_alike
from scimult.evaluation.harness import LoadedSet, evaluate, load_sets, missing_sets
from scimult.evaluation.hybrid import RerankedSystem
from scimult.evaluation.protocols import PROTOCOLS, rules_of
from scimult.evaluation.report import make_report, score_table
from scimult.evaluation.results import Result, load_results
from scimult.evaluation.suites import Suite, load_suite
from scimult.evaluation.systems import BM25System, DenseSystem, Ranker, StoredSystem
from scimult.evaluation.task_data import Dataset
from scimult.retrieval.embeddings import write_embeddings
from scimult.table import to_markdown
from scimult.types import FloatArray, Role, Text
from tests.benchmark_sets import WordEncoder, made_suite, write_coarse, write_links, write_search
from tests.benchmark_sets import benchmark as made_up
from tests.tiny import save_cross_encoder

Prepared = tuple[Suite, dict[str, LoadedSet], Path]


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    made = [write(tmp_path / "data") for write in (write_search, write_links, write_coarse)]
    suite = made_suite(*made)
    return suite, load_sets(suite, tmp_path / "data"), tmp_path / "out"


class FailsOn(WordEncoder):
    """An encoder that runs out of memory on one task."""

    def __init__(self, task: str) -> None:
        super().__init__()
        self.task = task

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        if task == self.task:
            raise RuntimeError("out of memory")
        return super().encode(texts, task=task, role=role)


def _words(settings: dict[str, str] | None = None) -> DenseSystem:
    return DenseSystem(WordEncoder(), settings or {"fingerprint": "a"})


def _one(sets: dict[str, LoadedSet], name: str) -> dict[str, LoadedSet]:
    return {name: sets[name]}


def test_sets_evaluated_in_parts_are_one_result(prepared: Prepared) -> None:
    """In any order, as if evaluated at once; each set knows the run that scored it."""
    suite, sets, out = prepared
    whole = evaluate(_words(), suite, sets, out / "whole")
    for name in ("coarse", "search", "links"):
        evaluate(_words(), suite, _one(sets, name), out / "parts")
    (parts,) = load_results(out / "parts")
    assert list(parts.sets) == list(whole.sets) == ["search", "links", "coarse"]
    assert parts.averages == whole.averages
    for name, entry in whole.sets.items():
        assert parts.sets[name].scores == entry.scores
    assert parts.sets["links"].provenance is None
    earlier = parts.sets["coarse"].provenance
    assert earlier is not None
    assert earlier["date"] < parts.provenance["date"]


def test_a_killed_evaluation_keeps_what_is_done_and_resumes_with_the_rest(
    prepared: Prepared,
) -> None:
    suite, sets, out = prepared

    class Killed(BM25System):
        def ranker(self, dataset: Dataset) -> Ranker:
            if dataset.name == "links":
                raise KeyboardInterrupt
            return super().ranker(dataset)

    with pytest.raises(KeyboardInterrupt):
        evaluate(Killed(), suite, sets, out)
    (kept,) = load_results(out)
    assert list(kept.sets) == ["search"]
    seen: dict[str, object] = {}
    result = evaluate(BM25System(), suite, sets, out, earlier="resume", on_set=seen.__setitem__)
    assert seen["search"] is None
    assert seen["links"] == result.sets["links"]
    assert result.sets["search"].scores == kept.sets["search"].scores
    assert list(result.sets) == list(sets)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("change", ["another system", "other data", "none"])
def test_killed_between_scores_per_query_and_their_means(
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    error: type[BaseException],
) -> None:
    """What is left is of one scoring: the earlier one, or nothing of a set that was changed."""
    suite, sets, out = prepared
    evaluate(_words(), suite, sets, out)
    earlier: Earlier = "replace" if change == "another system" else "merge"
    if change == "other data":
        with (tmp_path / "data/search/qrels/test.tsv").open("a") as file:
            file.write("q3\td1\t1\n")
        sets = load_sets(suite, tmp_path / "data")

    def killed(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(harness, "_run_files", killed)
        evaluate(_words(), suite, _one(sets, "search"), out, earlier=earlier)
    left = [name for result in load_results(out) for name in result.sets]
    of_others = [] if earlier == "replace" else ["links", "coarse"]
    assert left == (["search"] if change == "none" else []) + of_others
    evaluate(_words(), suite, sets, out, earlier=earlier)
    assert [list(result.sets) for result in load_results(out)] == [["search", "links", "coarse"]]


def test_resuming_scores_again_what_changed(prepared: Prepared, tmp_path: Path) -> None:
    """Other data, another protocol, or missing intervals."""
    suite, sets, out = prepared
    evaluate(BM25System(), suite, sets, out)
    with (tmp_path / "data/search/qrels/test.tsv").open("a") as file:
        file.write("q3\td1\t1\n")
    links = suite.benchmarks["links"].model_copy(update={"metrics": ["map"]})
    changed = suite.model_copy(update={"benchmarks": {**suite.benchmarks, "links": links}})
    seen: dict[str, object] = {}
    loaded = load_sets(changed, tmp_path / "data")
    result = evaluate(BM25System(), changed, loaded, out, earlier="resume", on_set=seen.__setitem__)
    assert [name for name, entry in seen.items() if entry is None] == ["coarse"]
    assert list(result.sets["links"].scores) == ["map"]
    again = evaluate(BM25System(), changed, loaded, out, earlier="resume", confidence=0.9)
    assert all(entry.intervals for entry in again.sets.values())
    wider = evaluate(BM25System(), changed, loaded, out, earlier="resume", confidence=0.99)
    for name, entry in wider.sets.items():
        metric = entry.main_metric
        width = np.ptp(entry.intervals[metric])
        assert width >= np.ptp(again.sets[name].intervals[metric])
    assert wider.sets["search"].intervals != again.sets["search"].intervals


def test_ranked_lists_are_those_of_the_scores(prepared: Prepared) -> None:
    """Lists of an earlier scoring do not stay, and resuming writes those that are missing."""
    suite, sets, out = prepared
    runs = out / "words" / "runs"
    evaluate(_words(), suite, sets, out, save_runs=True)
    assert {path.stem for path in runs.iterdir()} == set(sets)
    evaluate(_words({"fingerprint": "b"}), suite, _one(sets, "links"), out, earlier="replace")
    assert not (runs / "links.run").exists()
    seen: dict[str, object] = {}
    options: dict[str, Any] = {"earlier": "resume", "save_runs": True, "on_set": seen.__setitem__}
    for kept in ([], ["links"]):
        evaluate(_words({"fingerprint": "b"}), suite, _one(sets, "links"), out, **options)
        assert [name for name, entry in seen.items() if entry is None] == kept
        assert (runs / "links.run").exists()


def test_resuming_keeps_what_another_version_scored_or_another_server_had(
    prepared: Prepared,
) -> None:
    """A newer key, and where files come from, change no score."""
    suite, sets, out = prepared
    evaluate(BM25System(), suite, sets, out)
    path = out / "BM25" / "result.json"
    tree = json.loads(path.read_text())
    for benchmark in tree["suite"]["benchmarks"].values():
        del benchmark["remote"]
    tree["suite"]["benchmarks"]["links"]["mode"] = "paper"
    path.write_text(json.dumps(tree))
    seen: dict[str, object] = {}
    evaluate(BM25System(), suite, sets, out, earlier="resume", on_set=seen.__setitem__)
    assert [name for name, entry in seen.items() if entry is None] == ["search", "coarse"]


def test_scores_by_the_rules_of_an_earlier_version_are_not_kept_or_compared(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, sets, out = prepared
    evaluate(_words(), suite, sets, out)
    path = out / "words" / "result.json"
    tree = json.loads(path.read_text())
    for entry in tree["sets"].values():
        del entry["rules"]  # as written before there were any
    path.write_text(json.dumps(tree))
    changed = replace(PROTOCOLS["link_retrieval"], rules=2)
    monkeypatch.setitem(PROTOCOLS, "link_retrieval", changed)
    sets = load_sets(suite, tmp_path / "data")
    evaluate(BM25System(), suite, sets, out)
    wanted = "on links differs in rules: .* Fix: evaluate all systems again in one call"
    with pytest.raises(DataError, match=wanted):
        make_report(load_results(out))
    seen: dict[str, object] = {}
    evaluate(_words(), suite, sets, out, earlier="resume", on_set=seen.__setitem__)
    assert [name for name, entry in seen.items() if entry is None] == ["search", "coarse"]
    assert make_report(load_results(out)).systems == ["BM25", "words"]


def test_what_scores_otherwise_than_the_first_versions_did() -> None:
    """Linear models gave up to 22 points less, DORIS-MAE ranked titles too, ICLR's were alone."""
    suites = [load_suite(name).benchmarks for name in ("science", "beir", "multi_objective")]
    rules = {name: rules_of(one) for suite in suites for name, one in suite.items()}
    linear = {name for name, one in suites[0].items() if one.protocol.endswith("_linear")}
    changed = {*linear, "doris_mae", "doris_mae_relevant", "iclr2022"}
    assert len(changed) == 14
    assert rules == {name: 1 + (name in changed) for name in rules}


def test_a_set_that_fails_does_not_lose_the_others(prepared: Prepared) -> None:
    suite, sets, out = prepared
    seen: dict[str, object] = {}
    system = DenseSystem(FailsOn("link_prediction"))
    result = evaluate(system, suite, sets, out, on_set=seen.__setitem__)
    assert list(result.sets) == ["search", "coarse"]
    assert result.failed == {"links": "out of memory"}
    assert isinstance(seen["links"], RuntimeError)
    assert load_results(out) == [result]
    assert "words failed on links: out of memory" in to_markdown(
        score_table(make_report([result])), level=1
    )
    mended = evaluate(DenseSystem(WordEncoder()), suite, sets, out, earlier="resume")
    assert mended.failed == {}
    assert list(mended.sets) == list(sets)


def test_resuming_scores_a_set_whose_last_scoring_failed(prepared: Prepared) -> None:
    """Its earlier scores stay until then."""
    suite, sets, out = prepared
    before = evaluate(DenseSystem(WordEncoder()), suite, sets, out)
    failed = evaluate(DenseSystem(FailsOn("link_prediction")), suite, sets, out)
    assert failed.failed == {"links": "out of memory"}
    assert failed.sets["links"].scores == before.sets["links"].scores
    seen: dict[str, object] = {}
    options: dict[str, Any] = {"earlier": "resume", "on_set": seen.__setitem__}
    mended = evaluate(DenseSystem(WordEncoder()), suite, sets, out, **options)
    assert mended.failed == {}
    assert [name for name, entry in seen.items() if entry is None] == ["search", "coarse"]


def test_where_every_set_fails_so_does_the_evaluation(prepared: Prepared) -> None:
    suite, sets, out = prepared
    with pytest.raises(RuntimeError, match="out of memory"):
        evaluate(DenseSystem(FailsOn("search")), suite, _one(sets, "search"), out)
    assert load_results(out) == []


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"fingerprint": "b"}, "fingerprint"),
        ({"fingerprint": "a", "pooling": "mean"}, "pooling"),
        ({"folder": "x"}, "fingerprint, folder"),
    ],
)
def test_another_system_of_the_same_name_is_refused_or_replaces(
    prepared: Prepared, settings: dict[str, str], differs: str
) -> None:
    suite, sets, out = prepared
    before = evaluate(_words(), suite, sets, out)
    with pytest.raises(ConfigError, match=f"words differs in {differs}.* --replace"):
        evaluate(_words(settings), suite, sets, out)
    assert load_results(out) == [before]
    after = evaluate(_words(settings), suite, _one(sets, "links"), out, earlier="replace")
    assert load_results(out) == [after]
    assert list(after.sets) == ["links"]


def test_the_same_model_in_another_folder_is_the_same_system(prepared: Prepared) -> None:
    suite, sets, out = prepared
    for folder, name in (("runs/a", "links"), ("/mnt/runs/a", "search")):
        system = _words({"fingerprint": "a", "folder": folder})
        result = evaluate(system, suite, _one(sets, name), out)
    assert set(result.sets) == {"links", "search"}


def test_embeddings_of_further_sets_may_be_stored_later(prepared: Prepared) -> None:
    """Files of a scored set must not change."""
    suite, sets, out = prepared
    first = {"kind": "stored", "folder": "e", "sha256": {"links/queries/embeddings.npy": "1"}}
    evaluate(_Described(first), suite, _one(sets, "links"), out)
    more = {**first, "sha256": {**first["sha256"], "search/queries/embeddings.npy": "2"}}  # type: ignore[dict-item]
    result = evaluate(_Described(more), suite, _one(sets, "search"), out)
    assert result.settings == more
    for other in ("embeddings.npy", "manifest.json"):
        changed = {**more, "sha256": {f"links/queries/{other}": "3"}}
        with pytest.raises(ConfigError, match="differs in sha256"):
            evaluate(_Described(changed), suite, _one(sets, "search"), out)


def test_resuming_knows_other_ids_of_the_same_embeddings(
    prepared: Prepared, tmp_path: Path
) -> None:
    suite, sets, out = prepared
    links = sets["links"].dataset
    folder = tmp_path / "stored" / "links"
    for side, ids in (("queries", links.query_ids), ("candidates", links.candidate_ids)):
        rows_ND = np.random.default_rng(len(ids)).normal(size=(len(ids), 4)).astype(np.float32)
        write_embeddings(folder / side, ids, rows_ND, {})
    system = StoredSystem("mine", tmp_path / "stored", "dot")
    evaluate(system, suite, _one(sets, "links"), out)
    evaluate(system, suite, _one(sets, "links"), out, earlier="resume")
    names = (folder / "candidates" / "ids.txt").read_text(encoding="utf-8").split()
    (folder / "candidates" / "ids.txt").write_text("\n".join(reversed(names)) + "\n")
    with pytest.raises(ConfigError, match="differs in sha256"):
        evaluate(system, suite, _one(sets, "links"), out, earlier="resume")


@pytest.mark.parametrize("part", ["members", "first"])
def test_a_system_of_others_is_the_same_if_they_are(prepared: Prepared, part: str) -> None:
    """A moved model and further embeddings change no member, other weights do."""
    suite, sets, out = prepared

    def around(folder: str, fingerprint: str, digests: dict[str, str]) -> _Described:
        model = {"kind": "dense", "folder": folder, "fingerprint": fingerprint}
        stored = {"kind": "stored", "folder": folder, "sha256": digests}
        return _Described({"kind": "made of others", part: {"model": model, "stored": stored}})

    evaluate(around("runs/a", "a", {"links": "1"}), suite, _one(sets, "links"), out)
    moved = around("/mnt/a", "a", {"links": "1", "search": "2"})
    assert set(evaluate(moved, suite, _one(sets, "search"), out).sets) == {"links", "search"}
    for other in (around("/mnt/a", "b", {}), around("/mnt/a", "a", {"search": "3"})):
        with pytest.raises(ConfigError, match=f"differs in {part}"):
            evaluate(other, suite, _one(sets, "search"), out)


def test_benchmarks_that_no_version_here_reads_are_scored_again() -> None:
    now = made_up("a", "search", "search", ["ndcg@10"]).model_dump(mode="json")
    assert scored_alike({**now, "hub": {"a.tsv": {"repo": "x/y", "split": "test"}}}, now)
    assert not scored_alike({**now, "split": "dev"}, now)
    assert not scored_alike({**now, "protocol": "of a later version"}, now)


def test_resuming_knows_another_cross_encoder_in_the_same_folder(
    prepared: Prepared, tmp_path: Path
) -> None:
    suite, sets, out = prepared
    model = save_cross_encoder(tmp_path / "cross")
    evaluate(RerankedSystem("better", BM25System(), model), suite, sets, out)
    moved = model.rename(tmp_path / "moved")
    seen: dict[str, object] = {}
    system = RerankedSystem("better", BM25System(), moved)
    evaluate(system, suite, sets, out, earlier="resume", on_set=seen.__setitem__)
    assert set(seen.values()) == {None}
    weights = load_file(moved / "model.safetensors")
    (moved / "model.safetensors").unlink()
    for other in ("model-00001-of-00001.safetensors", "model.safetensors"):
        save_file({name: -tensor for name, tensor in weights.items()}, moved / other)
        with pytest.raises(ConfigError, match="differs in sha256"):
            evaluate(system, suite, sets, out, earlier="resume")


class _Described(BM25System):
    def __init__(self, settings: dict[str, object]) -> None:
        super().__init__()
        self._settings = settings

    def describe(self) -> dict[str, object]:
        return self._settings


def test_a_result_for_another_suite_is_refused(prepared: Prepared) -> None:
    suite, sets, out = prepared
    evaluate(BM25System(), suite, sets, out)
    renamed = suite.model_copy(update={"name": "other"})
    with pytest.raises(ConfigError, match="result of BM25 is for another suite"):
        evaluate(BM25System(), renamed, sets, out)


def test_sets_without_data_are_named(prepared: Prepared, tmp_path: Path) -> None:
    suite, _, out = prepared
    (tmp_path / "data/links/corpus.jsonl").unlink()
    missing = missing_sets(suite, tmp_path / "data")
    assert list(missing) == ["links"]
    assert "links/corpus.jsonl" in missing["links"]
    with pytest.raises(DataError, match="data of links is missing"):
        load_sets(suite, tmp_path / "data")
    there = load_sets(suite, tmp_path / "data", ["search", "coarse"])
    evaluate(BM25System(), suite, there, out, missing=missing)
    written = Result.model_validate(json.loads((out / "BM25/result.json").read_text()))
    assert written.not_scored == missing
