"""What a library says of itself."""

from __future__ import annotations

from typing import Any

from scimult.files import folder_bytes
from scimult.library.state import State


def summary(state: State) -> str:
    """Return what a library is in one line."""
    manifest, tasks = state.manifest, ", ".join(state.manifest.sides)
    space = next(iter(state.spaces.values()))
    columns = f"; columns {', '.join(manifest.columns)}" if manifest.columns else ""
    return (
        f"{int(state.live_N.sum()):,} papers by {manifest.model['name']!r}; "
        f"{tasks}; width {space.width}, {space.similarity}, {space.dtype}{columns}"
    )


def facts_of(state: State) -> dict[str, Any]:
    """Return what a library holds and what made it, by name."""
    manifest = state.manifest
    spaces = state.spaces
    made_by = {
        name: value
        for name, value in next(iter(spaces.values())).made_by.items()
        if name not in ("task", "role")
    }
    space = next(iter(spaces.values()))
    return {
        "papers": int(state.live_N.sum()),
        "rows of removed papers": int(state.removed_N.sum()),
        "damaged files": [str(problem.path) for problem in state.damage()],
        "columns": dict(manifest.columns),
        "model": manifest.model["name"],
        "model's folder": manifest.model["path"],
        "made by": made_by,
        "tasks": {task: f"papers are the {role}" for task, role in manifest.sides.items()},
        "vectors": f"width {space.width}, {space.similarity}, {space.dtype}",
        "approximate indexes": {
            task: f"{facts['kind']}: recall {facts['recall']:.3f} of the best 10 on "
            f"{facts['queries']} queries, of {facts['papers']:,} papers"
            for task, facts in manifest.indexes.items()
        },
        "segments": len(manifest.segments),
        "bytes": folder_bytes(state.folder),
        "generation": manifest.generation,
        "content": manifest.content,
    }
