"""`rapport peers password NAME`: sets or removes the password a peer logs in with. [CO-11, UX-3]

The password is typed or piped in, never an argument: arguments are seen by every process and kept
in the shell's history.
"""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from rapport.cli.door import NodeDoor
from rapport.cli.remote import Remote
from rapport.cli.terminal import stderr
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput

if TYPE_CHECKING:
    from rapport.node.node import Node

_BY = "command line"


def password(
    name: Annotated[str, Parameter(help="The peer.")],
    *,
    remove: Annotated[bool, Parameter(help="It can log in no more.")] = False,
    where: Where = HERE,
) -> None:
    """Set the password a peer logs in with, typed or from standard input; ends its sessions."""
    given = None if remove else read_password(name)
    ended = change_password(NodeDoor(where), name, given)
    done = "has no password any more" if remove else "has a new password"
    stderr().print(f"{name} {done}; {ended} sessions ended", markup=False, soft_wrap=True)


def change_password(door: NodeDoor, name: str, given: str | None) -> int:
    """Sets it, or removes it when it is None, at the running node or at the site's own; returns how
    many sessions ended.
    """
    path = f"/peers/{quote(name, safe='')}/password"

    def ask(remote: Remote) -> Any:
        if given is None:
            return remote.delete(path)
        return remote.post(path, msgspec.json.encode({"password": given}))

    async def local(node: Node) -> Any:
        if given is None:
            return {"ended": await node.logins.remove_password(name, by=_BY)}
        return {"ended": await node.logins.set_password(name, given, by=_BY)}

    return int(door.ask(ask, local, record=False)["ended"])


def read_password(name: str) -> str:
    """What is piped in, its first line; else what is typed, twice and unseen."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass(f"New password of {name}: ")
    if getpass.getpass("Again: ") != first:
        raise InvalidInput(
            "the two are not the same",
            code="password.not_repeated",
            hint="nothing was changed; run it again and type the same twice",
        )
    return first
