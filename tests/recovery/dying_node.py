"""The node that test_changing_tables_kill9.py lets die: `rapport up` that kills itself with -9
where rows come into force.

Argument: the site. Its file `die` says where: `before` what changed is on record, between its
`pieces`, `after` it is on record, or when policies have `renewed` their tables. Only rows that come
while it runs count. It leaves a file `died` behind. Says where it listens as `rapport up` does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import rapport.node.table_updates as record
import rapport.tables.row_history as rows_recorder
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import load_settings
from rapport.node.table_updates import TableRecorder
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.tables.row_history import RowsDraft, RowsPosition
from rapport.web.app import serving

SITE = Path(sys.argv[1])


class Fuse:
    """Burns at the second change that comes while the node is up."""

    def __init__(self) -> None:
        self.where = (SITE / "die").read_text()
        self.is_up = False
        self.changes = 0

    def burn(self, where: str) -> None:
        if self.where == where and self.is_up and self.changes >= 2:
            (SITE / "died").write_text(where)
            os.kill(os.getpid(), signal.SIGKILL)


def lay(fuse: Fuse) -> None:
    """Along the way of a change."""
    put, append = TableRecorder.put, TableRecorder._append
    record._MOST_AT_ONCE, rows_recorder.PIECE_BYTES = 1, 20  # a row is a piece

    async def dying_put(self: TableRecorder, draft: RowsDraft, place: RowsPosition) -> bool:
        fuse.changes += fuse.is_up and bool(draft.pieces)
        fuse.burn("before")
        done = await put(self, draft, place)
        fuse.burn("after")
        return done

    async def dying_append(self: TableRecorder, events: Sequence[Event]) -> list[int]:
        if len(events) > 1 and fuse.where == "pieces":
            positions = await append(self, events[:1])
            fuse.burn("pieces")
            return positions + await append(self, events[1:])
        return await append(self, events)

    TableRecorder.put = dying_put  # type: ignore[method-assign]
    TableRecorder._append = dying_append  # type: ignore[method-assign]


async def main() -> None:
    loaded = load_site(SITE)
    settings = load_settings(loaded.file.section("node"), flags={"port": 0})
    fuse = Fuse()
    lay(fuse)
    node = make_node(loaded, settings, SystemClock())
    renew = node.policy.renew

    def dying_renew(*given: object) -> None:
        renew(*given)  # type: ignore[arg-type]
        fuse.burn("renewed")

    node.policy.renew = dying_renew  # type: ignore[method-assign]
    async with serving(node) as url:
        await node.start()
        fuse.is_up = True
        print(f"rapport is up: {url}", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
