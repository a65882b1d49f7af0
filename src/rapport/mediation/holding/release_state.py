"""How far a release has come, read from `releases`. [ME-16]"""

from __future__ import annotations

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import UnknownName
from rapport.core.event import Event
from rapport.core.release import (
    BATCH_RELEASED,
    REEVALUATED,
    RELEASE_DONE,
    RELEASE_REQUESTED,
    RELEASES,
    ReevaluationResult,
    ReleasedBatch,
    ReleaseDone,
    ReleaseRequest,
)

_PAGE = 1_000


class ReleaseState(msgspec.Struct, kw_only=True):
    """What was asked, what is done by now, and what the policies' second look found."""

    release: str
    asked: ReleaseRequest
    released: int = 0
    rejected: int = 0
    corrected: int = 0
    unchanged: int = 0
    is_done: bool = False
    second_look: ReevaluationResult | None = None


async def read_state(channels: Channels, release: str) -> ReleaseState:
    """The state of one release; raises UnknownName."""
    position = 0
    for name, stored in await channels.find_event(release):
        if name == RELEASES and stored.event.type == RELEASE_REQUESTED:
            position = stored.position
            state = ReleaseState(release=release, asked=stored.event.payload_as(ReleaseRequest))
    if not position:
        raise UnknownName("release", release)
    channel = channels.channel(RELEASES)
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        for stored in batch:
            if stored.event.subject == f"release/{release}":
                _take(state, stored.event)
    return state


def _take(state: ReleaseState, event: Event) -> None:
    if event.type == BATCH_RELEASED:
        batch: ReleasedBatch = event.payload_as(ReleasedBatch)
        state.released += len(batch.released)
        state.rejected += len(batch.rejected)
        state.corrected += len(batch.corrected)
        state.unchanged += batch.unchanged
    elif event.type == RELEASE_DONE:
        done: ReleaseDone = event.payload_as(ReleaseDone)
        state.is_done, state.released, state.rejected = True, done.released, done.rejected
    elif event.type == REEVALUATED:
        state.second_look = event.payload_as(ReevaluationResult)
