"""Paper files as people have them: one reader for every format, and what they give.

``read_papers`` reads JSON lines, CSV, TSV and Parquet with any column names, BibTeX, RIS,
Zotero's CSV, OpenAlex, Semantic Scholar, Crossref, AMiner, arXiv, PubMed and prepared folders.
"""

from scimult.data.importers.files import FORMATS, find_files, guess_format
from scimult.data.importers.paper import ImportedPaper, Place
from scimult.data.importers.read import read_papers

__all__ = ["FORMATS", "ImportedPaper", "Place", "find_files", "guess_format", "read_papers"]
