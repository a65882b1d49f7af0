"""Doors to the directory: peers and collectives looked at, added, changed, removed. [CO-3]

Looking is for who may read `log`, which names the same people; changing needs the right to change
the node. What the site file declares is changed there.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.communication.blocking import run_blocking
from rapport.communication.directory import DirectoryEntry
from rapport.core.errors import InvalidInput, Problem
from rapport.core.json_objects import ObjectDecoder
from rapport.web.callers import allow_admin, allow_whole
from rapport.web.dependencies import NodeDependency

Limit = Annotated[int, QueryParameter(ge=1, le=10_000)]


class Changed(msgspec.Struct, frozen=True):
    """What a change gives back: the entry as it is now, and what the site file would warn of."""

    entry: DirectoryEntry
    warnings: list[Problem] = []


class Moved(msgspec.Struct, frozen=True):
    """How many came and went."""

    joined: int = 0
    left: int = 0


class WantedMembers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that changes who is in a collective."""

    join: list[str] = []
    leave: list[str] = []


_FAULT, _CODE = "the body cannot be read", "people.bad_body"
_READ_SETTINGS = ObjectDecoder(
    dict[str, Any],
    fault=_FAULT,
    code=_CODE,
    hint='write JSON with the keys of the site file, such as {"addresses": ["inbox:"]}',
)
_READ_MEMBERS = ObjectDecoder(
    WantedMembers, fault=_FAULT, code=_CODE, hint='such as {"join": ["ana"], "leave": ["ben"]}'
)


@get("/peers")
async def list_peers(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    after: FromQuery[str] = "",
    limit: Limit = 1000,
) -> Response[bytes]:
    """Peers by name, of the site file and of the store; secrets of addresses are not shown."""
    allow_whole(request, node, "log")
    entries = await run_blocking(lambda: node.directory.peers(after=after, limit=limit))
    return _json(_with_circuits(node, entries))


@get("/peers/{peer:str}")
async def show_peer(
    request: Request[Any, Any, Any], peer: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """One peer, the collectives it is in, and addresses where calls fail now."""
    allow_whole(request, node, "log")
    entry = await run_blocking(lambda: node.directory.show_peer(peer))
    return _json(_with_circuits(node, [entry])[0])


@put("/peers/{peer:str}")
async def put_peer(
    request: Request[Any, Any, Any], peer: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Adds a peer or replaces its settings, which are those of the site file's [peers.NAME]."""
    by = allow_admin(request, node)
    settings = _READ_SETTINGS.decode(await request.body())
    warnings = await node.people.put_peer(peer, settings, by=by)
    return _json(Changed(await run_blocking(lambda: node.directory.show_peer(peer)), warnings))


@patch("/peers/{peer:str}")
async def change_peer(
    request: Request[Any, Any, Any], peer: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Changes some settings of a peer; null takes one away."""
    by = allow_admin(request, node)
    settings = _READ_SETTINGS.decode(await request.body())
    warnings = await node.people.change_peer(peer, settings, by=by)
    return _json(Changed(await run_blocking(lambda: node.directory.show_peer(peer)), warnings))


@delete("/peers/{peer:str}", status_code=200)
async def remove_peer(
    request: Request[Any, Any, Any], peer: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Removes a peer, also from every collective."""
    await node.people.remove_peer(peer, by=allow_admin(request, node))
    return _json({"removed": peer})


@get("/collectives")
async def list_collectives(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    after: FromQuery[str] = "",
    limit: Limit = 1000,
) -> Response[bytes]:
    """Collectives by name; their members are asked for one by one."""
    allow_whole(request, node, "log")
    return _json(await run_blocking(lambda: node.directory.collectives(after=after, limit=limit)))


@get("/collectives/{collective:str}")
async def show_collective(
    request: Request[Any, Any, Any], collective: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """One collective without its members."""
    allow_whole(request, node, "log")
    return _json(await run_blocking(lambda: node.directory.show_collective(collective)))


@get("/collectives/{collective:str}/members")
async def list_members(
    request: Request[Any, Any, Any],
    collective: FromPath[str],
    node: NodeDependency,
    after: FromQuery[str] = "",
    limit: Limit = 1000,
) -> Response[bytes]:
    """Names of members that come after a name, sorted."""
    allow_whole(request, node, "log")

    def members() -> list[str]:
        node.directory.show_collective(collective)
        return node.directory.member_names(collective, after=after, limit=limit)

    return _json(await run_blocking(members))


@put("/collectives/{collective:str}")
async def put_collective(
    request: Request[Any, Any, Any], collective: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Adds a collective or replaces its settings, and its members when they are given; the body is
    the site file's [collectives.NAME].
    """
    by = allow_admin(request, node)
    settings = _READ_SETTINGS.decode(await request.body())
    members = settings.pop("members", None)
    if members is not None and not _are_names(members):
        raise InvalidInput("members are a list of names", code="people.bad_members")
    warnings = await node.people.put_collective(collective, settings, members, by=by)
    shown = await run_blocking(lambda: node.directory.show_collective(collective))
    return _json(Changed(shown, warnings))


@delete("/collectives/{collective:str}", status_code=200)
async def remove_collective(
    request: Request[Any, Any, Any], collective: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Removes a collective; its members stay peers."""
    await node.people.remove_collective(collective, by=allow_admin(request, node))
    return _json({"removed": collective})


@post("/collectives/{collective:str}/members", status_code=200)
async def move_members(
    request: Request[Any, Any, Any], collective: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Lets peers join and leave a collective; of the site file's only those leave that joined."""
    by = allow_admin(request, node)
    wanted = _READ_MEMBERS.decode(await request.body())
    joined = await node.people.join(collective, wanted.join, by=by)
    return _json(Moved(joined, await node.people.leave(collective, wanted.leave, by=by)))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _with_circuits(node: NodeDependency, entries: list[DirectoryEntry]) -> list[DirectoryEntry]:
    """The entries with the circuit breakers of the running node."""
    circuits = node.outputs.circuits()
    return [
        msgspec.structs.replace(entry, circuits=circuits[entry.name])
        if entry.name in circuits
        else entry
        for entry in entries
    ]


def _json(value: Any) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
