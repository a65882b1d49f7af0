"""What a checkpoint says of itself beside what Spark keeps there: read before the query starts, so
that one that does not fit is refused in words. [PI-10]
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rapport.core.errors import Conflict, Corrupt, InvalidInput
from rapport.kernel.files import make_private_directory
from rapport.pipeline.live.bucket import FORM
from rapport.policy.runner.local import SNAPSHOT

FILE = "rapport-live.json"
_NEW = "use a new checkpoint directory; it begins where you say with start"


class LiveCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Settled when the checkpoint is made, and the same as long as it is used."""

    site: str
    buckets: int
    keys: tuple[int, ...]
    """By bucket the number under which Spark keeps its state."""
    after: int
    """The position of `events` behind which it began."""
    began: int
    """The time from which silence counts."""
    start: dict[str, int]
    """The position of each channel behind which it began."""
    form: int = FORM
    snapshot: int = SNAPSHOT
    """The versions of what is saved of buckets and of their runners."""


def read_checkpoint(directory: Path, site: str) -> LiveCheckpoint | None:
    """None when nothing was begun there. Raises Conflict for one of another site, or made by a
    version of this program whose state cannot be read, Corrupt when the file is damaged.
    """
    file = directory / FILE
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        _check_empty(directory)
        return None
    except OSError as error:
        raise InvalidInput(
            f"cannot read {file}: {error.strerror}", code="live.bad_checkpoint"
        ) from None
    try:
        found = msgspec.json.decode(raw, type=LiveCheckpoint)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{file} cannot be read: {error}", code="live.bad_checkpoint", hint=_NEW
        ) from None
    _check_fits(found, site, directory)
    return found


def write_checkpoint(directory: Path, made: LiveCheckpoint) -> None:
    """Whole or not at all."""
    make_private_directory(directory)
    aside = directory / f".{FILE}.new"
    with aside.open("wb") as file:
        file.write(msgspec.json.encode(made))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(directory / FILE)


def _check_fits(found: LiveCheckpoint, site: str, directory: Path) -> None:
    if found.site != site:
        raise Conflict(
            f"the checkpoint {directory} is of the site {found.site!r}, not {site!r}",
            code="live.other_site",
            hint=_NEW,
        )
    if (found.form, found.snapshot) != (FORM, SNAPSHOT):
        raise Conflict(
            f"the checkpoint {directory} was made by another version of this program "
            f"(state {found.form}.{found.snapshot}, here {FORM}.{SNAPSHOT})",
            code="live.other_version",
            hint="go on with that version, or " + _NEW,
        )


def _check_empty(directory: Path) -> None:
    """A checkpoint of something else is not written into."""
    if (directory / "offsets").is_dir():
        raise Conflict(
            f"{directory} is the checkpoint of another query",
            code="live.other_checkpoint",
            hint="use a directory of its own",
        )
