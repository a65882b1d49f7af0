"""What a mail may cost before anything of it is parsed: how many parts, how deep. [CO-16]

The standard library's parser recurses into parts and compares every line with every boundary that
is open, so a small mail made for it takes minutes. Counting first keeps that out.
"""

from __future__ import annotations

import re

import msgspec

from rapport.core.errors import InvalidInput

_BOUNDARY = re.compile(
    rb"boundary[ \t\r\n]*=[ \t\r\n]*(?:\"([^\"\r\n]{1,200})\"|([^\s;\"]{1,200}))", re.IGNORECASE
)
_IN_PIECES = re.compile(rb"boundary\*", re.IGNORECASE)
_WITHIN = re.compile(rb"content-type[ \t]*:[ \t\r\n]*message/", re.IGNORECASE)


class MailLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one mail may have of everything."""

    parts: int = 100
    depth: int = 10
    text: int = 1_000_000
    """Characters of its text."""
    header: int = 64_000
    """Characters of one header; what is longer is cut."""


def check_structure(raw: bytes, limits: MailLimits) -> None:
    """Raises InvalidInput when parsing the mail could cost more than its size warrants.

    Linear in the size of the mail times the boundaries it declares, of which there are few.
    """
    if _IN_PIECES.search(raw):
        raise _too_much("its boundaries are written in pieces")
    found = {quoted or bare for quoted, bare in _BOUNDARY.findall(raw)}
    if len(found) > limits.depth:
        raise _too_much(f"it has more than {limits.depth} kinds of parts")
    within = len(_WITHIN.findall(raw))
    delimiters = sum(raw.count(b"--" + boundary) for boundary in found)
    if within + delimiters > 2 * limits.parts:
        raise _too_much(f"it has more than {limits.parts} parts")


def _too_much(why: str) -> InvalidInput:
    return InvalidInput(f"the mail cannot be read: {why}", code="mail.too_many_parts")
