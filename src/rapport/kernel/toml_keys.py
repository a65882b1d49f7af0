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
_PART = r"""(?>[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*+(?:"|[\s\S]*)|'[^'\n]*+(?:'|[\s\S]*))"""
_DOT = r"[ \t]*+\.[ \t]*+"
_SHORT = re.compile(
    r"(?:"
    r'"""(?:\\[\s\S]|[^\\"]|"(?!""))*+"{0,5}+'
    r"|'''(?:[^']|'(?!''))*+'{0,5}+"
    r"|#[^\n]*+"
    rf"|{_PART}(?:{_DOT}{_PART}){{0,{MOST_PARTS - 1}}}+(?!{_DOT}{_PART})"
    rf"|(?!{_PART})[\s\S]"
    r")*+"
)
"""All of a text up to a key that has too many parts. Dots in texts and comments are not counted, a
number is taken for a key of two parts. Possessive throughout: no text makes it go back far.
"""


def long_key(text: str) -> int | None:
    """Where a key with more than MOST_PARTS parts begins; None when there is none. Looks at each
    letter once: 4 MiB take about 0.2 s.
    """
    short = _SHORT.match(text)
    assert short is not None, "it matches nothing, too"
    return short.end() if short.end() < len(text) else None
