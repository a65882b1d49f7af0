"""Lines of a proposed file: TOML on one line each, with a comment that says why. Pure. [ME-10]"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

UNSURE = "UNSURE:"
"""What wants a look."""
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_BRACKETED = re.compile(r"[(\[].*")
_LONGEST = 40


def toml_of(value: Any) -> str:
    """A value as TOML on one line.

    >>> toml_of({"name": "csv", "metadata": 8, "hora utc": ["a"]})
    '{ name = "csv", metadata = 8, "hora utc" = ["a"] }'
    """
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(key)} = {toml_of(each)}" for key, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_of(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    """A key, in quotes where it must be."""
    return key if _BARE.fullmatch(key) else toml_of(key)


def header(*path: str) -> str:
    """`[interpretations.inmet.types.Row]`."""
    return f"[{'.'.join(map(toml_key, path))}]"


def slug(text: str) -> str:
    """A name out of any text: small letters, digits and dashes.

    >>> slug("TEMPERATURA DO AR - BULBO SECO, HORÁRIA (°C)")
    'temperatura-do-ar-bulbo-seco-horaria'
    """
    plain = unicodedata.normalize("NFKD", _BRACKETED.sub("", text) or text)
    ascii_only = plain.encode("ascii", "ignore").decode().lower()
    return _NOT_IN_NAMES.sub("-", ascii_only)[:_LONGEST].strip("-")


def line(key: str, value: Any, because: str, doubts: tuple[str, ...] = ()) -> str:
    """A line that counts, with the reason; one with doubts wants a look."""
    text = f"{UNSURE} {'; '.join(doubts)} ({because})" if doubts else f"sure: {because}"
    return f"{toml_key(key)} = {toml_of(value)}  # {_clean(text)}"


def open_line(key: str, value: Any, because: str) -> str:
    """A line that does not count until somebody has settled it, and takes its beginning away."""
    return f"# {UNSURE} {toml_key(key)} = {toml_of(value)}  # {_clean(because)}"


def idle_line(key: str, value: Any, because: str) -> str:
    """A line that does not count since nothing takes what it says."""
    return f"# {toml_key(key)} = {toml_of(value)}  # {_clean(because)}"


def comment(text: str) -> str:
    """A line for people."""
    return f"# {_clean(text)}"


def _clean(text: str) -> str:
    """No sign that would end the comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
