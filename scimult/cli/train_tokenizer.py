"""``scimult train-tokenizer``: train your own WordPiece vocabulary."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from scimult.cli import options as opt
from scimult.cli.checks import check_distinct
from scimult.cli.output import echo
from scimult.errors import DataError
from scimult.files import check_replaceable

# The trainer allocates room for as many before it sees a text.
_MOST = 10_000_000


def train_tokenizer(
    texts: Annotated[
        list[Path],
        typer.Option(
            help="Folder with the prepared data, or JSON lines with titles, abstracts, names, "
            "definitions or texts (repeatable).",
            show_default=False,
        ),
    ],
    out: opt.NewFolder,
    vocab_size: Annotated[int, typer.Option(min=1, max=_MOST, help="Number of tokens.")] = 30000,
) -> None:
    """Train an uncased WordPiece tokenizer that Hugging Face's AutoTokenizer can load."""
    for path in texts:
        if not path.exists():
            raise DataError("texts do not exist", path=path, fix="check the path")
    check_distinct(texts)
    from scimult.preparation.vocabulary import (
        TOKENIZER,
        read_texts,
        save_tokenizer,
        train_wordpiece,
    )
    from scimult.unfinished import unfinished

    check_replaceable(out, TOKENIZER)
    with unfinished(out):
        tokenizer = train_wordpiece(chain.from_iterable(map(read_texts, texts)), vocab_size)
        save_tokenizer(tokenizer, out)
    echo(f"{tokenizer.get_vocab_size():,} tokens saved in {out}")
