"""``scimult train-tokenizer``: a WordPiece vocabulary of one's own."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer


def train_tokenizer(
    texts: Annotated[
        list[Path],
        typer.Option(
            help="Prepared folder, or JSON lines file with titles, abstracts, names, definitions "
            "or texts; may be given several times.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Tokenizer folder to write.", show_default=False)],
    vocab_size: Annotated[int, typer.Option(help="Number of tokens.")] = 30000,
) -> None:
    """Train an uncased WordPiece tokenizer that Hugging Face's AutoTokenizer can load."""
    from scimult.data.vocabulary import read_texts, save_tokenizer, train_wordpiece

    tokenizer = train_wordpiece(chain.from_iterable(map(read_texts, texts)), vocab_size)
    save_tokenizer(tokenizer, out)
    typer.echo(f"{tokenizer.get_vocab_size():,} tokens saved in {out}")
