"""Packages, a model, prepared data and evaluation sets for the steps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.day import Day, DayError
from benchmarks.gpu_day.flash import write_substitute

FACTS = "inputs.json"


@dataclass(frozen=True)
class Inputs:
    """Folders below ``inputs``, and the evaluation sets in them."""

    model: Path
    prepared: Path
    evaluation: Path
    suite: str
    sets: list[str]
    made_up: bool

    @classmethod
    def of(cls, folder: Path) -> Inputs:
        """Read ``inputs.json``.

        Raises
        ------
        DayError
            If the step ``inputs`` did not run.
        """
        path = folder / FACTS
        if not path.exists():
            raise DayError(f"no {FACTS} in {folder}. Fix: first run the step 'inputs'")
        facts = json.loads(path.read_text(encoding="utf-8"))
        return cls(folder / "model", folder / "prepared", folder / "eval", **facts)


def write_facts(folder: Path, suite: str, sets: list[str], *, made_up: bool) -> None:
    """Write ``inputs.json``, last of all, so that it marks a complete folder."""
    facts = {"suite": suite, "sets": sets, "made_up": made_up}
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")


def install(day: Day, step: str) -> None:
    """Install the bundle's packages for all steps, without downloading."""
    wheels = sorted(str(path) for path in (_unpacked(day) or day.work).glob("wheels/*.whl"))
    if wheels:
        shutil.rmtree(day.packages, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        options = ["--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
        target = ["--target", str(day.packages)]
        rc = subprocess.run([*command, *options, *target, *wheels], check=False).returncode
        if rc != 0:
            raise SystemExit(rc)
    # transformers looks for it once, when it is imported.
    if find_spec("flash_attn") is None:
        write_substitute(day.flash)
    day.note(step, wheels=[Path(wheel).name for wheel in wheels])


def inputs(day: Day, step: str) -> None:
    """Provide model and data, from the bundle or generated."""
    if not (day.inputs / FACTS).exists():
        bundle = _unpacked(day)
        shutil.rmtree(day.inputs, ignore_errors=True)
        if bundle is None:
            from benchmarks.gpu_day.made_up import make_inputs

            make_inputs(day)
        else:
            shutil.copytree(bundle / "inputs", day.inputs)
    provided = Inputs.of(day.inputs)
    facts = asdict(provided)
    day.note(step, **{k: str(v) if isinstance(v, Path) else v for k, v in facts.items()})
    day.note(step, tokens=_tokenise(provided))


def random_folder(day: Day, size: str) -> Path:
    """Return the folder of a random encoder of a size, saved once."""
    from benchmarks.training import save_random_encoder
    from scimult.data.tokenization import TextTokenizer

    folder = day.work / "random" / size
    if not folder.exists():
        # A step may be stopped at its time limit; the next one must not find half a model.
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        save_random_encoder(size, TextTokenizer.from_folder(day.inputs / "model"), partial)
        partial.rename(folder)
    return folder


def _tokenise(inputs: Inputs) -> int:
    """Tokenise the prepared texts once, as every later step would; it uses all cores itself."""
    from scimult.checkpoints import load_pretrained
    from scimult.data.prepared import PreparedData
    from scimult.data.tokenization import TextTokenizer

    data = PreparedData.open(inputs.prepared)
    # A sentence-transformers folder may lowercase where its tokenizer's own files do not.
    for tokenizer in (
        load_pretrained(inputs.model).tokenizer,
        TextTokenizer.from_folder(inputs.model),
    ):
        lengths = data.tokens(tokenizer).lengths_N
    return int(lengths.sum())


def _unpacked(day: Day) -> Path | None:
    """Return the folder of the unpacked bundle; ``None`` without a bundle."""
    if day.bundle is None or day.bundle.is_dir():
        return day.bundle
    target = day.work / "bundle"
    if not target.exists():
        partial = day.work / "bundle.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(day.bundle) as archive:
            # Python 3.10 and 3.11 have filters from some patch release on.
            safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(partial, **safe)
        partial.rename(target)
    return target
