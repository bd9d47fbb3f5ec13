"""What preparing a generated library costs in time, memory and disk; how fast its tokens are read.

Shape legend: N texts.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generated import Library, write_library
from benchmarks.timing import Ratio, interleaved, load_average, ratio
from scimult.data.prepared import PREPARED, PreparedData
from scimult.data.token_store import TokenStore, build_token_store
from scimult.data.tokenization import TextTokenizer
from scimult.files import atomic_folder
from scimult.preparation.dataset import DatasetConfig
from scimult.preparation.hygiene.config import HygieneConfig
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.engine import Limits
from scimult.preparation.mining.memory import Watch
from scimult.preparation.mining.mine import mine_again
from scimult.preparation.prepare import prepare
from scimult.preparation.steps import Steps

_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
COSTS_FILE = "costs.jsonl"


@dataclass(frozen=True)
class Cost:
    """What one step took, in a process of its own.

    Parameters
    ----------
    wall, cpu : float
        Seconds; ``cpu`` counts those of the process and of those it started.
    own_mb, mapped_mb, peak_mb : float
        Most memory that it allocated, that it mapped of files, and that both were together.
    disk_mb : float
        Of all files that there were when it was done.
    load : float
        Processes that wanted to run when it was done.
    """

    step: str
    wall: float
    cpu: float
    own_mb: float
    mapped_mb: float
    peak_mb: float
    disk_mb: float
    load: float


@dataclass(frozen=True)
class Work:
    """A library, and how it is prepared.

    Parameters
    ----------
    library : Library
        Its size.
    clean : bool
        Also merge duplicates.
    limits : Limits
        Of memory and threads.
    groups : int, optional
        Mine so many groups of the largest pair file.
    """

    library: Library
    clean: bool
    limits: Limits
    groups: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return all choices."""
        return {
            **asdict(self.library),
            **asdict(self.limits),
            "clean": self.clean,
            "groups": self.groups,
        }


def measure_preparation(work: Work, folder: Path) -> Iterator[Cost]:
    """Generate a library below ``folder``, prepare and mine it; yield what each step costs.

    Each step is a process of its own. A step that was done with the same choices is not done
    again: its cost is that of before, which ``costs.jsonl`` keeps.
    """
    done = _done(folder / COSTS_FILE, work)
    limits, out, steps = work.limits, folder / "prepared", folder / "steps"
    labels: dict[str, list[str]] = {"labels": []}
    mined = {"max_groups": work.groups}
    works: dict[str, Callable[[], object]] = {
        "generate": partial(write_library, folder / "raw", work.library),
        "read, split, write": partial(_prepare, folder, work.library, limits, clean=False),
    }
    if work.clean:
        works["clean, split, write"] = partial(_prepare, folder, work.library, limits, clean=True)
    for name, rules in (("mine citations", labels), ("mine labels", {})):
        config = MiningConfig.model_validate({**mined, **rules})
        works[name] = partial(mine_again, out, config, None, Steps(steps), limits=limits)
    for name, step in works.items():
        if name not in done:
            cost = measured(name, step, folder)
            with (folder / COSTS_FILE).open("a") as file:
                file.write(json.dumps({"work": work.as_json(), **asdict(cost)}) + "\n")
            done[name] = cost
        yield done[name]


def _done(path: Path, work: Work) -> dict[str, Cost]:
    """Return what finished steps cost."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    costs = [Cost(**row) for row in rows if row.pop("work") == work.as_json()]
    return {cost.step: cost for cost in costs}


def _prepare(folder: Path, library: Library, limits: Limits, *, clean: bool) -> None:
    config: DatasetConfig = write_library(folder / "raw", library)
    if clean:
        config.hygiene = HygieneConfig(duplicates="merge")
    with atomic_folder(folder / "prepared", PREPARED) as made:
        prepare(config, made, steps=Steps(folder / "steps"), limits=limits)


def measure_tokenising(
    folder: Path, tokenizer: TextTokenizer, workers: Sequence[int]
) -> Iterator[Cost]:
    """Tokenise what ``measure_preparation`` made, with W workers into ``tokens-W``."""
    for count in workers:
        target = folder / f"tokens-{count}"
        work = partial(_tokenise, folder / "prepared", tokenizer, target, count)
        yield measured(f"tokenise, {count} processes", work, folder)


def measured(step: str, work: Callable[[], object], folder: Path) -> Cost:
    """Run ``work`` in a process of its own and return what it took, and what is in ``folder``."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(_run, work).result()
    disk = round(_bytes_below(folder) / 1e6)
    return Cost(step, **found, disk_mb=disk, load=round(load_average(), 1))


@dataclass(frozen=True)
class Reading:
    """Rows per second of a token store, and what random order costs.

    ``random`` and ``mapped`` compare with reading in order: the same rows in random order,
    and in order straight from the memory map, without our code.
    """

    rows_per_second: float
    random: Ratio
    mapped: Ratio

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "rows_per_second": self.rows_per_second,
            "random": vars(self.random),
            "mapped": vars(self.mapped),
        }


def measure_reading(folder: Path, rounds: int, rows: int = 20_000) -> Reading:
    """Read rows of the token store in ``folder`` in three ways, taking turns."""
    store = TokenStore.open(folder)
    rng = np.random.default_rng(0)
    count = min(rows, len(store))
    start = int(rng.integers(0, len(store) - count + 1))
    in_order = range(start, start + count)
    tokens_T = np.memmap(folder / "tokens.bin", dtype=store.meta["dtype"], mode="r")
    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    scattered = rng.choice(len(store), count, replace=False).tolist()
    seconds = interleaved(
        {
            "in order": lambda: [store.tokens(row, 512) for row in in_order],
            "random": lambda: [store.tokens(row, 512) for row in scattered],
            "mapped": lambda: [
                tokens_T[offsets[row] : offsets[row + 1]].astype(np.int64) for row in in_order
            ],
        },
        rounds,
        torch.device("cpu"),
    )
    return Reading(
        rows_per_second=count / float(np.median(seconds["in order"])),
        random=ratio(seconds["random"], seconds["in order"]),
        mapped=ratio(seconds["mapped"], seconds["in order"]),
    )


def _tokenise(prepared: Path, tokenizer: TextTokenizer, target: Path, workers: int) -> None:
    build_token_store(PreparedData.open(prepared).texts, tokenizer, target, workers=workers)


def _run(work: Callable[[], object]) -> dict[str, float]:
    """Do the work while a thread looks at the memory that this process holds."""
    start, cpu_before = time.perf_counter(), _cpu_seconds()
    with Watch() as watch:
        work()
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu_before
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    together = max(watch.together, of_children)
    held = {"own_mb": watch.peak.own, "mapped_mb": watch.peak.mapped, "peak_mb": together}
    megabytes = {name: round(count / 1e6) for name, count in held.items()}
    return {"wall": round(wall, 1), "cpu": round(cpu, 1), **megabytes}


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in _PROCESSES]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _bytes_below(folder: Path) -> int:
    """Return the bytes of all files below a folder, each once if it has several names."""
    found = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return sum({status.st_ino: status.st_size for status in found}.values())
