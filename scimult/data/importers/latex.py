"""Decode LaTeX in the values of a BibTeX file (pylatexenc)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from unicodedata import normalize

_LATEX = re.compile(r"[\\~$]|--|``|''")
_LATEX_MARK = re.compile(r"\\begin\b|\\end\b|\\.|\$\$?|[{}]")
# Pieces up to this length are remembered.
_WORD = 64
_OPENS = {"{": 1, "}": -1, "\\begin": 1, "\\end": -1, "\\(": 1, "\\)": -1, "\\[": 1, "\\]": -1}
_COMMAND_LAST = re.compile(r"\\(?:[A-Za-z]+\*?|[^A-Za-z])$")
_PERCENT = re.compile(r"(?<!\\)%")
BRACES = str.maketrans("", "", "{}")
"""Removes braces by `str.translate`."""
# Accents without a letter, as in Mendeley's "10{\^{}}6", are the characters themselves.
_BARE_ACCENT = re.compile(r"\\([~^])\s*\{\s*\}")
_ACCENTS = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
# Commands whose argument is text, and that pylatexenc drops with it.
_WRAPPERS = ("mbox", "textmd", "textsf", "texttt", "textup")
# Commands that stand for text that pylatexenc drops, or writes in other characters.
_COMMANDS = {
    "-": "",  # where a word may be broken
    **{"textasciicircum": "^", "textbardbl": "‖", "textperiodcentered": "·"},
    **{"textless": "<", "textgreater": ">", "textbar": "|", "textunderscore": "_"},
    **{"textbraceleft": "{", "textbraceright": "}", "textquotedbl": '"', "textminus": "\u2212"},
    **{"slash": "/", "S": "§", "P": "¶", "ddag": "‡", "pounds": "£", "copyright": "©"},
    **{name: name for name in ("LaTeX", "TeX", "BibTeX")},
    "LaTeXe": "LaTeX2e",
    **{"degree": "°", "euro": "€", "checkmark": "✓", "textmu": "µ"},
    **{"glqq": "„", "grqq": "“", "glq": "‚", "grq": "‘"},
    **{"flqq": "«", "frqq": "»", "flq": "‹", "frq": "›"},
    # What parts words: spaces, and ends of lines.
    **dict.fromkeys((">", "space", "nobreakspace", "thinspace", "enspace", "hspace"), " "),
    **dict.fromkeys(("hfill", "newline", "linebreak", "par"), " "),
}
# Letters outside formulas, of the packages textgreek and textalpha.
_GREEK_NAMES = (
    "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu "
    "Nu Xi Omicron Pi Rho Sigma Tau Upsilon Phi Chi Psi Omega"
)
_GREEK = {
    f"text{name}": letter
    for cased in (str, str.lower)
    for name, letter in zip(
        cased(_GREEK_NAMES).split(), cased("ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ"), strict=True
    )
}
# Accents that pylatexenc does not know, as in Vietnamese, Romanian and Sanskrit.
_MARKS = {
    **{"h": "\u0309", "textcommabelow": "\u0326", "textdoublegrave": "\u030f"},
    **{"textsubring": "\u0325", "textsubbar": "\u0331"},
}


def latex_decoder() -> Callable[[str], str]:
    """Return a LaTeX decoder for texts on one line.

    As decoding takes a millisecond for 200 characters, text with braces alone just loses them, and
    a repeated word is decoded once.
    """
    from pylatexenc import latex2text, latexwalker, macrospec

    context = latexwalker.get_default_latex_context_db()
    texts = latex2text.get_default_latex_context_db()
    # It parses no arguments of \href, which it converts all the same.
    shapes = {"href": "{{", "foreignlanguage": "{{", **dict.fromkeys(_MARKS, "{")}
    context.add_context_category(
        "ours", macros=[*map(macrospec.MacroSpec, shapes, shapes.values())]
    )
    macros = {"href": "%(2)s", "foreignlanguage": "%(2)s", **_GREEK, **_COMMANDS}
    macros |= {name: f"%(1)s{mark}" for name, mark in _MARKS.items()}
    ours = [latex2text.MacroTextSpec(name, text) for name, text in macros.items()]
    ours += [latex2text.MacroTextSpec(name, discard=False) for name in _WRAPPERS]
    texts.add_context_category("ours", prepend=True, macros=ours)
    decoder = latex2text.LatexNodes2Text(latex_context=texts, math_mode="verbatim")

    def decoded(piece: str) -> str:
        if not _LATEX.search(piece):
            return piece.translate(BRACES)
        # Many exports write "5% of": to LaTeX, the rest of the line would be a comment.
        piece = _PERCENT.sub(r"\\%", piece)
        piece = _BARE_ACCENT.sub(lambda accent: _ACCENTS[accent[1]], piece)
        try:
            return normalize("NFC", decoder.latex_to_text(piece, latex_context=context))
        # It raises any of these where a command lacks its arguments.
        except (ValueError, LookupError, AttributeError) as error:
            raise ValueError(piece) from error

    # Names and accented words recur; whole formulas and abstracts do not, and fill memory.
    again = lru_cache(1 << 14)(decoded)
    return lambda text: " ".join(
        again(piece) if len(piece) <= _WORD else decoded(piece) for piece in _pieces(text)
    )


def _pieces(text: str) -> Iterator[str]:
    """Yield a text's words; those of one group, formula or environment together.

    A word that ends with a command is not the last, as that takes the next one or its space. Nor
    is one after a command if a group follows, which may be an argument.
    """
    words: list[str] = []
    depth, in_formula, is_whole = 0, False, False
    for word in text.split():
        if is_whole and not (word.startswith("{") and any("\\" in one for one in words)):
            yield " ".join(words)
            words = []
        words.append(word)
        for mark in _LATEX_MARK.findall(word):
            depth = max(depth + _OPENS.get(mark, 0), 0)
            in_formula ^= mark.startswith("$")
        is_whole = not depth and not in_formula and not _COMMAND_LAST.search(word)
    if words:
        yield " ".join(words)
