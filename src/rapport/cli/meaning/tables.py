"""`rapport tables`: how fresh the tables of a running node are. [PO-2]"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from rapport.cli.terminal import stderr, write_json, write_table
from rapport.cli.where import HERE, Where

app = App(name="tables", help="Tables of a running node: how fresh they are, asking a source now.")


@app.command(name="list")
def list_tables(
    *,
    where: Where = HERE,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """List tables with rows, age, and why a source failed."""
    found = where.remote().get("/tables")
    if json:
        write_json(found)
        return
    columns = ["table", "rows", "lifetime", "age", "changes", "failures", "error"]
    write_table("tables", columns, [_row(one) for one in found])


@app.command
def refresh(
    table: str,
    *,
    where: Where = HERE,
) -> None:
    """Ask the source of a table now."""
    remote = where.remote()
    done = remote.post(f"/tables/{quote(table, safe='')}/refresh", b"{}")
    write_json(done)
    stderr().print("its rows changed" if done["changed"] else "its rows are the same")


def _row(one: dict[str, Any]) -> list[str]:
    error = one["error"]
    return [
        one["table"],
        str(one["rows"]),
        _seconds(one["lifetime_ms"]) if one["lifetime_ms"] else "read once",
        _seconds(one["age_ms"]),
        str(one["changes"]),
        str(one["failures"]),
        f"{error['code']}: {error['message']}" if error else "",
    ]


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1_000:g} s"
