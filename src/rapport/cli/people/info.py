"""`rapport info`: what types of messages mean, and how to answer them. [CO-14, UX-3]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.files import cannot_read
from rapport.cli.terminal import stderr, write_json, write_table
from rapport.cli.where import HERE, Where

app = App(name="info", help="What types of messages mean on a running node; change it.")

JsonOption = Annotated[bool, Parameter(negative="", help="As JSON.")]


@app.command(name="list")
def list_info(
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List the types of messages that something is told of."""
    found = where.remote().get("/messages/info")
    if json:
        write_json(found)
        return
    rows = [[one["type"], one["subtype"] or "any", one["origin"], one["text"]] for one in found]
    write_table("messages", ("type", "subtype", "origin", "text"), rows)


@app.command
def show(
    type: str,
    subtype: str = "",
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """Show what a type of message means, what its content looks like and how to answer it."""
    from rapport.communication.message_info import MessageInfoEntry, MessageInformation, as_text

    found = where.remote().get(_path(type, subtype))
    if json:
        write_json(found)
        return
    names = {name: found.pop(name) for name in ("type", "subtype", "origin")}
    told = msgspec.convert(found, MessageInformation)
    print(as_text(MessageInfoEntry(**names, information=told)))


@app.command(name="set")
def set_info(
    file: Annotated[Path, Parameter(help="JSON with text, schema, answers, related.")],
    type: str,
    subtype: str = "",
    *,
    where: Where = HERE,
) -> None:
    """Tell something else of a type of message, from now on and for good."""
    try:
        body = file.read_bytes()
    except OSError as error:
        raise cannot_read(file, error) from None
    remote = where.remote()
    write_json(remote.put(_path(type, subtype), body))


@app.command
def remove(
    type: str,
    subtype: str = "",
    *,
    where: Where = HERE,
) -> None:
    """Take back what was set; what the site file says, or what is shipped, is told again."""
    remote = where.remote()
    gone: dict[str, Any] = remote.delete(_path(type, subtype))
    write_json(gone)
    stderr().print("taken back")


def _path(type: str, subtype: str) -> str:
    parts = [quote(part, safe="") for part in (type, subtype) if part]
    return f"/messages/info/{'/'.join(parts)}"
