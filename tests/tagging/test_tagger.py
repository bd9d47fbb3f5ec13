"""The tagger as a whole: its suggestions and its errors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scimult.data.importers import read_papers
from scimult.errors import ConfigError, DataError, StorageError
from scimult.inference import SciMult
from scimult.tagging import Concept, Tagger, Vocabulary, read_vocabulary
from scimult.tagging.incoming import text_hashes
from scimult.tagging.training import split_papers, works_of
from scimult.types import Text
from tests.raw_corpus import write_jsonl
from tests.tagging.made_up import VOCABULARY, papers
from tests.tiny import save_tiny_model

NEW = papers(120, seed=7)


def test_it_finds_the_subjects_with_probabilities_and_evidence(tagger: Tagger) -> None:
    found = tagger.tag(NEW, k=3)
    hits = sum(
        tag.id in paper["labels"]
        for paper, tags in zip(NEW, found, strict=True)
        for tag in tags[:1]
    )
    assert hits > 0.8 * len(NEW)
    for paper, tags in zip(NEW, found, strict=True):
        assert len(tags) == 3
        assert [tag.score for tag in tags] == sorted((tag.score for tag in tags), reverse=True)
        for tag in tags:
            assert 0 <= tag.score <= 1
            assert tag.evidence
            assert tag.evidence in paper["abstract"]
            assert VOCABULARY[VOCABULARY.row(tag.id)].label == tag.label
    # A sentence with the name, if there is one.
    for paper, tags in zip(NEW, found, strict=True):
        for tag in tags:
            word = tag.label.lower()
            if word in paper["abstract"].lower().split():
                assert word in tag.evidence.lower()


@pytest.mark.long
def test_a_paper_without_tags_moves_no_evidence(tagger: Tagger) -> None:
    found = tagger.tag(NEW, k=3, threshold=0.8)
    assert [] in found[1:-1]
    for paper, tags in zip(NEW, found, strict=True):
        (alone,) = tagger.tag([paper], k=3)
        of_all = {tag.id: tag.evidence for tag in alone}
        assert [tag.evidence for tag in tags] == [of_all[tag.id] for tag in tags]


@pytest.mark.long
def test_tags_depend_neither_on_reopening_nor_on_the_batch(
    tagger: Tagger, folder: Path, model_folder: Path
) -> None:
    again = Tagger.open(folder, model=model_folder)
    assert repr(again) == repr(tagger)
    together = tagger.tag(NEW, evidence=False)
    assert again.tag(NEW, evidence=False) == together
    for paper, tags in zip(NEW[:20], together, strict=False):
        (alone,) = tagger.tag([paper], evidence=False)
        assert [tag.id for tag in alone] == [tag.id for tag in tags]
        # Products of other shapes round differently: 1e-5 of log odds of about ten.
        np.testing.assert_allclose([t.score for t in alone], [t.score for t in tags], atol=1e-4)


def test_the_order_of_papers_changes_nothing(
    tagger: Tagger, model: SciMult, tmp_path: Path
) -> None:
    other = Tagger.train(tmp_path / "other", VOCABULARY, papers(400)[::-1], model=model)
    scores = [
        [tag.score for tags in one.tag(NEW, evidence=False) for tag in tags]
        for one in (tagger, other)
    ]
    np.testing.assert_allclose(*scores, atol=0.02)


def test_threshold_k_and_exclusions(tagger: Tagger) -> None:
    free = tagger.tag(NEW, k=None, threshold=0.3, evidence=False)
    assert all(tag.score >= 0.3 for tags in free for tag in tags)
    capped = tagger.tag(NEW, k=2, threshold=0.3, evidence=False)
    assert capped == [tags[:2] for tags in free]
    without = tagger.tag(NEW, k=None, threshold=0.3, exclude=["Graph", "c/vision"], evidence=False)
    banned = {"c/graph", "c/vision"}
    assert without == [[tag for tag in tags if tag.id not in banned] for tags in free]
    assert any(tag.id in banned for tags in free for tag in tags)


def test_without_tagged_papers_only_names_and_embeddings_count(
    model: SciMult, tmp_path: Path
) -> None:
    tagger = Tagger.train(tmp_path / "zero", VOCABULARY, model=model)
    assert not tagger.is_calibrated
    paper = {"title": "On plasma", "abstract": "A protein study, not of plasma."}
    (found,) = tagger.tag([paper], k=None)
    labels_CD = model.encode([c.text for c in VOCABULARY], task="classification", role="candidate")
    cosine_C = (labels_CD @ model.encode([paper], task="classification")[0]).astype(np.float64)
    z_C = (cosine_C - cosine_C.mean()) / cosine_C.std()
    for tag in found:
        in_title = tag.id == "c/plasma"
        in_abstract = np.log(2) if tag.id in ("c/plasma", "c/protein") else 0
        logit = -8 + z_C[VOCABULARY.row(tag.id)] + in_title + 2 * in_abstract
        # float32 inside: 1e-5 of log odds of about ten.
        assert tag.score == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-4)
    assert len(found) == len(VOCABULARY)
    with pytest.raises(ConfigError, match="the precision is unknown"):
        tagger.tag(["x"], precision=0.5)
    again = Tagger.open(tmp_path / "zero", model=model)
    assert again.tag([paper], evidence=False) == tagger.tag([paper], evidence=False)


def test_no_paper_and_papers_without_words(tagger: Tagger) -> None:
    assert tagger.tag([]) == []
    (tags,) = tagger.tag([{"title": "?!", "abstract": ""}])
    assert len(tags) == 5
    assert {tag.evidence for tag in tags} == {"?!"}
    with pytest.raises(DataError, match="is empty"):
        tagger.tag([{"title": " "}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is below 1"),
        ({"exclude": "c/vision"}, "a single name, not a list"),
        ({"threshold": 0.5, "precision": 0.5}, "mutually exclusive"),
        ({"precision": 1.5}, "precision is not between 0 and 1"),
        ({"threshold": 2}, "threshold is not between 0 and 1"),
        ({"threshold": float("inf")}, "threshold is not between 0 and 1"),
        ({"threshold": float("nan")}, "threshold is not between 0 and 1"),
        ({"exclude": ["Grap"]}, "did you mean 'Graph'"),
        ({"hierarchy": "closed"}, "trained with a flat"),
        ({"hierarchy": "round"}, "unknown hierarchy"),
    ],
)
def test_contradictory_options_are_refused(
    tagger: Tagger, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        tagger.tag(NEW, **options)  # type: ignore[arg-type]
    assert str(caught.value).count("Fix:") == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"labels": ["Grahp"]},
            "paper 'p0-0': no concept has this name.*did you mean 'Graph'.*--drop-unknown",
        ),
        ({"labels": "c/graph"}, "has no list 'labels'"),
        ({"id": ""}, "paper 0 has no id"),
        ({"id": "p0-1"}, "paper 1 has the id of an earlier one"),
        ({"title": "", "abstract": ""}, "is empty"),
        ({"id": float("nan")}, "paper 0 has no id"),
        ({"id": True}, "paper 0 has no id"),
    ],
)
def test_bad_papers_are_named(
    model: SciMult, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    some = papers(60)
    some[0] |= changed
    with pytest.raises(DataError, match=message):
        Tagger.train(tmp_path / "t", VOCABULARY, some, model=model)
    assert not (tmp_path / "t").exists()


def test_an_unknown_tag_of_a_file_is_located(model: SciMult, tmp_path: Path) -> None:
    some = papers(60)
    some[2]["labels"] = ["Grahp"]
    file = tmp_path / "papers.jsonl"
    write_jsonl(file, some)
    with pytest.raises(DataError, match=r"papers\.jsonl:3: paper 'p0-2': no concept"):
        Tagger.train(tmp_path / "t", VOCABULARY, read_papers(file), model=model)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_embeddings_made_before_are_of_any_floating_type(tagger: Tagger, dtype: str) -> None:
    vectors = tagger.model.encode(NEW, task=tagger.task).astype(dtype)
    found = tagger.tag(NEW, k=1, evidence=False, vectors=vectors)
    assert found == tagger.tag(NEW, k=1, evidence=False, vectors=vectors.astype("float32"))
    longer = tagger.tag(NEW, k=1, evidence=False, vectors=7 * vectors.astype("float32"))
    assert [tags[0].id for tags in longer] == [tags[0].id for tags in found]  # by cosine
    with pytest.raises(DataError, match=r"of shape \(119, 16\)"):
        tagger.tag(NEW, vectors=vectors[1:])
    with pytest.raises(DataError, match=r"give a floating point array of shape \(119, 16\)"):
        tagger.tag(NEW[1:], vectors=vectors)
    with pytest.raises(DataError, match=r"of shape \(120, 15\)"):
        tagger.tag(NEW, vectors=vectors[:, 1:])


def test_few_papers_and_other_folders_are_refused(model: SciMult, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few tagged papers"):
        Tagger.train(tmp_path / "t", VOCABULARY, papers(49), model=model)
    untagged = [{**paper, "labels": ["else"]} for paper in papers(60)]
    with pytest.raises(DataError, match="no paper has a tag"):
        Tagger.train(tmp_path / "t", VOCABULARY, untagged, model=model, drop_unknown=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(StorageError, match="not a tagger"):
        Tagger.train(tmp_path / "mine", VOCABULARY, papers(60), model=model)
    with pytest.raises(ConfigError, match="task does not rank labels for papers"):
        Tagger.train(tmp_path / "t", VOCABULARY, papers(60), model=model, task="search")
    for given in (tmp_path / "terms.ttl", ["Optics"]):
        with pytest.raises(DataError, match=r"vocabulary is of type .*pass read_vocabulary\(FILE"):
            Tagger.train(tmp_path / "t", given, papers(60), model=model)  # type: ignore[arg-type]


def test_copies_of_a_held_out_paper_count_once(model: SciMult, tmp_path: Path) -> None:
    """They were independent examples, so a guaranteed precision was too high."""
    some = papers(60)
    for number, paper in enumerate(some):
        paper["abstract"] += f" It is work {number}."
    copies = [{**paper, "id": f"copy {paper['id']}"} for paper in some]
    tagger = Tagger.train(tmp_path / "t", VOCABULARY, [*some, *copies], model=model)
    suggestions = Tagger.open(tmp_path / "t", model=model)._state.suggestions
    assert tagger.facts["papers_by_use"][2] == len(np.unique(suggestions.papers_P)) == 12
    assert suggestions.works_P is not None
    assert 6 <= len(np.unique(suggestions.works_P)) <= 7  # the cut may part one from its copy


def test_tags_only_on_held_out_papers_are_refused(model: SciMult, tmp_path: Path) -> None:
    some = papers(60)
    texts = [Text("paper", paper["title"], paper["abstract"]) for paper in some]
    works = works_of(text_hashes(texts))
    held_out = split_papers([paper["id"] for paper in some], works)[1].tolist()
    for row, paper in enumerate(some):
        paper["labels"] = ["c/graph"] if row in held_out else []
    with pytest.raises(DataError, match="no paper to learn from has a tag"):
        Tagger.train(tmp_path / "t", VOCABULARY, some, model=model)


def test_another_model_and_damage_are_reported(
    folder: Path, model: SciMult, tmp_path: Path
) -> None:
    other = save_tiny_model(tmp_path / "other", similarity="cosine", seed=1)
    with pytest.raises(DataError, match="trained with another model than 'other'"):
        Tagger.open(folder, model=other)
    with pytest.raises(DataError, match="not a tagger"):
        Tagger.open(tmp_path, model=model)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    for name in ("papers.npz", "labels.npz"):
        (copy / name).write_bytes((folder / name).read_bytes()[:200])  # a copy that was cut off
        with pytest.raises(DataError, match="is damaged"):
            Tagger.open(copy, model=model)
        (copy / name).write_bytes(b"PK")
        with pytest.raises(DataError, match="is damaged"):
            Tagger.open(copy, model=model)
        (copy / name).write_bytes((folder / name).read_bytes())
    lines = (folder / "vocabulary.jsonl").read_text().splitlines(keepends=True)
    (copy / "vocabulary.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match="is damaged: vocabulary.jsonl is not that of its training"):
        Tagger.open(copy, model=model)
    kept = json.loads((copy / "tagger.json").read_text())
    (copy / "vocabulary.jsonl").write_text("".join(lines))
    absent = {key: value for key, value in kept.items() if key != "version"}
    (copy / "tagger.json").write_text(json.dumps(absent))
    with pytest.raises(DataError, match="another version"):
        Tagger.open(copy)
    for other_file in ([], {**kept, "format": "scimult-library"}):
        (copy / "tagger.json").write_text(json.dumps(other_file))
        with pytest.raises(DataError, match="not a tagger's file"):
            Tagger.open(copy)
    (copy / "tagger.json").write_text(json.dumps({**kept, "version": 9}))
    with pytest.raises(DataError, match="another version"):
        Tagger.open(copy, model=model)


def test_a_model_opened_with_another_similarity_gives_the_same_tags(
    folder: Path, tagger: Tagger, model_folder: Path
) -> None:
    """A service shares its library's model, which may compare papers otherwise."""
    other = SciMult.from_pretrained(model_folder, similarity="l2", normalise=True)
    assert other.fingerprint == tagger.model.fingerprint
    assert Tagger.open(folder, model=other).tag(NEW) == tagger.tag(NEW)


@pytest.mark.parametrize(
    "filler",
    ["we study " * 500, f"{'westudy' * 200} " * 9, f"{'x' * 50_000} "],
    ids=["words", "long words", "one word"],
)
def test_evidence_is_short_also_in_a_text_without_sentences(tagger: Tagger, filler: str) -> None:
    """An answer repeated such a text for every tag: 100 MB for one abstract."""
    paper = {"title": "On plasma", "abstract": f"{filler}plasma {filler}"}
    found = {tag.id: tag.evidence for tag in tagger.tag([paper], k=len(VOCABULARY))[0]}
    assert max(map(len, found.values())) <= 1000
    assert "plasma" in found["c/plasma"]
    (tags,) = tagger.tag([{"title": filler}])
    assert all(0 < len(tag.evidence) <= 1000 for tag in tags)


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 99])
def test_a_tagger_replaced_while_it_is_read_is_read_again(
    folder: Path, model: SciMult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Files of two trainings in one tagger gave tags that neither of them gives."""
    shutil.copytree(folder, tmp_path / "tagger")
    other, left = Vocabulary([*VOCABULARY][::-1]), [times]

    def replaced(path: Path) -> Vocabulary:
        if left[0]:
            left[0] -= 1
            Tagger.train(tmp_path / "tagger", other, papers(60 + left[0]), model=model)
        return read_vocabulary(path)

    monkeypatch.setattr("scimult.tagging.folder.read_vocabulary", replaced)
    if times > 1:
        with pytest.raises(DataError, match="replaced whenever it was read"):
            Tagger.open(tmp_path / "tagger", model=model)
        return
    opened = Tagger.open(tmp_path / "tagger", model=model)
    assert opened.facts["papers"] == 60
    assert opened.tag(NEW) == Tagger.open(tmp_path / "tagger", model=model).tag(NEW)


@pytest.mark.parametrize("title", ["of the", "{}"])
def test_papers_that_share_no_word(model: SciMult, tmp_path: Path, title: str) -> None:
    tagged = papers(60)
    words = [{**one, "title": title.format("x" * (i + 2)), "abstract": ""} for i, one in
             enumerate(tagged)]  # fmt: skip
    tagger = Tagger.train(tmp_path / "tagger", VOCABULARY, words, model=model)
    ours = tagger.tag(NEW[:2], evidence=False)
    again = Tagger.open(tmp_path / "tagger", model=model).tag(NEW[:2], evidence=False)
    assert [len(tags) for tags in ours] == [5, 5]
    assert again == ours


def test_a_concept_of_all_papers_is_likely(model: SciMult, tmp_path: Path) -> None:
    name = VOCABULARY.ids[0]
    tagged = [{**one, "labels": [name]} for one in papers(100)]
    one = Vocabulary([Concept(name, VOCABULARY[0].label)])
    tagger = Tagger.train(tmp_path / "tagger", one, tagged, model=model)
    assert tagger.facts["expected_calibration_error"] < 0.1
    assert all(tags[0].score > 0.9 for tags in tagger.tag(NEW[:20], evidence=False))


def test_a_model_by_name_is_opened_by_its_name(
    folder: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = SciMult.from_pretrained
    names = []

    def by_name(name: Path | str, **options: Any) -> SciMult:
        names.append(str(name))
        return opened(model_folder, **options)

    monkeypatch.setattr(SciMult, "from_pretrained", by_name)
    Tagger.train(tmp_path / "tagger", VOCABULARY, model="package:tiny")
    Tagger.open(tmp_path / "tagger")
    assert names == ["package:tiny", "package:tiny"]


def test_papers_of_files_and_of_tables_train_as_mappings_do(model: SciMult, tmp_path: Path) -> None:
    rows = papers(80)
    file = tmp_path / "papers.jsonl"
    write_jsonl(file, rows)
    given: list[Any] = [rows, list(read_papers(file)), pd.DataFrame(rows)]
    found = [
        Tagger.train(tmp_path / f"t{number}", VOCABULARY, one, model=model).tag(NEW[:5])
        for number, one in enumerate(given)
    ]
    assert found[0] == found[1] == found[2]
    untagged = [replace(paper, labels=()) for paper in given[1]]
    with pytest.raises(DataError, match="no paper has a tag of the vocabulary.*labels=NAME"):
        Tagger.train(tmp_path / "none", VOCABULARY, untagged, model=model)
