"""Names in the paths of links: whatever a name holds, it stays one piece of the path. Pure.
[CO-10, CO-16]

Servers undo `%2F` before they take a path apart, and browsers take `..` out of it: quoting alone
does not keep such names whole.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import quote

_PLAIN = re.compile(r"[\w.@ ()!,+:;=-]*[\w@()!,+:;=-]", re.ASCII)
_MARK = "~"


def name_in_link(name: str) -> str:
    """A name as one piece of a path: as it is, quoted, where nothing can come of it, else in
    base64 behind a tilde.

    >>> name_in_link("m1"), name_in_link("a/b")
    ('m1', '~YS9i')
    """
    if _PLAIN.fullmatch(name):
        return quote(name, safe="")
    raw = name.encode("utf-8", "surrogatepass")
    return _MARK + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def name_from_link(piece: str) -> str:
    """The name in an unquoted piece of a path; one that `name_in_link` did not write is taken as it
    stands.

    >>> name_from_link("m1"), name_from_link("~YS9i"), name_from_link("~?")
    ('m1', 'a/b', '~?')
    """
    if not piece.startswith(_MARK):
        return piece
    coded = piece.removeprefix(_MARK)
    try:
        raw = base64.b64decode(coded + "=" * (-len(coded) % 4), b"-_", validate=True)
        return raw.decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return piece
