"""Read users' paper files: one reader for every format.

``read_papers`` reads JSON lines, CSV, TSV and Parquet with any column names, BibTeX, RIS,
.nbib, .enw, Web of Science, Zotero, OpenAlex, Semantic Scholar, Crossref, AMiner, arXiv, PubMed,
Europe PMC, DBLP and prepared folders.
"""

from scimult.data.importers.files import FORMATS, find_files, guess_format
from scimult.data.importers.paper import ImportedPaper, Location
from scimult.data.importers.read import read_papers

__all__ = ["FORMATS", "ImportedPaper", "Location", "find_files", "guess_format", "read_papers"]
