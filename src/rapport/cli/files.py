"""Files named at a terminal that cannot be read or written: what stands in the way, and the nearest
name there is. [UX-3]
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from rapport.core.errors import InvalidInput, nearest_names

_LOOKED_AT = 10_000
"""Names of a directory among which the nearest is looked for."""


def cannot_read(
    file: Path, error: OSError | UnicodeDecodeError, *, wanted: str = ""
) -> InvalidInput:
    """The error for a file that was to be read; `wanted` says what it should hold."""
    why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
    return InvalidInput(
        f"cannot read {file}: {why}", code="cli.no_file", hint=reading_hint(file, error, wanted)
    )


def cannot_write(file: Path, error: OSError) -> InvalidInput:
    """The error for a file that was to be written."""
    return InvalidInput(
        f"cannot write {file}: {error.strerror}",
        code="cli.no_file",
        hint=writing_hint(file, error),
    )


def reading_hint(file: Path, error: Exception, wanted: str = "") -> str:
    """What to do about a file that could not be read."""
    if isinstance(error, UnicodeDecodeError):
        return f"name {wanted}" if wanted else "save it as UTF-8"
    if isinstance(error, FileNotFoundError):
        return _absent_hint(file, wanted)
    if isinstance(error, IsADirectoryError):
        return "it is a directory: name a file in it"
    if isinstance(error, NotADirectoryError):
        return f"{_first_file(file)} is a file, no directory"
    return f"who may read it: ls -l {file}"


def writing_hint(file: Path, error: OSError) -> str:
    """What to do about a file that could not be written."""
    if isinstance(error, IsADirectoryError):
        return "it is a directory: name a file in it"
    if isinstance(error, NotADirectoryError):
        return f"{_first_file(file)} is a file, no directory"
    if not file.parent.is_dir():
        return f"make the directory first: mkdir -p {file.parent}"
    return f"who may write there: ls -ld {file.parent}; how much room is left: df -h {file.parent}"


def _absent_hint(file: Path, wanted: str) -> str:
    folder = file.parent
    try:
        found = [each.name for each in islice(folder.iterdir(), _LOOKED_AT)]
    except OSError:
        return f"there is no directory {folder} to look in"
    # Its own name is there when it is a link that leads nowhere.
    near = nearest_names(file.name, [name for name in found if name != file.name], limit=1)
    if near:
        return f"did you mean {str(folder / near[0])!r}?"
    return f"name {wanted}" if wanted else f"it is looked for in {folder.resolve()}"


def _first_file(path: Path) -> Path:
    """The part of a path below which nothing can be, since it is a file."""
    return next((each for each in reversed(path.parents) if each.is_file()), path)
