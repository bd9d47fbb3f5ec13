"""Whether the hub of Hugging Face is in reach, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["model", "dataset"]
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ProxyError")


def is_cut_off(name: str, kind: Kind = "model") -> bool:
    """Return whether a model or data set is no path of this machine, and the hub is out of reach.

    This asks the hub once, and waits five seconds for a connection. A proxy that lets nothing
    through counts.
    """
    if Path(name).exists():
        return False
    from huggingface_hub import HfApi

    try:
        HfApi().repo_info(name, repo_type=kind, timeout=5)
    except Exception as error:  # of an HTTP library that differs by the client's version
        return any(one.__name__ in _NO_CONNECTION for one in type(error).__mro__)
    return False


def hub_advice(name: str) -> str:
    """Return the end of a fix for a name on the hub that cannot be loaded; empty for a path."""
    if Path(name).exists() or name.count("/") != 1 or name.startswith("."):
        return ""
    return f"; or run `hf download {name} --local-dir FOLDER` elsewhere and use that folder"


@contextmanager
def offline_if_cut_off(name: str, kind: Kind = "model") -> Iterator[None]:
    """Where the hub is out of reach, let its libraries read what was downloaded, at once.

    They would repeat each request for half a minute, also for files that a model may lack, and of
    a downloaded model. The setting is that of ``HF_HUB_OFFLINE``, which they read once.
    """
    if not is_cut_off(name, kind):
        yield
        return
    from huggingface_hub import constants

    places: list[Any] = [constants]
    if kind == "dataset":
        from datasets import config

        places.append(config)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
