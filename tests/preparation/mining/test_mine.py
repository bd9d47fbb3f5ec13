"""Mining a prepared folder, and mining it again without touching texts or tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.config import validate
from scimult.data.negatives import drawn_by_rule
from scimult.data.pairs import SPLITS, PairFile, known_positives
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining.citation_embedding import (
    citation_components,
    citation_embedding,
)
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.mine import mine_again
from tests.preparation.mining.test_steps import _Lengths
from tests.prepared_folders import Metadata
from tests.raw_corpus import CITATIONS, PAPERS, raw_config, write_jsonl, write_raw, write_tsv


@pytest.fixture
def data(tmp_path: Path, minilm: Path) -> PreparedData:
    config = raw_config(write_raw(tmp_path / "raw"), max_pairs_per_label="all")
    tokenizer = TextTokenizer.from_folder(minilm)
    return build_dataset(config, tmp_path / "out", tokenizer=tokenizer)[0]


def _groups(data: PreparedData, task: str) -> list[tuple[str, set[str], set[str]]]:
    """Return query, positives and negatives of every group, by id."""
    files: list[PairFile] = [*data.pairs("train"), *data.pairs("dev")]
    ids = data.texts.ids
    return [
        (ids[file.queries[i]], {ids[row] for row in file.positives[i]}, {ids[row] for row in pool})
        for file in files
        if file.task == task
        for i, pool in enumerate(file.negatives)
    ]


def test_link_prediction_negatives_follow_the_whole_graph(data: PreparedData) -> None:
    cites = {paper["id"]: {b for a, b in CITATIONS if a == paper["id"]} for paper in PAPERS}
    groups = _groups(data, "link_prediction")
    assert len(groups) == len(CITATIONS)
    assert any(pool for _, _, pool in groups)
    for query, positives, pool in groups:
        (positive,) = positives
        q, p = query.removeprefix("toy:"), positive.removeprefix("toy:")
        assert pool == {f"toy:{paper}" for paper in cites[p] - cites[q] - {q}}


@pytest.mark.long
def test_rules_that_find_nothing_are_named_once_for_both_splits(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(root / "papers.jsonl", [{**paper, "authors": []} for paper in PAPERS])
    build_dataset(raw_config(root), tmp_path / "out")
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "found no hard negatives" in line
    ]
    assert len(lines) == 1
    assert "toy.classification" in lines[0]
    assert "author" in lines[0].partition("(")[0]
    assert "venue" in lines[0].partition("(")[2]


@pytest.mark.long
@pytest.mark.parametrize("relation", ["cited", "author", "venue"])
def test_each_label_relation_by_itself(data: PreparedData, relation: str) -> None:
    mine_again(data.folder, MiningConfig(labels=[relation]))
    labels = {paper["id"]: set(paper["labels"]) for paper in PAPERS}

    def near(a: dict[str, object], b: dict[str, object]) -> bool:
        if relation == "cited":
            return (a["id"], b["id"]) in CITATIONS
        if relation == "author":
            return bool(set(a["authors"]) & set(b["authors"]))  # type: ignore[call-overload]
        return bool(a["venue"]) and a["venue"] == b["venue"]

    for query, _, pool in _groups(PreparedData.open(data.folder), "classification"):
        paper = next(p for p in PAPERS if f"toy:{p['id']}" == query)
        found = {label for other in PAPERS if near(paper, other) for label in other["labels"]}
        assert pool == {f"toy/label:{label}" for label in found - labels[paper["id"]]}


@pytest.mark.long
def test_mining_again_changes_the_negatives_alone(data: PreparedData) -> None:
    before = data.manifest
    positives = [file.positives.values.tolist() for file in data.pairs("train")]
    tokens = next((data.folder / "tokens").rglob("tokens.bin"))
    inode = tokens.stat().st_ino

    mine_again(data.folder, MiningConfig(max_negatives=1, citations=[], queries=[]))
    after = PreparedData.open(data.folder)
    assert after.manifest.mining["max_negatives"] == 1
    assert after.fingerprint != data.fingerprint
    assert after.manifest.files["texts.arrow"] == before.files["texts.arrow"]
    assert [file.positives.values.tolist() for file in after.pairs("train")] == positives
    assert tokens.stat().st_ino == inode
    pools = {f.task: f.negatives.lengths for f in after.pairs("train")}
    assert pools["classification"].max() == 1
    assert pools["link_prediction"].max() == pools["search"].max() == 0
    for entry in after.manifest.pairs:
        if entry.part != "labels":
            assert (entry.with_negatives, entry.negatives) == (0, 0)
            assert entry.groups > 0

    mine_again(data.folder, MiningConfig())
    assert PreparedData.open(data.folder).fingerprint == data.fingerprint


@pytest.mark.long
def test_labels_of_another_label_space_are_no_candidates(root: Path, tmp_path: Path) -> None:
    write_jsonl(root / "papers2.jsonl", PAPERS)
    write_jsonl(root / "labels2.jsonl", [{"id": f"l{i}", "name": f"Other {i}"} for i in range(5)])
    other = {"name": "other", "papers": "papers2.jsonl", "labels": "labels2.jsonl"}
    sources = [raw_config(root).sources[0].model_dump(exclude_unset=True), other]
    data = build_dataset(raw_config(root, sources=sources), tmp_path / "out")[0]
    metadata = Metadata.open(data.folder, len(data.texts))
    toy, elsewhere = (data.texts.row(f"{name}:p0") for name in ("toy", "other"))
    assert metadata.authors[toy].tolist() == metadata.authors[elsewhere].tolist()
    for query, positives, pool in _groups(data, "classification"):
        space = query.split(":")[0]
        assert {label.split("/")[0] for label in positives | pool} == {space}


@pytest.mark.long
def test_rules_for_judged_links(root: Path, tmp_path: Path) -> None:
    judged = [("p0", "p7", 1), ("p0", "p8", 0), ("p0", "p9", 0), ("p1", "p9", 1)]
    write_tsv(root / "links.tsv", ("query-id", "paper-id", "score"), judged)
    tree = raw_config(root, dev_fraction=0).model_dump(exclude_unset=True)
    linked = {"name": "judged", "namespace": "toy", "links": "links.tsv"}
    config = validate(DatasetConfig, {**tree, "sources": [*tree["sources"], linked]})
    data = build_dataset(config, tmp_path / "out")[0]

    def pools() -> dict[str, set[str]]:
        opened = PreparedData.open(data.folder)
        (file,) = [file for file in opened.pairs("train") if file.source == "judged"]
        ids = opened.texts.ids
        return {
            ids[query]: {ids[row] for row in pool}
            for query, pool in zip(file.queries, file.negatives, strict=True)
        }

    assert pools() == {"toy:p0": {"toy:p8", "toy:p9"}, "toy:p1": set()}
    mine_again(data.folder, validate(MiningConfig, {"links": ["shown", "random"]}))
    known = {f"toy:{b}" for a, b in CITATIONS if a == "p1"} | {"toy:p9", "toy:p1"}
    mined = pools()
    assert {"toy:p8", "toy:p9"} < mined["toy:p0"]
    assert mined["toy:p1"] == {f"toy:{paper['id']}" for paper in PAPERS} - known
    with pytest.raises(ConfigError, match="cited_by_cited"):
        validate(MiningConfig, {"links": ["cited_by_cited"]})


RULES = {
    "citations": [
        {"rule": "cited_by_cited", "count": 1},
        {"rule": "co_cited", "count": 2},
        {"rule": "bm25", "ranks": [0, 6], "count": 3},
        {"rule": "dense", "model": "lengths", "ranks": [2, 9], "margin": -0.5},
        {"rule": "random", "count": 2},
        {"rule": "same_field", "count": 2, "field": "venue"},
        {"rule": "other_field", "count": 2},
    ],
    "labels": ["venue", {"rule": "random", "count": 2}, {"rule": "bm25"}],
    "sources": {"toy": {"queries": ["shown", {"rule": "random", "count": 3}]}},
    "neighbours": [
        {
            "source": "toy",
            "ranks": [2, 4],
            "negatives": [{"rule": "citation_band", "ranks": [6, 9]}, "random"],
        }
    ],
    "embedding": {"width": 4},
}


@pytest.mark.long
def test_any_mix_of_rules(data: PreparedData) -> None:
    chosen = validate(MiningConfig, RULES)
    mine_again(data.folder, chosen, lambda rule: _Lengths())
    mixed = PreparedData.open(data.folder)
    files = [*mixed.pairs("train"), *mixed.pairs("dev")]
    entries = {entry.file: entry for entry in mixed.manifest.pairs}
    assert {file.source for file in files} == {"toy", "toy-neighbours"}
    for file in files:
        known = known_positives([other for other in files if other.task == file.task])
        entry = entries[f"pairs/{file.name}.{file.split}.arrow"]
        assert entry.negatives == len(file.negatives.values)
        assert sum(entry.found.values()) >= entry.negatives
        for query, pool in zip(file.queries.tolist(), file.negatives, strict=True):
            assert not set(pool.tolist()) & {query, *known[query].tolist()}
            if file.task == "link_prediction":
                assert not any(query in known.get(row, ()) for row in pool.tolist())
            assert all(mixed.texts.kinds[row] == _kind(file.task) for row in pool)
    train = entries["pairs/toy.link_prediction.train.arrow"]
    names = "cited_by_cited co_cited bm25 dense random same_field other_field"
    assert list(train.found) == names.split()
    # Here every paper cites, or is cited by, all that are cited with its positives.
    assert [name for name, count in train.found.items() if not count] == ["co_cited"]
    assert list(entries["pairs/toy.search.train.arrow"].found) == ["shown", "random"]

    before = mixed.fingerprint
    mine_again(data.folder, chosen, lambda rule: _Lengths())
    assert PreparedData.open(data.folder).fingerprint == before
    mine_again(data.folder, MiningConfig())
    assert PreparedData.open(data.folder).fingerprint == data.fingerprint


@pytest.mark.long
def test_shares_go_into_pair_files_and_what_they_give_into_the_manifest(
    data: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    hard, easy = {"rule": "cited_by_cited", "count": 2}, {"rule": "random", "count": 3}
    prints = []
    for shares in (None, (2, 3), (1, 9)):
        rules = [hard, easy]
        if shares is not None:
            rules = [{**hard, "share": shares[0]}, {**easy, "share": shares[1]}]
        capsys.readouterr()
        mine_again(data.folder, validate(MiningConfig, {"citations": rules}))
        told = capsys.readouterr().err
        mined = PreparedData.open(data.folder)
        prints.append(mined.fingerprint)
        (file,) = (file for file in mined.pairs("train") if file.task == "link_prediction")
        entry = next(e for e in mined.manifest.pairs if e.file.endswith(f"{file.name}.train.arrow"))
        assert file.shares == (shares or ())
        assert entry.drawn == drawn_by_rule(file)
        assert set(entry.drawn) == {"cited_by_cited", "random"}
        asked = np.array(shares or (0, 0)) / max(sum(shares or ()), 1)
        off = np.abs(asked - list(entry.drawn.values())).max()
        assert ("shares of draws: cited_by_cited" in told) == (shares is not None and off > 0.02)
    assert len(set(prints)) == 3


@pytest.mark.long
def test_rules_with_shares_and_no_dev_pairs(tmp_path: Path) -> None:
    config = raw_config(write_raw(tmp_path / "raw"), dev_fraction=0)
    data = build_dataset(config, tmp_path / "out")[0]
    rules = {"citations": [{"rule": "cited_by_cited", "share": 2}, {"rule": "random", "share": 3}]}
    mine_again(data.folder, validate(MiningConfig, rules))
    mined = PreparedData.open(data.folder)
    shares = {
        split: [file.shares for file in mined.pairs(split) if file.task == "link_prediction"]
        for split in SPLITS
    }
    assert shares == {"train": [(2, 3)], "dev": [()]}


@pytest.mark.long
def test_a_dense_rule_without_dev_pairs(tmp_path: Path) -> None:
    config = raw_config(write_raw(tmp_path / "raw"), dev_fraction=0)
    data = build_dataset(config, tmp_path / "out")[0]
    rules = {"citations": [{"rule": "dense", "model": "lengths"}]}
    mine_again(data.folder, validate(MiningConfig, rules), lambda rule: _Lengths())
    mined = {
        entry.split: entry.negatives
        for entry in PreparedData.open(data.folder).manifest.pairs
        if entry.part == "citations"
    }
    assert mined["dev"] == 0 < mined["train"]


def _kind(task: str) -> str:
    return "label" if task == "classification" else "paper"


@pytest.mark.long
def test_neighbours_are_the_band_of_the_citation_embedding(tmp_path: Path) -> None:
    config = raw_config(write_raw(tmp_path / "raw"), dev_fraction=0)
    data, _ = build_dataset(config, tmp_path / "out")
    mine_again(data.folder, validate(MiningConfig, RULES), lambda rule: _Lengths())
    mixed = PreparedData.open(data.folder)
    cited, pairs = (
        next(file for file in mixed.pairs("train") if file.name == f"{name}.link_prediction")
        for name in ("toy", "toy-neighbours")
    )
    edges = np.stack([cited.queries, cited.positives.values], axis=1)
    papers, vectors = citation_embedding(edges, width=4, iterations=5, seed=0)
    component = citation_components(edges)
    assert len(np.unique(component)) > 1
    positives_of = dict(zip(pairs.queries.tolist(), pairs.positives, strict=True))
    for query in np.unique(cited.queries).tolist():
        own = int(np.searchsorted(papers, query))
        cosine = vectors @ vectors[own]
        cosine[own] = np.inf
        band = np.argsort(-cosine)[1:][2:4]
        band = band[component[band] == component[own]]
        # Papers with the same citations tie, so ranks are compared by score.
        found = np.searchsorted(papers, positives_of.get(query, []))
        np.testing.assert_allclose(np.sort(cosine[found]), np.sort(cosine[band]), atol=1e-5)
        assert (component[found] == component[own]).all()


def test_no_neighbour_of_a_training_query_is_a_dev_query(data: PreparedData) -> None:
    """It is a neighbour in both directions, and the other one is tested."""
    neighbours = {"source": "toy", "ranks": [0, 8], "negatives": ["random"]}
    mine_again(data.folder, validate(MiningConfig, {"neighbours": [neighbours]}))
    mixed = PreparedData.open(data.folder)
    train, dev = (next(f for f in mixed.pairs(s) if f.part == "neighbours") for s in SPLITS)
    assert len(train)
    assert len(dev)
    assert not np.isin(train.positives.values, mixed.held_out()).any()


@pytest.mark.long
def test_papers_that_cite_the_query_are_no_negatives(root: Path, tmp_path: Path) -> None:
    # p3 cites the query p2, and is cited by its positive p1.
    write_tsv(
        root / "citations.tsv", ("citing", "cited"), [("p2", "p1"), ("p1", "p3"), ("p3", "p2")]
    )
    data = build_dataset(raw_config(root, dev_fraction=0), tmp_path / "out")[0]
    rules: list[dict[str, object]] = [{"rule": "cited_by_cited"}, {"rule": "random"}]
    mine_again(data.folder, validate(MiningConfig, {"citations": rules}))
    groups = _groups(PreparedData.open(data.folder), "link_prediction")
    others = {f"toy:{paper['id']}" for paper in PAPERS} - {"toy:p1", "toy:p2", "toy:p3"}
    assert [pool for _, _, pool in groups] == [others] * 3
    free = [{**rule, "exclude_known": False} for rule in rules]
    mine_again(data.folder, validate(MiningConfig, {"citations": free}))
    groups = _groups(PreparedData.open(data.folder), "link_prediction")
    assert [pool - others for _, _, pool in groups] == [{"toy:p2"}, {"toy:p3"}, {"toy:p1"}]


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        ({"sources": {"tony": {}}}, UnknownNameError, "did you mean 'toy'"),
        ({"neighbours": [{"source": "tony"}]}, UnknownNameError, "did you mean 'toy'"),
        ({"neighbours": [{"source": "toy", "ranks": [50, 60]}]}, DataError, "choose lower ranks"),
        ({"citations": [{"rule": "dense", "model": "x"}]}, ConfigError, "needs open_encoder"),
    ],
)
def test_a_mining_that_cannot_work_leaves_the_folder_as_it_was(
    data: PreparedData, rules: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mine_again(data.folder, validate(MiningConfig, rules))
    assert PreparedData.open(data.folder).manifest == data.manifest
    assert [path.name for path in data.folder.parent.iterdir() if ".tmp" in path.name] == []


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"citations": [{"rule": "bm25", "rnks": [0, 9]}]}, "did you mean 'ranks'"),
        ({"citations": [{"rule": "bm25", "ranks": [9, 9]}]}, "is empty"),
        ({"labels": ["shown"]}, "labels.0"),
        ({"labels": ["cited", {"rule": "venue", "share": 1}]}, "but not cited; give all one"),
        ({"citations": [{"rule": "random", "share": 0}]}, "share"),
        ({"neighbours": [{"source": "a"}, {"source": "a"}]}, "name a source twice"),
    ],
)
def test_rules_that_contradict_themselves(rules: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(MiningConfig, rules)


def test_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a prepared folder"):
        mine_again(tmp_path, MiningConfig())
    assert list(tmp_path.iterdir()) == []


def test_neighbours_replace_no_other_source(root: Path, tmp_path: Path) -> None:
    """Both would be written to one file."""
    config = raw_config(root, mining={"neighbours": [{"source": "toy", "ranks": [2, 4]}]})
    other = config.sources[0].model_copy(update={"name": "toy-neighbours", "namespace": "toy"})
    config.sources.append(other)
    with pytest.raises(ConfigError, match=r"replace another source.*'toy-neighbours'"):
        build_dataset(config, tmp_path / "out")
