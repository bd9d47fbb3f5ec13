"""Models by name: a local folder, or a repository of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from scimult.errors import CheckpointError

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.safetensors", "*.json", "*.txt", "*.model"]


def local_folder(path: Path | str, pickled: str = "pytorch_model.bin") -> Path:
    """Return ``path`` if it exists or cannot be a hub name, else the downloaded repository.

    Only weights in safetensors, configurations and vocabularies are downloaded; of a
    repository without safetensors also the file ``pickled``, which is opened safely. The
    hub's cache, ``HF_HOME`` and ``HF_HUB_OFFLINE`` work as everywhere.

    Raises
    ------
    CheckpointError
        If the path looks like ``organisation/name`` and is neither a folder nor reachable.
    """
    name = str(path)
    if Path(path).exists() or not _NAME.fullmatch(name) or name.startswith("."):
        return Path(path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        folder = Path(snapshot_download(name, allow_patterns=_FILES))
        if not any(folder.rglob("*.safetensors")):
            patterns = [*_FILES, pickled]
            folder = Path(snapshot_download(name, allow_patterns=patterns))
    # Without a network the client raises its HTTP library's errors, which are OSErrors or not.
    except (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        OSError,
        RuntimeError,
    ) as error:
        raise CheckpointError(
            f"neither a folder nor reachable on the hub ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no details'})",
            path=name,
            fix="check the path, or the name on the hub and the network (HF_HUB_OFFLINE=1 uses "
            f"downloaded models only); without one, `hf download {name} --local-dir FOLDER` where "
            "there is, and name the folder",
        ) from error
    return folder
