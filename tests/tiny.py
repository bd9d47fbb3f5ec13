"""Tiny random models as saved folders, for tests."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, digits

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from scimult.checkpoints import PretrainedConfig, save_pretrained
from scimult.data.tokenization import TextTokenizer
from scimult.models import Encoder, EncoderConfig, variant_layouts
from scimult.models.config import Pooling
from scimult.tasks import Routing, default_tasks, route_names
from scimult.types import Similarity

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_tokenizer() -> TextTokenizer:
    """Return an uncased WordPiece tokenizer that spells words letter by letter."""
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    tokens = {f"{name}_token": token for name, token in names.items()}
    return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tiny_backend(), **tokens))


def tiny_backend() -> Tokenizer:
    """Return the same tokenizer as an object of the library tokenizers."""
    letters = [*ascii_lowercase, *digits, ".", ",", "-"]
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = BertNormalizer(lowercase=True)
    backend.pre_tokenizer = BertPreTokenizer()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return backend


def save_tiny_model(
    folder: Path,
    *,
    variant: str = "mha_expert",
    pooling: Pooling = "cls",
    similarity: Similarity = "dot",
    seed: int = 0,
    num_blocks: int = 2,
    routing: Routing = "task",
) -> Path:
    """Save a random encoder with distinct experts, and return its folder."""
    tokenizer, tasks = tiny_tokenizer(), default_tasks()
    layouts = variant_layouts(variant, {}, len(route_names(tasks, routing)), num_blocks)
    encoder = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_blocks=num_blocks,
        num_heads=2,
        intermediate_size=32,
        max_positions=64,
        initializer_range=0.5,
        **({"pooling": pooling} | layouts),
    )
    model = Encoder(encoder)
    model.initialise(seed)
    config = PretrainedConfig(
        encoder=encoder,
        tasks=list(tasks),
        similarity=similarity,
        max_length=encoder.max_text_length,
        routing=routing,
    )
    save_pretrained(folder, model.state_dict(), tokenizer, config)
    return folder


def save_cross_encoder(folder: Path, labels: int = 1) -> Path:
    """Save a random cross-encoder BERT for sentence-transformers."""
    torch.manual_seed(5)
    tokenizer = tiny_tokenizer()
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
        initializer_range=0.5,
    )
    config.num_labels = labels
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def save_static_embeddings(folder: Path, width: int = 8) -> Path:
    """Save a sentence-transformers static embedding: random token vectors, averaged."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(6)
    module = StaticEmbedding(tiny_backend(), embedding_dim=width)
    SentenceTransformer(modules=[module], device="cpu").save(str(folder))
    return folder
