"""`rapport ledger`: for every message and person what became of it. [CO-10]"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_json, write_table
from rapport.core.times import format_time


def ledger(
    *,
    site: SiteOption = None,
    peer: Annotated[str, Parameter(help="Only this person.")] = "",
    message: Annotated[str, Parameter(help="Only this message.")] = "",
    state: Annotated[str, Parameter(help="Only this state.")] = "",
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """Show who was told, how, when, and who answered."""
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.cli.local import read_channels
    from rapport.communication.history import Ledger, LedgerRow

    async def rows(channels: ReadOnlyChannels) -> tuple[list[LedgerRow], dict[str, str]]:
        kept = Ledger(channels)
        await kept.refresh()
        texts = {row.message: row.text for row in kept.messages(limit=100_000)}
        return kept.rows(message=message, peer=peer, state=state), texts

    found, texts = read_channels(site_directory(site), rows)
    if json:
        write_json(found)
        return
    write_table(
        "ledger",
        ("time", "person", "address", "state", "attempt", "message", "text", "why"),
        [
            (
                format_time(row.time),
                row.peer or "-",
                row.address or "-",
                row.state + (f": {row.answer}" if row.answer else ""),
                str(row.attempt or ""),
                row.message,
                texts.get(row.message, ""),
                row.reason,
            )
            for row in found
        ],
    )
