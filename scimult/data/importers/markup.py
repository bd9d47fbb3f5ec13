"""Plain texts of titles and abstracts that have tags, entities or nothing to say."""

from __future__ import annotations

import html
import re
from collections.abc import Set

from scimult.terminal import is_blank

# What Scopus and PubMed write for an abstract, and PubMed for a title, that they do not have.
_NO_TEXT = re.compile(
    r"\[(?:no abstract|not) available\.?\]\.?"
    r"|(?:(?:publisher: )?abstract available from the publisher\.?\s*)+",
    re.I,
)
# An HTML, JATS or MathML tag: whether it closes, its name with and without a prefix, whether it is
# complete. In the patterns of pairs nothing begins again before it ends: of thousands without an
# end each would be followed to the end of the text.
_TAG = re.compile(
    r"<(/?)((?:[A-Za-z]+:)?([A-Za-z][\w.-]*))"
    r"(?:\s+[\w:.-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>]+))*\s*(/?)>"
)
# CDATA, which IOP also writes as an instruction, beside the same formula in another, <?MML ...?>;
# and comments.
_CDATA = re.compile(
    r"<!\[CDATA\[((?:(?!<!\[).)*?)\]\]>|<\?CDATA\s((?:(?!<\?).)*?)\?>"
    r"|<\?MML\s(?:(?!<\?).)*?\?>|<!--(?:(?!<!--).)*?-->",
    re.DOTALL,
)
# JATS gives one formula as TeX and as MathML; some TeX is a whole document.
_FORMULA = re.compile(
    r"<(?:\w+:)?(?P<kind>alternatives|inline-formula|disp-formula)\b[^<>]*>"
    r"(?:(?!</?(?:\w+:)?(?:(?P=kind)|tex-math)\b).)*<(?:\w+:)?tex-math\b[^<>]*>"
    r"(?P<tex>(?:(?!</?(?:\w+:)?tex-math\b).)*)</(?:\w+:)?tex-math>"
    r"(?:(?!</?(?:\w+:)?(?P=kind)\b).)*</(?:\w+:)?(?P=kind)>",
    re.DOTALL,
)
_PREAMBLE = re.compile(
    r"\\documentclass(?:(?!\\documentclass).)*?\\begin\s*\{document\}|\\end\s*\{document\}",
    re.DOTALL,
)
# Tags within words, of HTML and JATS; all others separate words.
_INLINE = {
    *("a", "abbr", "abbrev", "b", "bold", "cite", "code", "em", "email", "ext-link", "font", "i"),
    *("inf", "italic", "kbd", "mark", "monospace", "named-content", "overline", "roman", "s"),
    *("sans-serif", "sc", "scp", "small", "span", "strike", "strong", "styled-content", "sub"),
    *("sup", "tt", "u", "underline", "uri", "var"),
}
_NEVER_CLOSED = {"br", "hr", "img"}
# "&amp;amp;lt;": dumps escape what was escaped, once or twice too often.
_MOST_ESCAPED = 8


def known_text(text: str) -> str:
    """Return ``text`` unless it shows nothing or says that there is none; then it is empty."""
    return "" if is_blank(text) or _NO_TEXT.fullmatch(text) else text


def plain_text(text: str) -> str:
    """Return ``text`` on one line, without HTML, JATS or MathML tags and with entities decoded.

    A name in angle brackets that nothing closes stays: physics writes <p> and <E> for means. Of a
    formula that is there as TeX and as MathML, the TeX stays.

    >>> plain_text("<p>H<sub>2</sub>O &amp;amp; <i>E. coli</i>.</p><p>At <E> if a<b, c>d.</p>")
    'H2O & E. coli. At <E> if a<b, c>d.'
    """
    for _ in range(_MOST_ESCAPED):
        if "&" not in text or (decoded := html.unescape(text)) == text:
            break
        text = decoded
    if "<" in text:
        text = _CDATA.sub(lambda data: data[1] or data[2] or "", text)
        text = _FORMULA.sub(lambda formula: f" {_PREAMBLE.sub('', formula['tex'])} ", text)
        closed = {tag[2].lower() for tag in _TAG.finditer(text) if tag[1] or tag[4]}
        text = _TAG.sub(lambda tag: _in_place(tag, closed | _NEVER_CLOSED), text)
    return " ".join(text.split())


def _in_place(tag: re.Match[str], closed: Set[str]) -> str:
    """Return what replaces a tag: nothing, a space, or itself."""
    if tag[2].lower() not in closed:
        return tag[0]
    return "" if tag[3].lower() in _INLINE else " "
