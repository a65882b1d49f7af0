"""What is in force by files and log, for who looks without being the node. [ME-6, ME-12]"""

from __future__ import annotations

import msgspec

from rapport.channel.channel import Channel, Channels
from rapport.mediation.changing.keeping import CHANNEL, Kept, KeptChange
from rapport.mediation.changing.standing import Together, put_together
from rapport.mediation.from_files import FromFiles
from rapport.mediation.model.beside import beside

_PAGE = 1_000


class OnRecord(msgspec.Struct, frozen=True):
    """What files and log come to, and the names whose file the node has not taken in as it is."""

    together: Together
    not_taken: tuple[str, ...]


async def on_record(channels: Channels, files: FromFiles, node: str) -> OnRecord:
    """What the node of that id has in force, once it takes in the files as they are now. Nothing
    is appended, so it may be asked beside the running node.
    """
    kept = Kept(node)
    if CHANNEL in channels.names():
        await read_on(channels.channel(CHANNEL), kept)
    before, said = kept.said_before(), said_now(files, kept)
    names = before.keys() | said.keys()
    other = [name for name in names if before and before.get(name) != said.get(name)]
    together = await beside(lambda: put_together(files, kept, said), resting=False)
    return OnRecord(together, tuple(sorted(other)))


async def read_on(channel: Channel, kept: Kept) -> list[KeptChange]:
    """Feeds what came since; gives the changes among it that are new."""
    found: list[KeptChange] = []
    while batch := await channel.read_after(kept.position, limit=_PAGE):
        found += [change for stored in batch if (change := kept.add(stored)) is not None]
    return found


def said_now(files: FromFiles, kept: Kept) -> dict[str, str]:
    """What the files say, as digests. One that cannot be read says what it said: its fault takes
    nobody's changes away.
    """
    before = kept.said_before()
    carried = {name: before[name] for name in files.unread if name in before}
    return {**carried, **files.said}
