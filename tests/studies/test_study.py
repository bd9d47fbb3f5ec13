"""A study on the command line, on real training: run, stopped, killed, continued, refused."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from scimult.checkpoints import load_pretrained
from scimult.evaluation.per_query import read_per_query
from scimult.evaluation.results import load_result
from scimult.files import read_json, sha256, write_json
from scimult.studies.jobs import Slot
from scimult.studies.plan import make_plan
from scimult.studies.work import make_jobs
from tests.studies.small_study import call, small_study, write_study
from tests.tiny import save_tiny_model
from tests.training.corpus import metrics

EXPERT = re.compile(r"(?<=experts)\.\d+\.")

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data, a base model, a suite and a run configuration."""
    return small_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def done(folder: Path) -> Path:
    """Return the folder of an uninterrupted study."""
    result = call(write_study(folder, "whole"))
    assert result.exit_code == 0, result.output
    return folder / "whole"


def test_the_table_is_that_of_the_scores_per_query(done: Path) -> None:
    found = json.loads((done / "study.json").read_text())
    (suite,) = found["suites"]
    scores = {(row["run"], row["name"]): row for row in suite["scores"]}
    results = done / "results" / "own"
    keys = ["experts-seed0", "experts-seed1"]
    per_query = {
        key: read_per_query(results, key, "own").scores(["ndcg@10"])[:, 0]
        for key in [*keys, "base"]
    }
    means = [float(per_query[key].mean()) for key in keys]
    row = scores["experts", "own"]
    assert row["scores"] == pytest.approx(means, rel=1e-9)
    assert row["mean"] == pytest.approx(statistics.mean(means), rel=1e-9)
    assert row["sd"] == pytest.approx(statistics.stdev(means), rel=1e-9)
    assert scores["base", "own"]["sd"] is None
    # The average of one set is that set.
    assert scores["experts", "average"]["mean"] == row["mean"]

    difference = next(row for row in suite["differences"] if row["name"] == "own")
    first, second, base = (per_query[key] for key in [*keys, "base"])
    queries = len(base)

    def covariance(a: Any, b: Any) -> float:
        return float(((a - a.mean()) * (b - b.mean())).sum() / (queries - 1) / queries)

    seeds = statistics.variance(means) / 2
    crossed = covariance(first, base) + covariance(second, base)
    over_queries = max(covariance(first, second) + covariance(base, base) - crossed, 0)
    degrees = (seeds + over_queries) ** 2 / (seeds**2 + over_queries**2 / (queries - 1))
    t = (statistics.mean(means) - base.mean()) / (seeds + over_queries) ** 0.5
    assert difference["p"] == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-6)
    assert difference["p_holm"] == difference["p"]
    assert difference["degrees"] == pytest.approx(degrees, rel=1e-6)


def test_everything_of_a_run_is_written_down(done: Path, folder: Path) -> None:
    found = json.loads((done / "study.json").read_text())
    trials = {trial["key"]: trial for trial in found["trials"]}
    assert trials["experts-seed1"]["overrides"] == [f"output={done}/runs/experts-seed1", "seed=1"]
    lines = metrics(done / "runs" / "experts-seed1")
    cost = trials["experts-seed1"]["cost"]
    assert cost["steps"] == 4
    assert cost["tokens"] == sum(line["tokens"] for line in lines)
    assert cost["flops"] == sum(line["usage"]["model_flops"] for line in lines)
    assert cost["training_seconds"] == pytest.approx(sum(line["seconds"] for line in lines))
    assert trials["base"]["cost"]["steps"] == 0
    assert f"{cost['tokens']:,} |" in (done / "costs.md").read_text()
    page = (done / "study.html").read_text()
    assert "data:image/png;base64," in page
    assert f"{folder / 'run.yaml'}" in page
    table = (done / "table.md").read_text()
    assert "| experts | 2 |" in table
    assert "±" in table
    logs = sorted(path.name for path in (done / "logs").iterdir())
    assert logs == [
        "base.evaluate.own.log",
        *(f"experts-seed{n}.{job}.log" for n in (0, 1) for job in ("evaluate.own", "train")),
    ]


def test_a_second_call_and_a_dry_run_start_nothing(done: Path, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (done / "logs").iterdir()}
    table = (done / "table.md").read_bytes()
    for words in ((), ("--dry-run",)):
        result = call(folder / "whole.yaml", *words)
        assert result.exit_code == 0, result.output
    assert "experts-seed1 ready 4/4 1/1 0.00" in " ".join(result.stdout.split())
    assert "0.00 hours of one rank are left." in result.stdout
    assert {path: path.stat().st_mtime_ns for path in (done / "logs").iterdir()} == before
    assert (done / "table.md").read_bytes() == table


def test_a_dry_run_tells_what_is_missing_by_what_is_known(done: Path, folder: Path) -> None:
    result = call(folder / "whole.yaml", "seeds=[0, 1, 2]", "--list")
    assert result.exit_code == 0, result.output
    assert "experts-seed2 missing 0/4 0/1" in " ".join(result.stdout.split())
    assert "nothing is known" not in result.stdout
    assert not (done / "runs" / "experts-seed2").exists()


def test_another_configuration_does_not_go_on_in_the_same_folder(done: Path, folder: Path) -> None:
    result = call(folder / "whole.yaml", "overrides=[optimizer.lr=0.5]")
    assert result.exit_code == 1
    assert "1 of 2 runs cannot start. Fix: " in result.stderr
    assert "started with a different optimizer" in result.stderr
    result = call(folder / "whole.yaml", "overrides=[engine.precision=bf16]")
    assert result.exit_code == 1
    assert "was trained with a different engine.precision" in " ".join(result.stderr.split())
    manifest = folder / "prepared" / "manifest.json"
    before = manifest.read_text(encoding="utf-8")
    write_json(manifest, {**read_json(manifest), "fingerprint": "another"})
    result = call(folder / "whole.yaml")
    manifest.write_text(before, encoding="utf-8")
    assert result.exit_code == 1
    assert "the finished run was trained on other data" in " ".join(result.stderr.split())
    result = call(folder / "whole.yaml", "name=other")
    assert result.exit_code == 1
    assert "the folder belongs to another study" in result.stderr


def test_all_seeds_in_one_model_and_again_when_shares_change(done: Path, folder: Path) -> None:
    """Against a double loop over seeds in float64, rounded to float32."""
    paths = [done / f"runs/experts-seed{n}/model/model.safetensors" for n in (0, 1)]
    trained = [load_file(path) for path in paths]
    # The base's only layer stands for each expert.
    base = load_pretrained(folder / "base").model.state_dict()
    base = {name: base[name if name in base else EXPERT.sub(".0.", name)] for name in trained[0]}
    for shares in ([0.5, 0.5], [0.8, 0.2]):
        soup = {"models": ["experts", "base"], "shares": shares, "all_seeds": True}
        runs = {
            "base": {"model": str(folder / "base")},
            "experts": {},
            "soup": {"merge": soup, "evaluate": False},
        }
        path = write_study(folder, "soup", runs=runs)
        result = call(path, "name=whole", f"output={done}")
        assert result.exit_code == 0, result.output
        found = load_file(done / "runs/soup/model.safetensors")
        for name, tensor in found.items():
            wanted = shares[1] * base[name].double()
            for model in trained:
                wanted += shares[0] / 2 * model[name].double()
            torch.testing.assert_close(tensor, wanted.float(), rtol=0, atol=1e-7)
    assert (
        "average of experts and base (0.8, 0.2), all seeds in one"
        in (done / "table.md").read_text()
    )


def test_scores_of_an_older_model_never_count_as_the_new_ones(done: Path, folder: Path) -> None:
    """As when the process is stopped between the record of a job and its first result."""
    shutil.copytree(folder / "base", folder / "model")
    runs = {"base": {"model": str(folder / "model")}}
    path = write_study(folder, "replaced", runs=runs)
    assert call(path).exit_code == 0
    (job,) = make_jobs(make_plan(path))
    assert job.is_done()
    trained = done / "runs/experts-seed0/model"
    shutil.copytree(trained, folder / "model", dirs_exist_ok=True)
    assert not job.is_done()
    job.begin()
    assert not job.is_done()
    assert call(path).exit_code == 0
    scores = [
        load_result(out / "results" / "own" / key / "result.json").sets["own"].scores
        for out, key in ((folder / "replaced", "base"), (done, "experts-seed0"))
    ]
    assert scores[0] == scores[1]


def test_changed_data_and_settings_are_scored_again(folder: Path) -> None:
    """Also where several models have scores, beside which others cannot be compared."""
    data = folder / "elsewhere"
    shutil.copytree(folder / "own", data / "own")
    shutil.copytree(folder / "base", folder / "copy")
    runs = {name: {"model": str(folder / name)} for name in ("base", "copy")}
    section = {"suite": str(folder / "own.yaml"), "data": str(data)}
    path = write_study(folder, "changed_data", runs=runs, evaluate=[section])
    assert call(path).exit_code == 0
    results = [folder / "changed_data" / "results" / "own" / name / "result.json" for name in runs]
    judged = data / "own" / "qrels" / "test.tsv"
    lines = judged.read_text().splitlines()
    judged.write_text("\n".join(lines[:1] + lines[1::2]) + "\n")
    assert "base ready 0/1" in " ".join(call(path, "--dry-run").stdout.split())
    result = call(path)
    assert result.exit_code == 0, result.output
    assert "copy: dropping scores of other data or settings: own" in result.stderr
    expected = sha256(judged)
    for each in results:
        assert load_result(each).sets["own"].files["own/qrels/test.tsv"] == expected
    tree = json.loads(results[0].read_text())
    tree["sets"]["own"]["rules"] = 0
    results[0].write_text(json.dumps(tree))
    assert "base ready 0/1" in " ".join(call(path, "--dry-run").stdout.split())
    # One model less: its old scores are in nobody's way.
    del runs["copy"]
    section["overrides"] = ["benchmarks.own.metrics=[recall@5]"]
    result = call(write_study(folder, "changed_data", runs=runs, evaluate=[section]))
    assert result.exit_code == 0, result.output
    assert list(load_result(results[0]).sets["own"].scores) == ["recall@5"]
    judged.write_text("")
    result = call(path)
    assert result.exit_code == 1
    assert "1 of 1 jobs failed" in result.stderr
    assert (folder / "changed_data" / "table.md").read_text().startswith("## Runs")


def test_all_that_cannot_start_is_refused_at_once(folder: Path) -> None:
    runs = {
        "base": {"model": str(folder / "base")},
        "typo": {"overrides": ["optimizer.lrr=1"]},
        "gone": {"config": str(folder / "gone.yaml")},
        "strange": {"overrides": ["model.variant=bert"]},
    }
    result = call(write_study(folder, "refused", runs=runs))
    assert result.exit_code == 1
    assert "2 of 4 runs cannot start. Fix: " in result.stderr
    assert "typo: " in result.stderr
    assert "lrr: unknown key (did you mean 'lr'?)" in result.stderr
    assert "gone.yaml: file does not exist" in result.stderr
    # Errors that need more than the study file are found next, still before any work.
    del runs["typo"], runs["gone"]
    runs |= {"on_it": {"after": "strange"}, "missing": {"model": "nowhere"}}
    runs["no_data"] = {"overrides": ["data.prepared=nowhere"]}
    result = call(write_study(folder, "refused", runs=runs))
    assert result.exit_code == 1
    assert "3 of 5 runs cannot start. Fix: " in result.stderr
    for name in ("strange: ", "missing: ", "no_data: "):
        assert f"\n  {name}" in result.stderr
    assert result.stderr.count("Fix:") == 1
    assert not (folder / "refused").exists()


def test_a_merge_of_models_of_other_sizes_is_refused_before_any_work(folder: Path) -> None:
    deep = save_tiny_model(folder / "deep", variant="vanilla", num_blocks=3)
    runs = {
        "base": {"model": str(folder / "base")},
        "experts": {"overrides": ["model.variant=mha_expert"]},
        "deep": {"model": str(deep)},
        "fits": {"merge": {"models": ["base", "experts"]}},
        "no_fit": {"merge": {"models": ["experts", "deep"]}},
        "no_base": {"merge": {"models": ["base"], "method": "task_vectors", "base": "deep"}},
        "of_merged": {"merge": {"models": ["fits", "deep"]}},
        "split": {"merge": {"experts": {"classification": "base", "search": "deep"}}},
    }
    result = call(write_study(folder, "refused", runs=runs), "--dry-run")
    assert "4 of 8 runs cannot start. Fix: " in result.stderr
    for name in ("no_fit", "no_base", "of_merged", "split"):
        assert f"\n  {name}: deep: models differ in " in result.stderr
    assert result.stderr.count("num_blocks 2 and 3") == 4
    runs = {name: runs[name] for name in ("base", "experts", "fits")}
    assert call(write_study(folder, "refused", runs=runs), "--dry-run").exit_code == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_needs_no_file_beside_the_package(folder: Path, ranks: int) -> None:
    plan = make_plan(write_study(folder, "ranks", launch={"ranks": ranks}), [])
    training = next(job for job in make_jobs(plan) if job.name == "experts-seed0.train")
    words = training.command(Slot())
    module = words[words.index("-m" if ranks == 1 else "--module") + 1]
    assert module == "scimult.cli.pretrain"
    assert not any(word.endswith(".py") for word in words)


def test_batches_that_the_ranks_cannot_share_are_refused_at_once(done: Path, folder: Path) -> None:
    words = ("launch.ranks=3", "--dry-run")
    result = call(write_study(folder, "three", runs={"base": {}}), *words)
    assert result.exit_code == 1
    assert "pairs_per_step 8 cannot be split over 3 ranks" in " ".join(result.stderr.split())
    # Those of finished runs were shared by others.
    result = call(folder / "whole.yaml", *words)
    assert result.exit_code == 0, result.output


def test_a_model_without_a_task_of_the_suite_is_refused_at_once(folder: Path) -> None:
    section = {"suite": str(folder / "own.yaml"), "data": str(folder)}
    changed = {**section, "overrides": ["benchmarks.own.task=regression"]}
    result = call(write_study(folder, "refused", evaluate=[changed]), "--dry-run")
    assert result.exit_code == 1
    assert "experts: set 'own' of suite 'own' needs a task that the model lacks" in result.stderr
    # An existing model has the default tasks.
    assert "base: set 'own' of suite 'own' needs a task that the model lacks" in result.stderr
    changed["overrides"].append("benchmarks.own.fallback_task=search")
    assert call(write_study(folder, "fresh", evaluate=[changed]), "--dry-run").exit_code == 0


def test_a_dry_run_of_what_nothing_is_known_of_says_so(folder: Path) -> None:
    result = call(write_study(folder, "fresh"), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "known once the first model is trained" in " ".join(result.stdout.split())
    assert "0.00 hours" not in result.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": {"base": {}, "again": {"seeds": [5]}}}, "two runs are the same"),
        (
            {
                "runs": {
                    "base": {},
                    "a": {"merge": {"models": ["base", "b"]}},
                    "b": {"seeds": [0, 1], "overrides": ["schedule.steps=3"]},
                    "c": {"merge": {"models": ["base", "b"], "shares": [2, 2]}},
                }
            },
            "two runs are the same",
        ),
        (
            {
                "runs": {
                    "base": {},
                    "a": {"after": "base", "seeds": [0]},
                    "b": {"after": "base", "seeds": [1]},
                }
            },
            "two runs are the same",
        ),
        ({"runs": {"base": {"model": "x"}, "y": {"model": "./x/"}}}, "two runs are the same"),
        ({"runs": {"base": {}, "base-seed0": {"model": "x"}}}, "two runs have the same name"),
        ({"options": {"pool": "mean"}}, "unknown option of a system"),
        ({"evaluate": [{"suite": "demo", "data": "nowhere"}]}, "5 sets of suite 'demo'"),
        ({"evaluate": [{"suite": "dem", "data": "x"}]}, "did you mean 'demo'"),
    ],
)
def test_contradictions_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    result = call(write_study(folder, "refused", **changes), "--dry-run")
    assert result.exit_code == 1
    assert message in result.stderr


def test_runs_are_told_apart_whatever_they_are_called(folder: Path) -> None:
    """Two runs start from different models, whose names end in those of the runs."""
    runs = {
        "base": {},
        "long-a": {"overrides": ["schedule.steps=3"]},
        "long-b": {"overrides": ["schedule.steps=2"]},
        "a": {"after": "long-a"},
        "b": {"after": "long-b"},
    }
    plan = make_plan(write_study(folder, "told_apart", runs=runs))
    assert len(plan.trials) == 10
