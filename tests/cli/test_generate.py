"""``scimult generate`` and ``scimult train-tokenizer`` from the command line."""

from __future__ import annotations

from pathlib import Path

from scimult.data.tokenization import TextTokenizer
from scimult.files import read_json
from tests.command import invoke


def _run(*arguments: object) -> tuple[int, str]:
    result = invoke(*arguments)
    return result.exit_code, result.output


def test_generate_then_train_a_tokenizer(tmp_path: Path) -> None:
    code, output = _run("generate", "--out", tmp_path / "world", "--papers", 300, "--seed", 5)
    assert code == 0, output
    assert "train/papers.jsonl" in output
    settings = read_json(tmp_path / "world" / "manifest.json")["settings"]
    assert (settings["papers"], settings["seed"]) == (300, 5)

    train = tmp_path / "world" / "train"
    texts = ("--texts", train / "papers.jsonl", "--texts", train / "labels.jsonl")
    code, output = _run("train-tokenizer", *texts, "--vocab-size", 900, "--out", tmp_path / "t")
    assert code == 0, output
    assert "900 tokens" in output
    assert TextTokenizer.from_folder(tmp_path / "t").vocab_size == 900


def test_invalid_options_are_one_line(tmp_path: Path) -> None:
    code, output = _run("generate", "--out", tmp_path / "world", "--papers", 3)
    assert code == 1
    assert "papers: Input should be greater than or equal to 300 (value: 3)" in output
    assert list(tmp_path.iterdir()) == []
    for option in (("--papers", 10), ("--papers", 10**12), ("--seed", -1)):
        code, output = _run("generate", "--out", tmp_path / "world", *option)
        assert code == 1
        assert output.count("\n") == 1
        assert "Fix: give 300 to 10,000,000 papers, and a seed of 0 or more" in output

    code, output = _run("generate", "--out", Path(__file__).parent)
    assert code == 1
    assert "is not a generated world" in output

    code, output = _run("train-tokenizer", "--texts", tmp_path, "--out", tmp_path / "t")
    assert code == 1
    assert "not a prepared folder" in output
