"""Packages that only some verbs need, and our extras that install them."""

from __future__ import annotations

from scimult.errors import ConfigError

# Import name to extra; where several extras have the package, the one that most verbs need.
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
    """Return the error for a missing package of an extra; None for any other package.

    ``verb`` is the one that needs it: evaluation verbs name the extra ``eval``, verbs that use
    taggers ``tagging``.
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
