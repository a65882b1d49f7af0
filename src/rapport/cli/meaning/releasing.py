"""Having something released: by the running node, or on the site's log where none runs. [UX-3,
ME-16]
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from rapport.cli.remote import Remote
from rapport.cli.resting import with_resting_node
from rapport.cli.terminal import stderr
from rapport.cli.where import Where
from rapport.core.errors import Unavailable
from rapport.core.release import ReleaseRequest
from rapport.kernel.clock import SystemClock

if TYPE_CHECKING:
    from rapport.node.node import Node

_LOOK_EVERY_MS = 200
_TOLD = ("released", "corrected", "rejected", "unchanged")


def carry_out(where: Where, asked: ReleaseRequest, *, dry_run: bool) -> Any:
    """What came of it, with the second look; waits until all is done."""
    remote = where.remote()
    path, body = _request(asked, dry_run)
    try:
        answer = remote.post(path, body)
    except Unavailable as error:
        if where.url is not None or error.code != "node.unreachable":
            raise
        return with_resting_node(
            where.directory, lambda node: _without_a_node(node, asked, dry_run)
        )
    return answer if dry_run else _wait(remote, answer["release"])


def _request(asked: ReleaseRequest, dry_run: bool) -> tuple[str, bytes]:
    wanted: dict[str, Any] = {"source": asked.source, "dry_run": dry_run}
    wanted["since_ms"] = asked.since_ms
    if asked.what == "again":
        return "/interpretations/again", msgspec.json.encode(wanted | {"until_ms": asked.until_ms})
    wanted |= {"reason": asked.reason, "ids": asked.ids}
    return "/quarantine/release", msgspec.json.encode(wanted)


def _wait(remote: Remote, release: str) -> Any:
    """Tells how far it is until the release and its second look are done."""
    told = ""
    while True:
        state = remote.get(f"/quarantine/releases/{quote(release, safe='')}")
        now = ", ".join(f"{state[name]} {name}" for name in _TOLD)
        if now != told:
            stderr().print(f"release {release}: {now}", highlight=False)
            told = now
        if state["is_done"] and state["second_look"] is not None:
            return state
        asyncio.run(SystemClock().sleep(_LOOK_EVERY_MS))


async def _without_a_node(node: Node, asked: ReleaseRequest, dry_run: bool) -> Any:
    if dry_run:
        return await node.releasing.try_out(asked)
    release = await node.releasing.request(asked)
    await node.finish_releases()
    return await node.releasing.state(release)
