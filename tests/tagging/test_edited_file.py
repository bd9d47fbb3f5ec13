"""What people write into ``tagger.json``."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scimult.checkpoints.config import ModelSettings
from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.tagging import Tagger


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.settings.poling", "mean", "unknown key .did you mean 'pooling'"),
        ("model.settings.device", "cpu", "unknown key; known keys: dims, name"),
        ("model.settings.pooling", 5, "'cls', 'mean' or 'position' .value: 5"),
        ("model.settings.tokenizer", 5, "should be a valid string"),
        ("model.settings", "x", "should be a mapping of keys to values"),
        ("model.task", None, "should be a valid string"),
        ("model.task", "remove", "Field required"),
        ("model.similarity", "cosin", "'dot', 'cosine' or 'l2'"),
        ("model", {"path": "m"}, "dtype: Field required"),
        ("hierarchy", "flatt", "'flat', 'closed' or 'specific'"),
        ("fusion", "x", "should be a dictionary"),
        ("fusion.seen.weights.label", [1], "should be a valid number"),
        ("calibration.seen.logits", ["a"], "should be a valid number"),
        ("calibration.seen", {"logits": [1.0], "probabilities": []}, "as many logits as"),
        ("facts", [], "should be a mapping"),
    ],
)
def test_settings_that_someone_edited_are_named(
    folder: Path, model: SciMult, tmp_path: Path, path: str, value: Any, message: str
) -> None:
    """Unknown ones ended in a TypeError, others were found when papers were tagged."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    content = json.loads((copy / "tagger.json").read_text())
    *above, last = path.split(".")
    section = content
    for name in above:
        section = section[name]
    section[last] = value
    if value == "remove":
        del section[last]
    (copy / "tagger.json").write_text(json.dumps(content))
    fix = "Fix: correct the file, copy it again, or train the tagger again"
    place = rf"tagger.json: tagger is damaged: (.|\n)*{path}.*{message}(.|\n)*{fix}"
    with pytest.raises(DataError, match=place):
        Tagger.open(copy, model=model)


def test_settings_that_a_tagger_stores_are_all_that_open_a_model() -> None:
    """With another one, a tagger would be written that cannot be opened."""
    options = inspect.signature(SciMult.from_pretrained).parameters.keys()
    assert set(ModelSettings.model_fields) == options - {"path", "device", "dtype"}
