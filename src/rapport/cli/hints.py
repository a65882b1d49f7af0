"""Hints that only the command line can give, for errors of rooms and nodes that know of no
commands. [UX-3]
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from rapport.core.errors import Problem

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
_LOOKED_AT, _NAMED = 1_000, 3


def hinted(problem: Problem, listing: str = "") -> Problem:
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
        names = sorted(entry.name for entry in islice(entries, _LOOKED_AT))
    yield from (here / name for name in names if (here / name / _SITE_FILE).is_file())
    above = Path("..")
    for _parent in here.resolve().parents:
        if (above / _SITE_FILE).is_file():
            yield above
            return
        above /= ".."
