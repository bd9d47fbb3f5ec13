"""Escape terminal control and bidirectional characters in untrusted text."""

from __future__ import annotations

import re

# Control characters except tab and line feed, line and paragraph separators, directional marks
# and overrides, and lone surrogates (undecodable bytes of file names).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return ``text`` with every unsafe character escaped, as in ``\x1b``."""
    return _UNSAFE.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
