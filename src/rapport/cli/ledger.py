"""`rapport ledger`: the state of every message for every receiver; `rapport ledger messages` finds
messages. [CO-10, CO-13, UX-3]

Both read the log, also beside a running node; with `--url` they query another node, which has an
index and is faster for a long log.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, moment
from rapport.cli.hints import wrong_use
from rapport.cli.node_api import HERE, Remote, Where
from rapport.cli.output import print_note, stderr, visible, write_bytes, write_json, write_table
from rapport.core.errors import StoreUnavailable, nearest_names
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.communication.ledger import Ledger, MessageView, Question, TimelineLine
    from rapport.communication.ledger_rows import LedgerRow
    from rapport.communication.message_query import Criteria

_MOST = 100_000

app = App(name="ledger", help="Show who was notified, how, when, and who answered.")


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
    json: JsonOption = False,
    csv: Annotated[bool, Parameter(negative="", help="As CSV, for a spreadsheet.")] = False,
    where: Where = HERE,
) -> int:
    """Show who was notified, how, when, and who answered."""
    from rapport.communication.ledger import Question, check_state

    if not 1 <= limit <= _MOST:
        raise wrong_use(
            f"--limit lies between 1 and {_MOST}",
            "leave it out for 1000; --since and --person say which",
        )
    _check_together(json=json, csv=csv, follow=follow, message=bool(message))
    question = Question(
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
            raise wrong_use(
                "--follow reads the site's own log",
                "leave out --url, or have all of it: rapport listen log --new --url URL",
            )
        _show_remote(where.remote(), question, json=json, csv=csv)
    elif message:
        _show_message(directory, message, json=json)
    else:
        _show_local(directory, question, follow=follow, json=json, csv=csv)
    return 0


def _check_together(*, json: bool, csv: bool, follow: bool, message: bool) -> None:
    """Raises InvalidInput for options that do not go together, with those that do."""
    if json and csv:
        raise wrong_use("--json and --csv do not go together", "choose one of them")
    if follow and (csv or message):
        raise wrong_use(
            f"--follow and {'--csv' if csv else '--message'} do not go together",
            "with --follow say --json, --person, --state or --policy",
        )


# --- the site's own log ---


def open_ledger(directory: Path, channels: ReadOnlyChannels) -> Ledger:
    """The ledger over the index that the site's node keeps; in memory where that cannot be
    written.
    """
    from rapport.cli.local_site import data_directory
    from rapport.communication.ledger import LEDGER_FILE, Ledger, LedgerIndex

    try:
        index = LedgerIndex(data_directory(directory) / "log" / LEDGER_FILE)
    except StoreUnavailable:
        index = LedgerIndex()
    return Ledger(channels, index)


def _show_local(
    directory: Path, question: Question, *, follow: bool, json: bool, csv: bool
) -> None:
    from rapport.cli.local_site import read_channels

    async def work(channels: ReadOnlyChannels) -> None:
        kept = open_ledger(directory, channels)
        try:
            await kept.refresh()
            before = kept.position()
            page = await kept.find(question)
            texts = {name: _text(kept, name) for name in {row.message for row in page.rows}}
            _write(page.rows, texts, more=bool(page.next), json=json and not follow, csv=csv)
            if not page.rows and not follow:
                print_note(_nothing_fits(directory, question.peer))
            if follow:
                shown = {row.position for row in page.rows}
                await _follow(channels, kept, question, before, shown, as_json=json)
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
    question: Question,
    position: int,
    shown: set[int],
    *,
    as_json: bool,
) -> None:
    """Prints each line of the ledger after a position as it is written, until interrupted; not
    those that were shown.
    """
    from rapport.communication.ledger_rows import read_line

    log = channels.channel("log")
    while await log.wait_after(position):
        for stored in await log.read_after(position):
            position = stored.position
            row = read_line(stored)
            if row is None or position in shown or not _fits(row, question):
                continue
            await kept.refresh()
            texts = cells(row, _text(kept, row.message))
            line = msgspec.json.encode(row) if as_json else "\t".join(texts).encode()
            write_bytes(line + b"\n")


def _fits(row: LedgerRow, question: Question) -> bool:
    return (
        question.peer in ("", row.peer)
        and question.state in ("", row.state)
        and question.policy in ("", row.policy)
    )


def _show_message(directory: Path, message: str, *, json: bool) -> None:
    from rapport.cli.local_site import read_channels
    from rapport.communication.ledger import show_message

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


def _show_remote(remote: Remote, question: Question, *, json: bool, csv: bool) -> None:
    from rapport.communication.ledger import MessageView
    from rapport.communication.ledger_rows import LedgerRow

    if question.message:
        found = remote.get(f"/ledger/messages/{quote(question.message, safe='')}")
        if json:
            write_json(found)
        else:
            write_message(msgspec.convert(found, MessageView))
        return
    given = msgspec.structs.asdict(question)
    given["person"] = given.pop("peer")
    limit = min(question.limit, 10_000)
    wanted = urlencode({key: value for key, value in given.items() if value} | {"limit": limit})
    rows = msgspec.convert(remote.get(f"/ledger?{wanted}"), list[LedgerRow])
    _write(rows, {}, more=len(rows) == limit, json=json, csv=csv)


def _write(
    rows: list[LedgerRow], texts: dict[str, str], *, more: bool, json: bool, csv: bool
) -> None:
    from rapport.communication.ledger_rows import summarise

    shown: list[Any] = sorted(rows, key=lambda row: row.first)
    if json:
        write_json(shown)
    elif csv:
        write_csv(shown, texts)
    else:
        write_rows(shown, texts)
    if rows:
        print_note(visible(summarise(shown).sentence()))
    if more:
        print_note(f"only the {len(rows)} that changed last; more with --limit")


COLUMNS = ("time", "person", "address", "state", "attempt", "message", "text", "why")
_CSV_COLUMNS = (
    "time",
    "message",
    "person",
    "address",
    "adapter",
    "state",
    "attempt",
    "answer",
    "declined",
    "why",
    "receiver",
    "policy",
    "detection",
    "text",
)
_TIMELINE = ("time", "what", "person", "how", "attempt", "answer", "why")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a spreadsheet would carry out instead of showing."""


def write_rows(rows: Sequence[LedgerRow], texts: Mapping[str, str]) -> None:
    """The rows as a table, oldest first as they are given."""
    write_table("ledger", COLUMNS, [cells(row, texts.get(row.message, "")) for row in rows])


def cells(row: LedgerRow, text: str) -> tuple[str, ...]:
    return (
        format_time(row.time),
        _plain(row.peer) or "-",
        _plain(row.address) or "-",
        _state(row),
        str(row.attempt or ""),
        _plain(row.message),
        _plain(text),
        _why(row.state, row.reason),
    )


def _why(state: str, reason: str) -> str:
    """The ledger's reason in words; a medium that accepted a message gave it a name of its own."""
    given = _plain(reason)
    return f"the medium calls it {given}" if given and state == "handed" else given


def _state(row: LedgerRow) -> str:
    """A no is an answer, but it is not to be taken for a yes."""
    state = "declined" if row.declined else row.state
    return state + (f": {_plain(row.answer)}" if row.answer else "")


def write_csv(rows: Sequence[LedgerRow], texts: Mapping[str, str]) -> None:
    """The rows as CSV that a spreadsheet shows and does not carry out."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in rows:
        given = (
            format_time(row.time),
            row.message,
            row.peer,
            row.address,
            row.adapter,
            row.state,
            str(row.attempt or ""),
            row.answer,
            "yes" if row.declined else "",
            row.reason,
            row.receiver,
            row.policy,
            row.detection,
            texts.get(row.message, ""),
        )
        writer.writerow([_cell(text) for text in given])
    write_bytes(out.getvalue().encode())


def _cell(text: str) -> str:
    """A lone carriage return would begin a row of its own: the writer does not quote it."""
    kept = text.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{kept}" if kept.startswith(_FORMULA) else kept


def write_message(shown: MessageView) -> None:
    """One message: its text and its history, in order."""
    message = shown.message
    out = stderr()
    how = f" ({message.result})" if message.result else ""
    for line in (
        f"{_plain(message.message)}: {_plain(message.text)}",
        f"to {_plain(message.receiver) or 'nobody'}, from {_plain(message.sender) or 'nobody'}, "
        f"{message.state}{how}{', urgent' if message.urgent else ''}",
        visible(shown.sentence),
    ):
        out.print(line, soft_wrap=True, markup=False)
    write_table("what happened", _TIMELINE, [_happened(line) for line in shown.timeline])


def _happened(line: TimelineLine) -> tuple[str, ...]:
    until = f", again {format_time(line.until)}" if line.until else ""
    next_one = f"asking {line.receiver}" if line.state == "escalated" and line.receiver else ""
    return (
        format_time(line.time),
        line.state + (f": {line.result}" if line.result else ""),
        _plain(line.peer) or "-",
        _plain(line.address) or "-",
        str(line.attempt or ""),
        _plain(line.answer),
        (_why(line.state, line.reason) or next_one) + until,
    )


def _plain(text: str) -> str:
    """A text on one line that steers no terminal."""
    return visible(" ".join(text.split()))


_MOST_MESSAGES, _PER_PAGE = 100_000, 1_000
_COLUMNS = ("time", "type", "subtype", "from", "to", "fate", "conversation", "id", "content")
_SHOWN = 60
"""Characters of a content in the table."""


@app.command
def messages(
    *,
    id: Annotated[str, Parameter(help="The message with this id.")] = "",
    type: Annotated[str, Parameter(help="Only this type.")] = "",
    subtype: Annotated[str, Parameter(help="Only this subtype.")] = "",
    sender: Annotated[str, Parameter(help="Only of this sender: NAME or KIND:NAME.")] = "",
    receiver: Annotated[str, Parameter(help="Only to this receiver.")] = "",
    conversation: Annotated[str, Parameter(help="Only this conversation.")] = "",
    refers_to: Annotated[str, Parameter(help="Only about this message.")] = "",
    contains: Annotated[str, Parameter(help="Only with this text in the content.")] = "",
    fate: Annotated[str, Parameter(help="Only open, done, failed, timed_out ...")] = "",
    since: Annotated[str, Parameter(help="From this time on, or this long ago: 2h.")] = "",
    until: Annotated[str, Parameter(help="Up to this time, or this long ago.")] = "",
    oldest: Annotated[bool, Parameter(negative="", help="The oldest first.")] = False,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """Show the messages that were handled, the newest first, and what became of them."""
    from rapport.communication.message_query import Criteria

    if not 1 <= limit <= _MOST_MESSAGES:
        raise wrong_use(
            f"--limit lies between 1 and {_MOST_MESSAGES}",
            "leave it out for 50; --since, --sender and --type say which",
        )
    criteria = Criteria(
        id=id,
        type=type,
        subtype=subtype,
        sender=sender,
        receiver=receiver,
        conversation=conversation,
        refers_to=refers_to,
        contains=contains,
        fate=fate,
        since_ms=moment(since),
        until_ms=moment(until),
        newest_first=not oldest,
        limit=min(limit, _PER_PAGE),
    )
    directory = where.directory
    if where.url is None:
        found = _local(directory, criteria, limit)
    else:
        found = _remote(where.remote(), criteria, limit)
    if json:
        write_json(found)
    else:
        write_table("messages", _COLUMNS, [_row(one) for one in found])


def _local(site: Path, criteria: Criteria, limit: int) -> list[dict[str, Any]]:
    from rapport.cli.local_site import read_channels
    from rapport.communication.message_query import MessageQueries
    from rapport.kernel.clock import SystemClock
    from rapport.web.api.messages import shown_message

    async def look(channels: ReadOnlyChannels) -> list[dict[str, Any]]:
        queries = MessageQueries(channels, SystemClock())
        found: list[dict[str, Any]] = []
        page = await queries.page(criteria)
        while True:
            found += [shown_message(logged) for logged in page.messages]
            if len(found) >= limit or not page.next_token:
                return found[:limit]
            page = await queries.page(token=page.next_token)

    return read_channels(site, look)


def _remote(remote: Remote, criteria: Criteria, limit: int) -> list[dict[str, Any]]:
    import msgspec

    question = msgspec.to_builtins(criteria)
    for name in ("since", "until"):
        if f"{name}_ms" in question:
            question[name] = format_time(question.pop(f"{name}_ms"))
    question["order"] = "newest" if question.pop("newest_first", False) else "oldest"
    found: list[dict[str, Any]] = []
    page = remote.get(f"/messages?{urlencode(question)}")
    while True:
        found += page["messages"]
        if len(found) >= limit or not page["next_token"]:
            return found[:limit]
        page = remote.get(f"/messages?{urlencode({'token': page['next_token']})}")


def _row(one: dict[str, Any]) -> list[str]:
    content = " ".join(one.get("content", "").split())
    return [
        one["time"],
        one["type"],
        one["subtype"],
        one["sender"],
        one.get("receiver", "-"),
        one["fate"],
        one.get("conversation-id", "-"),
        one["id"],
        content if len(content) <= _SHOWN else f"{content[: _SHOWN - 1]}…",
    ]
