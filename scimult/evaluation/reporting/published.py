"""Published numbers, next to ours where data set and size match."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pydantic import Field, model_validator

from scimult.config import StrictConfig, load_config
from scimult.errors import ConfigError
from scimult.evaluation.results import Result
from scimult.table import Cell, Table, label, percent

AVERAGE = "average"


class PublishedTable(StrictConfig):
    """One table of a paper: its number, and our summary of its content.

    ``columns`` are ``SUITE:SET/METRIC`` in our suites' names, or the paper's own headings; ``rows``
    have scores × 100, and ``cited`` systems have theirs from another paper. ``mean`` tells whether
    the column ``average`` is the mean of the others.
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
                raise ConfigError(f"{self.name} needs one score per column", value=system)
        return self


class Publication(StrictConfig):
    """A paper (its citation) and its tables.

    ``counts`` are sizes of its data sets, by ``SUITE:SET``; ``same`` maps sets of other suites with
    the same data to those named in the columns.
    """

    paper: str
    url: str
    counts: dict[str, dict[str, int]]
    same: dict[str, str] = {}
    tables: list[PublishedTable]


def publications() -> list[Publication]:
    """Read the publications that ship with the toolkit."""
    folder = resources.files("scimult.evaluation") / "published"
    papers = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".yaml"):
            with resources.as_file(path) as file:
                papers.append(load_config(Publication, Path(file)))
    return papers


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
    columns = {
        f"{name}/{metric}": f"{paper.same.get(f'{suite}:{name}', f'{suite}:{name}')}/{metric}"
        for result in results
        for name, entry in result.sets.items()
        for metric in entry.scores
    }
    known = [(ours, theirs) for ours, theirs in columns.items() if theirs in table.columns]
    shared = dict(sorted(known, key=lambda pair: table.columns.index(pair[1])))
    other = [ours for ours, theirs in shared.items() if _differs(ours, theirs, paper, results)]
    comparable = {ours: theirs for ours, theirs in shared.items() if ours not in other}
    if not shared:
        return None
    rows = [
        [
            label(system),
            *(_printed(scores[table.columns.index(name)]) for name in comparable.values()),
        ]
        for system, scores in table.rows.items()
    ]
    printed = [
        row for row in rows if not comparable or any(cell.value is not None for cell in row[1:])
    ]
    printed += [
        [label(f"ours: {result.system}"), *(_score(result, column) for column in comparable)]
        for result in results
    ]
    notes = [f"{paper.paper}, {table.name} ({paper.url}): {table.title}."]
    if table.cited:
        notes.append(f"Partly from other papers: {', '.join(table.cited)}.")
    if other:
        names = ", ".join(dict.fromkeys(f"{suite}:{_set_of(ours)}" for ours in other))
        notes.append(f"Left out, because our data sets have other sizes: {names}.")
    sets = dict.fromkeys(map(_set_of, comparable.values()))
    unknown = [name for name in sets if name not in paper.counts]
    if unknown:
        notes.append(f"The paper does not state the sizes of {', '.join(unknown)}.")
    return Table(
        f"Published: {table.name}, {table.title}", ["system", *comparable], 1, printed, notes
    )


def _set_of(column: str) -> str:
    return column.rpartition("/")[0]


def _differs(ours: str, theirs: str, paper: Publication, results: Sequence[Result]) -> bool:
    name = _set_of(ours)
    sizes = next(result.sets[name].counts for result in results if name in result.sets)
    wanted = paper.counts.get(_set_of(theirs), {})
    return any(sizes.get(kind) != count for kind, count in wanted.items())


def _score(result: Result, column: str) -> Cell:
    name, _, metric = column.rpartition("/")
    return percent(result.sets[name].scores.get(metric) if name in result.sets else None)


def _printed(score: float | None) -> Cell:
    return percent(None if score is None else score / 100)
