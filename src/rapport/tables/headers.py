"""Headers of a request whose secrets stand elsewhere: `env:NAME`, `file:PATH`. [PO-2, UX-4]"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rapport.kernel.settings import read_secret

_SECRET_WORDS = ("authorization", "cookie", "token", "secret", "password", "key")


def is_reference(text: str) -> bool:
    """True for what names where a secret is."""
    return text.startswith(("env:", "file:"))


def looks_secret(name: str) -> bool:
    """Whether a header of this name carries what lets somebody in."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def with_secrets(headers: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The headers as they are sent; raises InvalidInput when a secret is not there.

    A reference may follow a word: `Bearer env:TOKEN`.
    """
    found = {}
    for name, value in headers.items():
        head, space, last = value.rpartition(" ")
        found[name] = head + space + read_secret(last, directory) if is_reference(last) else value
    return found
