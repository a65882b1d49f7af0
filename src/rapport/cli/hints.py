"""Errors of the command line with hints: unreadable files, unknown names, a missing site or token.
[UX-3]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput, Problem, UnknownName, nearest_names


def wrong_use(message: str, hint: str) -> InvalidInput:
    """The error for words on the command line that do not go together."""
    return InvalidInput(message, code="cli.wrong_use", hint=hint)


_SITE_FILE = "site.toml"
_NO_SITE = "site.unreadable"
_NO_TOKEN = "access.not_authenticated"
_UNKNOWN = ".unknown"
_LISTED_BY = {
    "event.unknown": "rapport read CHANNEL lists events with their ids",
    "message.unknown": "rapport ledger messages lists them with their ids",
    "channel.unknown": "rapport read lists the channels",
    "outbox.unknown": "name the directory that a program gave to its Publisher",
}
"""Where the names are that an error of this code was about."""
_TOKEN_HINT = "say who you are: --token-file FILE or $RAPPORT_TOKEN, a token of the site's [access]"
_MOST_DIRECTORIES, _NAMED = 1_000, 3


def with_hint(problem: Problem, listing: str = "") -> Problem:
    """The problem with a hint, as far as one can be given; `listing` is the command that shows what
    names there are where it arose.
    """
    if problem.code == _NO_SITE and problem.file == _SITE_FILE:  # and not one that the site names
        return msgspec.structs.replace(problem, hint=_site_hint())
    if problem.code == _NO_TOKEN:  # its own hint is for who speaks HTTP
        return msgspec.structs.replace(problem, hint=_TOKEN_HINT)
    if problem.hint or not problem.code.endswith(_UNKNOWN):
        return problem
    shown = f"{listing} shows what there is" if listing else ""
    return msgspec.structs.replace(problem, hint=_LISTED_BY.get(problem.code, shown))


def _site_hint() -> str:
    """Most often the site is near, and the command was given in the wrong directory."""
    near = [f"--site {place}" for place in islice(_sites_near(Path()), _NAMED)]
    if near:
        return f"say which site: {' or '.join(near)}"
    return "say where the site is with --site DIR; rapport init DIR makes a new one"


def _sites_near(here: Path) -> Iterator[Path]:
    """Sites below this directory, or that it is in."""
    with os.scandir(here) as entries:
        names = sorted(entry.name for entry in islice(entries, _MOST_DIRECTORIES))
    yield from (here / name for name in names if (here / name / _SITE_FILE).is_file())
    above = Path("..")
    for _parent in here.resolve().parents:
        if (above / _SITE_FILE).is_file():
            yield above
            return
        above /= ".."


_LOOKED_AT = 10_000
"""Names of a directory among which the nearest is looked for."""


def read_given(file: Path, *, wanted: str = "") -> bytes:
    """The bytes of a file that was named; raises InvalidInput when it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise cannot_read(file, error, wanted=wanted) from None


def cannot_read(
    file: Path, error: OSError | UnicodeDecodeError, *, wanted: str = ""
) -> InvalidInput:
    """The error for a file that was to be read; `wanted` is its expected content."""
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


NO_POLICIES = 'name their files in site.toml: [policies] files = ["*.dpl"]'
"""What to do about a site without policies."""


def unknown(
    kind: str, name: str, known: Iterable[str], *, if_none: str, code: str | None = None
) -> UnknownName:
    """The error for a name that is not among `known`: its hint names the nearest, else some of
    them; where there are none at all it is `if_none`, how to get one.

    >>> unknown("source", "raeders", ["readers"], if_none="declare it").hint
    "did you mean 'readers'?"
    >>> unknown("source", "raeders", [], if_none="declare it").hint
    'declare it'
    """
    return UnknownName(kind, name, list(known), code=code, hint=if_none)
