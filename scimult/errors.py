"""Errors that a user can cause; messages name the location, the value and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scimult.terminal import shortened

_MOST_SHOWN = 120
_MOST_QUOTED = 300


class SciMultError(ValueError):
    """Base of every error that input, configuration or the file system can cause.

    Parameters
    ----------
    problem : str
        What is wrong, in one sentence without a full stop.
    path, line : optional
        Location; shown as ``path:line: problem``.
    value : optional
        The offending value; its ``repr`` is cut at 120 characters.
    fix : str, optional
        What the user can do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: Path | str | None = None,
        line: int | None = None,
        value: Any = None,
        fix: str | None = None,
    ) -> None:
        self.problem, self.path, self.line, self.value, self.fix = problem, path, line, value, fix
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        given = "" if value is None else f" (value: {shown(value)})"
        advice = "" if fix is None else f". Fix: {fix}"
        super().__init__(f"{where}{problem}{given}{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Processes send each other errors, whose message is not what some are made from.
        return _remade, (type(self), str(self), vars(self))


def _remade(kind: type[SciMultError], message: str, facts: dict[str, Any]) -> SciMultError:
    error = kind.__new__(kind, message)
    vars(error).update(facts)
    return error


class ConfigError(SciMultError):
    """A setting is unknown, contradictory or of the wrong type."""


class DataError(SciMultError):
    """An input file is unusable."""


class CheckpointError(SciMultError):
    """A checkpoint is damaged, incomplete or of another architecture."""


class StorageError(SciMultError):
    """A file could not be written: disk full, no permission, read-only folder."""


class BusyError(StorageError):
    """Another process writes what was to be written."""


class UnknownNameError(SciMultError):
    """A name (task, variant, loss, ...) is unknown; the message lists the known ones."""

    def __init__(self, what: str, name: str, known: Iterable[str], **location: Any) -> None:
        choices = sorted(known)
        super().__init__(
            f"unknown {what}",
            value=name,
            fix=f"use one of {', '.join(choices) or '(none registered)'}{suggest(name, choices)}",
            **location,
        )


def one_of(what: str, value: object, known: Iterable[str], **location: Any) -> str:
    """Return ``value``, checked to be one of ``known``; ``location`` goes to the error.

    Raises
    ------
    UnknownNameError
        If it is not.
    """
    names = list(known)
    if not isinstance(value, str) or value not in names:
        name = value if isinstance(value, str) else repr(value)
        raise UnknownNameError(what, name, names, **location)
    return value


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known name, or an empty string."""
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""


def quoted_in_line(text: str) -> str:
    """Return what a file or another library says as one line of at most 300 characters."""
    return shortened(" ".join(text.split()), _MOST_QUOTED)


def shown(value: Any) -> str:
    """Return ``repr(value)`` cut at 120 characters, without building the rest."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _MOST_SHOWN:
            break
    return shortened(text, _MOST_SHOWN)


def _pieces(value: Any) -> Iterator[str]:
    if type(value) in (list, dict) and value:
        yield "[" if type(value) is list else "{"
        for position, item in enumerate(value):
            yield ", " if position else ""
            yield from _pieces(item)
            if type(value) is dict:
                yield ": "
                yield from _pieces(value[item])
        yield "]" if type(value) is list else "}"
    elif isinstance(value, (str, bytes)):
        yield repr(value[: _MOST_SHOWN + 1])
    else:
        try:
            yield repr(value)
        except ValueError:  # Python refuses to print integers above 4,300 digits
            yield f"an integer of {value.bit_length():,} bits"
