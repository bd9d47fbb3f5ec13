"""A handful of papers, labels, citations and clicks, prepared for training tests."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scimult.checkpoints import load_pretrained
from scimult.config import validate
from scimult.data.sampler import Sampler
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.tasks import default_tasks
from scimult.training.config import PretrainConfig
from scimult.training.plan import build_sampler, plan_run
from tests.raw_corpus import write_jsonl
from tests.tiny import save_tiny_model, tiny_tokenizer

# Fields of a step's line, apart from times.
_REPORTED = (
    "step",
    "tasks",
    "loss",
    "accuracy",
    "masked",
    "tokens",
    "lr",
    "gradient_norm",
    "metrics",
)
WORDS = "graph node edge cell gene virus model data query index field star dust light".split()


def write_corpus(folder: Path, papers: int = 60) -> Path:
    """Write raw files of one source that trains all three tasks."""
    rng = np.random.default_rng(0)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS, size=count))

    rows = [
        {
            "id": f"p{i}",
            "title": words(4),
            "abstract": words(int(rng.integers(3, 9))),
            "authors": [f"a{rng.integers(8)}"],
            "venue": f"v{rng.integers(3)}",
            "labels": [f"l{k}" for k in rng.choice(6, size=2, replace=False)],
        }
        for i in range(papers)
    ]
    labels = [{"id": f"l{k}", "name": WORDS[k], "definition": words(3)} for k in range(6)]
    queries = [{"id": f"q{i}", "text": words(3)} for i in range(papers // 2)]
    write_jsonl(folder / "papers.jsonl", rows)
    write_jsonl(folder / "labels.jsonl", labels)
    write_jsonl(folder / "queries.jsonl", queries)
    edges = sorted({(i, int(j)) for i in range(5, papers) for j in rng.choice(i, size=3)})
    _table(folder / "citations.tsv", "citing\tcited", [f"p{i}\tp{j}" for i, j in edges])
    clicks = [
        f"q{i}\tp{paper}\t{int(place < 1)}"
        for i in range(papers // 2)
        for place, paper in enumerate(rng.choice(papers, size=4, replace=False))
    ]
    counts = [f"p{i}\t{rng.normal():.4f}" for i in range(papers)]
    _table(folder / "counts.tsv", "paper-id\tvalue", counts)
    _table(folder / "reads.tsv", "paper-id\tvalue", [f"p{i}\t{i}" for i in range(papers)])
    _table(folder / "clicks.tsv", "query-id\tpaper-id\tclicked", clicks)
    return folder


# Targets of every kind for papers of `write_corpus`, and the tasks of a run that trains them.
TARGETS = [
    {"task": "venue", "kind": "multi_class", "field": "venue"},
    {"task": "topics", "kind": "multi_label", "field": "labels"},
    {"task": "count", "kind": "regression", "file": "counts.tsv", "scale": "standard"},
]
KINDS = {target["task"]: target["kind"] for target in TARGETS}
ALL_TASKS = [task.model_dump() for task in default_tasks()] + [
    {"name": name, "format": "regression" if kind == "regression" else "classification"}
    for name, kind in KINDS.items()
]


def prepare_corpus(folder: Path, targets: Sequence[dict[str, str]] = ()) -> Path:
    """Prepare ``write_corpus`` and write a tiny base model; return the prepared folder."""
    shutil.copytree(_corpus(json.dumps(targets)), folder, dirs_exist_ok=True)
    return folder / "prepared"


@cache
def _corpus(targets: str) -> Path:
    """Return the folder of a corpus with these targets, made once in a process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    source: dict[str, Any] = {name: f"{name}.jsonl" for name in ("papers", "labels", "queries")}
    source |= {"name": "world", "citations": "citations.tsv", "clicks": "clicks.tsv"}
    source["targets"] = json.loads(targets)
    raw = write_corpus(folder / "raw")
    settings = {"root": str(raw), "sources": [source], "dev_fraction": 0.1}
    config = validate(DatasetConfig, settings)
    build_dataset(config, folder / "prepared", tokenizer=tiny_tokenizer())
    # Written here, because every rank calls run_config.
    save_tiny_model(folder / "base", variant="vanilla")
    return folder


def run_config(folder: Path, name: str, **sections: Any) -> PretrainConfig:
    """Return the configuration of a tiny run on ``prepare_corpus(folder)``.

    ``sections`` are merged over the defaults, section by section.
    """
    tree: dict[str, Any] = {
        "output": str(folder / name),
        "data": {"prepared": str(folder / "prepared"), "max_length": 32, "sampling": "equal_tasks"},
        "model": {"base": str(folder / "base"), "variant": "mha_expert", "dropout": 0.1},
        "optimizer": {"lr": 1e-3},
        "schedule": {"steps": 6},
        "batch": {"pairs_per_step": 8},
        "engine": {"precision": "fp32", "deepspeed": {"zero_optimization": {"stage": 1}}},
        "checkpoint": {"every": 3},
        "dev": {"every": 3, "queries": 5, "candidates": 20},
        "log": {"tensorboard": False},
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values} if isinstance(values, dict) else values
    return validate(PretrainConfig, tree)


def plan_micro_batches(config: PretrainConfig, tokens: int = 32) -> Sampler:
    """Return the plan of a run whose texts all have ``tokens`` tokens."""
    return build_sampler(config, plan_run(config), np.full(1000, tokens, dtype=np.int32))[0]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``metrics.jsonl``, from step 1."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [parsed for line in lines if (parsed := json.loads(line))["step"] > 0]


def _reported(output: Path) -> list[dict[str, Any]]:
    """Return the metrics file's content, without times."""
    return [{key: line[key] for key in _REPORTED} for line in metrics(output)]


def assert_same_run(one: Path, other: Path) -> None:
    """Check bit-equality on the CPU: the same batches, dropout masks, losses and weights."""
    assert json.dumps(_reported(one)) == json.dumps(_reported(other))
    theirs = load_pretrained(other).model.state_dict()
    for name, weight in load_pretrained(one).model.state_dict().items():
        assert torch.equal(weight, theirs[name]), name


def _table(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
