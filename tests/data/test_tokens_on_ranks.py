"""One rank builds the token store, the others wait; a failure there is an error everywhere."""

from __future__ import annotations

from pathlib import Path

from scimult.data.prepared import PreparedData
from scimult.data.tokenization import TextTokenizer
from scimult.errors import DataError
from scimult.mining.dataset import build_dataset
from tests.ranks import run_ranks
from tests.raw_corpus import raw_config, write_raw


def _open_tokens(folder: Path, model: Path) -> str:
    tokenizer = TextTokenizer.from_folder(model)
    try:
        store = PreparedData.open(folder).tokens(tokenizer)
    except DataError as error:
        return str(error)
    return f"{len(store)} texts"


def test_two_ranks_share_one_token_store(tmp_path: Path, minilm: Path) -> None:
    folder = tmp_path / "out"
    data = build_dataset(raw_config(write_raw(tmp_path / "raw")), folder)[0]
    results = run_ranks(_open_tokens, 2, tmp_path, folder, minilm)
    assert results == [f"{len(data.texts)} texts"] * 2
    (store,) = (folder / "tokens").iterdir()

    (store / "meta.json").write_text("{")
    first, second = run_ranks(_open_tokens, 2, tmp_path, folder, minilm)
    assert first == second
    assert "meta.json: not a valid JSON file" in first
