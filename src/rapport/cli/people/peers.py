"""`rapport peers`: who can be reached, and by what; changed while the node runs. [CO-3, UX-3]

What the site file declares is changed there. Works on the running node, or on the site at rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from rapport.cli.door import NodeDoor
from rapport.cli.people.peers_asking import (
    BY,
    in_path,
    move,
    pages,
    row_of,
    settings_of,
    tell_changed,
)
from rapport.cli.terminal import stderr, write_json, write_table
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput

if TYPE_CHECKING:
    from rapport.node.node import Node

app = App(name="peers", help="People, devices and services to be reached; collectives of them.")
app.command(
    "rapport.cli.people.passwords:password",
    name="password",
    help="Set the password a peer logs in with.",
)
app.command(
    "rapport.cli.people.inbox_link:inbox_link",
    name="inbox-link",
    help="Make a link that opens a peer's inbox without a password.",
)

JsonOption = Annotated[bool, Parameter(negative="", help="As JSON.")]
DeliveryOption = Annotated[
    str, Parameter(help="to-all-channels, at-least-one (the default) or preferred.")
]
FallbackOption = Annotated[
    bool, Parameter(negative="", help="With preferred: the next address when the first failed.")
]
FallbackAfterOption = Annotated[
    str,
    Parameter(
        help="With fallback: how long one address has, such as 1min; otherwise 2min, 30s if urgent."
    ),
]
ZoneOption = Annotated[str, Parameter(help="Their time zone, such as Europe/Vienna.")]
QuietOption = Annotated[str, Parameter(help="Their quiet hours, such as 22:00-07:00.")]
OnQuietOption = Annotated[str, Parameter(help="hold (the default) or refuse.")]


@app.command(name="list")
def list_peers(
    *,
    collectives: Annotated[bool, Parameter(negative="", help="Collectives instead.")] = False,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List peers with their addresses."""
    door = NodeDoor(where)
    found = pages(door, "collectives" if collectives else "peers")
    if json:
        write_json(found)
        return
    columns = ("name", "declared by", "addresses", "settings", "changed")
    write_table("collectives" if collectives else "peers", columns, [row_of(one) for one in found])


@app.command
def show(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Show a peer and the collectives it is in."""

    async def local(node: Node) -> Any:
        return node.directory.show_peer(name)

    door = NodeDoor(where)
    write_json(door.ask(lambda remote: remote.get(f"/peers/{in_path(name)}"), local, record=False))


@app.command
def add(
    name: str,
    *addresses: str,
    delivery: DeliveryOption = "",
    fallback: FallbackOption = False,
    fallback_after: FallbackAfterOption = "",
    zone: ZoneOption = "",
    quiet: QuietOption = "",
    on_quiet: OnQuietOption = "",
    where: Where = HERE,
) -> None:
    """Add a peer, or replace all that was said of it: rapport peers add ana mail:ana@example.org"""
    settings = settings_of(addresses, delivery, fallback, fallback_after, zone, quiet, on_quiet)

    async def local(node: Node) -> Any:
        warnings = await node.people.put_peer(name, settings, by=BY)
        return {"entry": node.directory.show_peer(name), "warnings": warnings}

    door = NodeDoor(where)
    body = msgspec.json.encode(settings)
    tell_changed(
        door.ask(lambda remote: remote.put(f"/peers/{in_path(name)}", body), local, record=True)
    )


@app.command
def change(
    name: str,
    *,
    address: Annotated[
        tuple[str, ...], Parameter(help="Their addresses from now on; may be repeated.")
    ] = (),
    delivery: DeliveryOption = "",
    fallback: FallbackOption = False,
    fallback_after: FallbackAfterOption = "",
    zone: ZoneOption = "",
    quiet: QuietOption = "",
    on_quiet: OnQuietOption = "",
    without: Annotated[
        tuple[str, ...], Parameter(help="A setting to take away, such as quiet.")
    ] = (),
    where: Where = HERE,
) -> None:
    """Change some settings of a peer; the others stay."""
    settings = settings_of(address, delivery, fallback, fallback_after, zone, quiet, on_quiet)
    settings |= {key.replace("-", "_"): None for key in without}
    if not settings:
        raise InvalidInput("say what to change", code="cli.wrong_use", hint="such as --quiet ...")

    async def local(node: Node) -> Any:
        warnings = await node.people.change_peer(name, settings, by=BY)
        return {"entry": node.directory.show_peer(name), "warnings": warnings}

    door = NodeDoor(where)
    body = msgspec.json.encode(settings)
    tell_changed(
        door.ask(lambda remote: remote.patch(f"/peers/{in_path(name)}", body), local, record=True)
    )


@app.command
def remove(
    name: str,
    *,
    collective: Annotated[bool, Parameter(negative="", help="A collective of that name.")] = False,
    where: Where = HERE,
) -> None:
    """Remove a peer, or a collective; its members stay."""

    async def local(node: Node) -> Any:
        gone = node.people.remove_collective if collective else node.people.remove_peer
        await gone(name, by=BY)

    kind = "collectives" if collective else "peers"
    door = NodeDoor(where)
    door.ask(lambda remote: remote.delete(f"/{kind}/{in_path(name)}"), local, record=True)
    stderr().print(f"{name} was removed", markup=False)


@app.command
def make(
    collective: str,
    *members: str,
    delivery: Annotated[
        str, Parameter(help="to-any (the default), to-all-members, or such as 'at-least 3'.")
    ] = "to-any",
    where: Where = HERE,
) -> None:
    """Make a collective, or say anew what it is; members that are named replace those before."""
    settings: dict[str, Any] = {"delivery": delivery}
    named = list(members) or None

    async def local(node: Node) -> Any:
        warnings = await node.people.put_collective(collective, settings, named, by=BY)
        return {"entry": node.directory.show_collective(collective), "warnings": warnings}

    body = msgspec.json.encode(settings | ({"members": named} if named else {}))
    path = f"/collectives/{in_path(collective)}"
    door = NodeDoor(where)
    tell_changed(door.ask(lambda remote: remote.put(path, body), local, record=True))


@app.command(name="members")
def list_members(
    collective: str,
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List who is in a collective."""
    found = pages(NodeDoor(where), f"collectives/{in_path(collective)}/members")
    if json:
        write_json(found)
    else:
        write_table(collective, ("member",), [(name,) for name in found])


@app.command
def join(
    collective: str,
    *peers: str,
    where: Where = HERE,
) -> None:
    """Let peers join a collective."""
    moved = move(NodeDoor(where), collective, {"join": list(peers)})
    stderr().print(f"{moved['joined']} joined {collective}", markup=False)


@app.command
def leave(
    collective: str,
    *peers: str,
    where: Where = HERE,
) -> None:
    """Let peers leave a collective."""
    moved = move(NodeDoor(where), collective, {"leave": list(peers)})
    stderr().print(f"{moved['left']} left {collective}", markup=False)
