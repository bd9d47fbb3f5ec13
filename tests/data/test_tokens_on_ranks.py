"""One rank builds the token store while the others wait; its failure is an error on all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult import distributed
from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import DataError
from scimult.preparation.dataset import build_dataset
from tests.ranks import run_ranks
from tests.raw_corpus import raw_config, write_raw

pytestmark = pytest.mark.ranks


def _open_twice(folder: Path, model: Path) -> tuple[int, str]:
    """Return the number of texts, and the error from a damaged store."""
    tokenizer = TextTokenizer.from_folder(model)
    data = PreparedData.open(folder)
    count = len(data.tokens(tokenizer))
    distributed.barrier()
    if distributed.is_main():
        (store,) = (folder / "tokens").iterdir()
        (store / "meta.json").write_text("{")
    distributed.barrier()
    try:
        data.tokens(tokenizer)
    except DataError as error:
        return count, str(error)
    return count, "no error"


def test_two_ranks_share_one_token_store_and_its_failure(tmp_path: Path, minilm: Path) -> None:
    folder = tmp_path / "out"
    data = build_dataset(raw_config(write_raw(tmp_path / "raw")), folder)[0]
    first, second = run_ranks(_open_twice, 2, tmp_path, folder, minilm)
    assert first == second
    assert first[0] == len(data.texts)
    assert "meta.json: not a valid JSON file" in first[1]
