"""The file that is imported: opened, and as much of it as a guess looks at. [ME-13]"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from rapport.core.errors import InvalidInput

_SAMPLE_BYTES = 32 * 1024 * 1024


def beginning(file: Path) -> bytes:
    """As much of a file as a guess looks at, to the end of a line."""
    with opened(file) as stream:
        raw = stream.read(_SAMPLE_BYTES)
        if stream.read(1):
            raw = raw[: raw.rfind(b"\n") + 1] or raw
    return raw


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """The file to read; raises InvalidInput when it cannot be."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}", code="cli.no_file") from None
