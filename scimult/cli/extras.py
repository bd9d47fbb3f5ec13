"""Packages that only some verbs need, and the extras of ours that install them."""

from __future__ import annotations

from scimult.errors import ConfigError

# Names to import, and the extra that brings the package; where several do, the one for most verbs.
EXTRA_OF = {
    "Stemmer": "eval",
    "accelerate": "train",
    "datasets": "train",
    "deepspeed": "train",
    "fastapi": "serve",
    "jinja2": "eval",
    "joblib": "eval",
    "matplotlib": "train",
    "mcp": "mcp",
    "mteb": "mteb",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "peft": "encoders",
    "prometheus_client": "serve",
    "py3langid": "train",
    "pyspark": "spark",
    "python_multipart": "serve",
    "qdrant_client": "qdrant",
    "ray": "ray",
    "rdflib": "tagging",
    "rensa": "train",
    "scipy": "train",
    "sentence_transformers": "encoders",
    "sentencepiece": "train",
    "sklearn": "train",
    "sqlglot": "spark",
    "tensorboard": "train",
    "umap": "umap",
    "uvicorn": "serve",
}


def not_installed(error: ImportError, verb: str | None) -> ConfigError | None:
    """Return what to say of a package that an extra brings; None for any other.

    ``verb`` is the one that asked for it: for those of evaluation the extra is ``eval``, for those
    that use taggers ``tagging``.
    """
    name = (error.name or "").partition(".")[0]
    if name not in EXTRA_OF:
        return None
    extra = EXTRA_OF[name]
    if extra == "train" and verb in ("compare", "correlate", "evaluate", "report"):
        extra = "eval"
    if extra == "train" and verb in ("tagger", "serve", "mcp"):
        extra = "tagging"
    fix = f"pip install 'scimult[{extra}]' (in a checkout '.[{extra}]')"
    return ConfigError(f"{name} is not installed", fix=fix)
