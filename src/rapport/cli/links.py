"""`rapport links` and `rapport push`: links to other nodes and push subscriptions. [CH-2, CH-11]"""

from __future__ import annotations

from urllib.parse import quote

from cyclopts import App

from rapport.cli.arguments import JsonOption
from rapport.cli.node_api import HERE, Where
from rapport.cli.output import print_note, write_json, write_table

_COUNTS = ("stored", "known", "forwarded", "refused", "gone", "unreadable")
_COLUMNS = ("link", "way", "channel", *_COUNTS, "trouble")


def links(*, where: Where = HERE, json: JsonOption = False) -> None:
    """Show the links of a running node to others, and what went over them since it started."""
    rows = where.remote().get("/federation/links")
    if json:
        write_json(rows)
        return
    shown = [
        (
            row["link"],
            row["way"] or "-",
            row["channel"] or "-",
            *(str(row["counts"][name]) for name in _COUNTS),
            row["counts"]["trouble"],
        )
        for row in rows
    ]
    write_table("links", _COLUMNS, shown)


app = App(name="push", help="Look at what a node pushes to others, and end it.")


@app.command(name="list")
def list_pushes(*, where: Where = HERE, json: JsonOption = False) -> None:
    """Show push subscriptions: where to, until when, how many messages, and what is wrong."""
    found = where.remote().get("/pushes")
    if json:
        write_json(found)
        return
    columns = ("session", "channel", "identity", "address", "until", "messages", "trouble")
    write_table("pushes", columns, [[str(one[column]) for column in columns] for one in found])


@app.command
def cancel(session: str, *, where: Where = HERE) -> None:
    """End a push subscription; what was not sent yet stays in its channel."""
    where.remote().post(f"/pushes/{quote(session, safe='')}/cancel", b"")
    print_note(f"{session} is pushed no more")
