"""Indexes that can be made again from the log: a damaged one is put aside, not trusted and not
asked to be repaired by hand. [CH-13]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rapport.core.errors import Corrupt
from rapport.kernel.telemetry import get_logger
from rapport.store.segments.reading import disk_refused

_log = get_logger(__name__)
T = TypeVar("T")

DAMAGED_ENDING = ".damaged"
_PARTS = ("", "-wal", "-shm")


def open_or_begin_anew(make: Callable[[Path], T], path: Path) -> T:
    """What `make` opens at a path; when the file there is no index, a new one beside it.

    The damaged file is kept as `<name>.damaged`, in place of an earlier one. Raises
    StoreUnavailable.
    """
    try:
        return make(path)
    except Corrupt as error:
        _log.warning("index begins anew", path=str(path), why=error.message)
    try:
        for part in _PARTS:
            file = path.with_name(f"{path.name}{part}")
            if file.exists():
                file.replace(file.with_name(f"{file.name}{DAMAGED_ENDING}"))
    except OSError as error:
        raise disk_refused(f"cannot put {path} aside", error) from error
    return make(path)
