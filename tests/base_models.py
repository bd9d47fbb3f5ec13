"""Small random Hugging Face models with tokenizers trained here: one folder per family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from tokenizers import ByteLevelBPETokenizer, processors
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tests.tiny import tiny_tokenizer

FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert")
SPECIAL = {
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "modernbert": ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"],
}
SENTENCES = [
    f"Graph attention networks classify paper {i}; naïve labels of Übersicht {i * 7} cite none."
    for i in range(100)
]
# Rows reach 64 tokens. ModernBERT's window of 8 tokens on each side is masked within a row up
# to 32 tokens and computed in chunks beyond.
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"max_position_embeddings": 64},
    "roberta": {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "modernbert": {
        "max_position_embeddings": 64,
        "local_attention": 16,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
}


def save_base_model(folder: Path, family: str, *, seed: int = 0, **options: object) -> Path:
    """Save a random four-block model of ``family`` with its tokenizer, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(folder, family)
    hf_model(family, seed, **options).save_pretrained(folder)
    return folder


def hf_model(family: str, seed: int = 0, **options: object) -> PreTrainedModel:
    """Return a transformers model with all weights random, norms and biases too."""
    sizes: dict[str, Any] = {
        "vocab_size": 400,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    if family != "modernbert":
        sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = AutoConfig.for_model(family, **(sizes | SIZES[family] | options))
    model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        weight.data.normal_(0, 0.2, generator=generator)
        if weight.dim() == 1 and name.endswith("weight"):
            weight.data += 1
    return model.eval()


def save_tokenizer(folder: Path, family: str) -> None:
    """Train a tokenizer of the family's kind and save the files that such checkpoints ship."""
    if family == "bert":
        tiny_tokenizer().save(folder)
    elif family == "xlm-roberta":
        save_sentencepiece(folder)
    else:
        backend = ByteLevelBPETokenizer()
        backend.train_from_iterator(SENTENCES, 400, special_tokens=SPECIAL[family])
        if family == "roberta":
            backend.save_model(str(folder))
        else:
            save_byte_level(folder, backend)


def save_byte_level(folder: Path, backend: ByteLevelBPETokenizer) -> None:
    """Save ``tokenizer.json`` like ModernBERT's: byte-level BPE with BERT's special tokens."""
    names = ("unk", "pad", "cls", "sep", "mask")
    tokens = dict(zip(names, SPECIAL["modernbert"], strict=True))
    backend._tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer,
        **{f"{name}_token": token for name, token in tokens.items()},
    ).save_pretrained(str(folder))


def save_sentencepiece(folder: Path) -> None:
    """Save only ``sentencepiece.bpe.model``, as in old XLM-R checkpoints."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=100,
        model_type="unigram",
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.vocab").unlink()


def change_config(folder: Path, **changes: object) -> Path:
    """Set keys of ``config.json``; ``None`` removes one. Return the folder."""
    file = folder / "config.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder
