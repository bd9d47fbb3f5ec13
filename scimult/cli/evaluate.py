"""``scimult evaluate``: score encoders, stored embeddings and BM25 on a benchmark suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scimult.cli import options as opt
from scimult.cli.audit import audit_sets
from scimult.cli.output import echo, failure, print_table, report_set
from scimult.cli.systems import Store, add_hybrids, make_systems
from scimult.errors import ConfigError, DataError, SciMultError

if TYPE_CHECKING:
    from scimult.evaluation.benchmark import Benchmark
    from scimult.evaluation.growing import Earlier
    from scimult.evaluation.harness import LoadedSet
    from scimult.evaluation.hybrid import DevSet
    from scimult.evaluation.results import Result
    from scimult.evaluation.suites import Suite
    from scimult.evaluation.systems import System


def evaluate(
    context: typer.Context,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Suite overrides: benchmarks.NAME.key=value.", show_default=False),
    ] = None,
    suite: opt.SuiteName = "first",
    data: Annotated[Path, typer.Option(help="Folder with the suite's data sets.")] = Path("."),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; its table shows every system in it."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FOLDER[,pooling=mean][,similarity=cosine][,dtype=bfloat16], or an ensemble "
            "NAME=FOLDER+FOLDER, averaged by default, joined with ,combine=concatenation."
        ),
    ] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER[,similarity=dot]: stored embeddings."),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=PRESET, NAME=FILE.yaml or NAME=MODEL (a folder, or organisation/name on the "
            "hub): a third-party encoder or static embeddings; ,key=value changes a setting. "
            "Joined by + they are an ensemble, as for --model."
        ),
    ] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Score BM25 too.")] = False,
    lexical: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=words or NAME=beir: BM25 with this text analysis; ,stemmer=english, "
            ",stop_words=english, ,tokens=lucene, ,k1=1.2 and ,b=0.75 change it."
        ),
    ] = None,
    fuse: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SYSTEM+SYSTEM: systems of this call, fused by reciprocal rank. With "
            ",by=weights: two systems, by the weight that is best on the other half of the "
            "queries, or with ,dev=SPLIT on that split."
        ),
    ] = None,
    rerank: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SYSTEM+MODEL[,top=100]: first results of a system of this call, reordered "
            "by a sentence-transformers cross-encoder."
        ),
    ] = None,
    sets: opt.Sets = None,
    save_runs: Annotated[
        bool, typer.Option("--save-runs", help="Write ranked lists as TREC runs.")
    ] = False,
    confidence: Annotated[
        float | None,
        typer.Option(min=0.5, max=0.999, help="Confidence of intervals to keep, such as 0.95."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder to keep embeddings in, so that each text is encoded only once."),
    ] = None,
    precision: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(
            help="Number type in --store; the stored numbers are scored. Default: float32."
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            help="Prepared folder: count the texts and relevant pairs of each set in it. "
            "Without a system and --out nothing is scored."
        ),
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="Download missing files that have a public address."),
    ] = False,
    available: Annotated[
        bool, typer.Option("--available", help="Score only sets with data; list the others.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep scores of the same system, data and suite in --out."),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Drop earlier results of systems with the same names."),
    ] = False,
    device: opt.Device = None,
    skip_bad: opt.SkipBad = False,
    show_list: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List all suites, or --suite with --sets and overrides, and whether their data is "
            "in --data.",
        ),
    ] = False,
) -> None:
    """Score systems on a suite; print a table and write JSON, Markdown and per-query scores.

    Each set is written when it is done, and earlier sets of a system stay. Under a launcher with
    several processes, all encode into --store and the first one scores; without --store the first
    one does all the work.
    """
    from scimult import distributed

    if not distributed.is_main() and (store is None or show_list):
        return
    if show_list:
        source = context.get_parameter_source("suite")
        is_one = bool(overrides or sets) or (source is not None and source.name != "DEFAULT")
        _show_suites(suite if is_one else None, overrides or [], sets or [], data)
        return
    specs = (model, embeddings, encoder, lexical, fuse, rerank)
    if audit is not None and out is None and not (bm25 or any(specs)):
        from scimult.evaluation.suites import load_suite

        config = load_suite(suite, overrides or [])
        loaded, missing = _load(config, data, sets or [], available, skip_bad)
        _show_audit(audit, loaded, missing)
        return
    if out is None:
        raise ConfigError("no folder for the results", fix="pass --out FOLDER")
    earlier = _earlier(resume, replace)
    if precision is not None and store is None:
        raise ConfigError("--precision is that of a store", value=precision, fix="pass --store too")
    from scimult.data.manifest import check_no_other_output
    from scimult.evaluation.harness import evaluate as score
    from scimult.evaluation.report import check_comparable
    from scimult.evaluation.results import folder_of, load_results
    from scimult.evaluation.suites import load_suite
    from scimult.files import only_writer

    check_no_other_output(out)
    opened = None if store is None else Store(store, precision or "float32")
    makers = make_systems(
        bm25, lexical or [], embeddings or [], model or [], encoder or [], device, opened
    )
    dev = add_hybrids(makers, fuse or [], rerank or [], device)
    config = load_suite(suite, overrides or [])
    with nullcontext() if store is None else _joined_ranks(device), ExitStack() as locks:
        if download:
            _download(config.select(sets or []), data, wait=store is not None)
        loaded, missing = _load(config, data, sets or [], available, skip_bad)
        _fill(dev, loaded, data, skip_bad)
        audited = audit_sets(audit, loaded) if audit and distributed.is_main() else {}
        others = [result for result in load_results(out) if result.system not in makers]
        facts = {name: entry.facts for name, entry in loaded.items()}
        check_comparable(others, config.name, facts)
        for folder in [folder_of(out, name) for name in makers]:
            lock = partial(locks.enter_context, only_writer(folder))
            # Without a store only the main rank gets here.
            lock() if store is None else distributed.on_main(lock)
        scores = partial(
            score,
            suite=config,
            sets=loaded,
            out=out,
            earlier=earlier,
            missing=missing,
            save_runs=save_runs,
            confidence=confidence,
            contamination=audited,
        )
        failed = _score_all(makers, loaded, scores)
    if distributed.is_main():
        _show_table(out, failed)


def _score_all(
    makers: Mapping[str, Callable[[], System]],
    loaded: Mapping[str, LoadedSet],
    scores: Callable[..., Result],
) -> list[str]:
    """Score every system in turn; return what failed.

    A system that cannot be loaded, or fails on every set, does not stop the others; if all of them
    do, the last error is raised.
    """
    from scimult import distributed
    from scimult.evaluation.harness import encode_on_all_ranks

    failed: list[str] = []
    scored = 0
    for name, make in makers.items():
        # The other ranks would wait for one that goes on alone.
        are_waiting = distributed.world_size() > 1
        try:
            system = make()
            encode_on_all_ranks(system, loaded)
            are_waiting = False
            if not distributed.is_main():
                continue
            result = scores(system, on_set=partial(report_set, name))
        except Exception as error:
            if are_waiting or (not scored and name == list(makers)[-1]):
                raise
            echo(f"{name}: {failure(error)}", err=True)
            failed += [f"{name}: {key}" for key in loaded]
        else:
            scored += 1
            _report_not_scored(result)
            failed += [f"{name}: {key}" for key in result.failed if key in loaded]
    return failed


def _show_audit(folder: Path, loaded: Mapping[str, LoadedSet], missing: Mapping[str, str]) -> None:
    from scimult.evaluation.contamination import contamination_table

    table = contamination_table(audit_sets(folder, loaded).items())
    assert table is not None, "a set was loaded"
    print_table(table)
    for name, reason in missing.items():
        echo(f"{name}: not audited: {reason}", err=True)


def _earlier(resume: bool, replace: bool) -> Earlier:
    if resume and replace:
        raise ConfigError("--resume and --replace are mutually exclusive", fix="pass one of them")
    return "resume" if resume else "replace" if replace else "merge"


def _show_table(out: Path, failed: Sequence[str]) -> None:
    """Write and print the table of all results; raise if sets failed."""
    from scimult.evaluation.report import update_table

    for table in update_table(out):
        print_table(table)
    echo(f"table in {out / 'table.md'}, scores and provenance next to it")
    if failed:
        fix = "fix the errors above, then run the command again with --resume"
        raise SciMultError(f"{len(failed)} sets failed: {'; '.join(failed)}", fix=fix)


def _load(
    suite: Suite, data: Path, names: Sequence[str], available: bool, skip_bad: bool
) -> tuple[dict[str, LoadedSet], dict[str, str]]:
    """Load the requested sets, or the available ones; also return why others are missing."""
    from scimult.evaluation.harness import load_sets, missing_sets

    missing = missing_sets(suite, data, names) if available else {}
    wanted = [name for name in suite.select(names) if name not in missing]
    if not wanted:
        problem = f"no data of suite {suite.name!r} here"
        raise DataError(problem, path=data, fix=suite.how_to_get)
    return load_sets(suite, data, wanted, skip_bad=skip_bad), missing


def _fill(
    dev: Mapping[str, dict[str, DevSet]],
    loaded: Mapping[str, LoadedSet],
    data: Path,
    skip_bad: bool,
) -> None:
    """Read the splits that fusion weights are chosen on, before anything is encoded."""
    from scimult.evaluation.hybrid import check_apart, read_dev_sets

    benchmarks = {name: entry.benchmark for name, entry in loaded.items()}
    for split, sets in dev.items():
        sets.update(read_dev_sets(benchmarks, data, split, skip_bad=skip_bad))
        for name, dev_set in sets.items():
            check_apart(dev_set, loaded[name].dataset)


def _report_not_scored(result: Result) -> None:
    for name, reason in result.not_scored.items():
        echo(f"{result.system}: {name}: not scored: {reason}", err=True)


def _download(benchmarks: Mapping[str, Benchmark], data: Path, *, wait: bool) -> None:
    """Download missing files on the main rank; with ``wait`` the other ranks wait."""
    from scimult import distributed
    from scimult.downloads import download as download_files
    from scimult.evaluation.datasets import download_from_hub, remote_files

    def announce(path: Path) -> None:
        echo(f"downloading {path}", err=True)

    if distributed.is_main():
        download_from_hub(benchmarks, data, announce)
        files = [file for entry in benchmarks.values() for file in remote_files(entry, data)]
        download_files(dict.fromkeys(files), data, announce)
    if wait:
        distributed.barrier()


@contextmanager
def _joined_ranks(device: str | None) -> Iterator[None]:
    """Join the ranks of a launcher, so that they share the encoding, each on a GPU of its own."""
    import torch

    from scimult import distributed

    if distributed.world_size() == 1:
        yield
        return
    distributed.use_own_gpu(device)
    # A rank may wait for hours while another one encodes its share.
    initialised = distributed.initialise(torch.device("cpu"), timeout_seconds=24 * 3600)
    try:
        yield
    finally:
        if initialised:
            distributed.shut_down()


def _show_suites(
    given: str | None, overrides: Sequence[str], sets: Sequence[str], data: Path
) -> None:
    """Print the sets of the given suite, or of all, with their scoring, origin and availability."""
    from scimult.evaluation.datasets import missing_files
    from scimult.evaluation.suites import load_suite, suite_names

    echo(f"data searched for below {data} (--data)")
    for name in suite_names() if given is None else [given]:
        suite = load_suite(name, overrides)
        benchmarks = suite.select(sets)
        echo(f"{suite.name}: {suite.description}")
        echo(f"  data: {suite.how_to_get}")
        for key, entry in benchmarks.items():
            state = "missing" if missing_files(entry, data) else "here"
            hub = ", on the hub" if entry.hub else ", to download" if entry.remote else ""
            task = entry.task
            if entry.fallback_task is not None:
                task += f" (else {entry.fallback_task})"
            echo(f"  {key} [{state}{hub}]: {task}, {entry.protocol}")
            echo(f"    {', '.join(entry.metrics)}; {entry.source}; {entry.licence}")
