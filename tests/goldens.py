"""Write the toolkit's outputs as small text files, to compare before and after a change.

    python tests/goldens.py BEFORE      # in a checkout of the old commit
    python tests/goldens.py AFTER       # in one of the new
    diff -r BEFORE AFTER                # nothing, or what the change changed

Takes some five minutes on two cores. Hashes of floats hold for one machine and its libraries:
goldens are compared, never kept. With ``$SCIMULT_DATA`` real papers are prepared and scored too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from scimult.cli.demo import ENVIRONMENT
from scimult.cli.main import app
from scimult.distributed import free_port

# Facts of the moment, not of the work: clocks, memory, folders, the commit, our version.
OF_THE_MOMENT = {"command", "commits", "cost", "date", "provenance", "scimult", "seconds", "usage"}
# The report's table of costs.
COST = "Cost"
# Some files name the folder that they were made in, so that it has to be the same each time.
WORK = Path(tempfile.gettempdir()) / "scimult-goldens"
STAGES = ("vanilla", "mha_expert")


def main(out: Path) -> None:
    """Write all goldens into the new folder ``out``."""
    out.mkdir(parents=True)
    write_helps(out / "help")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    _make_world(WORK)
    _train(WORK)
    (out / "metrics.jsonl").write_text("".join(_metrics(WORK / stage) for stage in STAGES))
    models = [f"{name}={WORK / name},dtype=float32" for name in STAGES]
    models = [word for model in models for word in ("--model", model)]
    scored = [("demo", WORK / "world" / "eval", ["--bm25", *models])]
    if real := os.environ.get("SCIMULT_DATA"):
        _prepare_real(Path(real), WORK)
        expert = models[-2:]
        scored += [("first", Path(real) / "eval", ["--bm25", *expert])]
        scored += [("linear", Path(real) / "eval", expert)]
        samples = Path(real) / "formats" / "scirepeval"
        scored += [("scirepeval_samples", samples, ["--bm25", *expert])]
    for suite, data, systems in scored:
        _score(suite, data, systems, WORK)
        for name in ("table.md", "report.md", "report.json"):
            (out / f"{suite}.{name}").write_text(_readable(WORK / suite / name))
    for folder in sorted(path for path in WORK.iterdir() if path.is_dir()):
        if folder.name not in ("untrained", *STAGES):
            lines = [f"{fingerprint(path)}  {path.relative_to(WORK)}\n" for path in _files(folder)]
            (out / f"{folder.name}.sha256").write_text("".join(lines))
    shutil.rmtree(WORK)


def write_helps(out: Path) -> None:
    """Write every verb's ``--help`` at a fixed width."""
    out.mkdir()
    group: Any = typer.main.get_command(app)
    for verb, command in sorted(group.commands.items()):
        below = sorted(getattr(command, "commands", {}))
        for words in [[verb], *([verb, name] for name in below)]:
            text = _run(["scimult", *words, "--help"], {"COLUMNS": "100", "NO_COLOR": "1"})
            (out / f"{'_'.join(words)}.txt").write_text(text)


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file; of JSON, without time-dependent values."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if path.suffix == ".json":
        data = _readable(path).encode()
    return hashlib.sha256(data).hexdigest()


def _make_world(work: Path) -> None:
    """Generate the demo's world, prepare it, mine it again with other rules, make a vocabulary."""
    world, prepared, mined = work / "world", work / "prepared", work / "mined"
    _run(["scimult", "generate", "--out", f"{world}"])
    config = ["--config", "configs/data/world.yaml", "--root", f"{world}/train"]
    _run(["scimult", "prepare", *config, "--out", f"{prepared}"])
    vocabulary = [
        "--texts",
        f"{prepared}",
        "--vocab-size",
        "4000",
        "--out",
        f"{work / 'vocabulary'}",
    ]
    _run(["scimult", "train-tokenizer", *vocabulary])
    shutil.copytree(prepared, mined)
    rules = "citations=[{rule: co_cited, count: 2}, {rule: bm25, ranks: [5, 50]}, random]"
    _run(["scimult", "mine", f"{mined}", rules])
    (work / "card").mkdir()
    card = _run(["scimult", "card", f"{mined}", "--negatives", "3"])
    (work / "card" / "card.md").write_text(card.replace(str(work), ""))


def _train(work: Path) -> None:
    """Train 20 steps on two ranks under DeepSpeed: ten without experts, ten with."""
    steps = [f"stages.{stage}.schedule.steps=10" for stage in STAGES]
    steps += ["stages.vanilla.schedule.warmup=0", "log.every=1", "dev.every=5"]
    inputs = [f"data.prepared={work / 'prepared'}", f"model.tokenizer={work / 'vocabulary'}"]
    launch = ["deepspeed", "--num_gpus", "2", "--master_port", f"{free_port()}"]
    config = ["launch/pretrain.py", "--config", "configs/demo/curriculum.yaml"]
    _run([*launch, *config, "--stage", STAGES[-1], *inputs, *steps, f"output={work}"])


def _prepare_real(data: Path, work: Path) -> None:
    """Prepare the shared papers, cleaned and split; convert a search set and prepare it."""
    tokenizer = ["--tokenizer", f"{work / 'vocabulary'}"]
    clean = ["--config", "configs/data/scholarly_clean.yaml", "--decontaminate", f"{data / 'eval'}"]
    _run(["scimult", "prepare", *clean, *tokenizer, "--out", f"{work / 'scholarly'}"])
    source = ["beir", "--input", f"{data / 'eval' / 'cisi'}", "--out", f"{work / 'converted'}"]
    _run(["scimult", "prepare", *source, "name=cisi", "splits=[test]"])


def _score(suite: str, data: Path, systems: list[str], work: Path) -> None:
    """Evaluate the systems on a suite, and write the report."""
    results = work / suite
    where = ["--suite", suite, "--data", f"{data}", "--out", f"{results}"]
    _run(["scimult", "evaluate", *where, *systems])
    _run(["scimult", "report", f"{results}", "--resamples", "1000", "--out", f"{results}"])


def _metrics(run: Path) -> str:
    """Return the steps of a run as JSON lines, without time-dependent values."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return "".join(json.dumps(_lasting(json.loads(line))) + "\n" for line in lines)


def _readable(path: Path) -> str:
    """Return a file's text without costs; JSON indented, without time-dependent values."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.dumps(_lasting(json.loads(text)), indent=1, sort_keys=True)
    parts = re.split("(?m)^(?=## )", text)
    return "".join(part for part in parts if not part.startswith(f"## {COST}\n"))


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in OF_THE_MOMENT}
    if isinstance(value, list):
        return [_lasting(item) for item in value if not _is_cost(item)]
    return value


def _is_cost(value: Any) -> bool:
    return isinstance(value, dict) and value.get("title") == COST


def _files(folder: Path) -> list[Path]:
    """Return the reproducible files: no plots, and no reports, which contain times."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in {".html", ".png"} and path.stem != "report"
    )


def _run(command: list[str], more: dict[str, str] | None = None) -> str:
    """Run a command of this checkout and return its stdout; stderr is passed through."""
    words = {"scimult": [sys.executable, "-m", "scimult.cli.main"]}
    words["deepspeed"] = [sys.executable, str(Path(sys.executable).parent / "deepspeed")]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.getcwd()} | (more or {})
    done = subprocess.run(
        [*words[command[0]], *command[1:]], env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command)}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
