"""Pages as plain files: a tiny template step, and a fixed list of static files that may be served.
[UX-6]
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

from rapport.core.errors import UnknownName

_STATIC = Path(__file__).parent / "static"
_SERVED = {
    "rapport.css": "text/css",
    "rapport.js": "text/javascript",
    "inbox.js": "text/javascript",
    "map.js": "text/javascript",
    "map.css": "text/css",
}


def render(name: str, **values: str) -> str:
    """The page with its `$names` filled in; values must be escaped by the caller."""
    body = _template(name).substitute(values)
    return _template("frame.html").substitute(title=values.get("title", "Rapport"), body=body)


def static_file(name: str) -> tuple[bytes, str]:
    """Bytes and media type of a served file; raises UnknownName for anything else."""
    if name not in _SERVED:
        raise UnknownName("file", name, list(_SERVED), code="http.not_found")
    return (_STATIC / name).read_bytes(), _SERVED[name]


@cache
def _template(name: str) -> Template:
    return Template((_STATIC / name).read_text(encoding="utf-8"))
