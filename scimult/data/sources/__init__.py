"""Public data sets and layouts, and how each becomes raw files for ``scimult prepare``.

One file a source. ``base`` says what a source is, ``raw`` writes raw files, ``readers`` reads
every kind of file.
"""

from scimult.data.sources.base import PublicSource, SourceOptions, convert
from scimult.data.sources.beir import BEIR
from scimult.data.sources.conversion import Conversion
from scimult.data.sources.dpr import DPR
from scimult.data.sources.inpars import INPARS
from scimult.data.sources.maple import MAPLE
from scimult.data.sources.msmarco import MSMARCO
from scimult.data.sources.pmc_patients import PMC_PATIENTS
from scimult.data.sources.recommendation import RECOMMENDATION
from scimult.data.sources.scidocs import SCIDOCS
from scimult.data.sources.scirepeval import SCIREPEVAL
from scimult.data.sources.sentence_triples import SENTENCE_TRIPLES
from scimult.data.sources.specter import SPECTER
from scimult.data.sources.table import TABLE
from scimult.data.sources.unarxive import UNARXIVE
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
    INPARS,
    DPR,
    SENTENCE_TRIPLES,
    TABLE,
):
    SOURCES.register(_source.name)(_source)

__all__ = ["SOURCES", "Conversion", "PublicSource", "SourceOptions", "convert"]
