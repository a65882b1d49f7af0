"""`rapport dead-letters`: lists, shows, replays and forgets dead letters. [CH-14]"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, moment, parse_moment
from rapport.cli.node_api import HERE, Where
from rapport.cli.output import print_note, write_json, write_table
from rapport.core.times import format_time

app = App(name="dead-letters", help="What no reader could handle: look at it, send it back.")


@Parameter(name="*")
@dataclass(frozen=True)
class LetterOptions:
    """Which dead letters are meant."""

    channel: Annotated[str, Parameter(help="Only those of this channel.")] = ""
    reader: Annotated[str, Parameter(help="Only those of this reader.")] = ""
    since: Annotated[str, Parameter(help="Only those buried since this time, or 2h ago: 2h.")] = ""
    until: Annotated[str, Parameter(help="Only those buried until this time.")] = ""

    def body(self, ids: tuple[str, ...], **more: Any) -> bytes:
        times = {"since_ms": moment(self.since), "until_ms": moment(self.until)}
        given = {name: value for name, value in times.items() if value is not None}
        wanted = {"ids": ids, "channel": self.channel, "reader": self.reader}
        return msgspec.json.encode(wanted | given | more)


ANY = LetterOptions()


@app.command(name="list")
def list_letters(
    *,
    letters: LetterOptions = ANY,
    state: Annotated[str, Parameter(help="open, waiting, replayed, forgotten or all.")] = "open",
    limit: Annotated[int, Parameter(help="At most this many, oldest first.")] = 100,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """List dead letters with the error of each."""
    times = {"since": _time(letters.since), "until": _time(letters.until)}
    query = urlencode({**asdict(letters), **times, "state": state, "limit": limit})
    found = where.remote().get(f"/dead-letters?{query}")
    if json:
        write_json(found)
        return
    columns = ["id", "when", "channel", "position", "reader", "state", "error"]
    write_table("dead letters", columns, [_row(one) for one in found])


@app.command
def show(id: str, *, where: Where = HERE) -> None:
    """Show one dead letter with its event and the error."""
    write_json(where.remote().get(f"/dead-letters/{quote(id, safe='')}"))


@app.command
def replay(
    *ids: str,
    letters: LetterOptions = ANY,
    republish: Annotated[
        bool, Parameter(help="Append the events anew, for all readers of their channel.")
    ] = False,
    where: Where = HERE,
) -> None:
    """Send dead letters back to the readers that failed: handled again in order, once."""
    body = letters.body(ids, republish=republish)
    _print_count(where.remote().post("/dead-letters/replay", body), "go back")


@app.command
def forget(*ids: str, letters: LetterOptions = ANY, where: Where = HERE) -> None:
    """Strike dead letters off the list."""
    done = where.remote().post("/dead-letters/forget", letters.body(ids))
    _print_count(done, "are forgotten")


def _time(text: str) -> str:
    return format_time(parse_moment(text)) if text else ""


def _print_count(done: dict[str, Any], what: str) -> None:
    write_json(done)
    print_note(f"{len(done['letters'])} dead letters {what}")


def _row(one: dict[str, Any]) -> list[str]:
    return [
        one["id"],
        format_time(one["received"]),
        one["channel"],
        str(one["event_position"]),
        one["reader"],
        one["state"],
        f"{one['code']}: {one['message']}",
    ]
