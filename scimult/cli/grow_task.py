"""``scimult grow-task``: a new task for a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli.checks import check_model
from scimult.cli.output import echo
from scimult.files import check_replaceable


def grow_task(
    model: Annotated[Path, typer.Argument(help="A run, a saved model or a Hugging Face folder.")],
    name: Annotated[str, typer.Option(help="Name of the new task.")],
    like: Annotated[str, typer.Option(help="Known task whose weights are copied.")],
    out: Annotated[Path, typer.Option(help="Folder to write the grown model to.")],
    instruction: Annotated[
        str | None,
        typer.Option(help="What the task asks for; by default that of --like."),
    ] = None,
    query_kind: Annotated[
        str | None,
        typer.Option(help="paper, label or query; by default as --like."),
    ] = None,
    candidate_kind: Annotated[
        str | None,
        typer.Option(help="paper, label or query; by default as --like."),
    ] = None,
) -> None:
    """Add a task to a model: its own weights start as a copy of a known task's.

    Then name the grown model as model.base of a run whose tasks list the new one.
    """
    check_replaceable(out)
    check_model(model)
    from scimult.checkpoints import read_config, save_pretrained
    from scimult.checkpoints.grow import grow_task as grow
    from scimult.config import validate
    from scimult.tasks import Task, TaskSet

    known = TaskSet(read_config(model).tasks)[like]
    changes = {
        "name": name,
        "instruction": instruction,
        "query_kind": query_kind,
        "candidate_kind": candidate_kind,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    task = validate(Task, known.model_dump() | given, "options of grow-task")
    grown = grow(model, task, like)
    save_pretrained(out, grown.model.state_dict(), grown.tokenizer, grown.config)
    echo(f"{out}: tasks {', '.join(grown.tasks.names)}; {name} starts as {like}")
