"""Markup in texts of papers: tags, LaTeX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pylatexenc.latex2text import LatexNodes2Text

from scimult.data.importers.latex import latex_decoder
from scimult.errors import DataError
from tests.data.importers.written import lines, read, written


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<jats:p>CO<jats:sub>2</jats:sub> rose.</jats:p><jats:p>It fell.</jats:p>", None),
        ("<p align=center>CO<sub class='x'>2</sub> rose.</p><br>It fell.", None),
        ("&lt;p&gt;CO&amp;lt;sub&amp;gt;2&amp;lt;/sub&amp;gt; rose.&lt;/p&gt;It fell.", None),
        ("x<y and z>0 for <E> &lt; 1", "x<y and z>0 for <E> < 1"),
        ("<mml:math><mml:mi>x</mml:mi><mml:mo>=</mml:mo></mml:math>", "x ="),
        # Inline elements, as of the standards of JATS and HTML, and a comment.
        (
            "<jats:styled-content>L</jats:styled-content>-arginine in <jats:monospace>R"
            "</jats:monospace>, see <a href='https://a.b'>this</a>.<!-- Not for print -->",
            "L-arginine in R, see this.",
        ),
    ],
)
def test_texts_lose_tags_that_are_tags(tmp_path: Path, text: str, plain: str | None) -> None:
    work = {"id": "https://openalex.org/W1", "title": "T", "abstract": text}
    (paper,) = read(written(tmp_path, "part.gz", lines(work)))
    assert paper.abstract == (plain or "CO2 rose. It fell.")


TEX = r"$$k_{\bot}$$"
_MATHML = "<mml:math xmlns:mml='http://www.w3.org/1998/Math/MathML'><mml:mi>k</mml:mi></mml:math>"
_DOCUMENT = r"\documentclass[12pt]{minimal} \usepackage{amsmath}" "\n"
_DOCUMENT += rf"\begin{{document}}{TEX}\end{{document}}"


@pytest.mark.parametrize(
    "formula",
    [
        f"<jats:alternatives><jats:tex-math>{TEX}</jats:tex-math>{_MATHML}</jats:alternatives>",
        f"<jats:alternatives>{_MATHML}<jats:tex-math>{TEX}</jats:tex-math></jats:alternatives>",
        f"{_MATHML}\n<jats:tex-math id='a'>{TEX}</jats:tex-math>",
        f"<jats:tex-math><![CDATA[{_DOCUMENT}]]></jats:tex-math>{_MATHML}",
        f"<jats:tex-math><?CDATA {TEX}?></jats:tex-math><?MML {_MATHML}?>",
        TEX,
    ],
)
def test_a_formula_is_there_once(tmp_path: Path, formula: str) -> None:
    """Springer gives it as TeX and MathML, IOP in instructions."""
    inline = f"by <jats:inline-formula>{formula}</jats:inline-formula>"
    maths = f"<jats:inline-formula>{_MATHML}</jats:inline-formula>"
    text = f"<jats:p>A {maths}, {inline} and {inline}.</jats:p>"
    work = {"id": "https://openalex.org/W1", "title": "T", "abstract": text}
    (paper,) = read(written(tmp_path, "part.gz", lines(work)))
    assert paper.abstract == f"A k , by {TEX} and by {TEX} ."


LATEX = [
    r"\emph{E. coli} of {\aa}ngstr\"om -- CO$_2$ by \textbf{two words} and {\it many more} here",
    r"$a b$ $$a b$$ \(x y\) \[ a b \] \\ \{ \} \alpha beta \dots{} \url{http://a_b c} 5\% of a~b",
    r"``quoted text'' \' e \v c \begin{itemize} \item a \item b \end{itemize} ends \c{c}",
    r"\textcolor {red} {two words} {\'e} {a} {\em b} {c} \textbf {d e} {f}",
    r"unbalanced } and \textbf{never closed, costs $5",
]


@pytest.mark.parametrize("text", LATEX)
def test_latex_in_pieces_is_latex_as_a_whole(text: str) -> None:
    whole = LatexNodes2Text(math_mode="verbatim").latex_to_text(text)
    assert latex_decoder()(text).split() == whole.split()


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        # As Zotero writes "<i>E. coli</i>" and "p > 0.05".
        (r"{\textless}i{\textgreater}E. coli{\textless}/i{\textgreater}", "E. coli"),
        (r"p {\textgreater} 0.05 {\textbar} a{\textunderscore}b", "p > 0.05 | a_b"),
        (r"See \href{https://a.b/c d}{the \emph{long} text} of \LaTeX{} at 5\degree C",
         "See the long text of LaTeX at 5°C"),
        # With spaces between its arguments, as of the GAP system.
        (r"{GAP} {\textendash} \href {https://www.gap-system.org} {\texttt{gap-system.org}} 4",
         "GAP – gap-system.org 4"),
        (r"\mbox{\textit{GPT-2} in} \texttt{a\_b} \textsf{\textup{c}} and \textmd{d}",
         "GPT-2 in a_b c and d"),
        # As Mendeley and Zotero write "10^6 cells, ~5".
        (r"10{\^{}}6 cells, {\~{}}5", "10^6 cells, ~5"),
        (r"10{\textasciicircum}6 cells, {\textasciitilde}5", "10^6 cells, ~5"),
        (r"\^{\i}le, Pe\~{n}a, trans\-form, col{\textperiodcentered}lecci{\'o}",
         "île, Peña, transform, col·lecció"),
        # The meanings below are those of LaTeX's kernel, babel, and textgreek and textalpha.
        (r"two\newline lines\linebreak or\par more, with\space a\thinspace b\hspace{1em}c\>d",
         "two lines or more, with a b c d"),
        (r"TNF-{\textalpha}, IL-1\textbeta{} and \textSigma\textomega", "TNF-α, IL-1β and Σω"),
        (r"Nguy\~{\^e}n H\h{a}i, B{\h{\^a}}u, {\textcommabelow S}tefan Tripa\textcommabelow tiu",
         "Nguyễn Hải, Bẩu, Ștefan Tripațiu"),
        (r"\glqq Wort\grqq{} \flqq mot\frqq{} \foreignlanguage{french}{mot clé} 5\euro",
         "„Wort“ «mot» mot clé 5€"),
    ],
)  # fmt: skip
def test_commands_that_stand_for_text_are_kept(tmp_path: Path, text: str, plain: str) -> None:
    (paper,) = read(written(tmp_path, "a.bib", f"@misc{{a, title = {{{text}}}}}"))
    assert paper.title == plain


@pytest.mark.parametrize("text", [r"\href", r"\href{x}", r"The \sqrt", r"\textcolor{a}"])
def test_commands_without_their_arguments_are_told(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "a.bib", f"@misc{{a, title = {{A}}}}\n@misc{{b, title = {{{text}}}}}")
    with pytest.raises(DataError, match=r"a\.bib:2: entry cannot be decoded \(value: .*LaTeX"):
        read(path)


def test_tables_lose_html_but_no_mathematics(tmp_path: Path) -> None:
    title = "<b>Size of <i>E. coli</i></b> &amp; H<sub>2</sub>O &#8211; <T> and <p> if a<b, c>d"
    for name, text in {
        "a.csv": f'id,title\n1,"{title}"\n',
        "a.jsonl": json.dumps({"id": 1, "title": title}),
        "a.bib": f"@misc{{a, title={{{title}}}}}",
    }.items():
        (paper,) = read(written(tmp_path, name, text))
        assert paper.title == "Size of E. coli & H2O – <T> and <p> if a<b, c>d"


_NAMES = {
    "a.ris": "TY  - JOUR\nTI  - T\nAU  - O&apos;Brien, J&ouml;rg\nKW  - R &amp; D\n"
    "KW  - <i>E. coli</i>\nER  - \n",
    "a.bib": "@misc{a, title={T}, author={O&apos;Brien, J&ouml;rg},\n"
    r"keywords={R {\&}amp; D, {\textless}i{\textgreater}E. coli{\textless}/i{\textgreater}}}",
    "a.csv": "Item Type,Title,Author,Manual Tags\n"
    "x,T,\"O&apos;Brien, J&ouml;rg\",R &amp; D; <i>E. coli</i>\n",
    "b.csv": "title,authors,keywords\nT,J&ouml;rg O&apos;Brien,R &amp; D;<i>E. coli</i>\n",
    "a.enw": "%0 Book\n%T T\n%A O&apos;Brien, J&ouml;rg\n%K R &amp; D, <i>E. coli</i>\n",
    "a.jsonl": json.dumps(
        {"DOI": "10.1/a", "title": ["T"], "subject": ["R &amp; D", "<i>E. coli</i>"],
         "author": [{"family": "O&amp;apos;Brien", "given": "J&ouml;rg"}], "issued": {}}
    ),
    "a.xml": "<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>1</PMID><Article>"
    "<ArticleTitle>T</ArticleTitle><AuthorList><Author><LastName>O'Brien</LastName>"
    "<ForeName>J&amp;ouml;rg</ForeName></Author></AuthorList></Article><KeywordList><Keyword>"
    "R &amp;amp; D; <i>E. coli</i></Keyword></KeywordList></MedlineCitation></PubmedArticle>"
    "</PubmedArticleSet>",
}  # fmt: skip


@pytest.mark.parametrize("name", list(_NAMES))
def test_names_and_keywords_lose_html_and_are_not_split_at_entities(
    tmp_path: Path, name: str
) -> None:
    (paper,) = read(written(tmp_path, name, _NAMES[name]))
    assert (paper.authors, paper.labels) == (["Jörg O'Brien"], ["R & D", "E. coli"])
