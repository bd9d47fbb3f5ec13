"""Checks of arguments that run before torch, which takes seconds to load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from glob import glob, has_magic
from pathlib import Path

from scimult.data.importers import find_files, guess_format
from scimult.data.packed import no_file
from scimult.errors import CheckpointError, ConfigError, DataError, StorageError, UnknownNameError
from scimult.files import FolderKind, check_replaceable
from scimult.terminal import is_unicode
from scimult.unfinished import remove_strays

DEVICES = ("cpu", "cuda", "cuda:0")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
_ALIASES = {"gpu": "cuda", "gpu:0": "cuda", "nvidia": "cuda", "processor": "cpu"}


def check_use(model: Path, papers: Path) -> list[Path]:
    """Check the paths of a model and of papers; return the files of the papers."""
    check_model(model)
    files = find_files([papers])
    for file in files:
        guess_format(file)
    return files


def check_inputs(files: Iterable[Path]) -> None:
    """Check that every file exists and every pattern matches, whatever the format."""
    for path in files:
        if path.exists():
            continue
        if not has_magic(str(path)):
            raise no_file(path)
        if not glob(str(path), recursive=True):
            raise DataError("no file matches", path=path, fix="correct the pattern")


def check_distinct(paths: Iterable[Path], fix: str = "name it once") -> None:
    """Refuse a folder or file that is given twice, perhaps by a link: it would count twice.

    Raises
    ------
    ConfigError
        If one is.
    """
    found = set()
    for path in paths:
        if path.resolve() in found:
            kind = "file" if path.is_file() else "folder"
            raise ConfigError(f"one {kind} is given twice", value=str(path), fix=fix)
        found.add(path.resolve())


def check_model(model: Path) -> None:
    """Check that a path can be a model's: that of a folder or a hub name."""
    if str(model).startswith("package:"):
        return
    fix = "name a run, a saved model, a Hugging Face folder or organisation/name on the hub"
    if model.is_file():
        raise CheckpointError("a model is a folder, not a file", path=model, fix=fix)
    if not model.exists() and (model.is_absolute() or len(model.parts) != 2):
        raise CheckpointError("folder does not exist", path=model, fix=fix)


def check_output_file(out: Path, overwrite: bool | None, inputs: Iterable[Path]) -> None:
    """Check that a file may be written: never over an input, over others only on request.

    ``overwrite`` is None for a verb without that option. What a killed process left next to a
    complete output is removed.

    Raises
    ------
    StorageError
        If it may not.
    """
    if str(out) == "-":
        problem = "would be a file of that name, not standard output"
        fix = "name a file, or redirect what the command prints without one"
        raise StorageError(problem, path=out, fix=fix)
    if not out.exists():
        return
    if any(out.samefile(path) for path in inputs):
        raise StorageError("output is also an input", path=out, fix="choose another file")
    if not out.is_file():
        problem = "is a folder" if out.is_dir() else "is a device or a pipe, not a file"
        raise StorageError(problem, path=out, fix="name a file")
    if not overwrite:
        remove_strays(out)
        choice = "" if overwrite is None else ", or --overwrite to replace this one"
        fix = f"choose another file{choice}"
        raise StorageError("output exists already", path=out, fix=fix)


def check_output_folder(out: Path, kind: FolderKind, overwrite: bool) -> None:
    """Check that a folder may be written: one of ``kind`` only on request.

    What a killed process left next to a complete output is removed.

    Raises
    ------
    StorageError
        If it may not; see also `scimult.files.check_replaceable`.
    """
    try:
        check_replaceable(out, kind)
        if not overwrite and out.is_dir() and any(out.iterdir()):
            fix = "choose another folder, or --overwrite to replace this one"
            raise StorageError("output exists already", path=out, fix=fix)
    except StorageError:
        remove_strays(out)
        raise


def check_folder(out: Path, content: str) -> None:
    """Check that ``out`` is a folder that may get ``content``, or new.

    Raises
    ------
    StorageError
        If it is something else.
    """
    if out.exists() and not out.is_dir():
        fix = f"name a folder for {content}, which may be new"
        raise StorageError("exists and is not a folder", path=out, fix=fix)


def only_with(owner: str, options: Mapping[str, object], hint: str = "") -> None:
    """Refuse options that would have no effect, as they belong to ``owner``.

    ``hint`` is appended to the fix.
    """
    if given := ", ".join(_given(options)):
        fix = f"leave out {given}{hint}"
        raise ConfigError(f"{given} can only be used with {owner}", fix=fix)


def not_with(other: str, options: Mapping[str, object], hints: Mapping[str, str]) -> None:
    """Refuse options that ``other`` excludes; ``hints`` has the end of the fix for some of them."""
    if given := _given(options):
        names, hint = ", ".join(given), "".join(hints.get(name, "") for name in given)
        raise ConfigError(f"{other} excludes {names}", fix=f"leave out {names}{hint}")


def _given(options: Mapping[str, object]) -> list[str]:
    """Return the names of the options that are not None, false, zero or empty."""
    return [name for name, value in options.items() if value not in (None, False, 0, [], ())]


def named_values(
    specs: Iterable[str], noun: str, form: str, example: str, fits: Callable[[str], object] = bool
) -> dict[str, str]:
    """Parse options such as ``--map NAME=FOLDER`` into a dict; names must differ.

    Messages call them "a map" (``noun``), "NAME=FOLDER" (``form``) and show a valid one. ``fits``
    tells whether a value is valid; by default any but the empty one.
    """
    values: dict[str, str] = {}
    for spec in specs:
        name, separator, value = spec.partition("=")
        if not (name and separator and fits(value)):
            raise ConfigError(f"{noun} is {form}", value=spec, fix=f"write {example}")
        if name in values:
            problem = f"two {noun.split()[-1]}s have the same name"
            raise ConfigError(problem, value=name, fix="rename one, or leave it out")
        values[name] = value
    return values


def known_device(name: str | None) -> str | None:
    """Check the name of a device, for ``--device``; not whether the machine has it.

    Raises
    ------
    ConfigError, UnknownNameError
        If no device has such a name.
    """
    if name is None or _DEVICE.fullmatch(name):
        return name
    meant = _ALIASES.get(name.lower())
    if meant is None:
        raise UnknownNameError("device", name, DEVICES)
    fix = f"use one of {', '.join(DEVICES)} (did you mean {meant!r}?)"
    raise ConfigError("unknown device", value=name, fix=fix)


def real_text(words: str | None) -> str | None:
    """Check a command-line argument that goes to a model.

    Raises
    ------
    DataError
        If some of its bytes could not be decoded in the terminal's encoding.
    """
    if words is not None and not is_unicode(words):
        fix = "use UTF-8; the terminal or the calling script has another encoding"
        raise DataError("words are not valid UTF-8", value=words, fix=fix)
    return words
