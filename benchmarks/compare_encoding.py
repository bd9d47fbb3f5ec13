"""Encoding against sentence-transformers and exported graphs: same weights and texts, in turns.

Shape legend: N texts, D width, B rows of a batch, L tokens of the longest row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Clock, Ratio, Work, interleaved, load_average, ratio
from scimult.checkpoints import load_pretrained
from scimult.checkpoints.onnx_export import ONNX_FILE, export_onnx
from scimult.hardware import multiplies_bfloat16
from scimult.inference import SciMult
from scimult.products import largest_weight
from scimult.types import FloatArray, Text, TokenIds

BATCHES = (32, 64, 128)
PACKAGES = {
    "onnxruntime": "pip install onnxruntime onnx onnxscript",
    "openvino": "pip install openvino",
    "sentence_transformers": "pip install sentence-transformers",
}
Encode = Callable[[list[str]], FloatArray]


@dataclass(frozen=True)
class EncodingComparison:
    """Times of all encoders for a number of texts.

    Attributes
    ----------
    texts, tokens : int
        Texts and our tokens of them, special ones included.
    seconds : dict
        Median seconds by encoder.
    cosines : dict
        Smallest cosine of an embedding with ours in float32, by encoder.
    faster : dict
        By compute type: seconds of the best other encoder over ours.
    load : tuple of float
        The machine's load average before and after.
    """

    texts: int
    tokens: int
    seconds: dict[str, float]
    cosines: dict[str, float]
    faster: dict[str, Ratio]
    load: tuple[float, float]


def encoding_comparisons(
    model: Path, texts: Sequence[str], counts: Sequence[int], rounds: int, clock: Clock
) -> Iterator[EncodingComparison]:
    """Encode the first texts with a sentence-transformers folder's weights, encoders in turn."""
    dtypes = ["float32"] + ["bfloat16"] * multiplies_bfloat16(torch.device("cpu"))
    our_dtypes = dtypes + ["int8"] * (largest_weight() is not None)
    with tempfile.TemporaryDirectory() as folder:
        encoders = {
            **{f"ours {dtype}": _ours(model, dtype) for dtype in our_dtypes},
            **_sentence_transformers(model, dtypes),
            **_graphs(model, Path(folder)),
        }
        ours = SciMult.from_pretrained(model, device="cpu")
        for count in counts:
            yield _compare(encoders, ours, our_dtypes, list(texts[:count]), rounds, clock)


def missing_packages() -> list[str]:
    """Return the commands that install missing packages to compare with."""
    return [command for name, command in PACKAGES.items() if find_spec(name) is None]


def _compare(
    encoders: dict[str, Encode],
    reference: SciMult,
    dtypes: Sequence[str],
    texts: list[str],
    rounds: int,
    clock: Clock,
) -> EncodingComparison:
    before, tokens_before = load_average(), reference.tokens_encoded
    expected_ND = _units(reference.encode(texts, task="search"))
    units = {name: _units(encode(texts)) for name, encode in encoders.items()}
    cosines = {name: float((x_ND * expected_ND).sum(1).min()) for name, x_ND in units.items()}
    works: dict[str, Work] = {name: partial(encode, texts) for name, encode in encoders.items()}
    times = interleaved(works, rounds, torch.device("cpu"), clock)
    seconds = {name: median(values) for name, values in times.items()}
    faster = {}
    for dtype in dtypes:
        others = [name for name in encoders if dtype in name and not name.startswith("ours")]
        if others:
            best = min(others, key=seconds.__getitem__)
            faster[f"{dtype}: {best}"] = ratio(times[best], times[f"ours {dtype}"])
    tokens = reference.tokens_encoded - tokens_before
    return EncodingComparison(
        len(texts), tokens, seconds, cosines, faster, (before, load_average())
    )


def _units(x_ND: FloatArray) -> FloatArray:
    units_ND: FloatArray = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    return units_ND


def _ours(model: Path, dtype: str) -> Encode:
    encoder = SciMult.from_pretrained(model, device="cpu", dtype=dtype)
    return lambda texts: encoder.encode(texts, task="search")


def _sentence_transformers(model: Path, dtypes: Sequence[str]) -> dict[str, Encode]:
    if not find_spec("sentence_transformers"):
        return {}
    cls = import_module("sentence_transformers").SentenceTransformer
    encoders: dict[str, Encode] = {}
    for dtype in dtypes:
        theirs = cls(str(model), device="cpu", model_kwargs={"dtype": dtype})
        # The same length as ours, as their folders may truncate earlier.
        theirs.max_seq_length = load_pretrained(model).config.max_length
        for rows in BATCHES:
            encoders[f"sentence-transformers {dtype}, {rows}"] = partial(
                theirs.encode, batch_size=rows, show_progress_bar=False
            )
    return encoders


def _graphs(model: Path, folder: Path) -> dict[str, Encode]:
    """Return our ONNX export under third-party runtimes, with texts sorted by length."""
    needed = ("onnx", "onnxscript", "onnxruntime")
    if any(find_spec(name) is None for name in needed):
        return {}
    pretrained = load_pretrained(model)
    export_onnx(folder / "onnx", pretrained, None)
    graph, small = folder / "onnx" / ONNX_FILE, folder / "int8.onnx"
    quantisation = import_module("onnxruntime.quantization")
    quantisation.quantize_dynamic(
        graph, small, weight_type=quantisation.QuantType.QInt8, per_channel=True
    )

    def tokenise(texts: list[str]) -> Sequence[TokenIds]:
        rows = [Text("query", text) for text in texts]
        return pretrained.tokenizer.encode(rows, pretrained.config.max_length)

    encoders: dict[str, Encode] = {}
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    for name, file in (("float32", graph), ("int8", small)):
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        run = partial(_run_onnx, session)
        encoders[f"ONNX Runtime {name}, 32"] = partial(_in_batches, tokenise, run, pretrained)
    if find_spec("openvino"):
        core = import_module("openvino").Core()
        for name, hint in (("float32", "f32"), ("bfloat16", "bf16")):
            settings = {
                "INFERENCE_PRECISION_HINT": hint,
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            }
            compiled = core.compile_model(core.read_model(graph), "CPU", settings)
            run = partial(_run_openvino, compiled)
            encoders[f"OpenVINO {name}, 32"] = partial(_in_batches, tokenise, run, pretrained)
    return encoders


def _run_onnx(session: Any, ids_BL: Any, mask_BL: Any) -> Any:
    return session.run(None, {"input_ids": ids_BL, "attention_mask": mask_BL})[0]


def _run_openvino(compiled: Any, ids_BL: Any, mask_BL: Any) -> Any:
    return compiled({"input_ids": ids_BL, "attention_mask": mask_BL})[0]


def _in_batches(
    tokenise: Callable[[list[str]], Sequence[TokenIds]],
    run: Callable[[Any, Any], FloatArray],
    pretrained: Any,
    texts: list[str],
) -> FloatArray:
    """Encode in padded batches of 32 texts of similar length."""
    rows = tokenise(texts)
    order = np.argsort([-len(row) for row in rows], kind="stable")
    vectors_ND = np.empty((len(rows), pretrained.config.encoder.width), np.float32)
    for start in range(0, len(rows), BATCHES[0]):
        batch = order[start : start + BATCHES[0]]
        longest = len(rows[batch[0]])
        ids_BL = np.full((len(batch), longest), pretrained.tokenizer.pad_id, np.int64)
        mask_BL = np.zeros_like(ids_BL)
        for index, row in enumerate(batch):
            ids_BL[index, : len(rows[row])] = rows[row]
            mask_BL[index, : len(rows[row])] = 1
        vectors_ND[batch] = run(ids_BL, mask_BL)
    return vectors_ND
