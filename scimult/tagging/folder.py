"""A tagger on disk: vocabulary, embeddings, learned sources and calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scimult.arrays import load_arrays, save_arrays
from scimult.checkpoints.config import ModelSettings
from scimult.config import StrictConfig, validate
from scimult.errors import ConfigError, DataError
from scimult.files import FolderKind, holds_only, read_json, write_json
from scimult.tagging.calibration import Calibration, Suggestions
from scimult.tagging.fusion import Fusion
from scimult.tagging.incoming import Hashes, text_hashes
from scimult.tagging.reading import read_vocabulary, write_vocabulary
from scimult.tagging.sets import Hierarchy
from scimult.tagging.signals import Learned
from scimult.tagging.vocabulary import Vocabulary
from scimult.tagging.words import LinearHead, Words, packed, unpacked
from scimult.terminal import counted
from scimult.types import FloatArray, Similarity

FORMAT, VERSION = "scimult-tagger", 1
# Increase this when suggestions for held-out papers are measured in another way: those of older
# taggers then guarantee no precision.
_MEASURED = 2
FILE, VOCABULARY = "tagger.json", "vocabulary.jsonl"
_LABELS, _PAPERS, _SUGGESTIONS = "labels.npz", "papers.npz", "suggestions.npz"
_TRIES = 10
_LINEAR, _WORDS = "linear.npz", ("terms.json", "idf.npy")
TAGGER = FolderKind(
    "a tagger",
    lambda folder: (
        read_json(folder / FILE).get("format") == FORMAT
        and holds_only(folder, (FILE, VOCABULARY, _LABELS, _PAPERS, _SUGGESTIONS, _LINEAR, *_WORDS))
    ),
)


class _Model(StrictConfig):
    path: str | None = None
    dtype: str
    settings: ModelSettings
    task: str
    # Taggers of earlier versions stored it only if it was not the model's own.
    similarity: Similarity | None = None
    fingerprint: str


class _Content(StrictConfig):
    """What ``tagger.json`` holds, which people edit."""

    format: str
    version: int
    measured: int = 0
    model: _Model
    hierarchy: Hierarchy
    fusion: Fusion
    calibration: Calibration | None
    facts: dict[str, int | float | list[int]]


@dataclass(frozen=True)
class TaggerState:
    """The data of a trained tagger.

    Attributes
    ----------
    labels_CD, mean_C : array
        Embeddings of the concepts, and each one's mean similarity to papers.
    model : mapping
        How to open the model: path, dtype, task, fingerprint and overridden settings.
    learned, calibration, suggestions : optional
        Absent without tagged papers; suggestions are those for held-out ones.
    facts : mapping
        Numbers of papers and concepts, and the calibration error.
    texts : array
        Hashes of all texts that it was trained on; see `scimult.tagging.incoming.text_hashes`.
    is_outdated : bool
        Whether an earlier version measured the suggestions, in a way that guarantees no precision.
    """

    vocabulary: Vocabulary
    labels_CD: FloatArray
    mean_C: FloatArray
    fusion: Fusion
    hierarchy: Hierarchy
    model: dict[str, Any]
    learned: Learned | None = None
    calibration: Calibration | None = None
    suggestions: Suggestions | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    texts: Hashes = field(default_factory=lambda: text_hashes(()))
    is_outdated: bool = False


def save_state(folder: Path, state: TaggerState) -> None:
    """Write a tagger into a folder that the caller publishes."""
    write_vocabulary(folder / VOCABULARY, state.vocabulary)
    save_arrays(folder / _LABELS, labels=state.labels_CD, mean=state.mean_C)
    if state.learned is not None:
        learned = state.learned
        sparse = packed(learned.tags_MC, "tags_") | packed(learned.words_MT, "words_")
        save_arrays(folder / _PAPERS, vectors=learned.vectors_MD, texts=state.texts, **sparse)
        learned.words.save(folder)
        learned.linear.save(folder / _LINEAR)
    if state.suggestions is not None:
        arrays = {name: x for name, x in vars(state.suggestions).items() if x is not None}
        save_arrays(folder / _SUGGESTIONS, **arrays)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "measured": _MEASURED,
        "model": state.model,
        "hierarchy": state.hierarchy,
        "fusion": asdict(state.fusion),
        "calibration": None if state.calibration is None else asdict(state.calibration),
        "facts": state.facts,
    }
    write_json(folder / FILE, content)


def load_state(folder: Path) -> TaggerState:
    """Read a tagger; again, if another one replaced it meanwhile, whose files do not fit.

    Raises
    ------
    DataError
        If the folder is not a tagger, of another version, damaged, or never stays the same.
    """
    for _ in range(_TRIES):
        stamp = _stamp_of(folder)
        try:
            state = _read(folder)
        except DataError:
            if _stamp_of(folder) == stamp:
                raise
        else:
            if _stamp_of(folder) == stamp:
                return state
    fix = "wait until no training writes it"
    raise DataError("tagger was replaced whenever it was read", path=folder, fix=fix)


def _stamp_of(folder: Path) -> tuple[int, int] | None:
    """Return what differs between the taggers that a folder holds one after the other."""
    try:
        stat = (folder / FILE).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _read(folder: Path) -> TaggerState:
    fix = "give a folder of scimult tagger train"
    if not (folder / FILE).is_file():
        raise DataError("not a tagger", path=folder, fix=fix)
    content = read_json(folder / FILE)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError("not a tagger's file", path=folder / FILE, fix=fix)
    if content.get("version") != VERSION:
        problem, value = "tagger of another version", content.get("version")
        fix = "use the scimult version that wrote it, or train the tagger again"
        raise DataError(problem, path=folder, value=value, fix=fix)
    try:
        checked = validate(_Content, content)
    except ConfigError as error:
        fix = "correct the file, copy it again, or train the tagger again"
        problem = f"tagger is damaged: {error.problem}"
        raise DataError(problem, path=folder / FILE, fix=fix) from error
    try:
        return _load(folder, checked)
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        fix = "train the tagger again, or copy the folder again"
        raise DataError(f"tagger is damaged: {error}", path=folder, fix=fix) from error


def _load(folder: Path, content: _Content) -> TaggerState:
    labels = load_arrays(folder / _LABELS)
    papers = load_arrays(folder / _PAPERS) if (folder / _PAPERS).is_file() else {}
    vocabulary = read_vocabulary(folder / VOCABULARY)
    if len(vocabulary) != len(labels["labels"]):
        counts = f"{counted(len(vocabulary), 'concept')}, {len(labels['labels']):,} embeddings"
        raise ValueError(f"{VOCABULARY} is not that of its training ({counts})")
    calibration = content.calibration
    return TaggerState(
        vocabulary,
        labels["labels"],
        labels["mean"],
        content.fusion,
        content.hierarchy,
        content.model.model_dump(exclude_unset=True),
        learned=_load_learned(folder, papers) if papers else None,
        calibration=calibration,
        suggestions=Suggestions(**load_arrays(folder / _SUGGESTIONS)) if calibration else None,
        facts=content.facts,
        texts=papers.get("texts", text_hashes(())),  # taggers of earlier versions have none
        is_outdated=content.measured != _MEASURED,
    )


def _load_learned(folder: Path, papers: Mapping[str, Any]) -> Learned:
    tags_MC, words_MT = unpacked(papers, "tags_"), unpacked(papers, "words_")
    linear = LinearHead.load(folder / _LINEAR)
    return Learned(tags_MC, papers["vectors"], Words.load(folder), words_MT, linear)
