"""How far a release has come, read from `releases`. [ME-16]"""

from __future__ import annotations

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import UnknownName
from rapport.core.event import Event
from rapport.core.release import (
    ASKED,
    BATCH_DONE,
    DONE,
    LOOKED,
    RELEASES,
    Asked,
    BatchDone,
    Looked,
    ReleaseDone,
)

_PAGE = 1_000


class ReleaseState(msgspec.Struct, kw_only=True):
    """What was asked, what is done by now, and what the policies' second look found."""

    release: str
    asked: Asked
    released: int = 0
    rejected: int = 0
    corrected: int = 0
    unchanged: int = 0
    is_done: bool = False
    second_look: Looked | None = None


async def read_state(channels: Channels, release: str) -> ReleaseState:
    """The state of one release; raises UnknownName."""
    position = 0
    for name, stored in await channels.find_event(release):
        if name == RELEASES and stored.event.type == ASKED:
            position = stored.position
            state = ReleaseState(release=release, asked=stored.event.payload_as(Asked))
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
    if event.type == BATCH_DONE:
        batch: BatchDone = event.payload_as(BatchDone)
        state.released += len(batch.released)
        state.rejected += len(batch.rejected)
        state.corrected += len(batch.corrected)
        state.unchanged += batch.unchanged
    elif event.type == DONE:
        done: ReleaseDone = event.payload_as(ReleaseDone)
        state.is_done, state.released, state.rejected = True, done.released, done.rejected
    elif event.type == LOOKED:
        state.second_look = event.payload_as(Looked)
