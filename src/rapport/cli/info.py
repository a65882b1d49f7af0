"""`rapport info` and `rapport routing`: message types with their answers, and routing rules, on a
running node. [CO-6, CO-14, UX-3]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption
from rapport.cli.hints import read_given
from rapport.cli.node_api import HERE, Where
from rapport.cli.output import print_note, write_json, write_table

app = App(name="info", help="What types of messages mean on a running node; change it.")


@app.command(name="list")
def list_info(*, where: Where = HERE, json: JsonOption = False) -> None:
    """List the types of messages with information."""
    found = where.remote().get("/messages/info")
    if json:
        write_json(found)
        return
    rows = [[one["type"], one["subtype"] or "any", one["origin"], one["text"]] for one in found]
    write_table("messages", ("type", "subtype", "origin", "text"), rows)


@app.command
def show(type: str, subtype: str = "", *, where: Where = HERE, json: JsonOption = False) -> None:
    """Show what a type of message means, what its content looks like and how to answer it."""
    from rapport.communication.message_info import MessageInfoEntry, MessageInformation, as_text

    found = where.remote().get(_path(type, subtype))
    if json:
        write_json(found)
        return
    names = {name: found.pop(name) for name in ("type", "subtype", "origin")}
    information = msgspec.convert(found, MessageInformation)
    print(as_text(MessageInfoEntry(**names, information=information)))


@app.command(name="set")
def set_info(
    file: Annotated[Path, Parameter(help="JSON with text, schema, answers, related.")],
    type: str,
    subtype: str = "",
    *,
    where: Where = HERE,
) -> None:
    """Tell something else of a type of message, from now on and for good."""
    body = read_given(file)
    write_json(where.remote().call("PUT", _path(type, subtype), body))


@app.command
def remove(type: str, subtype: str = "", *, where: Where = HERE) -> None:
    """Remove what was set; the information of the site file, or the shipped one, counts again."""
    gone: dict[str, Any] = where.remote().delete(_path(type, subtype))
    write_json(gone)
    print_note("taken back")


def _path(type: str, subtype: str) -> str:
    parts = [quote(part, safe="") for part in (type, subtype) if part]
    return f"/messages/info/{'/'.join(parts)}"


routing_app = App(name="routing", help="Routing rules of a running node: who else gets a message.")

_COLUMNS = ("id", "type", "subtype", "receiver", "sender", "to", "origin")


@routing_app.command(name="list")
def list_rules(*, where: Where = HERE, json: JsonOption = False) -> None:
    """Show the rules in force, in the order in which they count."""
    rules = where.remote().get("/routing")
    if json:
        write_json(rules)
        return
    shown = [rule | {"to": ", ".join(rule["to"])} for rule in rules]
    rows = [[rule.get(column, "any") for column in _COLUMNS] for rule in shown]
    write_table("routing rules", _COLUMNS, rows)


@routing_app.command
def add(
    *to: Annotated[str, Parameter(help="Who gets it: peer:NAME, collective:NAME, component:NAME.")],
    type: Annotated[str, Parameter(help="Of messages of this type.")] = "",
    subtype: Annotated[str, Parameter(help="Of messages of this subtype.")] = "",
    receiver: Annotated[str, Parameter(help="Of messages to this receiver.")] = "",
    sender: Annotated[str, Parameter(help="Of messages of this sender.")] = "",
    id: Annotated[str, Parameter(help="A name of your own for the rule.")] = "",
    where: Where = HERE,
) -> None:
    """Add a rule for good; it is in force when this returns. Prints its id."""
    criteria = {"type": type, "subtype": subtype, "receiver": receiver, "sender": sender, "id": id}
    body = msgspec.json.encode(
        {"to": to} | {key: value for key, value in criteria.items() if value}
    )
    print(where.remote().post("/routing", body)["id"])


@routing_app.command(name="remove")
def remove_rule(rule: str, *, where: Where = HERE) -> None:
    """Take a rule out for good."""
    write_json(where.remote().delete(f"/routing/{quote(rule, safe='')}"))
    print_note("it is not applied any more")
