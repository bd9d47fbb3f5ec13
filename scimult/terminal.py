"""Untrusted text on a terminal: what would command it, or turn the text around, is made visible."""

from __future__ import annotations

import re

# Control characters but tab and line feed, line and paragraph separators, marks and overrides of
# the direction of writing, and halves of surrogate pairs (bytes of a file name that are no text).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return ``text`` with every character that acts on a terminal written as ``\x1b``."""
    return _UNSAFE.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
