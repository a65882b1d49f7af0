"""What the policy engine commits with its cursor, and what it tells others of itself. [PO-7, PO-8,
PO-9]
"""

from __future__ import annotations

import msgspec

from rapport.core.detection import Detection
from rapport.core.errors import Corrupt
from rapport.core.release import ReleaseDone
from rapport.policy.life.shadow import ShadowState
from rapport.policy.plan import Plan


class EngineCounts(msgspec.Struct):
    """What happened since the start."""

    read: int = 0
    detections: int = 0
    undecided: int = 0
    late: int = 0
    history: int = 0
    """Readings imported as history, which are evaluated apart."""
    quarantined: int = 0
    moved_by_clock: int = 0
    commits: int = 0
    resets: int = 0


class EngineProgress(msgspec.Struct, frozen=True):
    """Where the engine is: the last position of `events` taken, the time before which everything is
    decided, its plans, and since when they are deployed (those that saw all are not named).
    """

    position: int
    watermark: int
    plans: tuple[Plan, ...]
    began: dict[str, int]


class EngineState(msgspec.Struct):
    """What is committed with the cursor.

    `detections` and `changes` are how far that channel and the record of changes of policies went
    then.
    """

    runner: bytes
    detections: int
    began: dict[str, int] = {}
    changes: int = 0
    shadows: dict[str, ShadowState] = {}
    stopped: list[str] = []
    """Policies that a detection stopped before the place where that is on record."""
    unheard_since: int | None = None
    """By the clock: since when silence counts where nothing was ever heard."""
    overdue: list[Detection] = []
    """Detections of lasting states that were found too late to act on them."""
    history: list[ReleaseDone] = []
    """Readings imported as history that wait to be evaluated: of silent imports, of others."""
    resets: int = 0
    """How often time began anew because the clock had jumped."""


def encode_state(state: EngineState) -> bytes:
    """As it is committed."""
    return msgspec.msgpack.encode(state)


def decode_state(raw: bytes) -> EngineState:
    """What `encode_state` wrote; raises Corrupt."""
    try:
        return msgspec.msgpack.decode(raw, type=EngineState)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the state of the policy engine cannot be read: {error}", code="policy.bad_snapshot"
        ) from None
