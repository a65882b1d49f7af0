"""What may be a record, checked before any back end is asked, so all refuse alike. [CH-13]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.core.errors import InvalidInput
from rapport.store.base import Change, Put


def check_changes(changes: Sequence[Change]) -> None:
    """Raises InvalidInput for a key that is no text or a value that is no bytes."""
    for change in changes:
        try:
            f"{change.table}{change.key}".encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{change.key[:60]!r} cannot be a key: {error.reason}", code="store.bad_key"
            ) from None
        if not isinstance(change.key, str) or not isinstance(change.table, str):
            raise InvalidInput(f"{change.key!r} is no text", code="store.bad_key")
        if isinstance(change, Put) and not isinstance(change.value, bytes):
            raise InvalidInput(
                f"the value of {change.key[:60]!r} is no bytes", code="store.bad_record"
            )
