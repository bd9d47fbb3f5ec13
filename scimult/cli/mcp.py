"""``scimult mcp``: a library as tools of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scimult.cli.common import Device, SkipBad
from scimult.cli.serve import Labels, OtherModel, Tagger, check_labels, known_labels


def mcp(
    library: Annotated[Path, typer.Argument(help="Folder of the library.", show_default=False)],
    labels: Labels = None,
    tagger: Tagger = None,
    model: OtherModel = None,
    device: Device = None,
    skip_bad: SkipBad = False,
) -> None:
    """Serve a library to an agent over stdio, by the Model Context Protocol.

    Tools: describe_library, search_papers, recommend_papers, tag_papers, read_papers.
    """
    check_labels(labels, tagger)
    from scimult.serving.answers import Answers
    from scimult.serving.mcp import mcp_server
    from scimult.serving.served import Served

    served = Served(library, model=model, device=device)
    answers = Answers(served)
    answers.labels = known_labels(served.library.model, labels, tagger, device, skip_bad)
    mcp_server(answers).run("stdio")
    served.close()
