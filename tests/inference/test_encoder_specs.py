"""Descriptions of third-party encoders: presets, files, names; and what tells tokenizers apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase

from scimult.errors import CheckpointError, ConfigError, UnknownNameError
from scimult.inference.sentence_encoder import (
    EncoderSpec,
    SentenceEncoder,
    _as_text,
    check_keys,
    load_spec,
    preset_names,
)


@pytest.mark.parametrize("name", preset_names())
def test_presets_load(name: str) -> None:
    spec = load_spec(name)
    check_keys(spec, ["search", "link_prediction", "classification"])
    assert spec.paper
    assert spec.model.count("/") == 1
    # SciDocs and SciRepEval rank the papers' baselines by distance and fit SVMs to them, as pooled.
    assert spec.unit_vectors == (name in ("e5", "instructor"))


def test_bad_descriptions(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'scincl'"):
        load_spec("scinc")
    with pytest.raises(ConfigError, match="pooling"):
        load_spec("scincl", ["pooling=middle"])
    with pytest.raises(UnknownNameError, match="unknown task or side"):
        check_keys(load_spec("e5", ["prefixes.serach=x"]), ["search"])
    empty = EncoderSpec(model=str(tmp_path), pooling="mean")
    with pytest.raises(CheckpointError, match="cannot load the encoder"):
        SentenceEncoder(empty, name="e", device="cpu")


def test_an_encoder_is_a_preset_a_file_a_folder_or_a_name_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine.yaml").write_text("model: mine\npooling: mean\n", encoding="utf-8")
    for name in ("mine", "./mine", "organisation/model"):
        assert load_spec(name, ["max_length=64"]) == EncoderSpec(model=name, max_length=64)
    assert load_spec("mine.yaml") == EncoderSpec(model="mine", pooling="mean")


def test_tokenizers_are_told_apart_by_what_they_do_and_not_by_their_last_call() -> None:
    def made(*words: str) -> Tokenizer:
        return Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="?"))

    plain, lowered, cut, other = made("?", "a"), made("?", "a"), made("?", "a"), made("?", "b")
    lowered.normalizer = Lowercase()
    cut.enable_truncation(5)
    cut.enable_padding()
    assert len({_as_text(one) for one in (plain, lowered, other)}) == 3
    assert _as_text(SimpleNamespace(backend_tokenizer=cut)) == _as_text(cut) == _as_text(plain)
    # Of one in Python alone there is only the vocabulary.
    first, second = (SimpleNamespace(get_vocab=one.get_vocab) for one in (plain, other))
    assert _as_text(first) != _as_text(second)
