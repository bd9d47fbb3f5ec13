"""One archive with everything a machine without network lacks: packages, a model, data."""

from __future__ import annotations

import importlib.metadata
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_day.day import DayError
from benchmarks.gpu_day.provide import FACTS

_WEIGHTS = "model.safetensors"
# pip accepts a wheel only for exactly these glibc tags.
_PLATFORMS = tuple(f"manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_17", "2014", "1"))
# For two-byte numbers, model every other byte: halves the size.
_FILTER = {"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}
_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Contents:
    """Contents of a bundle.

    Attributes
    ----------
    model, prepared, evaluation : Path
        Folders of a BERT-like encoder, of prepared data, and of a suite's data sets.
    suite, sets : str, tuple of str
        Evaluation sets to include.
    packages : tuple of str
        Packages to include, in the versions installed here.
    python : str
        Python version of the wheels, such as ``3.12``.
    """

    model: Path
    prepared: Path
    evaluation: Path
    suite: str
    sets: tuple[str, ...]
    packages: tuple[str, ...]
    python: str


def make_bundle(contents: Contents, target: Path, limit: float) -> Iterator[str]:
    """Write the archive; yield lines with the sizes of its parts.

    Weights are stored in bfloat16, and tokens are left out: the machine tokenises the texts.

    Raises
    ------
    DayError
        If a folder or a set is missing, a package is unavailable, or the archive is larger than
        ``limit`` megabytes; then nothing is written.
    """
    _check(contents)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheels, packed = Path(folder) / "wheels", Path(folder) / "bundle"
        _get_wheels(contents.packages, contents.python, wheels)
        with (
            lzma.open(packed, "wb", format=lzma.FORMAT_XZ, filters=[_FILTER]) as stream,
            tarfile.open(fileobj=stream, mode="w") as archive,
        ):
            before = 0
            for part, names in _parts(contents, wheels).items():
                for name, source in names.items():
                    _add(archive, name, source)
                now = packed.stat().st_size
                yield f"{part:12} about {(now - before) / _MEGABYTE:6.1f} MB"
                before = now
        size = packed.stat().st_size / _MEGABYTE
        if size > limit:
            fix = "prepare fewer sources, take fewer sets, a smaller model, or raise --limit"
            raise DayError(f"the bundle has {size:.1f} MB, over the limit {limit:.0f}. Fix: {fix}")
        packed.replace(target)
    yield f"{target}: {size:.1f} MB"


def _check(contents: Contents) -> None:
    needed = {
        contents.model / _WEIGHTS: "give a folder with model.safetensors",
        contents.prepared / "manifest.json": "give a folder of scimult prepare",
    }
    from scimult.evaluation.datasets import missing_files
    from scimult.evaluation.suites import load_suite

    suite = load_suite(contents.suite)
    for name, benchmark in suite.select(contents.sets).items():
        for missing in missing_files(benchmark, contents.evaluation):
            needed[Path(missing)] = f"get the data of set {name}: {suite.how_to_get}"
    for path, fix in needed.items():
        if not path.exists():
            raise DayError(f"missing: {path}. Fix: {fix}")


def _parts(contents: Contents, wheels: Path) -> dict[str, dict[str, Path | bytes]]:
    """Return the files of each part by their names in the archive, small parts first."""
    facts = {"suite": contents.suite, "sets": list(contents.sets), "made_up": False}
    evaluation: dict[str, Path | bytes] = {}
    for name in contents.sets:
        evaluation |= _files(contents.evaluation / name, f"inputs/eval/{name}")
    prepared = _files(contents.prepared, "inputs/prepared")
    model = _files(contents.model, "inputs/model")
    model[f"inputs/model/{_WEIGHTS}"] = _in_bfloat16(contents.model / _WEIGHTS)
    return {
        "packages": _files(wheels, "wheels"),
        "evaluation": evaluation,
        "prepared": {name: path for name, path in prepared.items() if "/tokens" not in name},
        "model": {name: source for name, source in model.items() if _is_needed(name)}
        | {f"inputs/{FACTS}": json.dumps(facts).encode()},
    }


def _files(folder: Path, prefix: str) -> dict[str, Path | bytes]:
    return {
        f"{prefix}/{path.relative_to(folder)}": path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _is_needed(name: str) -> bool:
    """Return whether loading reads this file of a model, which other copies of weights are not."""
    return name.endswith((".json", ".txt", ".model", _WEIGHTS))


def _in_bfloat16(path: Path) -> bytes:
    import torch
    from safetensors.torch import load_file, save

    weights = load_file(path)
    halves = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in weights.items()}
    # transformers requires the framework that wrote the file.
    return save(halves, metadata={"format": "pt"})


def _get_wheels(packages: tuple[str, ...], python: str, folder: Path) -> None:
    """Download wheels, or build them here if they are pure Python."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    platforms = [part for name in _PLATFORMS for part in ("--platform", name)]
    for package in packages:
        try:
            requirement = f"{package}=={importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            raise DayError(f"{package} is not installed here. Fix: pip install it") from None
        download = [*pip, "download", "--no-deps", "--only-binary=:all:", *platforms]
        download += ["--implementation", "cp", "--python-version", python]
        if _succeeds([*download, "-d", str(folder), requirement]):
            continue
        if not _succeeds([*pip, "wheel", "--no-deps", "-w", str(folder), requirement]):
            raise DayError(f"no wheel of {requirement}. Fix: leave it out with --package")
    foreign = [path.name for path in folder.glob("*.whl") if not _fits(path.name, python)]
    if foreign:
        raise DayError(f"wheels only for this machine: {foreign}. Fix: leave them out")


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _fits(wheel: str, python: str) -> bool:
    number = python.replace(".", "")
    return wheel.endswith("-none-any.whl") or f"-cp{number}-" in wheel or "-abi3-" in wheel


def _add(archive: tarfile.TarFile, name: str, source: Path | bytes) -> None:
    content = source if isinstance(source, bytes) else source.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
