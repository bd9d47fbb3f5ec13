"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/SPLIT.tsv``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from scimult.data.judgments import read_judgments
from scimult.data.lines import read_jsonl
from scimult.data.rows import read_rows
from scimult.downloads import Archive, Remote, address
from scimult.errors import ConfigError
from scimult.preparation.config import Name
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion, named_files
from scimult.preparation.sources.raw import RawSource

# From the table in BEIR's README, which gives only MD5.
ADDRESS = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"
MD5 = {
    "trec-covid": "ce62140cb23feb9becf6270d0d1fe6d1",
    "nfcorpus": "a89dba18a62ef92f7d323ec890a0d38d",
    "scidocs": "38121350fc3a4d2f48850f6aff52e4a9",
    "scifact": "5f7d1de60b170fc8027bb7898e2efca1",
    "arguana": "8ad3e3c2a5867cdced806d6503f29b99",
    "webis-touche2020": "46f650ba5a527fc69e0a6521c5a23563",
    "nq": "d4d3d2e48787a744b6f6e691ff534307",
    "hotpotqa": "f412724f78b0d91183a0e86805e16114",
    "fiqa": "17918ed23cd04fb15047f73e6c3bd9d9",
    "fever": "5a818580227bfb4b35bb6fa46d9b6c03",
    "climate-fever": "8b66f0a9126c521bae2bde127b4dc99d",
}


class BeirOptions(SourceOptions):
    """Options of ``scimult prepare beir``.

    Parameters
    ----------
    name : str
        Name of the source; with ``--download`` the name of a BEIR set, such as ``scifact``.
    splits : list of str
        Which ``qrels/SPLIT.tsv`` to take.
    score_threshold : float
        Documents with at least this score are positives; other judged documents become hard
        negatives.
    """

    name: Name = "beir"
    splits: Annotated[list[str], Field(min_length=1)] = ["train"]
    score_threshold: Annotated[float, Field(gt=0)] = 1


def _convert(conversion: Conversion, options: BeirOptions) -> None:
    qrels = [_qrels(conversion, split) for split in options.splits]
    queries, corpus = conversion.file("queries.jsonl"), conversion.file("corpus.jsonl")

    def fill(raw: RawSource) -> None:
        raw.write("queries", read_rows(queries, raw.rejects), "_id")
        raw.write("papers", read_jsonl(corpus, raw.rejects), "_id", "text")
        for path in qrels:
            raw.write("judgments", read_judgments(path, raw.rejects))

    reads, threshold = [*qrels, queries, corpus], options.score_threshold
    conversion.write(options.name, reads, fill, ["judgments"], score_threshold=threshold)


def _qrels(conversion: Conversion, split: str) -> Path:
    """Return the judgment file of a split; if it is missing, name those that exist."""
    name = f"qrels/{split}.tsv"
    file = conversion.optional_file(name)
    if file is not None:
        return file
    splits = [path.name.partition(".tsv")[0] for path in named_files(conversion.source, "qrels")]
    fix = f"choose existing splits: splits=[{', '.join(splits)}]" if splits else ""
    return conversion.file(name, fix)


def _files(options: BeirOptions) -> list[Remote]:
    """Return the archive of the BEIR set ``name``."""
    if options.name not in MD5:
        fix = f"pass name=SET, one of {', '.join(MD5)}"
        raise ConfigError("not a BEIR set to download", value=f"name={options.name}", fix=fix)
    wanted = ("corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in options.splits))
    archive = f"{options.name}.zip"
    md5 = MD5[options.name]
    return [Archive(archive, address(ADDRESS, archive), md5=md5, wanted=wanted, strip=1)]


BEIR = PublicSource(
    name="beir",
    title="any data set in BEIR's layout, such as SciFact, NFCorpus, TREC-COVID",
    url="https://github.com/beir-cellar/beir",
    licence="of each data set",
    files=("corpus.jsonl", "queries.jsonl", "qrels/SPLIT.tsv"),
    options=BeirOptions,
    convert=_convert,
    download=_files,
)
