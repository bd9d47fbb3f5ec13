"""Export results as CSV, in MTEB's format, and as ranked lists in BEIR's.

PMC-Patients' leaderboard takes BEIR's JSON: query to document to score, higher is better.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scimult.errors import DataError, one_of
from scimult.evaluation.mteb_suite import NAME as MTEB
from scimult.evaluation.per_query import read_per_query
from scimult.evaluation.results import Result, SetResult, folder_of, require_results
from scimult.files import write_json, write_text
from scimult.progress import warn
from scimult.retrieval.runs import run_lines

MTEB_VERSION = "2.0.0"
"""Version of MTEB's file format to write."""
_LANGUAGES = ["eng-Latn"]


def export_results(
    folders: Sequence[Path],
    form: str,
    out: Path,
    *,
    systems: Sequence[str] = (),
    sets: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> list[Path]:
    """Export the results of folders that ``scimult evaluate`` wrote; return the paths written.

    ``csv``: ``OUT/results.csv``, one line per score. ``mteb``: a results folder for MTEB's
    ``ResultCache``, where ``names`` maps sets to MTEB's names. ``beir``: ``OUT/SYSTEM/SET.json``
    from the ranked lists of ``--save-runs``, as PMC-Patients requires too; a message names what
    has no such lists. Empty ``systems`` and ``sets`` mean all.

    Raises
    ------
    DataError
        If there are no results of the systems on the sets, no ranked lists to export, or two for
        the same file; or if scores per query, which name the queries of ranked lists, are missing.
    UnknownNameError
        If a system or set has no result.
    """
    selected = [(folder, one) for folder in folders for one in _select(folder, systems, sets)]
    if not selected:
        problem, fix = "these systems have no result of these sets", "name others, or evaluate them"
        raise DataError(problem, path=folders[0], value=list(sets), fix=fix)
    for name in names or ():
        one_of("set", name, {name for _, result in selected for name in result.sets})
    if form == "csv":
        write_text(out / "results.csv", _csv(result for _, result in selected))
        return [out / "results.csv"]
    written: dict[Path, None] = {}
    for folder, result in selected:
        texts = _mteb(result, out, names or {}) if form == "mteb" else _beir(folder, result, out)
        for path, text in texts:
            _check_inside(out, path)
            if path in written:
                problem, fix = "two results would be the same file", "export one to another --out"
                raise DataError(problem, path=folder, value=str(path), fix=fix)
            write_text(path, text)
            written[path] = None
    if not written:
        fix = "evaluate again with --save-runs"
        raise DataError("these results have no ranked lists", path=folders[0], fix=fix)
    return list(written)


def _check_inside(out: Path, path: Path) -> None:
    """Check that a path made of names in a result, which others may have written, is below out."""
    if not path.resolve().is_relative_to(out.resolve()):
        fix = "rename it in that result, or leave the result out"
        raise DataError("a name leads out of the folder", path=out, value=str(path), fix=fix)


def _select(folder: Path, systems: Sequence[str], sets: Sequence[str]) -> list[Result]:
    results = require_results(folder)
    known = [result.system for result in results]
    for name in systems:
        one_of("system", name, known, path=folder)
    scored = {name for result in results for name in result.sets}
    for name in sets:
        one_of("set", name, scored, path=folder)
    chosen = [
        result.model_copy(
            update={"sets": {k: v for k, v in result.sets.items() if not sets or k in sets}}
        )
        for result in results
        if not systems or result.system in systems
    ]
    return [result for result in chosen if result.sets]


def _csv(results: Iterable[Result]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["suite", "system", "task", "set", "protocol", "metric", "main", "score", "low", "high"]
    writer.writerow([*head, "queries", "date"])
    for result in results:
        for name, entry in result.sets.items():
            where = [result.suite["name"], result.system, entry.task, name, entry.protocol]
            date = (entry.provenance or result.provenance).get("date")
            for metric, score in entry.scores.items():
                ends = entry.intervals.get(metric, (None, None))
                main = int(metric == entry.main_metric)
                queries = entry.counts.get("queries")
                writer.writerow([*where, metric, main, score, *ends, queries, date])
    return text.getvalue()


def _mteb(result: Result, out: Path, names: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield a file per task; write one about the model next to them."""
    if result.settings.get("kind") == MTEB:
        fix = "take MTEB's own files, which scimult mteb leaves in --cache (default: OUT/mteb)"
        raise DataError("MTEB itself scored this system", value=result.system, fix=fix)
    revision = str(result.settings.get("fingerprint", "no_revision_available"))
    folder = out / "results" / f"scimult__{folder_of(out, result.system).name}" / revision
    _check_inside(out, folder)
    for name, entry in result.sets.items():
        task = names.get(name, name)
        task_result = _task_result(task, entry, result.suite, name)
        yield folder / f"{task}.json", json.dumps(task_result, indent=2, ensure_ascii=False) + "\n"
    write_json(folder / "model_meta.json", _model_meta(result, revision))


def _task_result(
    task: str, entry: SetResult, suite: Mapping[str, Any], name: str
) -> dict[str, Any]:
    scores = {_mteb_metric(metric): score for metric, score in entry.scores.items()}
    scores["main_score"] = entry.main_score
    split = suite["benchmarks"][name]["split"]
    split_scores = {**scores, "hf_subset": "default", "languages": _LANGUAGES}
    return {
        # MTEB wants a revision; the digests of the files are in our own result.
        "dataset_revision": f"{suite['name']}/{name}",
        "task_name": task,
        "mteb_version": MTEB_VERSION,
        "scores": {split: [split_scores]},
        "evaluation_time": entry.seconds,
        "kg_co2_emissions": None,
    }


def _mteb_metric(name: str) -> str:
    kind, plus, version = name.partition("+")
    # MTEB's f1 is macro F1.
    kind = {"macro_f1": "f1", "f1": "f1_positive"}.get(kind, kind)
    return f"{kind}{plus}{version}".replace("@", "_at_").replace("%", "_percent_")


def _model_meta(result: Result, revision: str) -> dict[str, Any]:
    similarity = result.settings.get("similarity")
    unknown = (
        *("loader", "release_date", "n_parameters", "memory_usage_mb", "max_tokens", "embed_dim"),
        *("license", "open_weights", "public_training_code", "public_training_data"),
        *("use_instructions", "training_datasets"),
    )
    return {
        "name": f"scimult/{result.system}",
        "revision": revision,
        "languages": _LANGUAGES,
        "framework": [],
        "similarity_fn_name": {"l2": "euclidean"}.get(str(similarity), similarity),
        **dict.fromkeys(unknown),
    }


def _beir(folder: Path, result: Result, out: Path) -> Iterator[tuple[Path, str]]:
    runs = {name: folder_of(folder, result.system) / "runs" / f"{name}.run" for name in result.sets}
    kept = {name: run for name, run in runs.items() if run.exists()}
    if without := [name for name in runs if name not in kept]:
        warn(f"{result.system}: without ranked lists (--save-runs): {', '.join(without)}")
    for name, run in kept.items():
        # A run has no line for an empty list, and BEIR averages over the queries it is given.
        queries = read_per_query(folder, result.system, name).query_ids
        lists: dict[str, dict[str, float]] = {query: {} for query in queries}
        for query, document, score in run_lines(run):
            lists.setdefault(query, {})[document] = score
        yield folder_of(out, result.system) / f"{name}.json", json.dumps(lists)
