"""``scimult merge`` and ``grow-task``: merge models, or add a task to one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_distinct, check_model, named_values, only_with
from scimult.cli.output import echo
from scimult.errors import ConfigError, SciMultError
from scimult.files import check_replaceable

if TYPE_CHECKING:
    from scimult.checkpoints import Pretrained
    from scimult.evaluation.growing import Earlier


MERGED = "merged"
"""Name of the merged model in results."""


def merge(
    models: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, saved models or Hugging Face folders.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder for the merged model.", show_default=False)
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option(help="Share of each model, or scale of its task vector (repeatable)."),
    ] = None,
    method: Annotated[
        Literal["average", "task_vectors", "slerp"], typer.Option(help="How to combine weights.")
    ] = "average",
    base: Annotated[
        Path | None, typer.Option(help="Base model to subtract for task vectors.")
    ] = None,
    by_depth: Annotated[
        str | None,
        typer.Option(
            help="FIRST:LAST: scale task vectors by depth, linearly from the first block to the "
            "last. 1:0 keeps what early blocks learned; 0:1 is LiNeS."
        ),
    ] = None,
    share_experts: Annotated[
        bool,
        typer.Option("--share-experts", help="Average the experts of one model into a shared one."),
    ] = False,
    expert: Annotated[
        list[str] | None,
        typer.Option(help="TASK=MODEL: use this model's layers as the task's expert (repeatable)."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="With --expert: layers to turn into experts: mha_expert, ...")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Suite to evaluate the merged model on before writing it.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the suite's data sets.")] = None,
    sets: opt.Sets = None,
    not_worse_than: Annotated[
        list[Path] | None,
        typer.Option(
            help="Write nothing if the merged model is worse than this one on a set (repeatable)."
        ),
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Folder for these results.")] = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = None,
) -> None:
    """Average or interpolate models, average a model's experts, or turn models into experts."""
    if out is None:
        raise ConfigError("no folder for the merged model", fix="pass --out FOLDER")
    check_replaceable(out)
    named = named_values(expert or [], "an expert", "TASK=MODEL", "--expert search=runs/search")
    experts = {task: Path(path) for task, path in named.items()}
    one_model = len(models or []) == 1
    if bool(models) == bool(experts) or (share_experts and not one_model):
        fix = "name models, or one model with --share-experts, or --expert TASK=MODEL for each task"
        raise ConfigError("exactly one way of merging is needed", fix=fix)
    if share_experts or experts:
        shares = bool(share and experts)
        only_with(
            "whole models",
            {
                "--method": method != "average",
                "--base": base,
                "--share": shares,
                "--by-depth": by_depth,
            },
        )
    if not experts:
        only_with("--expert", {"--variant": variant})
    _check_gate(suite, data, results, not_worse_than or [])
    if not suite:
        only_with("--suite", {"--sets": sets, "--dtype": dtype != "auto", "--device": device})
    check_distinct(models or [], "name it once, with a larger --share")
    for path in [*(models or []), *experts.values(), *([base] if base else [])]:
        check_model(path)
    from scimult.checkpoints import merge as merging
    from scimult.checkpoints import save_pretrained
    from scimult.unfinished import unfinished

    with unfinished(out):
        if experts:
            merged = merging.split_experts(experts, variant or "mha_expert")
        elif share_experts:
            (model,) = models or []
            merged = merging.share_experts(model, _shares_of_tasks(model, share))
        else:
            depth = None if by_depth is None else _depth(by_depth)
            merged = merging.merge(
                models or [], share or [], method=method, base=base, by_depth=depth
            )
        if suite and data and results:
            loading = {"device": device, "dtype": dtype}
            _gate(merged, out, not_worse_than or [], suite, data, sets or [], results, loading)
        weights = merged.model.state_dict()
        save_pretrained(out, weights, merged.tokenizer, merged.config, replace=False)
    echo(f"{out}: {_described(merged.config.provenance['merged'])}")


def _described(merged: Mapping[str, Any]) -> str:
    """Return in words what was merged: method, models with their shares or tasks, and base."""
    models, shares = merged["models"], merged.get("shares", ())
    if isinstance(models, dict):
        parts = [f"{path} for {task}" for task, path in models.items()]
    elif len(shares) == len(models):
        parts = [f"{share:g} of {path}" for path, share in zip(models, shares, strict=True)]
    else:
        parts = list(models)
    if merged.get("base"):
        parts.append(f"base {merged['base']}")
    if merged.get("by_depth"):
        parts.append("by depth {:g}:{:g}".format(*merged["by_depth"]))
    return f"{merged['method'].replace('_', ' ')}: {', '.join(parts)}"


def _depth(text: str) -> tuple[float, float]:
    try:
        first, last = map(float, text.split(":"))
    except ValueError:
        fix = "write FIRST:LAST, such as --by-depth 1:0"
        raise ConfigError("--by-depth is not two numbers", value=text, fix=fix) from None
    return first, last


def _check_gate(
    suite: str | None, data: Path | None, results: Path | None, others: list[Path]
) -> None:
    given = [suite is not None, data is not None, results is not None]
    if any(given) != all(given) or (others and not suite):
        fix = "pass --suite, --data and --results, or none of them and no --not-worse-than"
        raise ConfigError("an evaluation needs a suite, its data and a result folder", fix=fix)
    from scimult.checkpoints.hub import name_of

    # Results are stored by name: the later of two with the same name would replace the other.
    names = [MERGED, *map(name_of, others)]
    if len(set(names)) < len(names):
        fix = "give each folder its own name, other than 'merged'"
        raise ConfigError("two systems have the same name", value=names, fix=fix)
    for path in others:
        check_model(path)


def _shares_of_tasks(model: Path, shares: list[float] | None) -> dict[str, float] | None:
    if not shares:
        return None
    from scimult.checkpoints import read_config

    names = [task.name for task in read_config(model).tasks]
    if len(names) != len(shares):
        fix = f"give one share for each of {', '.join(names)}, in this order"
        raise ConfigError(f"{len(shares)} shares for {len(names)} tasks", fix=fix)
    return dict(zip(names, shares, strict=True))


def _gate(
    merged: Pretrained,
    out: Path,
    others: list[Path],
    suite: str,
    data: Path,
    sets: list[str],
    results: Path,
    loading: Mapping[str, Any],
) -> None:
    """Evaluate, and raise if the merged model lacks a score or is worse than another model.

    Systems have the settings that ``scimult evaluate`` gives them: it may share the results.
    """
    from scimult.cli.output import print_table
    from scimult.evaluation.comparison import Settings, compare
    from scimult.evaluation.harness import evaluate, load_sets
    from scimult.evaluation.report import update_table
    from scimult.evaluation.results import folder_of
    from scimult.evaluation.suites import load_suite
    from scimult.evaluation.systems import DenseSystem
    from scimult.files import only_writer
    from scimult.hardware import usable_device
    from scimult.inference import SciMult

    config = load_suite(suite)
    loaded = load_sets(config, data, sets)
    on = str(usable_device(loading["device"]))
    encoders = [SciMult(merged, name=MERGED, **loading)]
    encoders += [SciMult.from_pretrained(path, **loading) for path in others]
    not_scored: list[str] = []
    testable = False
    for folder, encoder in zip([out, *others], encoders, strict=True):
        facts: dict[str, Any] = {"fingerprint": encoder.fingerprint, "folder": str(folder)}
        facts |= {"unit_vectors": encoder.unit_vectors, "dtype": encoder.dtype}
        system = DenseSystem(encoder, facts, device=on, show_progress=True)
        # An earlier merged model's scores are of no use; another model's other sets are.
        earlier: Earlier = "replace" if encoder.name == MERGED else "merge"
        with only_writer(folder_of(results, encoder.name)):
            scores = evaluate(system, config, loaded, results, earlier=earlier)
        not_scored += [f"{encoder.name} on {name}: {why}" for name, why in scores.failed.items()]
        testable |= any(entry.has_samples for entry in scores.sets.values())
    print_table(update_table(results)[0])
    if not_scored:
        fix = "fix the failure, or choose other sets with --sets; nothing was written"
        raise SciMultError(f"no score for {'; '.join(not_scored)}", fix=fix)
    worse = []
    for encoder in encoders[1:]:
        settings = Settings(baseline=encoder.name)
        rows = compare(results, settings, [MERGED]).rows if testable else []
        tested = {row.name for row in rows}
        for name in loaded.keys() - tested:
            echo(f"{name}: not tested against {encoder.name}: no per-query scores", err=True)
        worse += [
            f"{row.name} ({100 * row.difference:+.2f} to {encoder.name}, p {row.p_holm:.4f})"
            for row in rows
            if row.difference < 0 and row.p_holm is not None and row.p_holm <= settings.level
        ]
    if worse:
        fix = "try other shares, or leave out --not-worse-than; nothing was written"
        raise SciMultError(f"the merged model is worse on {'; '.join(worse)}", fix=fix)


def grow_task(
    model: Annotated[Path, typer.Argument(help="Run, saved model or Hugging Face folder.")],
    name: Annotated[str, typer.Option(help="Name of the new task.")],
    like: Annotated[str, typer.Option(help="Known task whose weights are copied.")],
    out: Annotated[Path, typer.Option(help="Output folder for the grown model.")],
    instruction: Annotated[
        str | None, typer.Option(help="Instruction of the task. Default: that of --like.")
    ] = None,
    query_kind: Annotated[
        str | None, typer.Option(help="paper, label or query. Default: as for --like.")
    ] = None,
    candidate_kind: Annotated[
        str | None, typer.Option(help="paper, label or query. Default: as for --like.")
    ] = None,
) -> None:
    """Add a task to a model, initialised with a known task's weights.

    Then train it in a run that has the grown model as model.base and lists the new task.
    """
    check_replaceable(out)
    check_model(model)
    from scimult.checkpoints import read_config, save_pretrained
    from scimult.checkpoints.grow import grow_task as grow
    from scimult.config import validate
    from scimult.tasks import Task, TaskSet
    from scimult.unfinished import unfinished

    known = TaskSet(read_config(model).tasks)[like]
    changes = {
        "name": name,
        "instruction": instruction,
        "query_kind": query_kind,
        "candidate_kind": candidate_kind,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    task = validate(Task, known.model_dump() | given, "options of grow-task")
    with unfinished(out):
        grown = grow(model, task, like)
        weights = grown.model.state_dict()
        save_pretrained(out, weights, grown.tokenizer, grown.config, replace=False)
    echo(f"{out}: tasks {', '.join(grown.tasks.names)}; {name} starts as {like}")
