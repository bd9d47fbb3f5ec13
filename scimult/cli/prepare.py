"""``scimult prepare``: turn raw files or a public data set into a prepared folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.output import echo
from scimult.errors import ConfigError, DataError
from scimult.files import check_replaceable

if TYPE_CHECKING:
    from scimult.data.records import Rejects
    from scimult.downloads import Remote
    from scimult.preparation.sources.base import PublicSource, SourceOptions

DATASET_PREFIX = "prepare."


def prepare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE] [KEY=VALUE]...",
            help="Public source (see --list) with its options, or overrides of --config.",
            show_default=False,
        ),
    ] = None,
    list_sources: Annotated[
        bool,
        typer.Option("--list", help="List the public sources, their addresses and files."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Config file, such as configs/data/world.yaml.")
    ] = None,
    source_folder: Annotated[
        Path | None,
        typer.Option("--input", help="Folder of the downloaded SOURCE. Default: the current one."),
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="Download missing files of SOURCE into --input, checked."),
    ] = False,
    raw: Annotated[
        Path | None, typer.Option(help="Folder for SOURCE's raw files. Default: OUT.raw.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder; replaces earlier prepared data.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder that paths in the config are relative to.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Model or tokenizer folder to tokenise with now.")
    ] = None,
    skip_bad: opt.SkipBad = False,
    decontaminate: Annotated[
        Path | None,
        typer.Option(
            help="Folder of evaluation sets: drop training texts equal to one of their queries."
        ),
    ] = None,
    steps: opt.Steps = None,
    verify: opt.Verify = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory limit of reading and mining, such as 4GB; the rest goes to disk."
        ),
    ] = None,
) -> None:
    """Write texts, pairs with hard negatives, and tokens from raw files or a public source."""
    if list_sources:
        _list_sources()
        return
    first, *rest = arguments or [""]
    source = "" if "=" in first else first
    overrides = rest if source else list(arguments or ())
    _check(source, config, source_folder, raw, out, root)
    own = [item for item in overrides if source and item.startswith(DATASET_PREFIX)]
    options = [item for item in overrides if source and item not in own]
    overrides = [item.removeprefix(DATASET_PREFIX) for item in own] if source else overrides
    if download:
        _download(source, source_folder, options)
    inputs = {
        "file": config,
        "downloaded folder": source_folder,
        "tokenizer folder": tokenizer,
        "folder of evaluation sets": decontaminate,
    }
    _check_unused(out, {"tokenizer": tokenizer, "decontaminate": decontaminate, "steps": steps})
    _check_paths(out, inputs)
    from scimult.preparation.sources.base import SOURCES_FILE

    if out is not None:
        from scimult.data.prepared import PREPARED_ALONE

        check_replaceable(out, PREPARED_ALONE)
    if decontaminate is not None:
        overrides = _with_decontamination(overrides, decontaminate)
    if source:
        raw = raw or Path(f"{out}.raw")
        _check_apart(raw, out)
        if out is not None or overrides:
            _check_overrides(source, overrides)  # loads torch, unlike a conversion
        by_itself = any(item.startswith("self_supervision") for item in overrides)
        for_training = out is not None and not by_itself
        flags = {"skip_bad": skip_bad, "for_training": for_training, "verify": verify}
        _convert(source, source_folder or Path(), raw, options, flags)
        config = raw / SOURCES_FILE
    if out is not None:
        assert config is not None
        from scimult.config import string_override

        changes = [*overrides, *([] if root is None else [string_override("root", str(root))])]
        cache = steps or out.with_name(f".{out.name}.steps")
        flags = {"skip_bad": skip_bad, "verify": verify}
        _build(config, changes, out, tokenizer, cache, memory, **flags)


def _check(
    source: str,
    config: Path | None,
    source_folder: Path | None,
    raw: Path | None,
    out: Path | None,
    root: Path | None,
) -> None:
    """Check, before any work, that the options are compatible."""
    if source and (config is not None or root is not None):
        fix = "with a source, give --input, and --raw or --out"
        raise ConfigError("a source takes neither --config nor --root", value=source, fix=fix)
    if source and raw is None and out is None:
        from scimult.preparation.sources import SOURCES

        fix = f"scimult prepare {SOURCES[source].name} --input FOLDER --out FOLDER"
        raise ConfigError("a source needs --raw or --out", value=source, fix=fix)
    if not source and (source_folder is not None or raw is not None):
        fix = "scimult prepare SOURCE --input FOLDER --out FOLDER; --list shows the sources"
        raise ConfigError("--input and --raw need a source", fix=fix)
    if not source and (config is None or out is None):
        fix = "scimult prepare --config FILE --out FOLDER, or name a source (--list shows them)"
        raise ConfigError("--config and --out are needed", fix=fix)


def _with_decontamination(overrides: Sequence[str], folder: Path) -> list[str]:
    """Return overrides with those that the option stands for, unless they are set explicitly.

    They come last: ``hygiene={...}`` replaces the whole section.
    """
    from scimult.config import apply_overrides, string_override

    section = apply_overrides({}, overrides).get("hygiene")
    explicit = section if isinstance(section, Mapping) else {}
    short_for = {
        "evaluation": string_override("hygiene.evaluation", str(folder)),
        "decontaminate": "hygiene.decontaminate=[query]",
    }
    return [*overrides, *(line for key, line in short_for.items() if key not in explicit)]


def _check_unused(out: Path | None, options: Mapping[str, Path | None]) -> None:
    """Refuse options of a prepared folder if none is written."""
    for name, value in options.items():
        if out is None and value is not None:
            raise ConfigError(f"--{name} needs --out", value=value, fix="add --out or remove it")


def _check_paths(out: Path | None, inputs: Mapping[str, Path | None]) -> None:
    """Check, before torch is loaded, that inputs exist and the output can be a new folder."""
    for noun, path in inputs.items():
        if path is not None and not path.exists():
            raise DataError(f"{noun} does not exist", path=path, fix="check the path")
    if out is not None and not (out.is_dir() and not out.is_symlink()):
        check_replaceable(out)


def _check_apart(raw: Path, out: Path | None) -> None:
    """Refuse raw files inside the prepared folder, or the reverse: neither could be replaced."""
    if out is None:
        return
    first, second = raw.resolve(), out.resolve()
    if first == second or first in second.parents or second in first.parents:
        fix = f"choose folders next to each other, as --raw {out}.raw"
        raise ConfigError(
            "--raw and --out are one folder, or one is in the other", path=raw, fix=fix
        )


def _list_sources() -> None:
    """Print the address, the licence and the files of every public source."""
    from scimult.preparation.sources import SOURCES

    for source in SOURCES.values():
        files = "\n".join(f"    {file}" for file in source.files)
        option = "" if source.download is None else " (or --download)"
        echo(f"{source.name}: {source.title}\n  get it: {source.url}{option}")
        echo(f"  licence: {source.licence}\n  files below --input:\n{files}")


def _download(name: str, folder: Path | None, options: Sequence[str]) -> None:
    """Download the missing files that a public source needs for its options."""
    from scimult.downloads import download
    from scimult.preparation.sources import SOURCES

    if not name or folder is None:
        fix = "scimult prepare SOURCE --download --input FOLDER --out FOLDER"
        raise ConfigError("--download needs a source, and --input for its files", fix=fix)
    source = SOURCES[name]
    if source.download is None:
        others = ", ".join(key for key in SOURCES if SOURCES[key].download is not None)
        fix = f"get the files from {source.url} into {folder}; --download works for {others}"
        raise ConfigError("this source cannot be downloaded automatically", value=name, fix=fix)
    settings = _options_of(source, options)
    files = [_as_it_is(file, folder) for file in source.download(settings)]
    download(files, folder, lambda path: echo(f"downloading {path}", err=True))


def _as_it_is(file: Remote, folder: Path) -> Remote:
    """Return a download with the names under which files are there: compressed or unpacked."""
    from scimult.data.packed import unpacked_name, variants
    from scimult.downloads import Archive

    def found(name: str, folder: Path) -> str:
        path = folder / name
        names = [path, *variants(path.with_name(unpacked_name(path)))]
        return str(next(filter(Path.exists, names), path).relative_to(folder))

    if isinstance(file, Archive):
        inside = (folder / file.name).parent
        return replace(file, wanted=tuple(found(name, inside) for name in file.wanted))
    return replace(file, name=found(file.name, folder))


def _check_overrides(source: str, overrides: Sequence[str]) -> None:
    """Check the settings of the preparation before the conversion, which may take an hour."""
    from scimult.config import apply_overrides, validate
    from scimult.preparation.dataset import DatasetConfig
    from scimult.preparation.hygiene.evaluation_sets import find_sets
    from scimult.preparation.sources import SOURCES

    both = {item.partition("=")[0] for item in overrides} & {*SOURCES[source].options.model_fields}
    if "max_pairs_per_label" in both:
        problem = f"{source} has its own max_pairs_per_label"
        value = f"{DATASET_PREFIX}max_pairs_per_label"
        raise ConfigError(problem, value=value, fix=f"leave out {DATASET_PREFIX!r}")
    any_source = {"name": "any", "papers": "papers", "citations": "citations"}
    config = validate(DatasetConfig, apply_overrides({"sources": [any_source]}, overrides))
    if config.hygiene.evaluation_folder is not None:
        find_sets(config.hygiene.evaluation_folder)


def _options_of(source: PublicSource, options: Sequence[str]) -> SourceOptions:
    """Return the options of a source; one of the preparation is told apart from a typo."""
    from scimult.config import apply_overrides, validate

    try:
        return validate(source.options, apply_overrides({}, options))
    except ConfigError:
        from scimult.preparation.dataset import DatasetConfig  # loads torch

        keys = [item.partition("=")[0].strip() for item in options]
        own = source.options.model_fields
        for key in keys:
            section = key.partition(".")[0]
            if section in own or section not in DatasetConfig.model_fields:
                continue
            problem = f"not an option of {source.name}, but of the preparation"
            fix = f"write {DATASET_PREFIX}{key}=..."
            raise ConfigError(problem, value=key, fix=fix) from None
        raise


def _convert(
    name: str,
    source_folder: Path,
    raw: Path,
    options: Sequence[str],
    flags: Mapping[str, bool],
) -> None:
    """Write the raw files of a public source and print its counts."""
    from scimult.cli.output import print_counts
    from scimult.preparation.sources import SOURCES, convert

    source = SOURCES[name]
    settings = _options_of(source, options)
    conversion, notes = convert(source, settings, source_folder, raw, **flags)
    print_counts(f"{raw}: raw files", conversion.counts)
    for note in conversion.notes:
        typer.echo(note, err=True)
    for note in notes:
        echo(f"differs from the published numbers: {note}", err=True)
    _report_rejects(conversion.rejects, raw / "rejects.jsonl")


def _build(
    config: Path,
    overrides: Sequence[str],
    out: Path,
    tokenizer: Path | None,
    steps: Path,
    memory: str | None,
    *,
    skip_bad: bool,
    verify: bool,
) -> None:
    """Prepare, mine and tokenise the data of a config."""
    from scimult.checkpoints.sentence_folder import lowercases
    from scimult.cli.mine import open_encoder
    from scimult.cli.output import print_prepared
    from scimult.config import load_config
    from scimult.data.prepared import REJECTS_FILE
    from scimult.data.tokenization import TextTokenizer
    from scimult.preparation.dataset import DatasetConfig, build_dataset
    from scimult.preparation.mining.engine import Limits

    settings = load_config(DatasetConfig, config, overrides)
    loaded = None
    if tokenizer is not None:
        loaded = TextTokenizer.from_folder(tokenizer, lowercase=lowercases(tokenizer))
    data, rejects = build_dataset(
        settings,
        out,
        tokenizer=loaded,
        skip_bad=skip_bad,
        steps=steps,
        open_encoder=open_encoder,
        verify=verify,
        limits=Limits(memory),
    )
    print_prepared(data)
    _report_rejects(rejects, out / REJECTS_FILE)


def _report_rejects(rejects: Rejects, log: Path) -> None:
    if rejects.counts:
        echo(f"{rejects.summary()}\nfull list: {log}", err=True)
