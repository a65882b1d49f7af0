"""What the commands about people ask of a node, and how they show it. [CO-3, UX-3]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

import msgspec

from rapport.cli.door import NodeDoor
from rapport.cli.terminal import show_problem, write_json
from rapport.core.errors import InvalidInput, Problem
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.node.node import Node

BY = "cli"
_PAGE = 1_000


def move(door: NodeDoor, collective: str, wanted: dict[str, list[str]]) -> Any:
    """Lets peers join and leave; gives how many did."""
    if not any(wanted.values()):
        (way, *_) = wanted
        raise InvalidInput(
            "name at least one peer",
            code="cli.wrong_use",
            hint=f"rapport peers {way} {collective} PEER ...; rapport peers list shows all",
        )

    async def local(node: Node) -> Any:
        joined = await node.people.join(collective, wanted.get("join", ()), by=BY)
        return {
            "joined": joined,
            "left": await node.people.leave(collective, wanted.get("leave", ()), by=BY),
        }

    path, body = f"/collectives/{in_path(collective)}/members", msgspec.json.encode(wanted)
    return door.ask(lambda remote: remote.post(path, body), local, record=True)


def pages(door: NodeDoor, what: str) -> list[Any]:
    """All pages of a listing: entries of peers or collectives, or names of members."""
    found: list[Any] = []
    after = ""
    while True:
        page = _page(door, what, after)
        found += page
        if len(page) < _PAGE:
            return found
        after = page[-1] if isinstance(page[-1], str) else page[-1]["name"]


def _page(door: NodeDoor, what: str, after: str) -> list[Any]:
    async def local(node: Node) -> Any:
        kind, _, rest = what.partition("/")
        if rest:
            name = unquote(rest.removesuffix("/members"))
            node.directory.show_collective(name)
            return node.directory.member_names(name, after=after, limit=_PAGE)
        listed = node.directory.peers if kind == "peers" else node.directory.collectives
        return listed(after=after, limit=_PAGE)

    wanted = urlencode({"after": after, "limit": _PAGE} if after else {"limit": _PAGE})
    found: list[Any] = door.ask(lambda remote: remote.get(f"/{what}?{wanted}"), local, record=False)
    return found


def settings_of(
    addresses: tuple[str, ...],
    delivery: str,
    fallback: bool,
    fallback_after: str,
    zone: str,
    quiet: str,
    on_quiet: str,
) -> dict[str, Any]:
    """The keys of the site file that were given."""
    given: dict[str, Any] = {
        "addresses": list(addresses),
        "delivery": delivery,
        "fallback": fallback,
        "fallback_after": fallback_after,
        "zone": zone,
        "quiet": quiet,
        "on_quiet": on_quiet,
    }
    return {key: value for key, value in given.items() if value}


def in_path(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


# --- telling ---


def tell_changed(changed: Any) -> None:
    """What the site file would warn of, and the entry as it is now."""
    for problem in changed["warnings"]:
        show_problem(msgspec.convert(problem, Problem))
    write_json(changed["entry"])


def row_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """An entry as a row of a table."""
    settings = dict(entry["settings"])
    addresses = settings.pop("addresses", [])
    by = f"{format_time(entry['time'])} by {entry['by']}" if entry["time"] else ""
    said = [f"{key} = {value}" for key, value in settings.items()]
    said += [f"{one['address']}: circuit {one['state']}" for one in entry.get("circuits", ())]
    return (entry["name"], entry["origin"], " ".join(addresses), ", ".join(said), by)
