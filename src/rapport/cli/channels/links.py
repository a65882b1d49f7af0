"""`rapport links`: the neighbours of a running node and what went over each link. [CH-11]"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rapport.cli.terminal import write_json, write_table
from rapport.cli.where import HERE, Where

_COUNTS = ("stored", "known", "forwarded", "refused", "gone", "unreadable")
_COLUMNS = ("link", "way", "channel", *_COUNTS, "trouble")


def links(
    *,
    where: Where = HERE,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
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
