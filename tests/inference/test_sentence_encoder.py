"""Third-party encoders: agreement with ours, prefixes, separators, adapters, presets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scimult.errors import CheckpointError
from scimult.inference import SciMult
from scimult.inference.sentence_encoder import (
    EncoderSpec,
    SentenceEncoder,
    load_spec,
)
from scimult.retrieval.exact import ExactIndex
from scimult.types import Text
from tests.base_models import save_base_model
from tests.tiny import save_static_embeddings, tiny_backend

PAPERS = [
    Text("paper", "Drawing large graphs", "Layouts of graphs with many nodes."),
    Text("paper", "Folding proteins"),
]


def _spec(minilm: Path, **options: object) -> EncoderSpec:
    return EncoderSpec(model=str(minilm), **options)


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)


@pytest.fixture(scope="module")
def encoder(minilm: Path) -> SentenceEncoder:
    return SentenceEncoder(_spec(minilm, pooling="mean"), name="theirs", device="cpu")


def test_the_same_checkpoint_embeds_as_our_loader_does(
    minilm: Path, encoder: SentenceEncoder
) -> None:
    """Two implementations of one model: float32 sums in another order differ in the sixth digit."""
    ours = SciMult.from_pretrained(minilm, pooling="mean", device="cpu")
    wanted = ours.encode(PAPERS, task="link_prediction", role="query")
    found = encoder.encode(PAPERS, task="link_prediction", role="query")
    assert np.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_no_texts_give_no_rows(minilm: Path, dtype: str | None) -> None:
    encoder = SentenceEncoder(_spec(minilm, dtype=dtype), name="theirs", device="cpu")
    assert encoder.encode([], task="search", role="query").shape == (0, 384)


def test_length_one_where_the_similarity_is_cosine(minilm: Path) -> None:
    assert _spec(minilm, pooling="mean").unit_vectors
    assert not _spec(minilm, pooling="mean", similarity="l2").unit_vectors
    assert not _spec(minilm, pooling="mean", normalise=False).unit_vectors
    assert not _spec(minilm).unit_vectors  # its own modules do it, or do not
    own = SentenceEncoder(_spec(minilm), name="own", device="cpu")
    rows = own.encode(PAPERS, task="search", role="candidate")
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"pooling": "mean"}, {}])
def test_sixteen_bits_keep_exact_lengths(minilm: Path, options: dict[str, str]) -> None:
    """bfloat16 rounds each number by up to 0.4 %: cosines to float32 stay above 0.999."""
    wanted = SentenceEncoder(_spec(minilm, **options), name="f", device="cpu")
    half = SentenceEncoder(_spec(minilm, dtype="bfloat16", **options), name="h", device="cpu")
    papers = [Text("paper", f"Drawing graph {n}") for n in range(16)]
    rows = half.encode(papers, task="search", role="query")
    float32 = wanted.encode(papers, task="search", role="query")
    assert _cosines(rows, float32).min() > 0.999
    assert not np.array_equal(rows, float32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=0, atol=1e-6)
    assert half.fingerprint != wanted.fingerprint


@pytest.mark.long
def test_prefixes_by_task_and_side(minilm: Path) -> None:
    prefixes = {"default": "x ", "search": "s ", "search/query": "q "}
    spec = _spec(minilm, pooling="mean", prefixes=prefixes, separator=" ")
    encoder = SentenceEncoder(spec, name="e", device="cpu")
    plain = SentenceEncoder(_spec(minilm, pooling="mean"), name="p", device="cpu")
    for task, role, prefix in (
        ("search", "query", "q "),
        ("search", "candidate", "s "),
        ("classification", "query", "x "),
    ):
        found = encoder.encode([Text("paper", "water")], task=task, role=role)
        wanted = plain.encode([Text("paper", prefix + "water")], task=task, role=role)
        assert np.allclose(found, wanted, atol=1e-6)
    assert encoder.fingerprint != plain.fingerprint
    # The encoder knows the tasks that its prefixes name.
    assert encoder.task_for("search", "classification") == "search"
    assert encoder.task_for("regression", "classification") == "classification"


def test_title_and_body_are_joined_by_the_models_separator(encoder: SentenceEncoder) -> None:
    written = encoder._format(Text("paper", "title", "abstract [SEP] venue"))
    assert written == "title [SEP] abstract [SEP] venue"
    assert encoder._format(Text("paper", "title")) == "title"


@pytest.mark.long
@pytest.mark.parametrize("name", [None, "cosine", "dot", "euclidean"])
def test_the_models_own_similarity(minilm: Path, tmp_path: Path, name: str | None) -> None:
    """Candidates are in the order of the library's own similarity."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    pooling = modules.Pooling(384, pooling_mode="mean")
    SentenceTransformer(modules=[model[0], pooling], similarity_fn_name=name).save(str(tmp_path))
    encoder = SentenceEncoder(_spec(tmp_path), name="own", device="cpu")
    papers = [Text("paper", f"Drawing {what} " * n) for n, what in enumerate("abcdefgh", start=1)]
    query = Text("query", "drawing")
    queries_QD = encoder.encode([query], task="search", role="query")
    candidates_CD = encoder.encode(papers, task="search", role="candidate")
    index = ExactIndex([str(row) for row in range(8)], candidates_CD, encoder.similarity)
    library = SentenceTransformer(str(tmp_path), device="cpu")
    wanted = library.similarity(queries_QD, candidates_CD)[0].argsort(descending=True)
    assert index.search(queries_QD, 8).rows_QK[0].tolist() == wanted.tolist()
    assert encoder.similarity == {"euclidean": "l2", None: "cosine"}.get(name, name)
    chosen = SentenceEncoder(_spec(tmp_path, similarity="l2"), name="l2", device="cpu")
    pooled = SentenceEncoder(_spec(tmp_path, pooling="cls"), name="cls", device="cpu")
    assert (chosen.similarity, pooled.similarity) == ("l2", "cosine")


def test_a_similarity_that_we_lack_is_refused(minilm: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(minilm, tmp_path / "copy"))
    _set(folder / "config_sentence_transformers.json", similarity_fn_name="manhattan")
    with pytest.raises(CheckpointError, match="manhattan.*Fix: choose one, such as similarity=l2"):
        SentenceEncoder(_spec(folder), name="own", device="cpu")


@pytest.mark.long
def test_the_models_own_prompts_and_routes_by_side(minilm: Path, tmp_path: Path) -> None:
    """As the library encodes queries and documents of a search, and papers about papers."""
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    body = SentenceTransformer(str(minilm), device="cpu")[0]
    sides = [[body, modules.Pooling(384, pooling_mode=mode)] for mode in ("cls", "mean")]
    router = Router.for_query_document(*sides, default_route="document")
    prompts = {"query": "find: ", "document": "paper: "}
    SentenceTransformer(modules=[router], prompts=prompts).save(str(tmp_path))

    encoder = SentenceEncoder(_spec(tmp_path), name="own", device="cpu")
    library = SentenceTransformer(str(tmp_path), device="cpu")
    texts = [encoder._format(paper) for paper in PAPERS]
    for task, role, wanted in (
        ("search", "query", library.encode_query(texts)),
        ("search", "candidate", library.encode_document(texts)),
        ("link_prediction", "query", library.encode(texts)),
        ("classification", "candidate", library.encode(texts)),
    ):
        found = encoder.encode(PAPERS, task=task, role=role)
        np.testing.assert_array_equal(found, wanted)
    assert not np.allclose(library.encode_query(texts), library.encode(texts), atol=1e-2)


@pytest.mark.long
@pytest.mark.parametrize(("prefix", "included"), [("find: ", True), ("find: ", False), ("", True)])
def test_a_prefix_replaces_the_models_own_prompt(
    minilm: Path, tmp_path: Path, prefix: str, included: bool
) -> None:
    """A pooling that leaves prompts out leaves out the prefix too, as the library's prompt."""
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer

    body = SentenceTransformer(str(minilm), device="cpu")[0]
    pooling = modules.Pooling(384, pooling_mode="mean", include_prompt=included)
    SentenceTransformer(modules=[body, pooling], prompts={"query": "own: "}).save(str(tmp_path))
    spec = _spec(tmp_path, prefixes={"search/query": prefix})
    encoder = SentenceEncoder(spec, name="own", device="cpu")
    library = SentenceTransformer(str(tmp_path), device="cpu")
    wanted = library.encode([encoder._format(paper) for paper in PAPERS], prompt=prefix)
    found = encoder.encode(PAPERS, task="search", role="query")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_another_pooling_keeps_the_models_longest_text_and_casing(
    minilm: Path, tmp_path: Path, pooling: Literal["cls", "mean"]
) -> None:
    folder = Path(shutil.copytree(minilm, tmp_path / "copy"))
    _set(folder / "sentence_bert_config.json", max_seq_length=16, do_lower_case=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    _set(folder / "tokenizer.json", **tokenizer)
    encoder = SentenceEncoder(_spec(folder, pooling=pooling), name="e", device="cpu")
    ours = SciMult.from_pretrained(folder, pooling=pooling, similarity="cosine", device="cpu")
    papers = [Text("paper", "Drawing LARGE Graphs " * 9), Text("paper", "Graphs")]
    found = encoder.encode(papers, task="search", role="query")
    wanted = ours.encode(papers, task="search", role="query")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("max_length", [None, 500])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_long_texts_end_where_the_positions_do(
    tmp_path: Path, family: str, max_length: int | None
) -> None:
    """The library passes RoBERTa's two positions of padding as tokens; our reader knows them."""
    folder = save_base_model(tmp_path, family)
    ours = SciMult.from_pretrained(folder, pooling="mean", device="cpu")
    spec = _spec(folder, pooling="mean", similarity="dot", max_length=max_length)
    encoder = SentenceEncoder(spec, name="e", device="cpu")
    papers = [Text("paper", "graph " * 400), Text("paper", "graph")]
    found = encoder.encode(papers, task="search", role="query")
    wanted = ours.encode(papers, task="search", role="query")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.long
def test_a_model_without_a_route_for_queries_is_named(minilm: Path, tmp_path: Path) -> None:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    body = SentenceTransformer(str(minilm), device="cpu")[0]
    routes = {task: [body, modules.Pooling(384)] for task in ("search", "classification")}
    SentenceTransformer(modules=[Router(routes)]).save(str(tmp_path))
    encoder = SentenceEncoder(_spec(tmp_path), name="routed", device="cpu")
    with pytest.raises(CheckpointError, match="No route found.*Fix: use --model") as raised:
        encoder.encode(PAPERS, task="search", role="query")
    assert str(tmp_path) in str(raised.value)


@pytest.mark.long
def test_adapters_by_side(minilm: Path, tmp_path: Path) -> None:
    """The adapter serves documents only; queries are encoded by the model alone."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    import torch

    base = transformers.AutoModel.from_pretrained(minilm)
    settings = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    torch.manual_seed(0)
    peft.get_peft_model(base, settings).save_pretrained(tmp_path / "adapter")
    spec = _spec(minilm, pooling="mean", adapters={"candidate": str(tmp_path / "adapter")})
    adapted = SentenceEncoder(spec, name="a", device="cpu")
    plain = SentenceEncoder(_spec(minilm, pooling="mean"), name="p", device="cpu")
    wanted = plain.encode(PAPERS, task="search", role="query")
    for _ in range(2):
        query = adapted.encode(PAPERS, task="search", role="query")
        document = adapted.encode(PAPERS, task="search", role="candidate")
        assert np.allclose(query, wanted, atol=1e-6)
        assert not np.allclose(document, wanted, atol=1e-3)
    assert adapted.fingerprint != plain.fingerprint
    weights = load_file(tmp_path / "adapter/adapter_model.safetensors")
    lacking = {name: weight for name, weight in weights.items() if ".layer.0." not in name}
    save_file(lacking, tmp_path / "adapter/adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"adapter: the files lack 2 weights.*or merge the"):
        SentenceEncoder(spec, name="a", device="cpu")


@pytest.mark.long
def test_own_files_are_part_of_the_fingerprint(minilm: Path, tmp_path: Path) -> None:
    """A store and a result must not take CLS vectors of the same weights for their means."""

    def fingerprint(folder: Path) -> str:
        return SentenceEncoder(_spec(folder), name="own", device="cpu").fingerprint

    copy = Path(shutil.copytree(minilm, tmp_path / "copy"))
    found = [fingerprint(copy)]
    pooling = copy / "1_Pooling/config.json"
    modes = {**json.loads(pooling.read_text()), "pooling_mode_mean_tokens": False}
    pooling.write_text(json.dumps({**modes, "pooling_mode_cls_token": True}))
    found.append(fingerprint(copy))
    modules = json.loads((copy / "modules.json").read_text())
    (copy / "modules.json").write_text(json.dumps(modules[:2]))
    found.append(fingerprint(copy))
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (copy / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    found.append(fingerprint(copy))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    found.append(fingerprint(copy))
    assert len(set(found)) == 5


def _set(path: Path, **settings: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("config.json", {"num_attention_heads": 6}),
        ("config.json", {"hidden_act": "relu"}),
        ("config.json", {"layer_norm_eps": 0.1}),
        ("config_sentence_transformers.json", {"truncate_dim": 64}),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.linear.Identity"}),
    ],
    ids=["heads", "activation", "epsilon", "truncated", "dense"],
)
def test_settings_around_equal_weights_are_part_of_the_fingerprint(
    minilm: Path, tmp_path: Path, file: str, settings: dict[str, object]
) -> None:
    """With the same fingerprint a store would give the vectors of the settings before."""
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    dense = modules.Dense(384, 64) if "Dense" in file else modules.Normalize()
    SentenceTransformer(modules=[model[0], model[1], dense]).save(str(tmp_path))

    def encoded() -> tuple[str, np.ndarray]:
        encoder = SentenceEncoder(_spec(tmp_path), name="own", device="cpu")
        return encoder.fingerprint, encoder.encode(PAPERS, task="search", role="query")

    (before, rows), (again, _) = encoded(), encoded()
    _set(tmp_path / file, **settings)
    after, changed = encoded()
    assert before == again != after
    assert rows.shape != changed.shape or not np.allclose(rows, changed, atol=1e-4)


@pytest.mark.long
def test_the_side_on_which_texts_are_cut_is_part_of_the_fingerprint(
    minilm: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(minilm, tmp_path / "copy"))
    found = []
    for side in ("right", "left"):
        _set(copy / "tokenizer_config.json", truncation_side=side)
        encoder = SentenceEncoder(_spec(copy, max_length=8), name="own", device="cpu")
        rows = encoder.encode(PAPERS, task="search", role="query")
        found.append((encoder.fingerprint, rows))
    assert not np.allclose(found[0][1], found[1][1], atol=1e-4)
    assert found[0][0] != found[1][0]


@pytest.mark.long
def test_the_scale_of_an_adapter_is_part_of_the_fingerprint(minilm: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

    base = transformers.AutoModel.from_pretrained(minilm)
    settings = peft.LoraConfig(r=2, target_modules=["query", "key"], init_lora_weights=False)
    peft.get_peft_model(base, settings).save_pretrained(tmp_path)
    found = []
    for alpha in (8, 8, 16):
        _set(tmp_path / "adapter_config.json", lora_alpha=alpha)
        spec = _spec(minilm, adapters={"default": str(tmp_path)})
        found.append(SentenceEncoder(spec, name="a", device="cpu").fingerprint)
    assert found[0] == found[1] != found[2]


@pytest.mark.long
def test_the_fingerprint_does_not_change_with_use(minilm: Path) -> None:
    used, fresh = (SentenceEncoder(_spec(minilm), name="own", device="cpu") for _ in range(2))
    used.encode([Text("paper", "A title")], task="search", role="query")
    assert used.fingerprint == fresh.fingerprint


def test_static_embeddings_are_the_means_of_their_tokens_vectors(tmp_path: Path) -> None:
    """Against numpy's float64; float32 sums of dozens of numbers near 1 differ by 1e-6."""
    folder = save_static_embeddings(tmp_path / "static")
    spec = load_spec(str(folder), ["similarity=dot"])
    encoder = SentenceEncoder(spec, name="static", device="cpu")
    found = encoder.encode(PAPERS, task="search", role="query")
    vectors = load_file(folder / "model.safetensors")["embedding.weight"].astype(np.float64)
    for paper, row in zip(PAPERS, found, strict=True):
        ids = tiny_backend().encode(paper.joined, add_special_tokens=False).ids
        np.testing.assert_allclose(row, vectors[ids].mean(axis=0), rtol=0, atol=1e-6)
    assert encoder.fingerprint == SentenceEncoder(spec, name="other", device="cpu").fingerprint
    with pytest.raises(CheckpointError, match=r"any length \(value: 64\). Fix: leave max_length"):
        SentenceEncoder(load_spec(str(folder), ["max_length=64"]), name="cut", device="cpu")
