"""Options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.checks import known_device

_A_MODEL = (
    "A run, a saved model, a Hugging Face or sentence-transformers folder, or a name on the hub"
)
_SOME_PAPERS = (
    "JSON lines or one JSON array (.gz) with id, title and abstract, or a folder with papers.jsonl."
)
Model = Annotated[Path, typer.Option(help=f"{_A_MODEL}.", show_default=False)]
Papers = Annotated[Path, typer.Option(help=_SOME_PAPERS, show_default=False)]
SuiteName = Annotated[str, typer.Option(help="Name of a suite, or a YAML file.")]
Sets = Annotated[list[str] | None, typer.Option(help="Only this data set (repeatable).")]
Top = Annotated[int, typer.Option(min=1, help="Length of a list.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out bad records, counted and named.")
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Neither read nor keep embeddings. They are kept in $SCIMULT_CACHE (default: "
        "scimult in $XDG_CACHE_HOME or ~/.cache) up to $SCIMULT_CACHE_GB (default: 10).",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")]
Device = Annotated[
    str | None,
    typer.Option(
        callback=known_device, help="cpu, cuda or cuda:1; default: the first GPU, else the CPU."
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"],
    typer.Option(
        help="Type of the computation; auto: bfloat16 where the device has units for it, else "
        "float32. int8: fastest on a CPU, and some tenths of a point worse."
    ),
]
Pooling = Annotated[Literal["cls", "mean"] | None, typer.Option(help="Instead of the model's own.")]
Similarity = Annotated[
    Literal["dot", "cosine", "l2"] | None, typer.Option(help="Instead of the model's own.")
]
InLibrary = Annotated[
    Path | None,
    typer.Option("--library", help="A library (scimult library create), in place of --papers."),
]
AnyModel = Annotated[
    Path | None,
    typer.Option("--model", help=f"{_A_MODEL}; a library knows its own.", show_default=False),
]
AnyPapers = Annotated[Path | None, typer.Option("--papers", help=_SOME_PAPERS, show_default=False)]
Where = Annotated[
    str | None,
    typer.Option(help='With --library: a condition in SQL on its columns, "year >= 2020".'),
]
MinScore = Annotated[
    float | None,
    typer.Option(help="With --library: everything with this score or more, not the --top."),
]
Offset = Annotated[
    int, typer.Option(min=0, help="With --library: results to pass over, for the next page.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="With --library: id of a paper to leave out. Repeat it for several."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="With --library: leave its approximate index aside.")
]
Percentile = Annotated[
    bool,
    typer.Option("--percentile", help="With --library: how much of it scores lower, in per cent."),
]
Server = Annotated[
    str | None,
    typer.Option(
        help="A running service (scimult serve), such as http://127.0.0.1:8000, in place of "
        "--library: nothing is loaded here. $SCIMULT_API_KEY is its key."
    ),
]
Folder = Annotated[Path, typer.Argument(help="Folder of the library.", show_default=False)]
Files = Annotated[
    list[str],
    typer.Option(
        "--papers",
        help="Files (.gz too), globs or folders: JSON lines, CSV, Parquet, BibTeX, RIS, Zotero, "
        "OpenAlex, Semantic Scholar, Crossref, PubMed. Repeat it for several.",
        show_default=False,
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", help="Format of the files, if it is not seen.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="NAME=FIELD: a field of the files as title, abstract, year, ... or as a column of "
        "its own to filter by; NAME= leaves a field out. Repeat it for several.",
    ),
]
OtherModel = Annotated[
    Path | None, typer.Option("--model", help="The library's model, if it was moved.")
]
Vectors = Annotated[
    Path | None,
    typer.Option(
        help="What scimult encode wrote with the library's model: texts in it are not encoded."
    ),
]
Task = Annotated[str, typer.Option(help="Task of the model.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes to the config: dotted.key=value.", show_default=False),
]
LocalRank = Annotated[int, typer.Option("--local_rank", hidden=True)]
Results = Annotated[
    list[Path], typer.Argument(help="Folders that scimult evaluate wrote.", show_default=False)
]
Confidence = Annotated[
    float, typer.Option(min=0.5, max=0.999, help="Of intervals; tests use 1 minus this.")
]
NewFolder = Annotated[Path, typer.Option(help="Folder to write.", show_default=False)]
Prepared = Annotated[Path, typer.Argument(help="Folder that scimult prepare wrote.")]
