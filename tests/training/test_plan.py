"""How often a run will see its sources, counted before it starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scimult.config import load_config, validate
from scimult.data.batches import Batch
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, UnknownNameError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.tasks import default_tasks
from scimult.training.config import PretrainConfig
from scimult.training.loss_config import DistillationConfig
from scimult.training.negatives import check_negatives
from scimult.training.plan import RunPlan, build_sampler, plan_run
from scimult.training.run import batch_builder
from scimult.types import Text
from tests.tiny import tiny_tokenizer
from tests.training.corpus import prepare_corpus, run_config


def plan_of(
    prepared: Path, batch: dict[str, Any], **sections: Any
) -> tuple[PretrainConfig, RunPlan]:
    """Return the configuration and the plan of an epoch."""
    config = validate(
        PretrainConfig,
        {
            "output": "never",
            "data": {"prepared": str(prepared), "max_length": 128} | sections.pop("data", {}),
            "model": {"base": "never", "similarity": "l2"},
            "schedule": {"epochs": 1},
            "batch": batch,
            **sections,
        },
    )
    return config, plan_run(config)


def pairs_seen(prepared: Path, tokenizer: TextTokenizer, **batch: Any) -> dict[str, Counter[int]]:
    """Return how often each number of visits to a pair occurs in one epoch, by source."""
    config, plan = plan_of(prepared, batch)
    lengths_N = PreparedData.open(prepared).tokens(tokenizer, 128).lengths_N
    sampler, _ = build_sampler(config, plan, lengths_N)
    visits = [Counter[tuple[int, int]]() for _ in plan.sources]
    for micro_batch in range(len(sampler)):
        for part in sampler.plan(micro_batch):
            pairs = np.stack([part.rows.queries_R, part.rows.positives_R], 1).tolist()
            visits[part.source].update(map(tuple, pairs))
    seen = {}
    for source, counts in zip(plan.sources, visits, strict=True):
        seen[source.name] = Counter(counts.values())
        if absent := len(source.positives.values) - len(counts):
            seen[source.name][0] = absent
    return seen


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("plan"))


def test_an_epoch_by_tokens_sees_every_pair_once(corpus: Path) -> None:
    seen = pairs_seen(corpus, tiny_tokenizer(), max_tokens=1000)
    assert len(seen) == 3
    assert all(set(times) == {1} for times in seen.values()), seen


@pytest.mark.parametrize(
    ("rate", "across", "experts", "loss", "told"),
    [
        # Eight pairs in a pass, 0.8 or 1.2 of them of search.
        (0.1, "source", False, {}, "refused"),
        (0.1, "task", False, {}, "refused"),
        (0.1, "batch", True, {}, "refused"),
        (0.1, "batch", False, {}, "nothing"),
        (0.1, "source", False, {"name": "triplet"}, "nothing"),
        (0.15, "source", False, {}, "67% of the pairs have no in-batch negatives"),
        (0.5, "source", False, {}, "nothing"),
    ],
)
def test_pairs_without_negatives_are_found_before_the_run(
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    rate: float,
    across: str,
    experts: bool,
    loss: dict[str, Any],
    told: str,
) -> None:
    rest = (1 - rate) / 2
    rates = {"search": rate, "link_prediction": rest, "classification": rest}
    config, plan = plan_of(
        corpus,
        {"mix": "in_batch", "negatives_across": across, "pairs_per_step": 8},
        data={"sampling": "explicit", "rates": rates},
        loss=loss,
    )

    def routes(task: str) -> list[int]:
        return [default_tasks().names.index(task) if experts else 0] * 2

    if told == "refused":
        with pytest.raises(ConfigError, match=r"no batch holds two pairs.*world\.search.*Fix"):
            check_negatives(config, plan, routes)
        # A teacher alone needs no in-batch negatives.
        teacher = DistillationConfig(name="kl", contrastive_weight=0)
        distils = config.loss.model_copy(update={"distillation": teacher})
        check_negatives(config.model_copy(update={"loss": distils}), plan, routes)
        return
    check_negatives(config, plan, routes)
    said = capsys.readouterr().err
    assert said == "" if told == "nothing" else f"world.search: {told}" in said


def test_a_rate_of_0_leaves_a_source_out(corpus: Path) -> None:
    """It is as if data.sources did not list it: no dev score, and no setting for its task."""
    rates = {"search": 0, "link_prediction": 1, "classification": 1}
    data = {"sampling": "explicit", "rates": rates}
    _, plan = plan_of(corpus, {"pairs_per_step": 8}, data=data)
    trained = {"link_prediction", "classification"}
    assert {source.task for source in plan.sources} == set(plan.loss_weights) == trained
    assert {dev_set.task for dev_set in plan.dev_sets} <= trained
    assert len(plan.sources) == len(plan.streams) == len(plan.rates)
    assert plan.rates.min() > 0
    with pytest.raises(UnknownNameError, match=r"task in loss\.weights"):
        plan_of(corpus, {"pairs_per_step": 8}, data=data, loss={"weights": {"search": 2}})


@pytest.mark.long
@pytest.mark.data
def test_an_epoch_of_the_shared_data_sees_every_pair_once(
    repository: Path,
    scimult_data: Path,
    minilm: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With rates as shares of passes, acl was seen 1.40 times and vis 0.50 times."""
    monkeypatch.setenv("SCIMULT_DATA", str(scimult_data))
    config = load_config(DatasetConfig, repository / "configs" / "data" / "scholarly.yaml")
    # arxiv has most of the texts.
    config.sources = [source for source in config.sources if source.name != "arxiv"]
    build_dataset(config, tmp_path / "prepared")
    tokenizer = TextTokenizer.from_folder(minilm)
    seen = pairs_seen(tmp_path / "prepared", tokenizer, max_tokens=8192)
    assert len(seen) == 4
    assert all(set(times) == {1} for times in seen.values()), seen


def test_hard_negatives_of_listed_tasks(corpus: Path) -> None:
    """SciMult's Table A4 leaves out only those of classification."""

    def tasks_with_negatives(chosen: Any) -> set[str]:
        data = {"hard_negatives": chosen}
        _, plan = plan_of(corpus, {"pairs_per_step": 8}, data=data)
        return {file.task for file in plan.sources if file.negatives.lengths.any()}

    everything = {"search", "link_prediction", "classification"}
    assert tasks_with_negatives(True) == everything
    # Drawn but not used, one that is a positive of another task was its query's in-batch negative.
    assert tasks_with_negatives(False) == set()
    assert tasks_with_negatives(["link_prediction", "search"]) == everything - {"classification"}
    with pytest.raises(UnknownNameError, match="did you mean 'search'"):
        tasks_with_negatives(["serach"])


def test_a_stream_of_an_unlisted_task_draws_none(corpus: Path) -> None:
    data = {"hard_negatives": ["search"]}
    config, plan = plan_of(corpus, {"pairs_per_step": 8}, data=data)
    sampler, steps = build_sampler(config, plan, np.full(1000, 20, dtype=np.int32))
    drawn: Counter[str] = Counter()
    for number in range(steps):
        for part in sampler.plan(number):
            drawn[plan.sources[part.source].task] += int((part.rows.negatives_R >= 0).sum())
    assert drawn["search"] > 0
    assert drawn["classification"] == drawn["link_prediction"] == 0


def test_a_run_reads_a_share_of_its_papers_by_title(tmp_path: Path) -> None:
    """The pairs stay the same; drawn papers end with their titles, wherever they occur."""
    prepare_corpus(tmp_path)
    tokenizer = tiny_tokenizer()
    texts: dict[float, dict[int, list[int]]] = {}
    for share in (0.0, 0.4):
        data = {"title_only": share}
        config, plan = plan_of(tmp_path / "prepared", {"pairs_per_step": 16}, data=data)
        tokens = plan.data.tokens(tokenizer, 128)
        sampler, _ = build_sampler(config, plan, tokens.lengths_N)
        builder = batch_builder(config, plan, tokens)
        read = texts.setdefault(share, {})
        for number in range(len(sampler)):
            for part in builder.micro_batch(sampler.plan(number), 0).parts:
                assert isinstance(part, Batch)
                indices = torch.cat([part.query_B, part.candidate_C]).tolist()
                ids = torch.cat([part.query_ids_B, part.candidate_ids_C]).tolist()
                read |= {row: part.rows[at].tolist() for row, at in zip(ids, indices, strict=True)}
    assert texts[0.0].keys() == texts[0.4].keys()
    for row, whole in texts[0.0].items():
        text = plan.data.texts.text(row)
        (title,) = tokenizer.encode([Text(text.kind, text.title)], 128)
        shortened = texts[0.4][row] != whole
        assert texts[0.4][row] == (title.tolist() if shortened else whole)
        assert text.kind == "paper" or not shortened
    papers = [row for row in texts[0.0] if plan.data.texts.text(row).kind == "paper"]
    share = np.mean([texts[0.4][row] != texts[0.0][row] for row in papers])
    # 60 papers: three standard deviations.
    assert share == pytest.approx(0.4, abs=0.19)


@pytest.mark.parametrize(("pairs", "warned"), [(64, True), (4, False)])
def test_a_batch_larger_than_a_source_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairs: int, warned: bool
) -> None:
    prepare_corpus(tmp_path)
    config, plan = plan_of(tmp_path / "prepared", {"pairs_per_step": pairs})
    smallest = min(len(stream) for stream in plan.streams)
    build_sampler(config, plan, np.full(1000, 9, dtype=np.int32))
    said = capsys.readouterr().err
    assert (f"has {smallest} pairs, fewer than a micro-batch of 64" in said) == warned


@pytest.mark.parametrize(
    ("section", "key", "least"),
    [
        ("checkpoint", "every", 1),  # every step
        ("checkpoint", "keep", 1),
        ("log", "every", 1),
        ("dev", "every", 0),  # never
        ("dev", "queries", 1),
        ("dev", "candidates", 2),
        ("batch", "pairs_per_step", 2),  # one alone has no in-batch negative
        ("batch", "accumulation", 1),
        ("schedule", "steps", 0),  # the model it starts from
        ("data", "max_length", 3),  # cls, a word, sep
    ],
)
def test_the_least_that_a_run_may_have(tmp_path: Path, section: str, key: str, least: int) -> None:
    config = run_config(tmp_path, "run", **{section: {key: least}})
    assert getattr(getattr(config, section), key) == least
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: .*{least} \(value: {least - 1}\)"):
        run_config(tmp_path, "run", **{section: {key: least - 1}})
