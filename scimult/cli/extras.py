"""Packages that only some verbs need, and our extras that install them."""

from __future__ import annotations

from scimult.errors import ConfigError

# Import name to the extras that install it; the first unless the verb's own is among them.
EXTRAS_OF = {
    "Stemmer": ("eval",),
    "accelerate": ("train",),
    "datasets": ("train", "eval"),
    "deepspeed": ("train",),
    "fastapi": ("serve",),
    "jinja2": ("eval",),
    "joblib": ("eval",),
    "matplotlib": ("train", "eval"),
    "mcp": ("mcp",),
    "mteb": ("mteb",),
    "onnx": ("onnx",),
    "onnxruntime": ("onnx",),
    "onnxscript": ("onnx",),
    "peft": ("encoders",),
    "prometheus_client": ("serve",),
    "py3langid": ("train",),
    "pyspark": ("spark",),
    "python_multipart": ("serve",),
    "qdrant_client": ("qdrant",),
    "ray": ("ray",),
    "rdflib": ("tagging",),
    "rensa": ("train", "eval"),
    "scipy": ("train", "eval", "tagging"),
    "sentence_transformers": ("encoders",),
    "sentencepiece": ("train",),
    "sklearn": ("train", "eval", "tagging"),
    "sqlglot": ("spark",),
    "tensorboard": ("train",),
    "umap": ("umap",),
    "uvicorn": ("serve",),
}
# match-reviewers needs scipy alone, and tagging is the smallest extra that has it.
_EXTRA_OF_VERB = {
    "compare": "eval",
    "correlate": "eval",
    "cross-routes": "eval",
    "evaluate": "eval",
    "export-results": "eval",
    "match-reviewers": "tagging",
    "mcp": "tagging",
    "merge": "eval",
    "report": "eval",
    "serve": "tagging",
    "tagger": "tagging",
}


def not_installed(error: ImportError, verb: str | None) -> ConfigError | None:
    """Return the error for a missing package of an extra; None for any other package.

    ``verb`` is the one that needs it: of several extras with the package, its own is named.
    """
    name = (error.name or "").partition(".")[0]
    if name not in EXTRAS_OF:
        return None
    extras = EXTRAS_OF[name]
    own = _EXTRA_OF_VERB.get(verb or "")
    extra = own if own in extras else extras[0]
    fix = f"pip install 'scimult[{extra}]' (in a checkout '.[{extra}]')"
    return ConfigError(f"{name} is not installed", fix=fix)
