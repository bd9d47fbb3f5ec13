"""Options shared by several verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scimult.cli.checks import known_device, real_text

ANY_MODEL = "Run, saved model, Hugging Face or sentence-transformers folder, or hub name."
Model = Annotated[Path, typer.Option(help=ANY_MODEL, show_default=False)]
ModelArgument = Annotated[Path, typer.Argument(help=ANY_MODEL, show_default=False)]
Systems = Annotated[list[str] | None, typer.Option(help="Only this system or run (repeatable).")]
SuiteName = Annotated[str, typer.Option(help="Suite name or YAML file.")]
Sets = Annotated[list[str] | None, typer.Option(help="Only this data set (repeatable).")]
Top = Annotated[int, typer.Option(min=1, help="Number of results.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip bad records; count and report them.")
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Neither read nor write cached embeddings. The cache is $SCIMULT_CACHE (default: "
        "scimult in $XDG_CACHE_HOME or ~/.cache), up to $SCIMULT_CACHE_GB (default: 10).",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]
Device = Annotated[
    str | None,
    typer.Option(
        callback=known_device, help="cpu, cuda or cuda:1. Default: the first GPU, else the CPU."
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"],
    typer.Option(
        help="Compute type. auto: bfloat16 where the hardware supports it, else float32. "
        "int8: fastest on a CPU, at a cost of a few tenths of a point."
    ),
]
Pooling = Annotated[
    Literal["cls", "mean"] | None, typer.Option(help="Override the model's pooling.")
]
Similarity = Annotated[
    Literal["dot", "cosine", "l2"] | None, typer.Option(help="Override the model's similarity.")
]
InLibrary = Annotated[
    Path | None,
    typer.Option("--library", help="Library folder, instead of --model and --papers."),
]
AnyModel = Annotated[
    Path | None,
    typer.Option("--model", help=f"{ANY_MODEL} A library knows its own.", show_default=False),
]
AnyPapers = Annotated[
    Path | None,
    typer.Option(
        "--papers",
        help="File (.gz too), glob or folder of papers: JSON lines, CSV, Parquet, BibTeX, RIS, "
        "EndNote, Zotero, Web of Science, OpenAlex, Semantic Scholar, Crossref, PubMed, arXiv, "
        "DBLP.",
        show_default=False,
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        callback=real_text,
        help='With --library: SQL condition on its columns, such as "year >= 2020".',
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        help="With --library or --server: every paper with at least this score, not the --top."
    ),
]
Offset = Annotated[
    int,
    typer.Option(min=0, help="With --library or --server: number of results to skip, for paging."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="With --library or --server: id of a paper to leave out (repeatable)."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="With --library or --server: bypass its approximate index.")
]
Percentile = Annotated[
    bool,
    typer.Option(
        "--percentile", help="With --library or --server: show the percentage that scores lower."
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        help="Address of a running scimult serve, such as http://127.0.0.1:8000, instead of "
        "--library; nothing is loaded locally. Its key is read from $SCIMULT_API_KEY."
    ),
]
Folder = Annotated[Path, typer.Argument(help="Library folder.", show_default=False)]
Files = Annotated[
    list[str],
    typer.Option(
        "--papers",
        help="Files (.gz too), globs or folders: JSON lines, CSV, Parquet, BibTeX, RIS, EndNote, "
        "Zotero, Web of Science, OpenAlex, Semantic Scholar, Crossref, PubMed, arXiv, DBLP "
        "(repeatable).",
        show_default=False,
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", help="Format of the files, if it is not detected.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="NAME=FIELD: read title, abstract, year, ... of papers, or a library's column to "
        "filter by, from this field; NAME= ignores it (repeatable).",
    ),
]
OtherModel = Annotated[
    Path | None, typer.Option("--model", help="Path of the model, if it has moved.")
]
Vectors = Annotated[
    Path | None,
    typer.Option(
        help="Output of scimult encode by the library's model, reused instead of encoding."
    ),
]
Task = Annotated[str, typer.Option(help="Task to encode for.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Config overrides: dotted.key=value.", show_default=False),
]
LocalRank = Annotated[int, typer.Option("--local_rank", hidden=True)]
Results = Annotated[
    list[Path], typer.Argument(help="Result folders of scimult evaluate.", show_default=False)
]
Confidence = Annotated[
    float,
    typer.Option(min=0.5, max=0.999, help="Confidence of intervals; tests use 1 minus this."),
]
NewFolder = Annotated[Path, typer.Option(help="Output folder.", show_default=False)]
Verify = Annotated[
    bool, typer.Option("--verify", help="Compare contents of files, not just their size and time.")
]
Steps = Annotated[
    Path | None,
    typer.Option(
        help="Folder to keep finished steps in, for reuse. Default: .NAME.steps next to the "
        "prepared folder NAME.",
        show_default=False,
    ),
]
Prepared = Annotated[Path, typer.Argument(help="Folder with the prepared data.")]
