"""A replay that was stopped, kept on disk: written whole or not at all, and only for the same
inputs. [UX-3]
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Conflict, Corrupt, InvalidInput, StoreUnavailable
from rapport.core.ids import content_id
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan

_VERSION = 2
_FILE = "state.msgpack"


class ReplayState(msgspec.Struct, kw_only=True):
    """How far it was, what was found, and the digest of everything the result depends on."""

    version: int = _VERSION
    digest: str
    events: int
    runner: bytes
    """Empty: of an engine that keeps nothing and begins anew."""
    detections: list[Detection]
    late: list[Cause]
    undecided: list[Undecided]


def digest_of(
    plans: Sequence[Plan],
    lateness_ms: int,
    tables_version: str,
    files: Sequence[tuple[str, Path]],
    sources: Mapping[str, PushSource],
) -> str:
    """A name for policies, lateness, tables, what is said of the sources and the content of the
    files; reads the files once.
    """
    parts = [f"{plan.policy}={plan.version()}" for plan in plans]
    parts += [f"{name} is {_said_of(one)}" for name, one in sorted(sources.items())]
    parts += [f"lateness={lateness_ms}", f"tables={tables_version}"]
    parts += [f"{source}={_digest_file(path)}" for source, path in files]
    return content_id(*parts)


def save_state(directory: Path, state: ReplayState) -> None:
    """Puts the state in the place of an older one; a crash leaves the one or the other."""
    try:
        make_private_directory(directory)
        write_atomically(directory / _FILE, msgspec.msgpack.encode(state))
    except OSError as error:
        raise StoreUnavailable(
            f"cannot keep the state of the replay in {directory}: {error.strerror}"
        ) from error


def load_state(directory: Path, digest: str) -> ReplayState:
    """The state kept there; raises InvalidInput when there is none, Conflict when it is of other
    inputs.
    """
    try:
        raw = (directory / _FILE).read_bytes()
    except OSError:
        raise InvalidInput(
            "there is no stopped replay to resume",
            code="replay.nothing_to_resume",
            hint="--stop-after N keeps one",
        ) from None
    try:
        state = msgspec.msgpack.decode(raw, type=ReplayState)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the state of the replay cannot be read: {error}", code="replay.bad_state"
        ) from None
    if state.version != _VERSION or state.digest != digest:
        raise Conflict(
            "policies, tables, lateness, sources or recorded events are not those of the stopped "
            "replay",
            code="replay.changed",
            hint="put them back, or replay from the beginning",
        )
    return state


def _said_of(source: PushSource) -> str:
    """All but where its recorded events lie: their content counts."""
    return msgspec.json.encode(msgspec.structs.replace(source, events="")).decode()


def _digest_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError:
        return "unreadable"  # reading it will say so with its name
