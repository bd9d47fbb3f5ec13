"""``scimult prepare``: raw files, or a public data set, to a folder for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli.output import echo
from scimult.errors import DataError
from scimult.files import check_replaceable

if TYPE_CHECKING:
    from scimult.data.lines import Rejects

DATASET_PREFIX = "prepare."


def prepare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE] [KEY=VALUE]...",
            help="A public source (see --list) and its options, or key=value on top of --config.",
            show_default=False,
        ),
    ] = None,
    list_sources: Annotated[
        bool,
        typer.Option("--list", help="Show the public sources, where to get them, their files."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="YAML file such as configs/data/world.yaml.")
    ] = None,
    source_folder: Annotated[
        Path | None,
        typer.Option("--input", help="Folder of the downloaded SOURCE; default: this one."),
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="First get SOURCE's missing files into --input, checked."),
    ] = False,
    raw: Annotated[
        Path | None, typer.Option(help="Where SOURCE's raw files go; default: OUT.raw.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; a prepared one is replaced.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder that the paths in the file are relative to.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Model or tokenizer folder; tokenise now with it.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad records out, count and name them.")
    ] = False,
    decontaminate: Annotated[
        Path | None,
        typer.Option(
            help="Folder of evaluation sets: training texts that equal one of their queries go."
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Keeps finished steps, which a later run reuses. Default: .OUT.steps beside OUT.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenise.")] = 1,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read files that look unchanged: size and time are not enough."
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(help="Most memory of reading and mining, such as 4GB; the rest goes to disk."),
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
    if download:
        _download(source, source_folder, overrides)
    _check_unused(out, {"tokenizer": tokenizer, "decontaminate": decontaminate, "steps": steps})
    named = {
        "file": config,
        "downloaded folder": source_folder,
        "tokenizer folder": tokenizer,
        "folder of evaluation sets": decontaminate,
    }
    _check_paths(out, named)
    from scimult.data.prepared import PREPARED
    from scimult.preparation.sources.base import SOURCES_FILE

    if out is not None:
        check_replaceable(out, PREPARED)
    cleaning = _decontaminate(decontaminate)
    if source:
        raw = raw or Path(f"{out}.raw")
        options = [item for item in overrides if not item.startswith(DATASET_PREFIX)]
        overrides = [
            item.removeprefix(DATASET_PREFIX)
            for item in overrides
            if item.startswith(DATASET_PREFIX)
        ]
        _check_choices(source, [*cleaning, *overrides])
        choices = {"skip_bad": skip_bad, "for_training": out is not None, "verify": verify}
        _convert(source, source_folder or Path(), raw, options, choices)
        config = raw / SOURCES_FILE
    if out is not None:
        assert config is not None
        changes = [*cleaning, *overrides, *([] if root is None else [f"root={root}"])]
        cache = steps or out.with_name(f".{out.name}.steps")
        ways = {"skip_bad": skip_bad, "verify": verify}
        _build(config, changes, out, tokenizer, cache, workers, memory, **ways)


def _check(
    source: str,
    config: Path | None,
    source_folder: Path | None,
    raw: Path | None,
    out: Path | None,
    root: Path | None,
) -> None:
    """Fail before the work starts if the options do not fit together."""
    from scimult.errors import ConfigError

    if source and (config is not None or root is not None):
        fix = "with a source give --input, and --raw or --out"
        raise ConfigError("a source needs neither --config nor --root", value=source, fix=fix)
    if source and raw is None and out is None:
        fix = f"scimult prepare {source} --input FOLDER --out FOLDER"
        raise ConfigError("a source needs --raw or --out", value=source, fix=fix)
    if not source and (source_folder is not None or raw is not None):
        fix = "scimult prepare SOURCE --input FOLDER --out FOLDER; --list shows the sources"
        raise ConfigError("--input and --raw need a source", fix=fix)
    if not source and (config is None or out is None):
        fix = "scimult prepare --config FILE --out FOLDER, or name a source (--list shows them)"
        raise ConfigError("--config and --out are needed", fix=fix)


def _check_paths(out: Path | None, inputs: Mapping[str, Path | None]) -> None:
    """Fail before torch is loaded if an input is missing, or the output cannot be a new folder."""
    for what, path in inputs.items():
        if path is not None and not path.exists():
            raise DataError(f"{what} does not exist", path=path, fix="check the path")
    if out is not None and not (out.is_dir() and not out.is_symlink()):
        check_replaceable(out)


def _download(name: str, folder: Path | None, overrides: Sequence[str]) -> None:
    """Get the files of a public source that its options need and that are not there."""
    from scimult.config import apply_overrides, validate
    from scimult.downloads import download
    from scimult.errors import ConfigError
    from scimult.preparation.sources import SOURCES

    if not name or folder is None:
        fix = "scimult prepare SOURCE --download --input FOLDER --out FOLDER"
        raise ConfigError("--download needs a source, and --input for its files", fix=fix)
    source = SOURCES[name]
    if source.download is None:
        able = ", ".join(key for key in SOURCES if SOURCES[key].download is not None)
        problem = "no address is known for the files of this source"
        fix = f"get them from {source.url} into {folder}; --download knows {able}"
        raise ConfigError(problem, value=name, fix=fix)
    options = [item for item in overrides if not item.startswith(DATASET_PREFIX)]
    settings = validate(source.options, apply_overrides({}, options))
    download(source.download(settings), folder, lambda path: echo(f"downloading {path}", err=True))


def _list_sources() -> None:
    from scimult.cli.output import print_sources
    from scimult.preparation.sources import SOURCES

    print_sources([SOURCES[name] for name in SOURCES])


def _check_unused(out: Path | None, options: Mapping[str, Path | None]) -> None:
    """Refuse options that only a prepared folder has a use for, where none is written."""
    from scimult.errors import ConfigError

    for name, value in options.items():
        if out is None and value is not None:
            raise ConfigError(f"--{name} needs --out", value=value, fix="add --out or remove it")


def _check_choices(source: str, overrides: Sequence[str]) -> None:
    """Check what comes after a conversion before it starts: it may take an hour."""
    from scimult.config import apply_overrides, validate
    from scimult.errors import ConfigError
    from scimult.preparation.dataset import DatasetConfig
    from scimult.preparation.hygiene.evaluation_sets import find_sets
    from scimult.preparation.sources import SOURCES

    twice = {item.partition("=")[0] for item in overrides} & {*SOURCES[source].options.model_fields}
    for name in sorted(twice & {"max_pairs_per_label"}):
        fix = f"leave out {DATASET_PREFIX!r}"
        raise ConfigError(f"{source} has its own {name}", value=DATASET_PREFIX + name, fix=fix)
    any_source = {"name": "any", "papers": "papers", "citations": "citations"}
    config = validate(DatasetConfig, apply_overrides({"sources": [any_source]}, overrides))
    if config.hygiene.evaluation_folder is not None:
        find_sets(config.hygiene.evaluation_folder)


def _convert(
    name: str,
    source_folder: Path,
    raw: Path,
    options: Sequence[str],
    choices: Mapping[str, bool],
) -> None:
    """Write the raw files of a public source and say what was counted."""
    from scimult.cli.output import print_counts
    from scimult.config import apply_overrides, validate
    from scimult.preparation.sources import SOURCES, convert

    source = SOURCES[name]
    settings = validate(source.options, apply_overrides({}, options))
    conversion, notes = convert(source, settings, source_folder, raw, **choices)
    print_counts(f"{raw}: raw files", conversion.counts)
    for note in conversion.notes:
        typer.echo(note, err=True)
    for note in notes:
        echo(f"differs from what was published: {note}", err=True)
    _name_rejects(conversion.rejects, raw / "rejects.jsonl")


def _build(
    config: Path,
    overrides: Sequence[str],
    out: Path,
    tokenizer: Path | None,
    steps: Path,
    workers: int,
    memory: str | None,
    *,
    skip_bad: bool,
    verify: bool,
) -> None:
    """Prepare, mine and tokenise what a configuration names."""
    from scimult.cli.mine import open_encoder
    from scimult.cli.output import print_prepared
    from scimult.config import load_config
    from scimult.data.tokenization import TextTokenizer
    from scimult.preparation.collected import REJECTS_FILE
    from scimult.preparation.dataset import DatasetConfig, build_dataset
    from scimult.preparation.mining.engine import Limits

    settings = load_config(DatasetConfig, config, overrides)
    loaded = None if tokenizer is None else TextTokenizer.from_folder(tokenizer)
    data, rejects = build_dataset(
        settings,
        out,
        tokenizer=loaded,
        skip_bad=skip_bad,
        steps=steps,
        workers=workers,
        open_encoder=open_encoder,
        verify=verify,
        limits=Limits(memory),
    )
    print_prepared(data)
    _name_rejects(rejects, out / REJECTS_FILE)


def _name_rejects(rejects: Rejects, log: Path) -> None:
    if rejects.counts:
        echo(f"{rejects.summary()}\nall of them: {log}", err=True)


def _decontaminate(folder: Path | None) -> list[str]:
    """Return the settings that the option stands for; those given by name go on top."""
    if folder is None:
        return []
    return [f"hygiene.evaluation={folder}", "hygiene.decontaminate=[query]"]
