"""Sentence-transformers folders: we embed as the library does, before and after an export."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from scimult.checkpoints import load_pretrained, read_config
from scimult.checkpoints.exports import export_folded, export_sentence_transformers
from scimult.errors import CheckpointError
from scimult.files import read_json, write_json
from scimult.inference import SciMult
from scimult.types import Text
from tests.base_models import save_base_model
from tests.tiny import save_tiny_model

TEXTS = [
    Text("paper", "Graph drawing of Large graphs", "We lay out graphs. " * 9),
    Text("paper", "x"),
]
STRINGS = [f"{TEXTS[0].title}[SEP]{TEXTS[0].body}", "x"]


def library_folder(
    folder: Path,
    pooling: Any = "mean",
    *,
    normalise: bool = True,
    similarity: str | None = None,
    more: tuple[Any, ...] = (),
    **options: Any,
) -> Path:
    """Save a random BERT with sentence-transformers itself."""
    body = Transformer(str(save_base_model(folder.parent / "base", "bert")))
    modules = [body, Pooling(32, pooling, **options), *more]
    if normalise:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, similarity_fn_name=similarity, device="cpu").save(
        str(folder)
    )
    return folder


def theirs(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu").encode(STRINGS)


def ours(model: SciMult) -> Any:
    return model.encode(TEXTS, task="link_prediction")


@pytest.mark.long
@pytest.mark.parametrize(
    ("pooling", "normalise", "similarity"),
    [
        ("mean", True, None),
        ("mean", False, None),
        ("cls", True, "dot"),
        ("cls", False, "euclidean"),
        ("lasttoken", False, "cosine"),
    ],
)
def test_embeddings_are_the_librarys_before_and_after_export(
    tmp_path: Path, pooling: str, normalise: bool, similarity: str | None
) -> None:
    """Float32 sums in another order: 1e-5, with entries up to 3."""
    folder = library_folder(tmp_path / "st", pooling, normalise=normalise, similarity=similarity)
    model = SciMult.from_pretrained(folder, device="cpu")
    wanted = theirs(folder)
    np.testing.assert_allclose(ours(model), wanted, atol=1e-5)
    lengths = np.linalg.norm(wanted, axis=1)
    assert bool(np.allclose(lengths, 1, atol=1e-5)) == normalise
    assert model.similarity == {None: "cosine", "euclidean": "l2"}.get(similarity, similarity)
    pretrained = load_pretrained(folder)
    export_folded(tmp_path / "folded", pretrained, None)
    np.testing.assert_allclose(theirs(tmp_path / "folded"), wanted, atol=1e-5)
    export_sentence_transformers(tmp_path / "routed", pretrained)
    routed = SentenceTransformer(str(tmp_path / "routed"), device="cpu")
    np.testing.assert_allclose(routed.encode(STRINGS, task="search"), wanted, atol=1e-5)
    names = {part.similarity_fn_name for part in (routed, SentenceTransformer(str(folder)))}
    assert len(names) == 1
    np.testing.assert_allclose(
        ours(SciMult.from_pretrained(tmp_path / "folded")), wanted, atol=1e-5
    )


@pytest.mark.long
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dims", [1, 8, 32, 100])
def test_a_folder_that_truncates_gives_its_first_dimensions(
    tmp_path: Path, dims: int, normalise: bool
) -> None:
    """Where it scales, it does so before the cut and we after: cosines are the same."""
    whole = SentenceTransformer(
        str(library_folder(tmp_path / "whole", normalise=normalise)), truncate_dim=dims
    )
    whole.save(str(tmp_path / "cut"))
    wanted = theirs(tmp_path / "cut")
    assert wanted.shape[1] == min(dims, 32)
    if normalise:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    model = SciMult.from_pretrained(tmp_path / "cut", device="cpu")
    np.testing.assert_allclose(ours(model), wanted, atol=1e-5)
    uncut = SciMult.from_pretrained(tmp_path / "whole", device="cpu")
    assert (model.fingerprint != uncut.fingerprint) == (dims < 32)


@pytest.mark.parametrize("dims", [0, -3, "8", True, 1.5])
def test_a_length_to_cut_at_that_is_none_is_refused(tmp_path: Path, dims: object) -> None:
    folder = library_folder(tmp_path / "st")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": dims}))
    with pytest.raises(CheckpointError, match="truncate_dim is not a positive integer"):
        load_pretrained(folder)


def test_an_export_that_the_library_changed_is_read_as_changed(tmp_path: Path) -> None:
    base = load_pretrained(library_folder(tmp_path / "st", "cls"))
    export_folded(tmp_path / "folded", base, None)
    body = SentenceTransformer(str(tmp_path / "folded"), device="cpu")[0]
    modules = [body, Pooling(32, "mean")]
    changed = SentenceTransformer(modules=modules, similarity_fn_name="dot", device="cpu")
    changed.max_seq_length = 9
    changed.save(str(tmp_path / "changed"))
    model = SciMult.from_pretrained(tmp_path / "changed", device="cpu")
    np.testing.assert_allclose(ours(model), theirs(tmp_path / "changed"), atol=1e-5)
    assert (model.similarity, model.unit_vectors, model.config.max_length) == ("dot", False, 9)
    assert model.tasks.names == [task.name for task in base.config.tasks]


def test_the_users_own_choices_win(tmp_path: Path) -> None:
    folder = library_folder(tmp_path / "st")
    raw = library_folder(tmp_path / "raw", normalise=False)
    assert SciMult.from_pretrained(folder).unit_vectors
    assert not SciMult.from_pretrained(folder, normalise=False).unit_vectors
    assert SciMult.from_pretrained(folder, similarity="dot").unit_vectors
    assert not SciMult.from_pretrained(raw).unit_vectors
    assert SciMult.from_pretrained(raw, similarity="cosine").unit_vectors
    np.testing.assert_allclose(
        ours(SciMult.from_pretrained(folder, normalise=False)), theirs(raw), atol=1e-5
    )
    first = SciMult.from_pretrained(folder, pooling="cls", normalise=False)
    wanted = theirs(library_folder(tmp_path / "cls", "cls", normalise=False))
    np.testing.assert_allclose(ours(first), wanted, atol=1e-5)


def test_what_changes_the_vectors_changes_the_fingerprint(tmp_path: Path) -> None:
    folder = library_folder(tmp_path / "st")
    choices: list[dict[str, Any]] = [{}, {"normalise": False}, {"pooling": "cls"}]
    prints = {SciMult.from_pretrained(folder, **choice).fingerprint for choice in choices}
    assert len(prints) == 3
    assert SciMult.from_pretrained(folder, similarity="dot").fingerprint in prints


@pytest.mark.parametrize(
    ("file", "key", "limit"),
    [
        ("sentence_bert_config.json", "max_seq_length", 9),
        ("sentence_roberta_config.json", "max_seq_length", 10),
        ("tokenizer_config.json", "model_max_length", 11),
    ],
)
def test_long_texts_are_cut_where_the_library_cuts(
    tmp_path: Path, file: str, key: str, limit: int
) -> None:
    folder = library_folder(tmp_path / "st")
    content = {"do_lower_case": False}
    if key == "model_max_length":
        content = read_json(folder / file)
    else:
        (folder / "sentence_bert_config.json").unlink()
    write_json(folder / file, content | {key: limit})
    assert load_pretrained(folder).config.max_length == limit
    np.testing.assert_allclose(ours(SciMult.from_pretrained(folder)), theirs(folder), atol=1e-5)


def test_old_names_of_poolings(tmp_path: Path) -> None:
    folder = library_folder(tmp_path / "st", "cls")
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    for chosen, pooling in (
        ("cls_token", "cls"),
        ("mean_tokens", "mean"),
        ("lasttoken", "position"),
    ):
        content = {f"pooling_mode_{name}": name == chosen for name in names}
        write_json(folder / "1_Pooling" / "config.json", content | {"word_embedding_dimension": 32})
        assert load_pretrained(folder).config.encoder.pooling == pooling
        np.testing.assert_allclose(ours(SciMult.from_pretrained(folder)), theirs(folder), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "its pooling is not supported"),
        ({"pooling": ("cls", "mean")}, "its pooling is not supported"),
        ({"include_prompt": False}, "its pooling is not supported"),
        ({"similarity": "manhattan"}, "its similarity is not supported"),
        ({"more": (Dense(32, 8),)}, r"modules are Transformer, Pooling, Dense.*\['Dense'\]"),
    ],
)
def test_what_our_encoder_does_not_do_is_refused_or_replaced(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    folder = library_folder(tmp_path / "st", normalise=False, **options)
    with pytest.raises(CheckpointError, match=f"{message}.*Fix: .*--encoder") as caught:
        load_pretrained(folder)
    assert str(caught.value).count("Fix:") == 1
    model = load_pretrained(folder, pooling="mean", similarity="dot")
    assert model.config.encoder.pooling == "mean"
    # A base to train from: its pooling is the run's.
    assert read_config(folder).encoder.hidden_size == 32


def test_a_damaged_list_of_modules_is_named(tmp_path: Path) -> None:
    folder = library_folder(tmp_path / "st")
    (folder / "modules.json").write_text('[{"idx": 0}]')
    with pytest.raises(CheckpointError, match=r"modules\.json: not a list of modules"):
        load_pretrained(folder)


def test_settings_of_other_types_are_named_or_passed_over(tmp_path: Path) -> None:
    folder = library_folder(tmp_path / "st")
    write_json(folder / "config_sentence_transformers.json", {"prompts": ["query: "]})
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": NaN}')
    assert load_pretrained(folder).config.max_length == 64
    pooling = read_json(folder / "1_Pooling/config.json")
    write_json(folder / "1_Pooling/config.json", pooling | {"pooling_mode": 1})
    with pytest.raises(CheckpointError, match="its pooling is not supported"):
        load_pretrained(folder)
    modules = read_json(folder / "modules.json")
    for path in (1, "x" * 400):  # the second is too long for a name
        modules[1]["path"] = path
        write_json(folder / "modules.json", modules)
        with pytest.raises(CheckpointError, match="pooling is not described"):
            load_pretrained(folder)
    export_folded(tmp_path / "f", load_pretrained(folder, pooling="mean"), None)
    write_json(tmp_path / "f/config.json", read_json(tmp_path / "f/config.json") | {"scimult": 1})
    with pytest.raises(CheckpointError, match=r"config\.json: scimult is not a mapping"):
        load_pretrained(tmp_path / "f")


def test_an_encoder_in_a_subfolder_is_pointed_at(tmp_path: Path) -> None:
    export_sentence_transformers(tmp_path / "r", load_pretrained(save_tiny_model(tmp_path / "m")))
    message = "in a subfolder.*use one of the models in it: classification, link_prediction, search"
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(tmp_path / "r")
    folder = library_folder(tmp_path / "st")
    (folder / "0_Transformer").mkdir()
    (folder / "config.json").rename(folder / "0_Transformer" / "config.json")
    with pytest.raises(CheckpointError, match=r"in a subfolder\. Fix: save it again"):
        load_pretrained(folder)


def test_prompts_are_said_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = library_folder(tmp_path / "st")
    file = folder / "config_sentence_transformers.json"
    write_json(file, read_json(file) | {"prompts": {"query": "query: ", "document": ""}})
    load_pretrained(folder)
    assert "its prompts (query) are not prepended" in capsys.readouterr().err


def test_a_model_of_ours_compared_by_cosine_has_unit_vectors_in_every_form(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m", pooling="mean", similarity="cosine")
    content = json.loads((folder / "config.json").read_text())
    del content["normalise"]  # as saved before the key was there
    (folder / "config.json").write_text(json.dumps(content))
    found = ours(SciMult.from_pretrained(folder))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    raw = ours(SciMult.from_pretrained(folder, normalise=False))
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), found, atol=1e-6)
    assert abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    export_folded(tmp_path / "f", load_pretrained(folder), "link_prediction")
    np.testing.assert_allclose(theirs(tmp_path / "f"), found, atol=1e-5)


@pytest.mark.long
def test_minilm_is_read_and_written_as_it_is(minilm: Path, tmp_path: Path) -> None:
    model = SciMult.from_pretrained(minilm, device="cpu")
    assert (model.similarity, model.unit_vectors) == ("cosine", True)
    long = [Text("paper", "Protein folding", "by molecular dynamics " * 120)]
    strings = [f"{text.title}[SEP]{text.body}" for text in long]
    wanted = SentenceTransformer(str(minilm), device="cpu").encode(strings)
    np.testing.assert_allclose(
        model.encode(long, task="search", role="candidate"), wanted, atol=1e-5
    )
    export_folded(tmp_path / "f", load_pretrained(minilm), None)
    again = SentenceTransformer(str(tmp_path / "f"), device="cpu")
    np.testing.assert_allclose(again.encode(strings), wanted, atol=1e-5)


@pytest.mark.long
@pytest.mark.data
def test_scitldr_is_found_as_by_the_library(minilm: Path, scimult_data: Path) -> None:
    folder = scimult_data / "eval" / "scitldr"

    def rows(name: str) -> list[dict[str, str]]:
        with gzip.open(folder / name, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    judged = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    relevant = dict(line.split("\t")[:2] for line in judged)
    papers = rows("corpus.jsonl.gz")[:40]
    ids = [paper["_id"] for paper in papers]
    queries = [row for row in rows("queries.jsonl.gz") if relevant.get(row["_id"]) in ids]
    wanted = [ids.index(relevant[row["_id"]]) for row in queries]

    def hits(queries_QD: Any, papers_ND: Any) -> list[bool]:
        return list((queries_QD @ papers_ND.T).argmax(axis=1) == wanted)

    model = SciMult.from_pretrained(minilm, device="cpu")
    texts = [{"title": paper["title"], "abstract": paper["text"]} for paper in papers]
    questions = [row["text"] for row in queries]
    ours = hits(
        model.encode(questions, task="search"), model.encode(texts, task="search", role="candidate")
    )
    library = SentenceTransformer(str(minilm), device="cpu")
    strings = ["[SEP]".join(filter(None, text.values())) for text in texts]
    assert ours == hits(library.encode(questions), library.encode(strings))
    assert np.mean(ours) > 0.8


def test_a_folder_copied_without_its_subfolders_is_refused(tmp_path: Path) -> None:
    """Its pooling is unknown; the library does not load it either."""
    folder = library_folder(tmp_path / "st", "cls")
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(TypeError):
        theirs(folder)
    with pytest.raises(CheckpointError, match="pooling is not described.*copy the whole folder"):
        SciMult.from_pretrained(folder)
    assert SciMult.from_pretrained(folder, pooling="cls").unit_vectors
