"""Converters from public data sets and layouts to raw files for ``scimult prepare``.

One module per source. ``base`` defines a source, ``conversion`` what it reads, and ``raw`` writes
raw files.
"""

from scimult.preparation.sources.base import PublicSource, SourceOptions, convert
from scimult.preparation.sources.beir import BEIR
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.dpr import DPR
from scimult.preparation.sources.inpars import INPARS
from scimult.preparation.sources.maple import MAPLE
from scimult.preparation.sources.msmarco import MSMARCO
from scimult.preparation.sources.multi_objective_contexts import MULTI_OBJECTIVE_CONTEXTS
from scimult.preparation.sources.pmc_patients import PMC_PATIENTS
from scimult.preparation.sources.recommendation import RECOMMENDATION
from scimult.preparation.sources.scidocs import SCIDOCS
from scimult.preparation.sources.scirepeval import SCIREPEVAL
from scimult.preparation.sources.sentence_triples import SENTENCE_TRIPLES
from scimult.preparation.sources.specter import SPECTER
from scimult.preparation.sources.table import TABLE
from scimult.preparation.sources.unarxive import UNARXIVE
from scimult.registry import Registry

SOURCES: Registry[PublicSource] = Registry("source")
for _source in (
    MAPLE,
    SPECTER,
    SCIREPEVAL,
    SCIDOCS,
    PMC_PATIENTS,
    RECOMMENDATION,
    BEIR,
    MSMARCO,
    UNARXIVE,
    MULTI_OBJECTIVE_CONTEXTS,
    INPARS,
    DPR,
    SENTENCE_TRIPLES,
    TABLE,
):
    SOURCES.register(_source.name)(_source)

__all__ = ["SOURCES", "Conversion", "PublicSource", "SourceOptions", "convert"]
