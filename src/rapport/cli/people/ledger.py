"""`rapport ledger`: for every message and person what became of it. [CO-10, UX-3]

Reads the log beside a running node or without one; with `--url` it asks another node.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import App, Parameter

from rapport.cli.moments import moment
from rapport.cli.remote import Remote
from rapport.cli.terminal import stderr, visible, write_bytes, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput, StoreUnavailable, nearest_names

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.communication.ledger import Ledger, Question
    from rapport.communication.ledger_rows import LedgerRow

_MOST = 100_000

app = App(name="ledger", help="Show who was notified, how, when, and who answered.")
app.command("rapport.cli.people.messages:messages", name="messages", help="Find messages.")


@app.default
def ledger(
    *,
    person: Annotated[str, Parameter(name=["--person", "--peer"], help="Only this person.")] = "",
    message: Annotated[str, Parameter(help="Only this message: everything that happened.")] = "",
    state: Annotated[str, Parameter(help="Only this state.")] = "",
    policy: Annotated[str, Parameter(help="Only messages of this policy.")] = "",
    conversation: Annotated[str, Parameter(help="Only this conversation.")] = "",
    since: Annotated[str, Parameter(help="From this time on, or this long ago: 2h.")] = "",
    until: Annotated[str, Parameter(help="Before this time, or this long ago.")] = "",
    limit: Annotated[int, Parameter(help="Of more, those that changed last.")] = 1_000,
    follow: Annotated[bool, Parameter(negative="", help="Go on as things happen.")] = False,
    json: Annotated[bool, Parameter(negative="", help="As JSON.")] = False,
    csv: Annotated[bool, Parameter(negative="", help="As CSV, for a spreadsheet.")] = False,
    where: Where = HERE,
) -> int:
    """Show who was notified, how, when, and who answered."""
    from rapport.communication.ledger import Question, check_state

    if not 1 <= limit <= _MOST:
        raise InvalidInput(
            f"--limit lies between 1 and {_MOST}",
            code="cli.wrong_use",
            hint="leave it out for 1000; --since and --person say which",
        )
    _check_together(json=json, csv=csv, follow=follow, message=bool(message))
    asked = Question(
        message=message,
        peer=person,
        state=check_state(state),
        policy=policy,
        conversation=conversation,
        since=moment(since) or 0,
        until=moment(until) or 0,
        limit=limit,
    )
    directory = where.directory
    if where.url is not None:
        if follow:
            raise InvalidInput(
                "--follow reads the site's own log",
                code="cli.wrong_use",
                hint="leave out --url, or have all of it: rapport listen log --new --url URL",
            )
        _show_remote(where.remote(), asked, json=json, csv=csv)
    elif message:
        _show_message(directory, message, json=json)
    else:
        _show_local(directory, asked, follow=follow, json=json, csv=csv)
    return 0


def _check_together(*, json: bool, csv: bool, follow: bool, message: bool) -> None:
    """Raises InvalidInput for options that do not go together, with those that do."""
    if json and csv:
        raise InvalidInput(
            "--json and --csv do not go together", code="cli.wrong_use", hint="choose one of them"
        )
    if follow and (csv or message):
        raise InvalidInput(
            f"--follow and {'--csv' if csv else '--message'} do not go together",
            code="cli.wrong_use",
            hint="with --follow say --json, --person, --state or --policy",
        )


# --- the site's own log ---


def open_ledger(directory: Path, channels: ReadOnlyChannels) -> Ledger:
    """The ledger over the index that the site's node keeps; in memory where that cannot be
    written.
    """
    from rapport.cli.local import data_directory
    from rapport.communication.ledger import LEDGER_FILE, Ledger, LedgerIndex

    try:
        index = LedgerIndex(data_directory(directory) / "log" / LEDGER_FILE)
    except StoreUnavailable:
        index = LedgerIndex()
    return Ledger(channels, index)


def _show_local(directory: Path, asked: Question, *, follow: bool, json: bool, csv: bool) -> None:
    from rapport.cli.local import read_channels

    async def work(channels: ReadOnlyChannels) -> None:
        kept = open_ledger(directory, channels)
        try:
            await kept.refresh()
            before = kept.position()
            page = await kept.find(asked)
            texts = {name: _text(kept, name) for name in {row.message for row in page.rows}}
            _write(page.rows, texts, more=bool(page.next), json=json and not follow, csv=csv)
            if not page.rows and not follow:
                stderr().print(_nothing_fits(directory, asked.peer), markup=False)
            if follow:
                shown = {row.position for row in page.rows}
                await _follow(channels, kept, asked, before, shown, as_json=json)
        finally:
            kept.close()

    try:
        read_channels(directory, work)
    except KeyboardInterrupt:
        if not follow:
            raise


def _nothing_fits(directory: Path, person: str) -> str:
    """Why nothing is shown: often since the site knows the person by another name."""
    from rapport.kernel.toml import TomlFile

    known = TomlFile.load(directory / "site.toml").section("peers").values
    near = nearest_names(person, known, limit=1) if person not in known else ()
    return "nothing in the ledger fits" + (f"; did you mean --person {near[0]}?" if near else "")


def _text(kept: Ledger, message: str) -> str:
    row = kept.message(message)
    return row.text if row is not None else ""


async def _follow(
    channels: ReadOnlyChannels,
    kept: Ledger,
    asked: Question,
    position: int,
    shown: set[int],
    *,
    as_json: bool,
) -> None:
    """Prints each line of the ledger after a position as it is written, until interrupted; not
    those that were shown.
    """
    from rapport.cli.people.ledger_text import cells
    from rapport.communication.ledger_rows import read_line

    log = channels.channel("log")
    while await log.wait_after(position):
        for stored in await log.read_after(position):
            position = stored.position
            row = read_line(stored)
            if row is None or position in shown or not _fits(row, asked):
                continue
            await kept.refresh()
            said = cells(row, _text(kept, row.message))
            line = msgspec.json.encode(row) if as_json else "\t".join(said).encode()
            write_bytes(line + b"\n")


def _fits(row: LedgerRow, asked: Question) -> bool:
    return (
        asked.peer in ("", row.peer)
        and asked.state in ("", row.state)
        and asked.policy in ("", row.policy)
    )


def _show_message(directory: Path, message: str, *, json: bool) -> None:
    from rapport.cli.local import read_channels
    from rapport.cli.people.ledger_text import write_message
    from rapport.communication.ledger import MessageView, show_message

    async def work(channels: ReadOnlyChannels) -> MessageView:
        kept = open_ledger(directory, channels)
        try:
            return await show_message(kept, message)
        finally:
            kept.close()

    shown = read_channels(directory, work)
    if json:
        write_json(shown)
    else:
        write_message(shown)


# --- another node ---


def _show_remote(remote: Remote, asked: Question, *, json: bool, csv: bool) -> None:
    from rapport.cli.people.ledger_text import write_message
    from rapport.communication.ledger import MessageView
    from rapport.communication.ledger_rows import LedgerRow

    if asked.message:
        found = remote.get(f"/ledger/messages/{quote(asked.message, safe='')}")
        if json:
            write_json(found)
        else:
            write_message(msgspec.convert(found, MessageView))
        return
    given = msgspec.structs.asdict(asked)
    given["person"] = given.pop("peer")
    limit = min(asked.limit, 10_000)
    wanted = urlencode({key: value for key, value in given.items() if value} | {"limit": limit})
    rows = msgspec.convert(remote.get(f"/ledger?{wanted}"), list[LedgerRow])
    _write(rows, {}, more=len(rows) == limit, json=json, csv=csv)


def _write(
    rows: list[LedgerRow], texts: dict[str, str], *, more: bool, json: bool, csv: bool
) -> None:
    from rapport.cli.people.ledger_text import write_csv, write_rows
    from rapport.communication.ledger_rows import summarise

    shown: list[Any] = sorted(rows, key=lambda row: row.first)
    if json:
        write_json(shown)
    elif csv:
        write_csv(shown, texts)
    else:
        write_rows(shown, texts)
    if rows:
        said = visible(summarise(shown).sentence())
        stderr().print(said, soft_wrap=True, markup=False)
    if more:
        stderr().print(f"only the {len(rows)} that changed last; more with --limit")
