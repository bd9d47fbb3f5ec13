"""One paper and its reference in each public layout, as documented by its owners."""

from __future__ import annotations

from typing import Any

OPENALEX: list[dict[str, Any]] = [
    {
        "id": "https://openalex.org/W10",
        "doi": "https://doi.org/10.1234/ABC.1",
        "title": "Graphs of <i>papers</i> &amp; people",
        "display_name": "Graphs of papers & people",
        "publication_year": 2012,
        "publication_date": "2012-05-01",
        "primary_location": {"source": {"id": "https://openalex.org/S1", "display_name": "JMLR"}},
        "authorships": [
            {"author_position": "first", "author": {"id": "A1", "display_name": "Ana Núñez"}},
            {"author_position": "last", "author": {"id": "A2", "display_name": "Bo Li"}},
        ],
        "topics": [{"display_name": "Citation Analysis", "score": 0.9}],
        "abstract_inverted_index": {"We": [0, 3], "draw": [1], "graphs.": [2], "win.": [4]},
        "referenced_works": ["https://openalex.org/W11", "https://openalex.org/W99"],
    },
    {
        "id": "https://openalex.org/W11",
        "doi": None,
        "title": "An older one",
        "publication_year": 2001,
        "primary_location": {"source": None},
        "authorships": [],
        "topics": [],
        "abstract_inverted_index": None,
        "referenced_works": [],
    },
]
S2ORC = {
    "paper_id": "77",
    "title": "Old S2ORC",
    "abstract": "AIM:::Text.",  # its mark for a line break
    "authors": [{"first": "Ana", "middle": ["B."], "last": "Núñez", "suffix": ""}],
    "year": 2012,
    # Both are texts (https://github.com/allenai/s2orc), and journals' papers have no venue.
    "venue": "",
    "journal": "ACL",
    "doi": "10.1234/abc.1",
    "mag_field_of_study": ["Computer Science"],
    "outbound_citations": ["78"],
}
S2_API = {
    "paperId": "649def34f8be52c8b66281af98ae884c09aef38b",
    "corpusId": 10,
    "externalIds": {"DOI": "10.1234/ABC.1", "CorpusId": 10},
    "title": "By the API",
    "abstract": None,
    "venue": "",
    "journal": {"name": "Nature"},
    "year": None,
    "publicationDate": "2012-05-01",
    "authors": [{"authorId": "1", "name": "Ana Núñez"}],
    "fieldsOfStudy": ["Biology"],
    "references": [{"paperId": "abc", "title": "A"}, {"paperId": None, "title": "B"}],
}
S2AG_PAPERS = [
    {
        "corpusid": 10,
        "externalids": {"DOI": "10.1234/ABC.1"},
        "title": "Split",
        "authors": [{"authorId": "1", "name": "Ana Núñez"}],
        "venue": "ACL",
        "year": 2012,
        "s2fieldsofstudy": [
            {"category": "Biology", "source": "external"},
            {"category": "Biology", "source": "s2-fos-model"},
        ],
    },
    {"corpusid": 11, "externalids": {}, "title": "Alone", "authors": [], "year": None},
]
S2AG_ABSTRACTS = [{"corpusid": 10, "openaccessinfo": {}, "abstract": "In another table."}]
S2AG_CITATIONS = [
    {"citationid": 1, "citingcorpusid": 10, "citedcorpusid": 12, "isinfluential": False},
    {"citationid": 2, "citingcorpusid": 10, "citedcorpusid": 11, "isinfluential": True},
    {"citationid": 3, "citingcorpusid": 10, "citedcorpusid": None, "isinfluential": False},
]
AMINER_V12 = (
    '[{"id":1091,"authors":[{"name":"Makoto Satoh","org":"Shinshu University","id":2312688602}],'
    '"title":"Preliminary Design","year":2013,"n_citation":1,"doi":"10.1007/978-3-642-39476-8_19",'
    '"references":[2005687710,2018037215],"venue":{"raw":"HCI","id":1127419992,"type":"C"},'
    '"fos":[{"name":"Telecommunications","w":0.45}],'
    '"indexed_abstract":{"IndexLength":3,"InvertedIndex":{"A":[0,2],"network":[1]}}}\n'
    ',{"id":1388,"title":"No abstract","year":2001,"n_citation":0}]\n'
)
AMINER_V13 = """[
{
    "_id" : "53e99784b7602d9701f3e3f5",
    "title" : "3GIO.",
    "authors" : [
        {"_id" : "53f4", "name" : "Ana Núñez"}
    ],
    "venue" : {"_id" : "53a7", "name_d" : "International Conference", "type" : NumberInt(0)},
    "year" : NumberInt(2011),
    "keywords" : ["buses", "serial"],
    "n_citation" : NumberInt(0),
    "abstract" : "Long.",
    "references" : ["53e99785"]
},
{
    "_id" : "53e99785",
    "title" : "Other",
    "year" : NumberInt(2010)
}
]
"""
AMINER_V10 = {
    "abstract": "Text.",
    "authors": ["Ana Núñez", "Bo Li"],
    "n_citation": 8,
    "references": ["01c54de7"],
    "title": "Version ten",
    "venue": "ICML",
    "year": 2013,
    "id": "00127ee2",
}
CROSSREF = {
    "DOI": "10.1234/ABC.1",
    "type": "journal-article",
    "title": ["Graphs of <i>papers</i> &amp; people"],
    "abstract": "<jats:title>Abstract</jats:title><jats:p>We draw <jats:italic>graphs</jats:italic>"
    ".</jats:p>",
    "author": [
        {"given": "Ana", "family": "Núñez", "sequence": "first", "affiliation": []},
        {"name": "The Consortium", "sequence": "additional"},
    ],
    "container-title": ["Journal of Graphs"],
    "issued": {"date-parts": [[2012, 5]]},
    "subject": ["Software"],
    "reference": [
        {"key": "r1", "DOI": "10.5555/OLD", "doi-asserted-by": "crossref"},
        {"key": "r2", "unstructured": "A book."},
    ],
}
CSL = {
    "id": "nunez2012",
    "type": "article-journal",
    "title": "By Zotero",
    "abstract": "Text.",
    "container-title": "Journal of Graphs",
    "author": [{"family": "Núñez", "given": "Ana"}],
    "issued": {"date-parts": [["2012", 5, 1]]},
    "DOI": "10.1234/ABC.1",
}
ARXIV = {
    "id": "0704.0001",
    "submitter": "Pavel",
    "authors": "C. Bal\\'azs, E. L. Berger",
    "title": "Calculation of prompt\n  diphoton production",
    "categories": "hep-ph cs.CL",
    "journal-ref": "Phys.Rev.D76:013009,2007",
    "doi": "10.1103/PhysRevD.76.013009",
    "abstract": "  A fully differential\ncalculation.\n",
    "versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}],
    "update_date": "2008-11-26",
    "authors_parsed": [["Balázs", "C.", ""], ["Berger", "E. L.", ""]],
}
PUBMED = """<?xml version="1.0" ?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN"
 "https://dtd.nlm.nih.gov/ncbi/pubmed/out/pubmed_250101.dtd">
<PubmedArticleSet>
<PubmedArticle>
 <MedlineCitation Status="MEDLINE" Owner="NLM">
  <PMID Version="1">12345</PMID>
  <Article PubModel="Print">
   <Journal><JournalIssue CitedMedium="Print"><PubDate><MedlineDate>1998 Dec-1999 Jan</MedlineDate>
   </PubDate></JournalIssue><Title>The Lancet</Title></Journal>
   <ArticleTitle>Effects of CO<sub>2</sub> on mice.</ArticleTitle>
   <ELocationID EIdType="doi" ValidYN="Y">10.1234/ABC.1</ELocationID>
   <Abstract>
    <AbstractText Label="BACKGROUND">Mice <i>breathe</i>.</AbstractText>
    <AbstractText Label="RESULTS">They do.</AbstractText>
   </Abstract>
   <AuthorList><Author><LastName>Núñez</LastName><ForeName>Ana</ForeName></Author>
   <Author><CollectiveName>The Group</CollectiveName></Author></AuthorList>
  </Article>
  <MeshHeadingList><MeshHeading><DescriptorName UI="D051379">Mice</DescriptorName>
  <QualifierName>physiology</QualifierName></MeshHeading></MeshHeadingList>
  <KeywordList Owner="NOTNLM"><Keyword MajorTopicYN="N">carbon <i>dioxide</i></Keyword>
  </KeywordList>
 </MedlineCitation>
 <PubmedData>
  <ArticleIdList><ArticleId IdType="pubmed">12345</ArticleId></ArticleIdList>
  <ReferenceList><Reference><Citation>X</Citation><ArticleIdList>
  <ArticleId IdType="pubmed">999</ArticleId></ArticleIdList></Reference></ReferenceList>
 </PubmedData>
</PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>12346</PMID><Article>
 <ArticleTitle>Second.</ArticleTitle></Article></MedlineCitation></PubmedArticle>
</PubmedArticleSet>
"""
BIBTEX = r"""% exported
@string{jmlr = "Journal of Graphs"}
@comment{ignored}
@article{nunez2012,
  title = {{G}raphs of papers \& {\'e}coles in $O(n^2)$},
  author = {N{\'u}{\~n}ez, Ana and Jane van der Berg and {World Health Organization}},
  journal = jmlr, year = 2012, month = may,
  doi = {https://doi.org/10.1234/ABC.1},
  keywords = {graphs, citation analysis},
  abstract = "We draw
    graphs, in 50\% of cases."
}

@inproceedings{li2021,
  title = {Only a title},
  date = {2021-05-03},
  booktitle = {Proceedings}
}
"""
RIS = """TY  - JOUR
AU  - Núñez, Ana
AU  - Li, Bo
TI  - Graphs of papers
T2  - Journal of Graphs
AB  - We draw graphs,
in two lines.
PY  - 2012/05/01/
DO  - 10.1234/ABC.1
KW  - graphs
KW  - citation analysis
ID  - nunez2012
ER  - \n
TY  - CONF
A1  - Li, Bo
T1  - Only a title
JF  - Proceedings
Y1  - 2021//
ER  - \n"""
# The same article as PUBMED, by the tags of https://www.nlm.nih.gov/bsd/mms/medlineelements.html.
NBIB = """
PMID- 12345
OWN - NLM
STAT- MEDLINE
DP  - 1998 Dec-1999 Jan
TI  - Effects of CO2 on
      mice.
LID - S0140-6736(98)00001-2 [pii]
LID - 10.1234/ABC.1 [doi]
AB  - BACKGROUND: Mice breathe.
      RESULTS: They do.
FAU - Núñez, Ana
AU  - Núñez A
AD  - Institute of Mice, City.
CN  - The Group
LA  - eng
TA  - Lancet
JT  - The Lancet
MH  - *Mice/genetics/*physiology
OT  - *carbon dioxide
AID - 10.1234/ABC.1 [doi]
SO  - Lancet. 1998 Dec-1999 Jan;1(1):1-2. doi: 10.1234/ABC.1.

PMID- 12346
TI  - Second.
"""
# By EndNote's list of tags; keywords as it writes them, one a line.
ENW = """%0 Journal Article
%A Núñez, Ana
%A Bo Li
%T Graphs of papers
%J Journal of Graphs
%D 2012
%R 10.1234/ABC.1
%X We draw graphs,
in two lines.
%K graphs
Models, Theoretical

%0 Conference Paper
%A Li, Bo
%T Only a title
%B Proceedings
%D 2021
%K graphs, citation analysis
"""
# By Clarivate's list of field tags.
WOS = """\ufeffFN Clarivate Analytics Web of Science
VR 1.0
PT J
AU Núñez, A
   Li, B
AF Núñez, Ana
   Li, Bo
CA The Group
TI Graphs of
   papers
SO JOURNAL OF GRAPHS
DE graphs; citation
   analysis
ID NETWORKS
AB We draw graphs.
CR Li B, 1999, J GRAPHS, V2, P1, DOI 10.1234/OLD
   Doe J, 2001, A book
   Roe K, 2002, J GRAPHS, V3, P1, DOI [arXiv:0201.1, 10.1002/(SICI)1<1::AID-X>3.0.CO;2-Z]
PY 2012
DI 10.1234/ABC.1
UT WOS:000000000000001
ER

PT C
AU Li, B
TI An old one
SO PROCEEDINGS
ID NETWORKS
EA MAY 1999
DI 10.1234/OLD
UT WOS:000000000000002
ER

PT J
AU [Anonymous]
TI Without a DOI
UT WOS:000000000000003
ER

EF"""
WOS_TABLE = (
    "\ufeffPT\tAU\tAF\tCA\tTI\tSO\tDE\tID\tAB\tCR\tPY\tEA\tDI\tUT\n"
    "J\tNúñez, A; Li, B\tNúñez, Ana; Li, Bo\tThe Group\tGraphs of papers\tJOURNAL OF GRAPHS\t"
    "graphs; citation analysis\tNETWORKS\tWe draw graphs.\tLi B, 1999, J GRAPHS, V2, P1, "
    "DOI 10.1234/OLD; Doe J, 2001, A book; Roe K, 2002, J GRAPHS, V3, P1, "
    "DOI [arXiv:0201.1, 10.1002/(SICI)1<1::AID-X>3.0.CO;2-Z]\t2012\t\t10.1234/ABC.1\t"
    "WOS:000000000000001\t\n"
    "C\tLi, B\t\t\tAn old one\tPROCEEDINGS\t\tNETWORKS\t\t\t\tMAY 1999\t10.1234/OLD\t"
    "WOS:000000000000002\t\n"
    "J\t[Anonymous]\t\t\tWithout a DOI\t\t\t\t\t\t\t\t\tWOS:000000000000003\t\n"
)
ZOTERO = (
    '\ufeff"Key","Item Type","Publication Year","Author","Title","Publication Title","DOI",'
    '"Abstract Note","Manual Tags"\n'
    '"K1","journalArticle","2012","Núñez, Ana; Li, Bo","Graphs of papers","Journal of Graphs",'
    '"10.1234/ABC.1","We draw\n\ngraphs.","graphs; citation analysis"\n'
)

DIMENSIONS = (
    '\ufeff"About the data: Exported on Sep 30, 2026. Criteria: ""graphs; papers"" in titles"\r\n'
    "Rank,Publication ID,DOI,PMID,Title,Abstract,Source title,Anthology title,PubYear,Authors,"
    "Dimensions URL\r\n"
    '1,pub.1,10.1234/ABC.1,77,Graphs of papers,"We draw\r\n\r\ngraphs.",,Graphs 2012,2012,'
    '"Núñez, Ana; Li, Bo",https://app.dimensions.ai/details/publication/pub.1\r\n'
)

OPENALEX_TABLE = (
    '"id","authorships.author.display_name","display_name","doi","publication_year","abstract",'
    '"primary_location.source.display_name","topics.display_name","referenced_works"\n'
    '"https://openalex.org/W10","Ana Núñez|Bo Li","Graphs of papers","https://doi.org/10.1234/ABC.1",'
    '"2012","We draw graphs.","JMLR","Citation Analysis|Graphs, drawn",'
    '"https://openalex.org/W11|https://openalex.org/W99"\n'
)
