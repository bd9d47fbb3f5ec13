"""Export one route of a model, pooling included, to ONNX.

Shape legend: B rows, L tokens, D width.
"""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from scimult.checkpoints.card import CARD_FILE, model_card, text_format, title_of
from scimult.checkpoints.fold import fold, named_pooling, plain_model
from scimult.checkpoints.pretrained import Pretrained
from scimult.checkpoints.reading import CONFIG_FILE
from scimult.checkpoints.weights import check_finite
from scimult.errors import CheckpointError, ConfigError
from scimult.files import atomic_folder, write_json, write_text
from scimult.types import FloatArray, Role

ONNX_FILE = "model.onnx"
TOLERANCE = 1e-4
_INPUTS = ("input_ids", "attention_mask")


class _Embedder(nn.Module):
    """A plain encoder with pooling and scaling, from padded token ids to embeddings."""

    def __init__(self, plain: PreTrainedModel, pooling: str, unit_vectors: bool) -> None:
        super().__init__()
        self.plain, self.pooling, self.unit_vectors = plain, pooling, unit_vectors

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings, shape ``(B, D)``."""
        pooled_BD = self._pooled(input_ids, attention_mask)
        return nn.functional.normalize(pooled_BD, dim=1) if self.unit_vectors else pooled_BD

    def _pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states_BLD: Tensor = self.plain(
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
        if self.pooling == "first":
            return states_BLD[:, 0]
        mask_BL1 = attention_mask[..., None].to(states_BLD.dtype)
        if self.pooling == "last":
            last_B11 = attention_mask.sum(1)[:, None, None] - 1
            return states_BLD.gather(1, last_B11.expand(-1, 1, states_BLD.shape[2]))[:, 0]
        return (states_BLD * mask_BL1).sum(1) / mask_BL1.sum(1)


def export_onnx(
    folder: Path | str, pretrained: Pretrained, task: str | None, side: Role | None = None
) -> float | None:
    """Write ``model.onnx``, the tokenizer and a card; batch and length are dynamic.

    The graph takes ``input_ids`` and ``attention_mask`` (int64, rows by tokens) and returns
    ``sentence_embedding`` (float32, rows by width). ``task`` and ``side`` choose the route
    (`fold.fold`).

    Returns
    -------
    float or None
        Largest difference between onnxruntime and PyTorch on batches of other sizes than the
        export's, relative to the largest entry if that is above 1; None without onnxruntime.

    Raises
    ------
    ConfigError
        If the extra ``onnx`` is not installed, or its packages do not fit each other.
    CheckpointError
        If the model cannot be folded, or the graph's embeddings differ.
    StorageError
        If the folder cannot be written.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        fix = "pip install 'scimult[onnx]'"
        raise ConfigError(f"export to ONNX needs {' and '.join(missing)}", fix=fix)
    config, weights = fold(pretrained, task, side)
    tokenizer = pretrained.tokenizer
    hf_config, hf_weights = plain_model(config, weights, tokenizer.pad_id)
    check_finite(hf_weights)
    plain_config = AutoConfig.for_model(**hf_config)
    plain = AutoModel.from_config(plain_config, attn_implementation="eager")
    plain.load_state_dict(hf_weights)
    embedder = _Embedder(plain, named_pooling(config.encoder), config.unit_vectors).eval()
    with atomic_folder(folder) as temporary:
        _write_graph(embedder, temporary / ONNX_FILE, config.encoder.vocab_size)
        difference = _compare(embedder, temporary / ONNX_FILE, config.max_length)
        if difference is not None and not difference <= TOLERANCE:
            raise CheckpointError(
                f"the graph's embeddings differ from PyTorch's by {difference:.1e}",
                path=folder,
                fix="try another version of torch or onnxscript; nothing was written",
            )
        write_json(temporary / CONFIG_FILE, hf_config)
        tokenizer.save_plain(temporary, config.max_length)
        card = model_card(
            config,
            weights,
            name=title_of(folder),
            library="onnx",
            usage=_usage(title_of(folder), tokenizer.separator, config.max_length),
            notes=text_format(tokenizer.separator, tokenizer.lowercase),
        )
        write_text(temporary / CARD_FILE, card)
    return difference


def _write_graph(embedder: _Embedder, path: Path, vocabulary: int) -> None:
    ids_BL, mask_BL = _example(3, 7, vocabulary)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                embedder,
                (ids_BL, mask_BL),
                str(path),
                input_names=list(_INPUTS),
                output_names=["sentence_embedding"],
                dynamic_shapes={name: {0: "rows", 1: "tokens"} for name in _INPUTS},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except OSError:
        raise
    # torch, onnxscript and onnx-ir have each errors of their own for versions that do not match.
    except Exception as error:
        problem = f"torch {torch.__version__} cannot write the graph ({type(error).__name__})"
        fix = "pip install --upgrade 'scimult[onnx]'"
        raise ConfigError(problem, fix=fix) from error
    finally:
        logger.setLevel(level)


def _compare(embedder: _Embedder, path: Path, max_length: int) -> float | None:
    """Return the largest difference of the graph from PyTorch, on batches of other sizes."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows, tokens in ((1, min(5, max_length)), (4, min(33, max_length))):
        ids_BL, mask_BL = _example(rows, tokens, embedder.plain.config.vocab_size)
        inputs = dict(zip(_INPUTS, (ids_BL.numpy(), mask_BL.numpy()), strict=True))
        vectors_BD: FloatArray = session.run(None, inputs)[0]
        with torch.no_grad():
            expected_BD = embedder(ids_BL, mask_BL).numpy()
        scale = max(1.0, float(np.abs(expected_BD).max()))
        # numpy's maximum, as Python's forgets a NaN.
        worst = float(np.maximum(worst, np.abs(vectors_BD - expected_BD).max() / scale))
    return worst


def _example(rows: int, tokens: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return seeded token ids and a mask in which every row but the first is padded."""
    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(0, vocabulary, (rows, tokens), generator=generator)
    mask_BL = torch.ones_like(ids_BL)
    for row in range(1, rows):
        mask_BL[row, max(1, tokens - row) :] = 0
    return ids_BL, mask_BL


def _usage(name: str, separator: str, max_length: int) -> str:
    return f"""\
```python
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("{name}/tokenizer.json")
tokenizer.enable_truncation({max_length})
tokenizer.enable_padding()
session = onnxruntime.InferenceSession("{name}/{ONNX_FILE}")
encoded = tokenizer.encode_batch(["Graph drawing{separator}We lay out large graphs."])
inputs = {{
    "input_ids": [text.ids for text in encoded],
    "attention_mask": [text.attention_mask for text in encoded],
}}
embeddings = session.run(None, inputs)[0]
```"""
