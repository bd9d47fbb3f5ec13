"""Numbers that papers print, put beside ours where data set and size are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from pydantic import Field, model_validator

from scimult.config import StrictConfig, load_config
from scimult.errors import ConfigError
from scimult.evaluation.results import Result
from scimult.table import Cell, Table, label, percent

AVERAGE = "average"


class PublishedTable(StrictConfig):
    """One table of a paper.

    Attributes
    ----------
    name, title : str
        Its number and, in our words, what it has.
    columns : list of str
        ``SUITE:SET/METRIC`` as our suites name it, or the paper's own heading.
    rows : dict
        System to scores × 100; None where the paper has none.
    cited : list of str
        Systems with scores that the paper took from another one.
    mean : bool
        Whether the column ``average`` is the mean of the others.
    """

    name: str
    title: str
    columns: list[str] = Field(min_length=1)
    rows: dict[str, list[float | None]] = Field(min_length=1)
    cited: list[str] = []
    mean: bool = True

    @model_validator(mode="after")
    def _complete(self) -> PublishedTable:
        for system, scores in self.rows.items():
            if len(scores) != len(self.columns):
                raise ConfigError(f"{self.name}: one score per column is needed", value=system)
        return self


class Publication(StrictConfig):
    """A paper, the sizes of its data sets by ``SUITE:SET``, and its tables."""

    paper: str
    url: str
    counts: dict[str, dict[str, int]]
    tables: list[PublishedTable]


def publications() -> list[Publication]:
    """Read the papers that come with the toolkit."""
    folder = resources.files("scimult.evaluation") / "published"
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".yaml"):
            with resources.as_file(path) as file:
                found.append(load_config(Publication, Path(file)))
    return found


def beside_ours(results: Sequence[Result], papers: Sequence[Publication]) -> list[Table]:
    """Return every published table that shares a data set with the results."""
    suite = results[-1].suite["name"]
    return [
        grid
        for paper in papers
        for table in paper.tables
        if (grid := _beside(table, paper, suite, results))
    ]


def _beside(
    table: PublishedTable, paper: Publication, suite: str, results: Sequence[Result]
) -> Table | None:
    ours = {
        f"{suite}:{name}/{metric}": score
        for result in results
        for name, entry in result.sets.items()
        for metric, score in entry.scores.items()
    }
    shared = [column for column in table.columns if column in ours]
    sizes = _sizes(results, suite)
    other = [column for column in shared if _differs(column, paper.counts, sizes)]
    shown = [column for column in shared if column not in other]
    if not shared:
        return None
    rows = [
        [label(system), *(_printed(scores[table.columns.index(name)]) for name in shown)]
        for system, scores in table.rows.items()
    ]
    rows += [
        [label(f"ours: {result.system}"), *(_score(result, column) for column in shown)]
        for result in results
    ]
    headings = ["system", *(column.partition(":")[2] for column in shown)]
    notes = [f"{paper.paper}, {table.name} ({paper.url}): {table.title}."]
    if table.cited:
        notes.append(f"Partly from other papers: {', '.join(table.cited)}.")
    if other:
        names = ", ".join(dict.fromkeys(map(_set_of, other)))
        notes.append(f"Not beside each other, for the data sets have other sizes: {names}.")
    unknown = list(dict.fromkeys(_set_of(c) for c in shown if _set_of(c) not in paper.counts))
    if unknown:
        notes.append(f"Sizes in the paper not known: {', '.join(unknown)}.")
    return Table(f"Published: {table.name}, {table.title}", headings, 1, rows, notes)


def _set_of(column: str) -> str:
    return column.rpartition("/")[0]


def _sizes(results: Sequence[Result], suite: str) -> dict[str, dict[str, int]]:
    return {
        f"{suite}:{name}": entry.counts for result in results for name, entry in result.sets.items()
    }


def _differs(
    column: str, wanted: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]
) -> bool:
    sizes = found[_set_of(column)]
    return any(sizes.get(what) != count for what, count in wanted.get(_set_of(column), {}).items())


def _score(result: Result, column: str) -> Cell:
    name, _, metric = column.partition(":")[2].rpartition("/")
    return percent(result.sets[name].scores.get(metric) if name in result.sets else None)


def _printed(score: float | None) -> Cell:
    return percent(None if score is None else score / 100)
