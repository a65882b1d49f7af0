"""The file that is imported: opened, and as much of it as a guess looks at. [ME-13]"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile

from rapport.cli.files import cannot_read

_SAMPLE_BYTES = 32 * 1024 * 1024


def beginning(file: Path) -> bytes:
    """As much of a file as a guess looks at, to the end of a line."""
    with opened(file) as stream:
        raw = stream.read(_SAMPLE_BYTES)
        if stream.read(1):
            raw = raw[: raw.rfind(b"\n") + 1] or raw
    return raw


@contextmanager
def at_rest(file: Path) -> Iterator[Path]:
    """The file as one that can be read from its beginning more than once: what comes out of a pipe
    (`zcat A801.csv.gz | rapport import /dev/stdin`) is put aside first, on disk.
    """
    if not _is_passing(file):
        yield file
        return
    with NamedTemporaryFile(prefix="rapport-import-") as kept:
        with opened(file) as stream:
            shutil.copyfileobj(stream, kept)
        kept.flush()
        yield Path(kept.name)


def _is_passing(file: Path) -> bool:
    """Whether what was read of it is gone; not of what is not there, which is told when opened."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """The file to read; raises InvalidInput when it cannot be."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise cannot_read(file, error) from None
