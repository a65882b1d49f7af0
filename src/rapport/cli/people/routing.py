"""`rapport routing`: who else gets a message, on a running node. [CO-6, UX-3]"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.terminal import stderr, write_json, write_table
from rapport.cli.where import HERE, Where

app = App(name="routing", help="Routing rules of a running node: who else gets a message.")

_COLUMNS = ("id", "type", "subtype", "receiver", "sender", "to", "origin")


@app.command(name="list")
def list_rules(
    *,
    where: Where = HERE,
    json: Annotated[bool, Parameter(negative="", help="As JSON.")] = False,
) -> None:
    """Show the rules in force, in the order in which they count."""
    rules = where.remote().get("/routing")
    if json:
        write_json(rules)
        return
    shown = [rule | {"to": ", ".join(rule["to"])} for rule in rules]
    rows = [[rule.get(column, "any") for column in _COLUMNS] for rule in shown]
    write_table("routing rules", _COLUMNS, rows)


@app.command
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
    said = {"type": type, "subtype": subtype, "receiver": receiver, "sender": sender, "id": id}
    body = msgspec.json.encode({"to": to} | {key: value for key, value in said.items() if value})
    remote = where.remote()
    print(remote.post("/routing", body)["id"])


@app.command
def remove(
    rule: str,
    *,
    where: Where = HERE,
) -> None:
    """Take a rule out for good."""
    remote = where.remote()
    write_json(remote.delete(f"/routing/{quote(rule, safe='')}"))
    stderr().print("it is not applied any more")
