"""Turn raw data sets into a prepared folder: texts, metadata, citations and pairs (not yet mined).

Shape legend: N texts, P pairs of one part of a source.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.manifest import HygieneReport, Manifest, PairEntry, SourceEntry, TargetEntry
from scimult.data.pairs import SPLITS, PairFile, Split, write_pairs
from scimult.data.prepared import (
    COLLECTED_FILES,
    HELD_OUT_FILE,
    papers_of,
    read_aliases,
)
from scimult.data.ragged import Ragged
from scimult.data.records import Rejects
from scimult.data.targets import write_targets
from scimult.data.text_store import TextStore, write_arrow
from scimult.errors import ConfigError
from scimult.files import link_or_copy, read_json
from scimult.preparation.collect import collect, source_files
from scimult.preparation.collected import VERSION as COLLECTED_VERSION
from scimult.preparation.collected import Collected, RawPairs
from scimult.preparation.config import PrepareConfig, SelfSupervisionConfig
from scimult.preparation.hygiene.clean import REPORT_FILE, clean
from scimult.preparation.hygiene.clean import VERSION as CLEAN_VERSION
from scimult.preparation.hygiene.evaluation_sets import find_sets, set_files
from scimult.preparation.hygiene.splits import dev_texts, split_masks
from scimult.preparation.metadata import read_years
from scimult.preparation.mining.engine import Limits
from scimult.preparation.mining.memory import within
from scimult.preparation.pair_columns import group_by_pair, group_by_query, masked, sample_per_value
from scimult.preparation.steps import Steps
from scimult.preparation.targets import SplitTargets, split_targets
from scimult.progress import warn
from scimult.types import BoolArray, IntArray, Text, ViewName

# Share of the memory limit for columns of pairs, which are sorted and split in memory.
_ARRAYS = 3 / 8
# Options that only later steps use: changing them reads no file again.
_NOT_READ = {"licence", "max_pairs_per_label"}
Masks = Mapping[Split, BoolArray]


def prepare(
    config: PrepareConfig,
    folder: Path,
    *,
    skip_bad: bool = False,
    steps: Steps | None = None,
    limits: Limits | None = None,
) -> Rejects:
    """Read all sources and write the stores into ``folder``, which must exist and be empty.

    Run this inside ``files.atomic_folder``, followed by ``mining.mine``; options are those of
    ``build_dataset``. Without ``steps``, nothing is kept for later runs. Return the records left
    out; ``rejects.jsonl`` in the folder lists each of them. An unknown task, or an unset variable
    in ``root``, is a ConfigError before anything is read.
    """
    config.check_tasks()
    if config.hygiene.evaluation_folder is not None:
        find_sets(config.hygiene.evaluation_folder)
    files = source_files(config)
    step_cache = Steps(folder / "steps") if steps is None else steps
    with within(limits or Limits(), [folder, step_cache.folder], _ARRAYS) as engine_limits:
        step = _collect(config, files, skip_bad, step_cache, engine_limits)
        collected = Collected.load(step, config.sources, Rejects(skip_bad))
        for name in COLLECTED_FILES:
            if (step / name).exists():
                link_or_copy(step / name, folder / name)
        report = read_json(step / REPORT_FILE) if (step / REPORT_FILE).exists() else {}
        if steps is None:
            shutil.rmtree(step_cache.folder)
        _write(config, folder, collected, HygieneReport(**report))
    return collected.rejects


def _write(
    config: PrepareConfig, folder: Path, collected: Collected, report: HygieneReport
) -> None:
    """Split the collected pairs into pair files; write these and the manifest."""
    store = TextStore.open(folder)
    views = viewed_papers(config, store, folder)
    dev_N = dev_texts(
        collected.parts,
        store,
        read_years(folder, len(store)),
        config.split,
        config.dev_fraction,
        config.seed,
        [*(file.rows for file in collected.targets), *(view.rows for view in views)],
    )
    masks = split_masks(collected.parts, dev_N, config.split)
    if config.split.by != "query":
        # Texts barred from training, for steps that add pairs later.
        write_arrow(folder / HELD_OUT_FILE, "held out", {"row": np.flatnonzero(dev_N)})
    caps = cap_labels(collected.parts, [mask["train"] for mask in masks], config)
    _count_left_out(collected, caps)
    entries = []
    for part, part_masks, cap_P in zip(collected.parts, masks, caps, strict=True):
        for pairs in _split_pairs(part, part_masks, cap_P, folder):
            entries.append(PairEntry.of(pairs))
            write_pairs(folder / entries[-1].file, pairs)
    for view in views:
        for pairs, too_short in view.pairs(dev_N):
            entries.append(PairEntry.of(pairs).model_copy(update={"too_short": too_short}))
            write_pairs(folder / entries[-1].file, pairs)
    for entry in entries:
        if entry.split == "train" and not entry.groups:
            where = f"split.by {config.split.by}" + (
                "" if config.split.dev_from_year is None else f" from {config.split.dev_from_year}"
            )
            warn(f"{entry.source}.{entry.task}: {where} leaves no training pair")
    trained = [*(p.task for p in collected.parts), *(c.task for c in config.self_supervision)]
    tasks = [config.task_set()[name] for name in dict.fromkeys(trained)]
    manifest = Manifest(
        config=config.model_dump(mode="json"),
        tasks=[*tasks, *config.target_tasks()],
        texts=len(store),
        label_rows={name: (r.start, r.stop) for name, r in collected.label_rows.items()},
        sources=[
            SourceEntry(name=s.name, namespace=s.space, counts=collected.counts[s.name])
            for s in config.sources
        ],
        pairs=entries,
        in_neither_split=_in_neither_split(collected.parts, masks),
        hygiene=report,
        rejects=dict(collected.rejects.counts),
    )
    if collected.targets:
        configs = {target.task: target for s in config.sources for target in s.targets}
        split = split_targets(collected.targets, configs, dev_N)
        manifest.targets = _write_targets(folder, split)
    manifest.write(folder)


def _collect(
    config: PrepareConfig,
    files: Mapping[str, Path],
    skip_bad: bool,
    steps: Steps,
    limits: Limits,
) -> Path:
    """Run the read and clean steps unless they are cached; return the folder of the last one."""
    inputs = {
        "version": COLLECTED_VERSION,
        "sources": [s.model_dump(mode="json", exclude=_NOT_READ) for s in config.sources],
        "files": steps.checksums(files),
        "skip_bad": skip_bad,
    }
    make = partial(collect, config, skip_bad=skip_bad, limits=limits)
    read = steps.run("read", inputs, make)
    if config.hygiene.does_nothing:
        return read.folder

    def make_clean(folder: Path) -> None:
        collected = Collected.load(read.folder, config.sources, Rejects(skip_bad))
        clean(read.folder, folder, collected, config.hygiene)

    return steps.run("clean", _clean_inputs(config, read.fingerprint, steps), make_clean).folder


def _clean_inputs(config: PrepareConfig, read: str, steps: Steps) -> dict[str, Any]:
    files = {}
    if config.hygiene.evaluation_folder is not None:
        for name, folder in find_sets(config.hygiene.evaluation_folder).items():
            checksums = steps.checksums({str(path): path for path in set_files(folder)})
            files[name] = list(checksums.values())
    return {
        "version": CLEAN_VERSION,
        "read": read,
        # The folder of evaluation sets may move: names and contents of the sets tell the same.
        "hygiene": config.hygiene.model_dump(mode="json", exclude={"evaluation"}),
        "files": files,
    }


def cap_labels(
    parts: Sequence[RawPairs], in_train: Sequence[BoolArray], config: PrepareConfig
) -> list[BoolArray]:
    """Return masks of the pairs that stay when training pairs per label are capped.

    Sources that share a label space share its labels and their cap (SciMult, appendix A.1). Dev
    queries keep all their labels; pairs of other parts are all kept.
    """
    masks = [np.ones(len(part.positives), dtype=np.bool_) for part in parts]
    spaces: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        if part.part == "labels":
            spaces.setdefault(part.source.space, []).append(number)
    for numbers in spaces.values():
        limit = config.pairs_per_label(parts[numbers[0]].source)
        if limit is None:
            continue
        labels = np.concatenate([parts[n].positives[in_train[n]] for n in numbers])
        mask = sample_per_value(labels, limit, config.seed)
        ends = np.cumsum([np.count_nonzero(in_train[n]) for n in numbers])
        for n, part_mask in zip(numbers, np.split(mask, ends[:-1]), strict=True):
            masks[n][in_train[n]] = part_mask
    return masks


def _count_left_out(collected: Collected, caps: Sequence[BoolArray]) -> None:
    """Count, per source, the pairs that the label cap leaves out."""
    for part, cap_P in zip(collected.parts, caps, strict=True):
        if part.part == "labels":
            left_out = part.positives[~cap_P]
            counts = collected.counts[part.source.name]
            counts["pairs beyond the cap of their label"] = len(left_out)
            counts["labels with such pairs"] = len(np.unique(left_out))


def _split_pairs(
    raw: RawPairs, masks: Masks, cap_P: BoolArray, scratch: Path
) -> Iterator[PairFile]:
    """Yield the train and dev groups of one part of a source.

    Pairs in neither split are true positives too, which training may not take for negatives: their
    query's group keeps them, if it has one.
    """
    for split in SPLITS:
        in_split = masks["dev"] if split == "dev" else ~masks["dev"]
        pairs = masked((raw.queries, raw.positives), in_split, scratch)
        mask_P = (cap_P & masks[split])[in_split]
        if raw.part == "citations" or raw.has_triples:
            queries, positives, unsampled = group_by_pair(pairs, mask_P, scratch)
        else:
            queries, positives, unsampled = group_by_query(*pairs, mask_P)
        yield PairFile(
            raw.source.name,
            raw.task,
            split,
            queries,
            positives,
            Ragged.empty(len(queries)),
            unsampled,
            namespace=raw.source.space,
            part=raw.part,
        )


def _in_neither_split(parts: Sequence[RawPairs], masks: Sequence[Masks]) -> dict[str, int]:
    """Count the pairs dropped because they would show training a dev text."""
    counts = {
        f"{part.source.name}.{part.task}": int((~mask["train"] & ~mask["dev"]).sum())
        for part, mask in zip(parts, masks, strict=True)
    }
    return {name: count for name, count in counts.items() if count}


def _write_targets(folder: Path, tasks: Sequence[SplitTargets]) -> list[TargetEntry]:
    """Write the target files and return their manifest entries."""
    entries = []
    for task in tasks:
        for file in task.files:
            entries.append(TargetEntry.of(file, task.factor, task.offset))
            write_targets(folder / entries[-1].file, file)
    return entries


@dataclass(frozen=True)
class ViewedPapers:
    """The papers of a self-supervised source; those ``too_short`` make no pair."""

    choice: SelfSupervisionConfig
    namespace: str
    rows: IntArray
    too_short: IntArray

    def pairs(self, dev_N: BoolArray) -> Iterator[tuple[PairFile, int]]:
        """Yield the pairs of each split, with the number of papers too short for one."""
        for split in SPLITS:
            is_dev = split == "dev"
            rows = self.rows[dev_N[self.rows] == is_dev]
            pairs = PairFile(
                self.choice.name,
                self.choice.task,
                split,
                rows,
                Ragged(rows, np.arange(len(rows) + 1, dtype=np.int64)),
                Ragged.empty(len(rows)),
                view=self.choice.view,
                namespace=self.namespace,
                part="views",
            )
            yield pairs, int((dev_N[self.too_short] == is_dev).sum())


def viewed_papers(config: PrepareConfig, store: TextStore, folder: Path) -> list[ViewedPapers]:
    """Return the papers of each entry of ``self_supervision``.

    Raises
    ------
    ConfigError
        If no paper of a source is long enough.
    """
    viewed = []
    for choice in config.self_supervision:
        namespace = next(s.space for s in config.sources if s.name == choice.source)
        papers = papers_of(store, read_aliases(folder), namespace)
        counts = (_words(store.text(row), choice.view) for row in papers.tolist())
        words = np.fromiter(counts, dtype=np.int64, count=len(papers))
        enough = words >= choice.min_words
        if not enough.any():
            problem = f"no paper has min_words {choice.min_words} words to learn from"
            fix = "lower min_words or name another source"
            if choice.view == "title_to_abstract" and not words.any():
                problem, fix = "no paper has a title and an abstract", "name another source"
            raise ConfigError(problem, value=choice.source, fix=fix)
        viewed.append(ViewedPapers(choice, namespace, papers[enough], papers[~enough]))
    return viewed


def _words(text: Text, view: ViewName) -> int:
    if view == "title_to_abstract":
        return len(text.body.split()) if text.title.strip() else 0
    return len(text.title.split()) + len(text.body.split())
