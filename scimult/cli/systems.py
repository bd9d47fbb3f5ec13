"""Systems of ``scimult evaluate``: from command-line options to encoders."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from scimult.cli.checks import check_model
from scimult.errors import ConfigError, one_of

if TYPE_CHECKING:
    from scimult.evaluation.hybrid import DevSet
    from scimult.evaluation.systems import System
    from scimult.inference.ensemble import Combination
    from scimult.inference.sentence_encoder import EncoderSpec
    from scimult.types import Similarity, TextEncoder

SIMILARITIES = ("dot", "cosine", "l2")
COMBINATIONS = ("mean", "concatenation")
NORMALISE = "normalise"
TRUTHS = {"true": True, "false": False}
Allowed = Mapping[str, Collection[str] | Callable[[str], object]]
"""Option to its allowed values, or to a function that parses and checks one."""
STORED_OPTIONS: Allowed = {"similarity": SIMILARITIES, NORMALISE: TRUTHS}
MODEL_OPTIONS: Allowed = {
    "pooling": ("cls", "mean"),
    "similarity": SIMILARITIES,
    NORMALISE: TRUTHS,
    "dtype": ("auto", "float32", "tf32", "bfloat16", "float16", "int8"),
    "combine": COMBINATIONS,
}
COMBINE = "combine"
# Texts per write to a store: enough to keep the device busy, few enough to lose in a kill.
STORED_AT_ONCE = {"cpu": 1 << 10, "cuda": 1 << 14}


@dataclass(frozen=True)
class Store:
    """Folder and number type of stored embeddings."""

    folder: Path
    precision: Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class SystemSpec:
    """The parts of ``NAME=FOLDER,key=value``."""

    name: str
    folder: Path
    options: dict[str, Any]

    @property
    def normalise(self) -> bool | None:
        """Value of ``normalise=``; None without it."""
        return TRUTHS.get(self.options.get(NORMALISE, ""))


def make_systems(
    bm25: bool,
    lexical: Sequence[str],
    stored: Sequence[str],
    models: Sequence[str],
    encoders: Sequence[str],
    device: str | None,
    store: Store | None,
) -> dict[str, Callable[[], System]]:
    """Return a factory per system, so that only one model is in memory at a time.

    Raises
    ------
    ConfigError
        If an option is malformed, two systems have the same name, or there is no system.
    CheckpointError
        If a model's folder does not exist.
    """
    makers: dict[str, Callable[[], System]] = {}
    if bm25:
        from scimult.evaluation.systems import BM25System

        makers["BM25"] = BM25System
    for spec in lexical:
        name, make = _lexical(spec)
        _add(makers, name, make)
    for spec in stored:
        system = parse_system(spec, STORED_OPTIONS)
        _add(makers, system.name, partial(_stored, system, device))
    for spec in models:
        system = parse_system(spec, MODEL_OPTIONS)
        folders = _folders(system.folder)
        _check_combine(system, len(folders))
        for folder in folders:
            check_model(folder)  # not after the systems before it have been scored
        _add(makers, system.name, partial(_model, system, device, store))
    for spec in encoders:
        name, members, combine = _encoder_specs(spec)
        _add(makers, name, partial(_encoder, name, members, combine, device, store))
    if not makers:
        fix = "pass --model, --encoder, --embeddings, --lexical or --bm25"
        raise ConfigError("nothing to evaluate", fix=fix)
    return makers


def add_hybrids(
    makers: dict[str, Callable[[], System]],
    fused: Sequence[str],
    reranked: Sequence[str],
    device: str | None,
) -> dict[str, dict[str, DevSet]]:
    """Add systems that consist of others; each member is then built only once.

    Returns
    -------
    dict
        Split to the dev sets that weights are chosen on, to be filled before systems are built.

    Raises
    ------
    ConfigError
        If an option is malformed, or there are too few members.
    UnknownNameError
        If a member is not among the systems.
    """
    dev: dict[str, dict[str, DevSet]] = {}
    for spec in fused:
        system = parse_system(spec, {"by": ("rank", "weights"), "dev": _split})
        names, by = str(system.folder).split("+"), system.options.get("by", "rank")
        split = system.options.get("dev")
        if len(set(names)) < 2 or (by == "weights" and len(names) > 2):
            number = "exactly two" if by == "weights" else "at least two"
            problem = f"by={by} needs {number} systems"
            raise ConfigError(problem, value=spec, fix="write hybrid=BM25+mymodel")
        members = [_shared(makers, name) for name in names]
        if split is not None and by != "weights":
            fix = "write by=weights,dev=dev"
            raise ConfigError("dev= can only be used with by=weights", value=spec, fix=fix)
        dev_sets = None if split is None else dev.setdefault(split, {})
        _add(makers, system.name, partial(_fused, system.name, members, by, dev_sets, split))
    for spec in reranked:
        system = parse_system(spec, {"top": str})
        first, plus, model = str(system.folder).partition("+")
        top = system.options.get("top", "100")
        if not (plus and top.isdecimal() and int(top)):
            problem = "top is not a positive number" if plus else "no model to rerank with is named"
            fix = "write better=BM25+cross-encoder/ms-marco-MiniLM-L6-v2,top=100"
            raise ConfigError(problem, value=spec, fix=fix)
        make = partial(_reranked, system.name, _shared(makers, first), model, int(top), device)
        _add(makers, system.name, make)
    return dev


def _split(value: str) -> str:
    if not value:
        raise ConfigError("dev= names no split", value=value, fix="write by=weights,dev=dev")
    return value


def _shared(makers: dict[str, Callable[[], System]], name: str) -> Callable[[], System]:
    """Cache a system's factory, so that the system and its hybrids share one instance."""
    makers[name] = cache(makers[one_of("system", name, makers)])
    return makers[name]


def _fused(
    name: str,
    members: Sequence[Callable[[], System]],
    by: str,
    dev: Mapping[str, DevSet] | None,
    split: str | None,
) -> System:
    from scimult.evaluation.hybrid import FusedSystem

    systems = [make() for make in members]
    return FusedSystem(name, systems, cast("Literal['rank', 'weights']", by), dev, split or "")


def _reranked(
    name: str, first: Callable[[], System], model: str, top: int, device: str | None
) -> System:
    from scimult.evaluation.hybrid import RerankedSystem
    from scimult.hardware import usable_device

    return RerankedSystem(name, first(), model, top=top, device=str(usable_device(device)))


def parse_system(spec: str, allowed: Allowed) -> SystemSpec:
    """Parse ``NAME=FOLDER[,key=value]...``.

    Raises
    ------
    ConfigError
        If the text is malformed.
    UnknownNameError
        If an option or its value is unknown.
    """
    name, folder, rest = _split_spec(spec)
    options = {}
    for item in rest:
        key, _, value = item.partition("=")
        values = allowed[one_of("option of a system", key, allowed)]
        if key in options:
            raise ConfigError("option of a system is given twice", value=spec, fix="keep one")
        options[key] = values(value) if callable(values) else one_of(key, value, values)
    return SystemSpec(name, Path(folder), options)


def _check_combine(system: SystemSpec, count: int) -> None:
    if COMBINE in system.options and count == 1:
        fix = "join them by +, or leave it out"
        raise ConfigError("combine= needs several models", value=system.name, fix=fix)


def _split_spec(spec: str) -> tuple[str, str, list[str]]:
    first, *rest = spec.split(",")
    name, separator, folder = first.partition("=")
    if not (name and separator and folder):
        own = "" if separator else re.sub(r"\W+", "_", Path(first).name)
        fix = f"write {own}={spec}" if own else "write mymodel=runs/mymodel"
        raise ConfigError("a system is NAME=FOLDER", value=spec, fix=fix)
    # A folder that exists may have commas in its name.
    for end in range(len(rest), 0, -1):
        if Path(longer := ",".join([folder, *rest[:end]])).exists():
            return name, longer, rest[end:]
    return name, folder, rest


def _add(makers: dict[str, Callable[[], System]], name: str, make: Callable[[], System]) -> None:
    if name in makers:
        raise ConfigError("two systems have the same name", value=name, fix="rename one")
    makers[name] = make


def _lexical(spec: str) -> tuple[str, Callable[[], System]]:
    """Parse and check ``NAME=PRESET[,key=value]`` of a BM25."""
    from scimult.evaluation.systems import BM25System
    from scimult.retrieval.analysis import PRESETS, Analyser
    from scimult.retrieval.bm25 import K1, B

    allowed: Allowed = {
        **dict.fromkeys(("tokens", "stop_words", "stemmer"), str),
        **{key: partial(_number, key) for key in ("k1", "b")},
    }
    system = parse_system(spec, allowed)
    preset = PRESETS[one_of("preset of BM25", str(system.folder), PRESETS)]
    settings: dict[str, Any] = {**preset, **system.options}
    k1, b = settings.pop("k1", K1), settings.pop("b", B)
    return system.name, partial(BM25System, system.name, Analyser(**settings), k1=k1, b=b)


def _number(key: str, text: str) -> float:
    """Parse k1 (at least 0) or b (from 0 to 1)."""
    value = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else -1.0
    if value < 0 or (key == "b" and value > 1):
        fix = "write k1=0.9 (at least 0) or b=0.4 (0 to 1)"
        raise ConfigError(f"{key} is out of range", value=text, fix=fix)
    return value


def _stored(spec: SystemSpec, device: str | None) -> System:
    from scimult.evaluation.systems import StoredSystem
    from scimult.hardware import usable_device

    similarity = cast("Similarity | None", spec.options.get("similarity"))
    on = str(usable_device(device))
    return StoredSystem(spec.name, spec.folder, similarity, normalise=spec.normalise, device=on)


def _model(spec: SystemSpec, device: str | None, store: Store | None) -> System:
    """Build one of our models, or an ensemble of several."""
    from scimult.inference import SciMult

    options: dict[str, Any] = {"dtype": "auto", **spec.options, NORMALISE: spec.normalise}
    combine = options.pop(COMBINE, "mean")
    members = [
        SciMult.from_pretrained(folder, name=spec.name, device=device, **options)
        for folder in _folders(spec.folder)
    ]
    fingerprints = [member.fingerprint for member in members]
    settings = {
        "folder": str(spec.folder),
        **spec.options,
        "unit_vectors": all(member.unit_vectors for member in members),
        "dtype": members[0].dtype,
    }
    return _dense(members, fingerprints, combine, spec.normalise, settings, device, store)


def _folders(spec: Path) -> list[Path]:
    """Split ``A+B`` into an ensemble's folders, unless a folder of that very name exists."""
    return [spec] if spec.exists() else [Path(part) for part in str(spec).split("+")]


def model_folders(spec: str) -> list[Path]:
    """Return the model folders of a ``--model`` option.

    Raises
    ------
    ConfigError, UnknownNameError
        As in `parse_system`.
    """
    return _folders(parse_system(spec, MODEL_OPTIONS).folder)


def _encoder_specs(spec: str) -> tuple[str, list[EncoderSpec], Combination]:
    """Parse ``NAME=PRESET[+PRESET][,key=value]``; the keys apply to all its encoders."""
    from scimult.inference.sentence_encoder import check_keys, load_spec
    from scimult.tasks import catalogue

    name, presets, rest = _split_spec(spec)
    combine = [item for item in rest if item.partition("=")[0] == COMBINE]
    system = parse_system(",".join([f"{name}={presets}", *combine]), {COMBINE: COMBINATIONS})
    overrides = [item for item in rest if item not in combine]
    # As for models, an ensemble's names are joined by +, unless that is a folder's own name.
    members = [presets] if Path(presets).exists() else presets.split("+")
    _check_combine(system, len(members))
    specs = [load_spec(preset, overrides) for preset in members]
    for encoder in specs:
        check_keys(encoder, catalogue().names)
    return name, specs, system.options.get(COMBINE, "mean")


def _encoder(
    name: str,
    specs: Sequence[EncoderSpec],
    combine: Combination,
    device: str | None,
    store: Store | None,
) -> System:
    """Build a third-party encoder, or an ensemble of several."""
    from scimult.inference.sentence_encoder import SentenceEncoder

    members = [SentenceEncoder(spec, name=name, device=device) for spec in specs]
    fingerprints = [member.fingerprint for member in members]
    settings = {"encoders": [spec.model_dump(mode="json") for spec in specs]}
    normalise = False if any(spec.normalise is False for spec in specs) else None
    return _dense(members, fingerprints, combine, normalise, settings, device, store)


def _dense(
    members: Sequence[TextEncoder],
    fingerprints: Sequence[str],
    combine: Combination,
    normalise: bool | None,
    settings: dict[str, Any],
    device: str | None,
    store: Store | None,
) -> System:
    """Build the system of one encoder or of an ensemble, with the store if there is one."""
    from scimult.evaluation.systems import DenseSystem
    from scimult.hardware import usable_device
    from scimult.inference import Ensemble
    from scimult.retrieval.store import StoringEncoder

    on = usable_device(device)
    if store is not None:
        block = STORED_AT_ONCE["cuda" if on.type == "cuda" else "cpu"]
        members = [
            StoringEncoder(member, store.folder, fingerprint, store.precision, block)
            for member, fingerprint in zip(members, fingerprints, strict=True)
        ]
        settings = {**settings, "stored_as": store.precision}
    encoder = members[0]
    if len(members) > 1:
        settings = {**settings, COMBINE: combine}
        encoder = Ensemble(members, name=encoder.name, combine=combine, normalise=normalise)
    settings = {"fingerprint": "+".join(fingerprints), **settings}
    return DenseSystem(encoder, settings, device=str(on), show_progress=True)
