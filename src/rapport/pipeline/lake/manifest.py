"""How far silver and gold have taken what bronze holds, and which files could not be read. [PI-3]

It changes in the same step as the files it speaks of (`journal.py`), so it is never behind them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rapport.channel.export.lake_export import FORMAT, check_format
from rapport.core.errors import Corrupt, Problem
from rapport.pipeline.lake.places import MANIFEST, SILVER


class Taken(msgspec.Struct):
    """How far a channel was taken."""

    position: int = 0
    rows: int = 0
    """Events found up to there; fewer than the export wrote when files are missing or damaged."""
    received: int = -(2**63)
    """The newest moment of receiving among them."""


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A file of bronze whose events after one position up to another could not be taken. It is
    tried again as soon as it has changed.
    """

    channel: str
    file: str
    """Relative to the lake."""
    after: int
    upto: int
    size: int = -1
    changed_ns: int = 0
    code: str
    message: str
    hint: str = ""

    def as_problem(self) -> Problem:
        """For the terminal."""
        return Problem(
            file=self.file, severity="warning", code=self.code, message=self.message, hint=self.hint
        )


class SilverManifest(msgspec.Struct):
    """What silver knows about itself."""

    format: int = FORMAT
    channels: dict[str, Taken] = {}
    unread: list[Unread] = []
    expired: str = ""
    """Days of bronze up to this one have been let go of; silver cannot be made anew."""

    def taken(self, channel: str) -> Taken:
        """How far a channel was taken; from now on in the manifest."""
        return self.channels.setdefault(channel, Taken())


def manifest_path(lake: Path) -> Path:
    """Where the manifest stands."""
    return lake / SILVER / MANIFEST


def read_silver_manifest(lake: Path) -> SilverManifest:
    """The manifest, an empty one for a new silver; raises Corrupt when it cannot be read."""
    path = manifest_path(lake)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SilverManifest)
        check_format(path, found.format)
        return found
    except FileNotFoundError:
        return SilverManifest()
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the manifest {path} cannot be read: {error}",
            code="lake.bad_manifest",
            hint="move the folder silver aside and make it again: bronze still has every event",
        ) from None
