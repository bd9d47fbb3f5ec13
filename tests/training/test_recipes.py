"""Every recipe of ``configs/papers`` fits its base, and its small twin trains."""

from __future__ import annotations

import json
import math
import os
import re
import traceback
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from scimult.checkpoints import Pretrained, PretrainedConfig, load_pretrained
from scimult.config import load_config, read_yaml, validate
from scimult.errors import ConfigError, DataError
from scimult.evaluation.suites import load_suite
from scimult.models import Encoder, EncoderConfig
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.vocabulary import read_texts, save_tokenizer, train_wordpiece
from scimult.preparation.world import WorldSettings, make_world, write_world
from scimult.tasks import default_tasks
from scimult.training.build import build_model, rehearse_model
from scimult.training.config import PretrainConfig
from scimult.training.curriculum import run_stages
from scimult.training.plan import plan_run
from scimult.training.run import pretrain
from scimult.training.stages import Stage, has_stages, load_stages
from tests.conftest import REPOSITORY
from tests.ranks import run_ranks
from tests.tiny import tiny_tokenizer
from tests.training.corpus import metrics

CONFIGS = REPOSITORY / "configs"
RECIPES = sorted((CONFIGS / "papers").glob("*/*.yaml"))
BERT = {"hidden_size": 768, "num_blocks": 12, "num_heads": 12, "intermediate_size": 3072}
SIZES: dict[str, dict[str, Any]] = {
    "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract": BERT,
    "allenai/scibert_scivocab_uncased": BERT,
    "malteos/scincl": BERT,
    "nreimers/MiniLM-L6-H384-uncased": {
        "hidden_size": 384,
        "num_blocks": 6,
        "num_heads": 12,
        "intermediate_size": 1536,
    },
    "answerdotai/ModernBERT-base": {
        "family": "modernbert",
        "hidden_size": 768,
        "num_blocks": 22,
        "num_heads": 12,
        "intermediate_size": 1152,
        "max_positions": 8192,
        "token_types": 0,
        "modern": {"global_blocks": list(range(0, 22, 3))},
    },
}
STEPS = 2
# Overrides that shrink a twin of minutes to a second.
QUICK = (
    f"schedule.steps={STEPS}",
    "batch.pairs_per_step=16",
    "dev.queries=2",
    "dev.candidates=5",
    "log.tensorboard=false",
)


def name(path: Path) -> str:
    return path.relative_to(CONFIGS / "papers").with_suffix("").as_posix()


# One of each kind; other twins differ in a number or not at all, and are slow tests.
ONE_OF_EACH = {
    "beyond/mixed_batches",
    "beyond/modernbert",
    "multi_objective/in_batch",
    "scimult/mha_expert",
    "scimult/prefix",
    "scincl/scincl",
    "specter/specter",
    "specter2/fusion",
}
TWINS = [
    pytest.param(path, marks=[] if name(path) in ONE_OF_EACH else [pytest.mark.slow])
    for path in RECIPES
]


def stages_of(path: Path, *, small: bool = False) -> list[Stage]:
    """Return the stages of a recipe, or of its twin; a single run is one stage."""
    own = CONFIGS / "papers" / f"small_{path.stem}.yaml"
    overlay = own if own.exists() else CONFIGS / "papers" / "small.yaml"
    overlays, overrides = ([overlay], QUICK) if small else ([], ())
    if has_stages(path):
        return load_stages(path, overrides, overlays)
    return [Stage(path.stem, load_config(PretrainConfig, path, overrides, overlays))]


@cache
def published(base: str) -> Pretrained:
    """Return the shapes of a base checkpoint, or of another recipe's model."""
    if base in SIZES:
        encoder = EncoderConfig.model_validate({"vocab_size": 30522, **SIZES[base]})
        config = PretrainedConfig(
            encoder=encoder, tasks=list(default_tasks()), max_length=encoder.max_positions
        )
        with torch.device("meta"):
            return Pretrained(Encoder(encoder), tiny_tokenizer(), config)
    runs = {stage.config.output: (path, stage) for path in RECIPES for stage in stages_of(path)}
    assert base in runs, f"no recipe writes {base}"
    path, wanted = runs[base]
    return rehearsed(path)[wanted.name]


@cache
def rehearsed(path: Path) -> dict[str, Pretrained]:
    """Build every stage of a recipe by shapes; a contradiction raises."""
    models: dict[str, Pretrained] = {}
    for stage in stages_of(path):
        config = stage.config
        base = published(str(config.model.base)) if stage.after is None else models[stage.after]
        models[stage.name] = rehearse_model(config, base)
    return models


@pytest.mark.long
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_fits_its_base(path: Path) -> None:
    models = rehearsed(path)
    assert models
    for stage in stages_of(path):
        assert stage.config.output.startswith(f"runs/papers/{path.parent.name}")
        assert stage.config.data.sources, "a recipe names what it trains on"
        assert stage.config.how_to_get.data
        first = stage.after is None and not (CONFIGS / stage.config.model.base).exists()
        assert not first or stage.config.model.base in SIZES or stage.config.how_to_get.base


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_missing_base_is_trained_by_the_recipe_of_the_hint(path: Path) -> None:
    config = stages_of(path)[0].config
    named = re.findall(r"configs/papers/\S+\.yaml", config.how_to_get.base)
    assert bool(named) == bool(config.how_to_get.base)
    for recipe in named:
        outputs = {stage.config.output for stage in stages_of(REPOSITORY / recipe)}
        assert config.model.base in outputs


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_says_whether_gradients_are_clipped(path: Path) -> None:
    """It inherits no default in silence: docs/papers.md promises to name our own choices."""
    assert "clip" in read_yaml(path)["optimizer"]


@pytest.mark.long
@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_knows_the_tasks_of_its_suite(path: Path) -> None:
    suites = re.findall(r"--suite (\w+)", path.read_text(encoding="utf-8"))
    assert suites, "a recipe says how its model is evaluated"
    known = {task.name for task in list(rehearsed(path).values())[-1].config.tasks}
    for suite in suites:
        for benchmark in load_suite(suite).benchmarks.values():
            assert known & {benchmark.task, benchmark.fallback_task}


def test_all_papers_have_recipes() -> None:
    folders = {path.parent.name for path in RECIPES}
    papers = {"scimult", "specter", "scincl", "specter2", "scirepeval_v1", "multi_objective"}
    assert folders == {*papers, "beyond"}


def prepare_world(folder: Path) -> None:
    """Write smaller versions of what the first lines of configs/papers/small.yaml create."""
    world, prepared = folder / "runs/small/world", folder / "runs/small/prepared"
    write_world(make_world(validate(WorldSettings, {"papers": 300})), world)
    settings = [f"root={world / 'train'}"]
    config = load_config(DatasetConfig, CONFIGS / "data/papers_small.yaml", settings)
    build_dataset(config, prepared)
    tokenizer = train_wordpiece(read_texts(prepared), 1000)
    save_tokenizer(tokenizer, folder / "runs/small/tokenizer")


def train_twins(folder: Path, chosen: list[Path]) -> dict[str, str]:
    """Train twins one after another, as a user would; return the errors of those that fail."""
    os.chdir(folder)
    prepare_world(folder)
    problems: dict[str, str] = {}
    for path in chosen:
        stages = stages_of(path, small=True)
        try:
            # Stages that another recipe has trained are skipped.
            run_stages(stages) if has_stages(path) else pretrain(stages[0].config)
        except Exception:
            problems[name(path)] = traceback.format_exc()
    return problems


@pytest.fixture(scope="module")
def problems(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Train the twins whose tests were selected."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    twins = [item.callspec for item in items if item.originalname == test_a_twin_trains.__name__]
    chosen = [twin.params["path"] for twin in twins]
    [found] = run_ranks(train_twins, 1, tmp_path_factory.mktemp("rank"), folder, chosen)
    result: dict[str, str] = found
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("twins")


@pytest.mark.ranks
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", TWINS, ids=map(name, RECIPES))
def test_a_twin_trains(path: Path, problems: dict[str, str], folder: Path) -> None:
    if name(path) in problems:
        pytest.fail(problems[name(path)], pytrace=False)
    for stage in stages_of(path, small=True):
        output = folder / stage.config.output
        lines = metrics(output)
        assert len(lines) == STEPS
        assert all(math.isfinite(line["loss"]) for line in lines)
        wanted = set(stage.config.data.sources or ())
        trained = set(chain.from_iterable(line["sources"] for line in lines))
        assert trained <= {source.partition(".")[0] for source in wanted}
        saved = load_pretrained(output)
        assert saved.config.provenance["variant"] == stage.config.model.variant


# Pairs in what section 4.3 of Parisot and Zavrel calls a single epoch, read as in their code: one
# passage per query, one cited paper per sentence or every two, up to five triples per paper.
EPOCHS = {
    ("finetune_2_1", "msmarco"): 2,
    ("crop_context2doc", "context2doc"): 2,
    ("crop_doc2doc", "doc2doc"): 6,
    ("crop_specter", "specter"): 5,
    ("specter_inpars", "inpars"): 2,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare eight papers; two requests have one and three answers, a paper six cited ones."""
    folder = tmp_path_factory.mktemp("answers")
    titles = ["tides", "soils", "graphs", "enzymes", "magnets", "comets", "corals", "glaciers"]
    papers = [{"id": f"p{n}", "title": one, "abstract": ""} for n, one in enumerate(titles)]
    queries = [{"id": "q0", "text": "sea"}, {"id": "q1", "text": "ice"}]
    for file, rows in ("papers", papers), ("queries", queries):
        lines = [f"{json.dumps(row)}\n" for row in rows]
        (folder / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8")
    found = ["q0\tp0", "q1\tp7", "q1\tp5", "q1\tp1"]
    cited = [f"p0\tp{n}" for n in range(1, 7)]
    for file, header, rows in (
        ("positives", "query-id\tpaper-id", found),
        ("one_answer", "query-id\tpaper-id", found[:2]),
        ("citations", "citing\tcited", cited),
    ):
        lines = [f"{row}\n" for row in (header, *rows)]
        (folder / f"{file}.tsv").write_text("".join(lines), encoding="utf-8")
    requests = {"queries": "queries.jsonl", "positives": "positives.tsv"}
    sources = [
        {"name": "specter", "papers": "papers.jsonl", "citations": "citations.tsv"},
        {"name": "unarxive-doc2doc", "citations": "citations.tsv"},
        {"name": "msmarco", **requests},
        {"name": "unarxive-context2doc", **requests},
        {"name": "inpars", **requests, "positives": "one_answer.tsv"},
    ]
    for source in sources:
        source["namespace"] = "world"
    view = {"source": "specter", "view": "independent_crop", "task": "link_prediction"}
    settings = {
        "root": str(folder),
        "dev_fraction": 0,
        "sources": sources,
        "self_supervision": [{**view, "min_words": 1}],
    }
    build_dataset(validate(DatasetConfig, settings), folder / "prepared")
    return folder / "prepared"


@pytest.mark.parametrize(("recipe", "stage"), EPOCHS)
def test_a_single_epoch_has_the_pairs_of_the_authors(
    answers: Path, recipe: str, stage: str
) -> None:
    stages = {one.name: one for one in stages_of(CONFIGS / f"papers/multi_objective/{recipe}.yaml")}
    config = stages[stage].config
    config.data.prepared = str(answers)
    assert config.schedule.epochs == 1
    [stream] = plan_run(config).streams
    assert len(stream) == EPOCHS[recipe, stage]


def test_missing_inputs_are_named_with_how_to_get_them(tmp_path: Path) -> None:
    [stage] = stages_of(CONFIGS / "papers/specter/specter.yaml")
    config = stage.config.model_copy(update={"output": str(tmp_path / "run")})
    config.data.prepared = str(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"data\.prepared does not exist") as caught:
        plan_run(config)
    assert "Fix: download data.json" in str(caught.value)
    assert str(caught.value).count("Fix:") == 1
    config.how_to_get.data = ""
    with pytest.raises(ConfigError, match="Fix: .*scimult prepare --config FILE --out .*absent"):
        plan_run(config)
    (tmp_path / "absent").mkdir()
    with pytest.raises(DataError, match="not a prepared folder"):
        plan_run(config)
    [stage] = stages_of(CONFIGS / "papers/beyond/late_experts.yaml")
    stage.config.model.base = str(tmp_path / "vanilla")
    with pytest.raises(ConfigError, match=r"model\.base does not exist.*Fix: train SciMult's"):
        build_model(stage.config)
