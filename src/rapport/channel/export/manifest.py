"""What a lake knows about itself: how far each channel is exported, and who exports now. [CH-16]

Before files are written the manifest says which positions they will hold; after a crash exactly
these are written again, under the same names.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from rapport.channel.export.files import make_directory, replaced_file
from rapport.core.errors import Conflict, Corrupt, StoreUnavailable
from rapport.core.event import Gap

MANIFEST = "manifest.json"
FORMAT = 1
"""The version of what the lake knows about itself; another one is refused."""
EXPORT_RUNNING = "lake.export_running"


class ChannelProgress(msgspec.Struct):
    """How far a channel is exported; `pending` is the last position of files being written."""

    exported: int = 0
    pending: int = 0
    rows: int | None = None
    """Events written up to there; None in a lake that was begun before they were counted."""
    gaps: list[Gap] | msgspec.UnsetType = msgspec.UNSET
    """Positions up to there that the log could not give; left out when there are none."""


class Manifest(msgspec.Struct):
    """What the lake knows about itself."""

    format: int = FORMAT
    channels: dict[str, ChannelProgress] = {}

    def progress(self, channel: str) -> ChannelProgress:
        """A channel's progress, from now on in the manifest."""
        return self.channels.setdefault(channel, ChannelProgress(rows=0))


def read_manifest(directory: Path) -> Manifest:
    """The lake's manifest, an empty one for a new lake; raises Corrupt when it cannot be read."""
    path = directory / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
        check_format(path, found.format)
        return found
    except FileNotFoundError:
        return Manifest()
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the manifest {path} cannot be read: {error}",
            code="lake.bad_manifest",
            hint="move the lake directory aside and export again: the log still has every event",
        ) from None
    except OSError as error:
        raise _unusable(directory, error) from None


def check_format(path: Path, format: int) -> None:
    """Raises Conflict for what another version of this program has written in another form."""
    if format != FORMAT:
        raise Conflict(
            f"{path} was written by another version of this program (form {format}, here {FORMAT})",
            code="lake.other_version",
            hint="go on with that version, or begin a new lake: the log still has its events",
        )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest at once; durable when it returns."""
    with replaced_file(directory / MANIFEST) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def take_lock(directory: Path) -> int:
    """One export at a time into a lake; the lock goes with the descriptor, so with the process.

    Raises Conflict while another one has it.
    """
    try:
        make_directory(directory)
        lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Conflict(
            f"another export into {directory} is running",
            code=EXPORT_RUNNING,
            hint="it will be done soon; try again",
        ) from None
    return lock


def _unusable(directory: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot use {directory} as a lake: {error.strerror}", code="lake.unavailable"
    )
