"""Following a teacher's vectors in a run: over ranks, in chunks, resumed, and dropped at export."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from scimult import distributed
from scimult.config import load_config, validate
from scimult.data.batches import BatchBuilder, all_known_positives
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.errors import ConfigError, DataError, SciMultError
from scimult.inference import SciMult
from scimult.losses import Projection
from scimult.progress import LOGGER
from scimult.retrieval.embeddings import StoredEmbeddings, read_embeddings
from scimult.retrieval.teacher_vectors import TeacherVectors, write_encoded, write_imported
from scimult.training import build, embedding_teacher
from scimult.training.config import LossConfig, PretrainConfig
from scimult.training.curriculum import check_folder
from scimult.training.embedding_teacher import EmbeddingTeacher, open_embedding_teacher
from scimult.training.learned import LearnedPart, learned_parts
from scimult.training.negatives import shared_negatives
from scimult.training.objective import Objective
from scimult.training.origin import origin_of
from scimult.training.plan import plan_run
from scimult.training.run import pretrain
from scimult.training.stages import Stage
from scimult.training.taught import TaughtObjective
from tests.ranks import run_ranks
from tests.training.corpus import (
    assert_same_run,
    metrics,
    plan_micro_batches,
    prepare_corpus,
    run_config,
)
from tests.training.test_ranks import (
    CHUNK,
    OwnGradients,
    assert_equal_gradients,
    mean_gradients,
    run_pass,
)

TASKS = ("classification", "link_prediction", "search")
WIDTH = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus; ``itself`` has the vectors of its base, ``wide`` random ones."""
    path = tmp_path_factory.mktemp("taught")
    texts = PreparedData.open(prepare_corpus(path)).texts
    base = SciMult.from_pretrained(path / "base")
    write_encoded(path / "itself", texts, base, task="search", meta={}, precision="float32")
    matrix = np.random.default_rng(0).normal(size=(len(texts), WIDTH + 5)).astype(np.float32)
    write_imported(path / "wide", texts, StoredEmbeddings(path, texts.ids, matrix, {}))
    return path


@dataclass(frozen=True)
class Case:
    """Options of the teacher loss of a micro-batch; ``width`` is the teacher's."""

    teacher: dict[str, Any]
    width: int = WIDTH
    loss: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)


MIXED = {"mix": "in_batch"}
CASES = (
    Case({"loss": "cosine", "weight": 2.0}, width=21),
    Case({"loss": "relational"}, width=5, loss={"matryoshka": [4, 9]}),
    # One encoder for all tasks, one of which does not follow: relations are those of two sources.
    Case(
        {"loss": "both", "projection": True, "tasks": ["search", "classification"]},
        loss={"learn_temperature": True},
        sections={"batch": MIXED, "model": {"variant": "vanilla"}},
    ),
    # A part with a single pair: one of two ranks has no row of it.
    Case(
        {"loss": "both", "relational_weight": 0.5},
        sections={
            "batch": {**MIXED, "pairs_per_step": 4},
            "model": {"variant": "ffn_expert", "routing": "task_and_side"},
        },
    ),
)


def all_gradients(folder: Path, chunk_tokens: int | None) -> list[dict[str, Any]]:
    return [micro_batch_gradients(folder, case, chunk_tokens) for case in CASES]


def micro_batch_gradients(folder: Path, case: Case, chunk_tokens: int | None) -> dict[str, Any]:
    """Return this rank's losses and gradients of three micro-batches, a mean over ranks."""
    model = {"dropout": 0.0, "attention_dropout": 0.0, "similarity": "cosine"}
    sections = {**case.sections, "model": model | case.sections.get("model", {})}
    loss = {"temperature": 0.5, **case.loss}
    config = run_config(folder, "unused", loss=loss, **sections)
    section = validate(LossConfig, {**loss, "embedding_teacher": {"vectors": "v", **case.teacher}})
    options = section.embedding_teacher
    assert options is not None
    data = PreparedData.open(config.data.prepared)
    pretrained = build.build_model(config)
    matrix = np.random.default_rng(0).normal(size=(len(data.texts), case.width))
    followed = options.tasks or TASKS
    builder = BatchBuilder(
        data.pairs("train"),
        data.tokens(pretrained.tokenizer, 32),
        all_known_positives(data),
        max_length=32,
        by_side=config.model.routing == "task_and_side",
        vectors_of=lambda source: matrix.__getitem__ if source.task in followed else None,
    )
    projection = None
    if options.loss != "relational" and (options.projection or case.width != WIDTH):
        weight = torch.randn(case.width, WIDTH, generator=torch.Generator().manual_seed(0))
        projection = LearnedPart(Projection(weight), frozenset(followed))
    learned = learned_parts(config, pretrained.model, TASKS, projection=projection)
    pretrained.model.double()
    group_of = shared_negatives(config.batch.negatives_across, pretrained.routes)
    plain = Objective("cosine", section, group_of=group_of)
    objective = TaughtObjective(plain, options, section.matryoshka, "cpu", group_of)
    engine = OwnGradients(pretrained.model)
    sampler, sums = plan_micro_batches(config), []
    for number in range(3):
        micro_batch = builder.micro_batch(sampler.plan(number), distributed.rank())
        results = run_pass(engine, objective, micro_batch, pretrained.routes, learned, chunk_tokens)
        share = distributed.world_size() / micro_batch.pairs
        sums.append(sum(float(result.loss.detach()) * share for result in results))
    return {"losses": sums, "gradients": mean_gradients(pretrained.model)}


@pytest.mark.ranks
def test_ranks_and_chunks_give_the_gradient_of_one_whole_pass(folder: Path, tmp_path: Path) -> None:
    whole = all_gradients(folder, None)
    chunked = [[case] for case in all_gradients(folder, CHUNK)]
    (tmp_path / "chunked").mkdir()
    both = zip(*run_ranks(all_gradients, 2, tmp_path, folder, None), strict=True)
    both_chunked = zip(
        *run_ranks(all_gradients, 2, tmp_path / "chunked", folder, CHUNK), strict=True
    )
    for case, one, *others in zip(CASES, whole, chunked, both, both_chunked, strict=True):
        if one["gradients"].get("learned.projection.weight") is not None:
            assert one["gradients"]["learned.projection.weight"].norm() > 1e-3, case
        for ranks in others:
            mean = np.mean([rank["losses"] for rank in ranks], axis=0)
            assert mean == pytest.approx(one["losses"], rel=1e-10), case
            assert_equal_gradients(ranks[0]["gradients"], one["gradients"], case)


def run(folder: Path, name: str, teacher: dict[str, Any] | None, **sections: Any) -> Path:
    """Train a few steps on this process and return the run's folder."""
    loss = {"temperature": 0.5, "embedding_teacher": teacher}
    model = {"variant": "vanilla", "dropout": 0.0, "attention_dropout": 0.0}
    settings: dict[str, Any] = {"batch": {"chunk_tokens": None}, "model": model}
    settings |= {"dev": {"every": 0}, "optimizer": {"lr": 3e-3}}
    config = run_config(folder, name, loss=loss, **{**settings, **sections})
    pretrain(config)
    return Path(config.output)


def taught(output: Path) -> list[float]:
    """Return each step's teacher loss, over the tasks that follow the teacher."""
    lines = (task for line in metrics(output) for task in line["by_task"].values())
    return [task["teacher"] for task in lines if "teacher" in task]


def export_keys(output: Path) -> dict[str, list[int]]:
    with safe_open(output / "model/model.safetensors", framework="pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118


@pytest.mark.ranks
def test_a_run_follows_and_exports_no_projection(folder: Path, tmp_path: Path) -> None:
    steps = {"schedule": {"steps": 40, "name": "constant"}, "checkpoint": {"every": 100}}
    wide = {"vectors": str(folder / "wide"), "loss": "both", "weight": 3.0}
    run_ranks(run, 1, tmp_path, folder, "plain", None)
    run_ranks(run_with, 1, tmp_path, (folder, "wide_run", wide), steps)
    output = folder / "wide_run"
    losses = taught(output)
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:8]), losses
    assert export_keys(output) == export_keys(folder / "plain")
    described = [
        json.loads((path / "model/config.json").read_text(encoding="utf-8"))
        for path in (output, folder / "plain")
    ]
    assert described[0]["encoder"] == described[1]["encoder"]
    assert taught(folder / "plain") == []


def run_with(arguments: tuple[Any, ...], sections: dict[str, Any]) -> Path:
    return run(*arguments, **sections)


@pytest.mark.ranks
def test_a_run_begins_at_its_base_and_resumes(folder: Path, tmp_path: Path) -> None:
    """With the base as teacher, its loss is 0 at first, up to float32, and then holds back."""
    itself = {"vectors": str(folder / "itself"), "loss": "both", "tasks": ["search"]}
    # As many tokens as the teacher read.
    only = {"data": {"prepared": str(folder / "prepared"), "max_length": 64}}
    only["data"] |= {"sources": ["world.search"]}
    run_ranks(run_with, 1, tmp_path, (folder, "whole", itself), only)
    losses = taught(folder / "whole")
    assert losses[0] < 1e-9
    assert min(losses[2:]) > 1e-6
    shutil.copytree(folder / "whole", folder / "again")
    shutil.rmtree(folder / "again/checkpoints/step-0000006")
    shutil.rmtree(folder / "again/model")
    run_ranks(run_with, 1, tmp_path, (folder, "again", itself), only)
    assert_same_run(folder / "again", folder / "whole")


def warnings_of(folder: Path, name: str, sections: dict[str, Any]) -> list[str]:
    """Return the warnings of a run that follows vectors as wide as the model's."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    LOGGER.addHandler(handler)
    run(folder, name, {"vectors": str(folder / "itself"), **sections}, **ONE_STEP)
    return messages


ONE_STEP = {"schedule": {"steps": 1}, "optimizer": {"lr": 1e-3, "learned_lr": 1e-2}}


@pytest.mark.ranks
@pytest.mark.parametrize("projection", [None, True])
def test_a_learning_rate_of_no_projection_is_named(
    folder: Path, tmp_path: Path, projection: bool | None
) -> None:
    sections = {"projection": projection}
    (messages,) = run_ranks(warnings_of, 1, tmp_path, folder, f"lr_{projection}", sections)
    found = [message for message in messages if "learned_lr 0.01 has no effect" in message]
    assert len(found) == (projection is None)


@pytest.mark.ranks
def test_a_run_with_a_projection_resumes_but_not_with_other_vectors(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "wide", tmp_path / "vectors")
    wide = {"vectors": str(tmp_path / "vectors")}
    run_ranks(run, 1, tmp_path, folder, "projected", wide)
    shutil.copytree(folder / "projected", folder / "on")
    shutil.rmtree(folder / "on/checkpoints/step-0000006")
    shutil.rmtree(folder / "on/model")
    run_ranks(run, 1, tmp_path, folder, "on", wide)
    assert_same_run(folder / "on", folder / "projected")
    texts = PreparedData.open(folder / "prepared").texts
    changed = np.load(folder / "wide/embeddings.npy")[::-1].astype(np.float32)
    given = StoredEmbeddings(tmp_path, texts.ids, changed, {})
    write_imported(tmp_path / "vectors", texts, given, overwrite=True)
    shutil.rmtree(folder / "on/checkpoints/step-0000006")
    with pytest.raises(Exception, match="saved with embedding_teacher"):
        run_ranks(run, 1, tmp_path, folder, "on", wide)
    # Nor does a finished one count as trained in a study or curriculum.
    config = load_config(PretrainConfig, folder / "projected" / "config.yaml")
    stage = Stage("projected", config)
    with pytest.raises(
        ConfigError, match="the finished run was trained on other embedding_teacher"
    ):
        check_folder(stage, [stage], origin_of(plan_run(config), build.build_model(config)))
    write_imported(tmp_path / "vectors", texts, read_embeddings(folder / "wide"), overwrite=True)
    assert check_folder(stage, [stage], origin_of(plan_run(config), build.build_model(config)))


def view_of(source: PairFile) -> PairFile:
    return replace(source, view="independent_crop")


@pytest.fixture
def data(folder: Path) -> PreparedData:
    return PreparedData.open(folder / "prepared")


def opened(
    folder: Path, data: PreparedData, sources: list[PairFile], **teacher: Any
) -> EmbeddingTeacher | None:
    config = run_config(
        folder, "never", loss={"embedding_teacher": {"vectors": str(folder / "wide"), **teacher}}
    )
    return open_embedding_teacher(config, data, sources)


def test_views_of_texts_follow_nothing(folder: Path, data: PreparedData) -> None:
    first, *others = data.pairs("train")
    teacher = opened(folder, data, [view_of(first), *others])
    assert teacher is not None
    assert teacher.tasks == {source.task for source in others}
    assert teacher.of(view_of(first)) is None
    assert isinstance(teacher.of(others[0]), TeacherVectors)
    for tasks, sources in (([first.task], [view_of(first), *others]), (None, [view_of(first)])):
        with pytest.raises(ConfigError, match="these tasks have only views of texts or targets"):
            opened(folder, data, sources, tasks=tasks)


def test_vectors_and_tasks_that_do_not_fit(folder: Path, data: PreparedData) -> None:
    sources = data.pairs("train")
    with pytest.raises(SciMultError, match=r"embedding_teacher.tasks.*serach.*mean 'search'"):
        opened(folder, data, sources, tasks=["serach"])
    with pytest.raises(DataError, match="folder of embeddings does not exist"):
        opened(folder, data, sources, vectors=str(folder / "nowhere"))
    meta = json.loads((folder / "wide/meta.json").read_text(encoding="utf-8"))
    shutil.copytree(folder / "wide", folder / "other")
    meta["text_store"] = "of other texts"
    (folder / "other/meta.json").write_text(json.dumps(meta), encoding="utf-8")
    with pytest.raises(DataError, match="not the vectors of the texts in"):
        opened(folder, data, sources, vectors=str(folder / "other"))


def test_widths_need_a_projection_unless_relations_are_followed(
    folder: Path, data: PreparedData
) -> None:
    def make(vectors: str, fit: bool = True, **teacher: Any) -> Projection | None:
        section = {"vectors": str(folder / vectors), **teacher}
        config = run_config(folder, "never", loss={"embedding_teacher": section})
        pretrained, sources = build.build_model(config), data.pairs("train")
        return embedding_teacher.make_projection(
            config,
            open_embedding_teacher(config, data, sources),
            sources,
            data.tokens(pretrained.tokenizer, 32),
            pretrained,
            fit=fit,
        )

    with pytest.raises(ConfigError, match="vectors have width 21, the model's embeddings 16"):
        make("wide", projection=False)
    assert make("wide", loss="relational") is None
    assert make("itself") is None
    made, empty = make("wide"), make("wide", fit=False)
    assert made is not None
    assert empty is not None
    assert made.weight.shape == empty.weight.shape == (21, 16)
    # A map that is fitted onto the model itself preserves directions.
    onto = make("itself", projection=True)
    assert onto is not None
    matrix = torch.from_numpy(np.load(folder / "itself/embeddings.npy"))
    mapped = matrix @ onto.weight.detach().T
    assert torch.nn.functional.cosine_similarity(mapped, matrix).mean() > 0.7


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"loss": "l2"}, "'cosine', 'relational' or 'both'"),
        ({"loss": "relational", "projection": True}, "nothing to learn from"),
        ({"loss": "cosine", "relational_weight": 3.0}, "requires loss: both"),
        ({"tasks": []}, "tasks"),
        ({"weight": 0}, "weight"),
        ({"vector": "x"}, "vector"),
    ],
)
def test_contradictions_are_refused(folder: Path, teacher: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(folder, "never", loss={"embedding_teacher": {"vectors": "v", **teacher}})


def test_both_weigh_as_published(folder: Path) -> None:
    section = {"vectors": "v", "loss": "both", "weight": 10}
    saved = run_config(folder, "never", loss={"embedding_teacher": section}).loss.embedding_teacher
    assert saved is not None
    assert saved.weights == (10, 200)
