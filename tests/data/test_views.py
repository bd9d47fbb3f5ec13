"""Self-supervised views: content, determinism by (seed, epoch, row), batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.config import validate
from scimult.data.batches import Batch, BatchBuilder, all_known_positives
from scimult.data.pair_streams import FixedMicroBatches, PairStream, TokenMicroBatches
from scimult.data.pairs import PairFile
from scimult.data.prepared import PreparedData
from scimult.data.sampler import (
    AlternatingSampler,
    BalancedSampler,
    MixingSampler,
    PlannedPart,
)
from scimult.data.token_store import TokenStore
from scimult.data.views import VIEWS, view_pair
from scimult.errors import ConfigError, UnknownNameError
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.hygiene.config import SplitBy
from scimult.preparation.hygiene.splits import dev_mask
from scimult.types import IntArray, ViewName
from tests.prepared_folders import Metadata
from tests.raw_corpus import PAPERS, raw_config, write_jsonl, write_raw
from tests.tiny import tiny_tokenizer

CLS, SEP = 900, 901
NAMES = st.sampled_from(sorted(VIEWS))


def _stored(title: int, body: int) -> IntArray:
    """Return distinct tokens, so that a cut shows its origin."""
    words = np.arange(title + body)
    parts = [words[:title], words[title:]]
    return np.concatenate([[CLS], *(np.r_[part, SEP] for part in parts if len(part))])


def _is_span(part: list[int]) -> bool:
    return part == list(range(part[0], part[0] + len(part)))


@given(NAMES, st.integers(1, 30), st.integers(0, 80), st.tuples(*[st.integers(0, 2**31)] * 3))
def test_views_are_cut_as_defined(
    name: ViewName, title: int, body: int, place: tuple[int, int, int]
) -> None:
    stored, total = _stored(title, body), title + body
    seed, epoch, row = place
    views = view_pair(name, stored, seed=seed, epoch=epoch, row=row)
    again = view_pair(name, stored, seed=seed, epoch=epoch, row=row)
    for view, same in zip(views, again, strict=True):
        assert view.tolist() == same.tolist()
        assert view[0] == CLS
        assert view[-1] == SEP
        assert SEP not in view[1:-1]
        assert 2 < len(view) <= len(stored), "micro-batches are planned by the length of the text"
    query, candidate = (view[1:-1].tolist() for view in views)
    if name == "title_to_abstract":
        assert query == list(range(title))
        assert candidate == (list(range(title, total)) if body else query)
        return
    assert _is_span(query)
    assert min(10, total) <= len(query) <= max(10, total // 2)
    if name == "independent_crop":
        assert _is_span(candidate)
        assert min(10, total) <= len(candidate) <= max(10, total // 2)
    else:
        assert candidate in (sorted(set(range(total)) - set(query)), list(range(total)))


@pytest.mark.parametrize("name", ["independent_crop", "inverse_cloze"])
def test_cuts_change_with_seed_epoch_and_row(name: ViewName) -> None:
    stored = _stored(10, 190)
    cuts = {
        tuple(view_pair(name, stored, seed=seed, epoch=epoch, row=row)[0].tolist())
        for seed in range(5)
        for epoch in range(5)
        for row in range(5)
    }
    assert len(cuts) > 115  # of 125; there are about 10,000 spans


def test_the_query_stays_in_its_text_in_a_tenth_of_the_cases() -> None:
    stored = _stored(10, 90)
    kept = [
        len(view_pair("inverse_cloze", stored, seed=0, epoch=0, row=row)[1]) == 102
        for row in range(2000)
    ]
    assert abs(np.mean(kept) - 0.1) < 0.034  # five standard deviations


CHOSEN = {"source": "toy", "view": "independent_crop", "task": "link_prediction"}


def _prepared(folder: Path, **choice: object) -> PreparedData:
    config = raw_config(write_raw(folder / "raw"), self_supervision=[{**CHOSEN, **choice}])
    return build_dataset(config, folder / "out")[0]


@pytest.mark.long
@pytest.mark.parametrize("by", ["paper", "year"])
def test_texts_that_are_held_out_are_not_cut(tmp_path: Path, by: SplitBy) -> None:
    tree = raw_config(write_raw(tmp_path / "raw")).model_dump(mode="json", exclude_unset=True)
    tree["self_supervision"] = [{**CHOSEN, "min_words": 1}]
    tree["split"] = {"by": by, **({"dev_from_year": 2012} if by == "year" else {})}
    if by == "year":
        del tree["dev_fraction"]
    data = build_dataset(validate(DatasetConfig, tree), tmp_path / "out")[0]
    (file,) = [file for file in data.pairs("train") if file.view is not None]
    (kept,) = [file for file in data.pairs("dev") if file.view is not None]
    both = [*file.queries.tolist(), *kept.queries.tolist()]
    assert sorted(both) == sorted(data.papers("toy").tolist())
    dev = [file for file in data.pairs("dev") if len(file)]
    held_out = {row for file in dev for row in file.queries.tolist()}
    if by == "year":
        years = Metadata.open(data.folder, len(data.texts)).years
        held_out |= set(np.flatnonzero(years >= 2012).tolist())
    assert held_out
    assert not held_out & set(file.queries.tolist())
    assert set(data.held_out().tolist()) >= held_out


def test_papers_alone_are_pairs_by_their_titles(tmp_path: Path) -> None:
    """The dev split is the one that any other pairs of these papers would have."""
    root = write_raw(tmp_path / "raw")
    entry = {"source": "toy", "view": "title_to_abstract", "task": "search", "min_words": 3}
    tree = {"sources": [{"name": "toy", "papers": "papers.jsonl"}], "dev_fraction": 0.3}
    with pytest.raises(ConfigError, match=r"add self_supervision, such as \[\{source: toy"):
        validate(DatasetConfig, tree)
    config = validate(DatasetConfig, {"root": str(root), **tree, "self_supervision": [entry]})
    data = build_dataset(config, tmp_path / "out")[0]
    (train,), (dev,) = data.pairs("train"), data.pairs("dev")
    ids = {f"toy:{paper['id']}": bool(paper["abstract"]) for paper in PAPERS}
    in_dev = dict(zip(ids, dev_mask(ids, 0.3, 0), strict=True))
    for file, is_dev in (train, False), (dev, True):
        names = [name for name, has in ids.items() if has and in_dev[name] == is_dev]
        assert [data.texts.ids[row] for row in file.queries] == names
        assert file.positives.values.tolist() == file.queries.tolist()
        assert (file.view, file.task) == ("title_to_abstract", "search")
    short = {entry.split: entry.too_short for entry in data.manifest.pairs}
    assert short == {"train": 1, "dev": 0}
    assert [task.name for task in data.manifest.tasks] == ["search"]
    write_jsonl(root / "papers.jsonl", [{**paper, "abstract": ""} for paper in PAPERS])
    with pytest.raises(ConfigError, match="no paper has a title and an abstract.*another source"):
        build_dataset(config, tmp_path / "titles")


def test_a_view_is_listed_once(tmp_path: Path) -> None:
    """A second entry would overwrite the first one's file and count its pairs twice."""
    again = {**CHOSEN, "min_words": 3}
    with pytest.raises(ConfigError, match="toy independent_crop link_prediction more than once"):
        raw_config(write_raw(tmp_path / "raw"), self_supervision=[CHOSEN, again])


def test_a_view_has_no_source_of_its_name_beside_it(tmp_path: Path) -> None:
    """Both would be written to one file."""
    cited = {"namespace": "toy", "papers": "papers.jsonl", "citations": "citations.tsv"}
    sources = [{"name": name, **cited} for name in ("toy", "toy-independent_crop")]
    with pytest.raises(ConfigError, match="distinct names.*'toy-independent_crop', 'toy-ind"):
        raw_config(write_raw(tmp_path), sources=sources, self_supervision=[CHOSEN])


@pytest.mark.long
def test_a_self_supervised_source_in_batches(tmp_path: Path) -> None:
    data = _prepared(tmp_path, min_words=3)
    (file,) = [file for file in data.pairs("train") if file.view is not None]
    dev_queries = {int(row) for pairs in data.pairs("dev") for row in pairs.queries}
    papers = {data.texts.row(f"toy:{paper['id']}") for paper in PAPERS}
    assert set(file.queries.tolist()) == papers - dev_queries
    assert file.positives.values.tolist() == file.queries.tolist()
    assert not len(file.negatives.values)

    tokens = data.tokens(tiny_tokenizer())
    count = len(file)
    sampler = AlternatingSampler(
        [FixedMicroBatches(PairStream(file, 3), count)], np.ones(1), micro_batches=2, seed=3
    )
    texts = []
    for epoch in range(2):
        (batch,) = _builder(data, file, tokens).micro_batch(sampler.plan(epoch), 0).parts
        assert sorted(batch.query_ids_B.tolist()) == sorted(file.queries.tolist())
        _check_views(batch, tokens, epoch)
        texts.append({row.tobytes() for row in batch.rows})
    assert texts[0] != texts[1]


def _builder(data: PreparedData, file: PairFile, tokens: TokenStore) -> BatchBuilder:
    return BatchBuilder([file], tokens, all_known_positives(data), max_length=32, seed=7)


def _check_views(batch: Batch, tokens: TokenStore, epoch: int) -> None:
    """Check that both sides of every pair are this epoch's views, cut to 32 tokens."""
    for i, row in enumerate(batch.query_ids_B.tolist()):
        whole = tokens.tokens(row, 512)
        views = view_pair("independent_crop", whole, seed=7, epoch=epoch, row=row)
        found = batch.rows[batch.query_B[i]], batch.rows[batch.candidate_C[i]]
        for view, part in zip(views, found, strict=True):
            assert part[:-1].tolist() == view[: min(len(view), 32) - 1].tolist()
            assert part[-1] == view[-1]


@pytest.mark.long
def test_views_in_micro_batches_by_tokens_and_in_mixed_ones(tmp_path: Path) -> None:
    data = _prepared(tmp_path, min_words=3)
    (file,) = [file for file in data.pairs("train") if file.view is not None]
    tokens = data.tokens(tiny_tokenizer())
    builder, stream = _builder(data, file, tokens), PairStream(file, 3)
    lengths = np.minimum(tokens.lengths_N, 32).astype(np.int64)
    by_tokens = TokenMicroBatches(stream, lengths, max_tokens=100, ranks=2, pool=2)
    per_epoch = int(by_tokens.micro_batches_per_epoch)
    assert per_epoch > 1
    whole = MixingSampler([stream], np.ones(1), rows=3, micro_batches=len(file))
    mixed = BalancedSampler(whole, lengths, ranks=2)
    for rank in range(2):
        for number in range(2 * per_epoch):
            micro_batch = builder.micro_batch([PlannedPart(0, by_tokens.micro_batch(number))], rank)
            assert sum(part.num_tokens for part in micro_batch.parts) <= 100
            _check_views(micro_batch.parts[0], tokens, epoch=int(number >= per_epoch))
        for number in range(len(file) // 3):
            _check_views(builder.micro_batch(mixed.plan(number), rank).parts[0], tokens, epoch=0)


def test_choices_that_cannot_work(tmp_path: Path) -> None:
    for number, (choice, error, message) in enumerate(
        [
            ({"source": "tony"}, UnknownNameError, "source in self_supervision"),
            ({"task": "classification"}, ConfigError, "views need a task that finds papers"),
            ({"min_words": 500}, ConfigError, "no paper has min_words 500 words"),
        ]
    ):
        with pytest.raises(error, match=message):
            _prepared(tmp_path / str(number), **choice)
