"""`rapport ledger messages`: the messages that were handled, by criteria. [CO-13, UX-3]

Reads the log beside a running node or without one; with `--url` it asks another node, which has an
index and is faster for a long log.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from cyclopts import Parameter

from rapport.cli.moments import moment
from rapport.cli.remote import Remote
from rapport.cli.terminal import write_json, write_table
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.communication.message_query import Criteria

_MOST, _PER_PAGE = 100_000, 1_000
_COLUMNS = ("time", "type", "subtype", "from", "to", "fate", "conversation", "id", "content")
_SHOWN = 60
"""Characters of a content in the table."""


def messages(
    *,
    id: Annotated[str, Parameter(help="The message with this id.")] = "",
    type: Annotated[str, Parameter(help="Only this type.")] = "",
    subtype: Annotated[str, Parameter(help="Only this subtype.")] = "",
    sender: Annotated[str, Parameter(help="Only of this sender: NAME or KIND:NAME.")] = "",
    receiver: Annotated[str, Parameter(help="Only to this receiver.")] = "",
    conversation: Annotated[str, Parameter(help="Only this conversation.")] = "",
    refers_to: Annotated[str, Parameter(help="Only about this message.")] = "",
    contains: Annotated[str, Parameter(help="Only with this text in the content.")] = "",
    fate: Annotated[str, Parameter(help="Only open, done, failed, timed_out ...")] = "",
    since: Annotated[str, Parameter(help="From this time on, or this long ago: 2h.")] = "",
    until: Annotated[str, Parameter(help="Up to this time, or this long ago.")] = "",
    oldest: Annotated[bool, Parameter(negative="", help="The oldest first.")] = False,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    json: Annotated[bool, Parameter(negative="", help="As JSON.")] = False,
    where: Where = HERE,
) -> None:
    """Show the messages that were handled, the newest first, and what became of them."""
    from rapport.communication.message_query import Criteria

    if not 1 <= limit <= _MOST:
        raise InvalidInput(
            f"--limit lies between 1 and {_MOST}",
            code="cli.wrong_use",
            hint="leave it out for 50; --since, --sender and --type say which",
        )
    criteria = Criteria(
        id=id,
        type=type,
        subtype=subtype,
        sender=sender,
        receiver=receiver,
        conversation=conversation,
        refers_to=refers_to,
        contains=contains,
        fate=fate,
        since_ms=moment(since),
        until_ms=moment(until),
        newest_first=not oldest,
        limit=min(limit, _PER_PAGE),
    )
    directory = where.directory
    if where.url is None:
        found = _local(directory, criteria, limit)
    else:
        found = _remote(where.remote(), criteria, limit)
    if json:
        write_json(found)
    else:
        write_table("messages", _COLUMNS, [_row(one) for one in found])


def _local(site: Path, criteria: Criteria, limit: int) -> list[dict[str, Any]]:
    from rapport.cli.local import read_channels
    from rapport.communication.message_query import MessageQueries
    from rapport.kernel.clock import SystemClock
    from rapport.web.api.messages import shown_message

    async def look(channels: ReadOnlyChannels) -> list[dict[str, Any]]:
        queries = MessageQueries(channels, SystemClock())
        found: list[dict[str, Any]] = []
        page = await queries.page(criteria)
        while True:
            found += [shown_message(logged) for logged in page.messages]
            if len(found) >= limit or not page.next_token:
                return found[:limit]
            page = await queries.page(token=page.next_token)

    return read_channels(site, look)


def _remote(remote: Remote, criteria: Criteria, limit: int) -> list[dict[str, Any]]:
    import msgspec

    asked = msgspec.to_builtins(criteria)
    for name in ("since", "until"):
        if f"{name}_ms" in asked:
            asked[name] = format_time(asked.pop(f"{name}_ms"))
    asked["order"] = "newest" if asked.pop("newest_first", False) else "oldest"
    found: list[dict[str, Any]] = []
    page = remote.get(f"/messages?{urlencode(asked)}")
    while True:
        found += page["messages"]
        if len(found) >= limit or not page["next_token"]:
            return found[:limit]
        page = remote.get(f"/messages?{urlencode({'token': page['next_token']})}")


def _row(one: dict[str, Any]) -> list[str]:
    content = " ".join(one.get("content", "").split())
    return [
        one["time"],
        one["type"],
        one["subtype"],
        one["sender"],
        one.get("receiver", "-"),
        one["fate"],
        one.get("conversation-id", "-"),
        one["id"],
        content if len(content) <= _SHOWN else f"{content[: _SHOWN - 1]}…",
    ]
