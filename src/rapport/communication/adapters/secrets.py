"""Secrets that the tables of adapters name, never write out. [UX-4]"""

from __future__ import annotations

from pathlib import Path

from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import Fields
from rapport.kernel.settings import read_secret


def read_secret_field(key: str, table: Fields, directory: Path) -> str:
    """The secret that `key` names (`file:PATH`, `env:NAME`); empty when it is absent or faulty."""
    text = table.text(key, "")
    if not text:
        return ""
    try:
        return read_secret(text, directory)
    except InvalidInput as error:
        table.report(key, error)
        return ""
