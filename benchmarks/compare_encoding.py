"""Encoding beside sentence-transformers and exported graphs: same weights and texts, in turns.

Shape legend: N texts, D width, B rows of a batch, L tokens of the longest row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
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
from scimult.products import zero_of_bytes
from scimult.types import FloatArray, Text, TokenIds

BATCHES = (32, 64, 128)
PACKAGES = {
    "onnxruntime": "pip install onnxruntime onnx onnxscript",
    "openvino": "pip install openvino",
    "sentence_transformers": "pip install sentence-transformers",
}
Encode = Callable[[list[str]], FloatArray]


@dataclass(frozen=True)
class EncodingBeside:
    """What a number of texts took.

    Attributes
    ----------
    texts, tokens : int
        The work, in tokens of ours, special ones included.
    seconds : dict
        Median of every way to encode.
    cosines : dict
        Smallest cosine of an embedding with ours in float32.
    faster : dict
        By the type of the computation: seconds of the best of the others over ours.
    load : tuple of float
        The machine's load average before and after.
    """

    texts: int
    tokens: int
    seconds: dict[str, float]
    cosines: dict[str, float]
    faster: dict[str, Ratio]
    load: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """Return all figures for a program."""
        return asdict(self)


def encoding_beside(
    model: Path, texts: Sequence[str], counts: Sequence[int], rounds: int, clock: Clock
) -> Iterator[EncodingBeside]:
    """Encode the first texts with a sentence-transformers folder's weights, each way in turn."""
    dtypes = ["float32"] + ["bfloat16"] * multiplies_bfloat16(torch.device("cpu"))
    own = dtypes + ["int8"] * (zero_of_bytes() is not None)
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            **{f"ours {dtype}": _ours(model, dtype) for dtype in own},
            **_sentence_transformers(model, dtypes),
            **_graphs(model, Path(folder)),
        }
        ours = SciMult.from_pretrained(model, device="cpu")
        for count in counts:
            yield _beside(ways, ours, own, list(texts[:count]), rounds, clock)


def missing_packages() -> list[str]:
    """Return how to install what is not there to compare with."""
    return [how for name, how in PACKAGES.items() if find_spec(name) is None]


def _beside(
    ways: dict[str, Encode],
    reference: SciMult,
    dtypes: Sequence[str],
    texts: list[str],
    rounds: int,
    clock: Clock,
) -> EncodingBeside:
    before, counted = load_average(), reference.tokens_encoded
    wanted_ND = _units(reference.encode(texts, task="search"))
    found = {name: _units(encode(texts)) for name, encode in ways.items()}
    cosines = {name: float((x_ND * wanted_ND).sum(1).min()) for name, x_ND in found.items()}
    works: dict[str, Work] = {name: partial(encode, texts) for name, encode in ways.items()}
    times = interleaved(works, rounds, torch.device("cpu"), clock)
    seconds = {name: median(taken) for name, taken in times.items()}
    faster = {}
    for dtype in dtypes:
        others = [name for name in ways if dtype in name and not name.startswith("ours")]
        if others:
            best = min(others, key=seconds.__getitem__)
            faster[f"{dtype}: {best}"] = ratio(times[best], times[f"ours {dtype}"])
    tokens = reference.tokens_encoded - counted
    return EncodingBeside(len(texts), tokens, seconds, cosines, faster, (before, load_average()))


def _units(x_ND: FloatArray) -> FloatArray:
    units_ND: FloatArray = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    return units_ND


def _ours(model: Path, dtype: str) -> Encode:
    encoder = SciMult.from_pretrained(model, device="cpu", dtype=dtype)
    return lambda texts: encoder.encode(texts, task="search")


def _sentence_transformers(model: Path, dtypes: Sequence[str]) -> dict[str, Encode]:
    if not find_spec("sentence_transformers"):
        return {}
    kind = import_module("sentence_transformers").SentenceTransformer
    ways: dict[str, Encode] = {}
    for dtype in dtypes:
        theirs = kind(str(model), device="cpu", model_kwargs={"dtype": dtype})
        # As far as ours: their folders may cut earlier.
        theirs.max_seq_length = load_pretrained(model).config.max_length
        for rows in BATCHES:
            ways[f"sentence-transformers {dtype}, {rows}"] = partial(
                theirs.encode, batch_size=rows, show_progress_bar=False
            )
    return ways


def _graphs(model: Path, folder: Path) -> dict[str, Encode]:
    """Return our ONNX export run by others' engines, texts sorted by length."""
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

    ways: dict[str, Encode] = {}
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    for name, file in (("float32", graph), ("int8", small)):
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        run = partial(_run_onnx, session)
        ways[f"ONNX Runtime {name}, 32"] = partial(_in_batches, tokenise, run, pretrained)
    if find_spec("openvino"):
        core = import_module("openvino").Core()
        for name, hint in (("float32", "f32"), ("bfloat16", "bf16")):
            settings = {
                "INFERENCE_PRECISION_HINT": hint,
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            }
            compiled = core.compile_model(core.read_model(graph), "CPU", settings)
            run = partial(_run_openvino, compiled)
            ways[f"OpenVINO {name}, 32"] = partial(_in_batches, tokenise, run, pretrained)
    return ways


def _run_onnx(session: Any, ids_BL: Any, mask_BL: Any) -> FloatArray:
    found: FloatArray = session.run(None, {"input_ids": ids_BL, "attention_mask": mask_BL})[0]
    return found


def _run_openvino(compiled: Any, ids_BL: Any, mask_BL: Any) -> FloatArray:
    found: FloatArray = compiled({"input_ids": ids_BL, "attention_mask": mask_BL})[0]
    return found


def _in_batches(
    tokenise: Callable[[list[str]], Sequence[TokenIds]],
    run: Callable[[Any, Any], FloatArray],
    pretrained: Any,
    texts: list[str],
) -> FloatArray:
    """Encode in padded batches of 32 texts of similar length."""
    rows = tokenise(texts)
    order = np.argsort([-len(row) for row in rows], kind="stable")
    found_ND = np.empty((len(rows), pretrained.config.encoder.width), np.float32)
    for start in range(0, len(rows), BATCHES[0]):
        chosen = order[start : start + BATCHES[0]]
        longest = len(rows[chosen[0]])
        ids_BL = np.full((len(chosen), longest), pretrained.tokenizer.pad_id, np.int64)
        mask_BL = np.zeros_like(ids_BL)
        for place, row in enumerate(chosen):
            ids_BL[place, : len(rows[row])] = rows[row]
            mask_BL[place, : len(rows[row])] = 1
        found_ND[chosen] = run(ids_BL, mask_BL)
    return found_ND
