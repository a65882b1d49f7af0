"""How many parts the keys of a TOML text have, before anybody takes them apart. [UX-2]

A key `a.b.c` stands for a path, and who reads it makes the path to each of its parts: time and
memory grow with the square of their number, in `tomllib` too. A text of 200 kB that is one key
would take minutes and gigabytes.
"""

from __future__ import annotations

import re

MOST_PARTS = 16
"""Of one key or header; people write six at most."""

# A text that does not end is a fault at which readers stop: so does this one, and takes the rest.
# No possessive repetitions: Python 3.11.2 takes them further than they go.
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*(?:"|[\s\S]*)|'[^'\n]*(?:'|[\s\S]*))"""
_PARTS = re.compile(_PART)
_PIECE = re.compile(
    r'"""(?:\\[\s\S]|[^\\"]|"(?!""))*"{0,5}'
    r"|'''(?:[^']|'(?!''))*'{0,5}"
    r"|#[^\n]*"
    rf"|(?P<key>{_PART}(?:[ \t]*\.[ \t]*{_PART})*)"
    r"|[^\"'#A-Za-z0-9_-]+"
)
"""Texts, comments, keys and what is between them, one after the other: each begins in a way of its
own, so that nothing is looked at twice. A number is taken for a key of two parts.
"""


def long_key(text: str) -> int | None:
    """Where a key with more than MOST_PARTS parts begins; None when there is none. Looks at each
    letter once, at those of a key twice: 4 MiB take less than a second.
    """
    for piece in _PIECE.finditer(text):
        key = piece["key"]
        if key and key.count(".") >= MOST_PARTS and len(_PARTS.findall(key)) > MOST_PARTS:
            return piece.start()
    return None
