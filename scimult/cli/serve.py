"""``scimult serve`` and ``mcp``: serve a library over HTTP with a web page, and to agents."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.checks import only_with
from scimult.cli.common import KEY, api_key, is_local, read_labels
from scimult.cli.output import echo
from scimult.data.packed import unpacked_name
from scimult.errors import ConfigError, DataError
from scimult.terminal import counted

if TYPE_CHECKING:
    from scimult.inference import SciMult
    from scimult.serving.following import Following
    from scimult.serving.labels import Tags
    from scimult.serving.served import Served


# Allocator arenas: with one per thread, each would keep the memory of its largest request.
_HEAPS = 2

Labels = Annotated[
    Path | None,
    typer.Option(
        help="Labels to tag with: JSON lines, one JSON array, CSV or TSV with id, name and "
        "definition, or a folder with labels.jsonl."
    ),
]
Tagger = Annotated[
    Path | None,
    typer.Option("--tagger", help="Tagger folder (scimult tagger train), instead of --labels."),
]


def serve(
    library: opt.Folder,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all interfaces.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8000,
    labels: Labels = None,
    tagger: Tagger = None,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    without_key: Annotated[
        bool,
        typer.Option(
            "--without-key", help="Serve other machines without a key ($SCIMULT_API_KEY)."
        ),
    ] = False,
    waiting: Annotated[
        int, typer.Option(min=1, help="Most requests at once; others are refused (429).")
    ] = 256,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds to answer within (504).")
    ] = 60.0,
    max_body: Annotated[
        int, typer.Option(min=1, max=1024, help="Largest request in megabytes (413).")
    ] = 8,
    batch_tokens: Annotated[
        int, typer.Option(min=64, help="Most tokens of waiting texts to encode in one batch.")
    ] = 4096,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Serve a library: JSON over HTTP, a web page to try it, Annif's paths under /v1.

    Changes of the library, the labels and the tagger by other processes show up within a second.
    """
    from scimult.serving.run import LOCAL, listen

    check_labels(labels, tagger, skip_bad)
    fix = f'use at least 16 printable characters: export {KEY}="$(openssl rand -hex 32)"'
    key = api_key(least=16, fix=fix)
    if key is None and not is_local(host) and not without_key:
        fix = f"set ${KEY}, or pass --without-key if a proxy checks access"
        raise ConfigError("other machines could use it without a key", value=host, fix=fix)
    sock = listen(host, port)
    from scimult.hardware import one_thread_each
    from scimult.heap import share_heaps

    share_heaps(_HEAPS)
    threads = one_thread_each(device)
    from scimult.serving.annif import Project
    from scimult.serving.answers import Answers
    from scimult.serving.app import Service
    from scimult.serving.guards import Limits
    from scimult.serving.metrics import Metrics
    from scimult.serving.run import run
    from scimult.serving.served import Served

    metrics = Metrics()
    served = Served(
        library,
        model=model,
        device=device,
        most_tokens=batch_tokens,
        threads=threads,
        # Of start-up and changes; requests have deadlines of their own.
        patience=max(timeout, 60.0),
        observe=metrics.passed,
    )
    answers = Answers(served, followed_labels(served, labels, tagger, device, skip_bad))
    source = labels or tagger
    project = None if source is None else Project(_name_of(source), answers.bounded_tags)
    limits = Limits(waiting=waiting, seconds=timeout, body_bytes=max_body << 20)
    name = f"[{host}]" if ":" in host else host  # as in addresses
    hosts = LOCAL | {name} if key is None and is_local(host) else None
    service = Service(
        answers, limits=limits, metrics=metrics, project=project, key=key, hosts=hosts
    )
    address = f"http://{name}:{sock.getsockname()[1]}"
    papers = counted(len(served.library), "paper")
    if key is None and not is_local(host):
        echo(f"{address}: open to everybody who can reach this machine", err=True)
    run(service, sock, timeout, lambda: echo(f"{library}: {papers} at {address}"))


def _name_of(source: Path) -> str:
    """Return the name of a folder, also of the current one, or of a file without its suffix."""
    path = Path(os.path.abspath(source))
    return path.name if path.is_dir() else Path(unpacked_name(path)).stem


def check_labels(labels: Path | None, tagger: Path | None, skip_bad: bool) -> None:
    """Check that labels and a tagger are not both given, and that there are records to skip."""
    if labels is not None and tagger is not None:
        raise ConfigError("--labels and --tagger are mutually exclusive", fix="give one of them")
    if labels is None:
        only_with("--labels", {"--skip-bad": skip_bad})


def followed_labels(
    served: Served, labels: Path | None, tagger: Path | None, device: str | None, skip_bad: bool
) -> Following[Tags] | None:
    """Read and encode labels, or open a tagger, and again whenever they change."""
    from scimult.data.text_files import find_file
    from scimult.serving.following import Following
    from scimult.serving.labels import LabelSpace
    from scimult.tagging.folder import FILE

    def read() -> LabelSpace:
        assert labels is not None
        return LabelSpace(served.library.model, read_labels(labels, skip_bad))

    if labels is not None:
        return Following("labels", find_file(labels, "label"), read)
    if tagger is not None:
        return Following("tagger", tagger / FILE, lambda: _opened_tagger(served, tagger, device))
    return None


def _opened_tagger(served: Served, path: Path, device: str | None) -> Tags:
    """Open a tagger with a model in use if it is the same, else with one of its own."""
    from scimult.serving.labels import TaggerLabels
    from scimult.tagging import Tagger as Opened

    def served_with(model: SciMult | None) -> Tags:
        opened = Opened.open(path, model=model, device=device)
        opened.model = served.share(opened.model)
        return TaggerLabels(opened)

    for model in served.models:
        with suppress(DataError):
            return served_with(model)
    return served_with(None)


def mcp(
    library: opt.Folder,
    labels: Labels = None,
    tagger: Tagger = None,
    model: opt.OtherModel = None,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
) -> None:
    """Serve a library to an agent over stdio, in the Model Context Protocol.

    Tools: describe_library, search_papers, recommend_papers, tag_papers, read_papers.
    """
    check_labels(labels, tagger, skip_bad)
    from scimult.serving.answers import Answers
    from scimult.serving.mcp import mcp_server
    from scimult.serving.served import Served

    served = Served(library, model=model, device=device)
    answers = Answers(served, followed_labels(served, labels, tagger, device, skip_bad))
    server = mcp_server(answers)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.WARNING)  # bm25s sets its own level, to DEBUG
    server.run("stdio")
    served.close()
