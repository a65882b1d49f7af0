"""`rapport outbox`: the undelivered events of a publisher, and their delivery. [CH-5]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from rapport.channel.agents.outbox import (
    OutboxInspection,
    RejectedEvent,
    forget_rejected,
    inspect_outbox,
    read_identity,
)
from rapport.channel.agents.publisher import Publisher, Status
from rapport.cli.node_api import TokenFileOption, read_token
from rapport.cli.output import print_note, write_json, write_table
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.times import format_time, parse_duration
from rapport.core.urls import without_password
from rapport.kernel.clock import SystemClock

app = App(name="outbox", help="Look at what a publisher left behind, and deliver it.")

Directory = Annotated[Path, Parameter(help="The outbox's directory.")]


@app.command
def status(
    directory: Directory,
    *,
    limit: Annotated[int, Parameter(help="How many events to list.")] = 0,
    json: Annotated[bool, Parameter(help="One JSON object.")] = False,
) -> None:
    """Show what waits and what was rejected and why; also while a program uses the outbox."""
    found = inspect_outbox(directory, limit=limit)
    if json:
        write_json(_as_json(found))
        return
    identity = found.identity
    rows = [
        ["pending", str(found.pending)],
        ["settled", str(found.settled)],
        ["rejected", str(len(found.rejected))],
        ["damaged places", str(found.damaged)],
        ["publisher", identity.publisher if identity else "unknown"],
        [
            "delivers to",
            f"{without_password(identity.url)} {identity.channel}" if identity else "unknown",
        ],
        ["last used by process", found.holder or "unknown"],
    ]
    write_table(str(directory), ["what", "value"], rows)
    if found.rejected:
        write_table(
            "rejected",
            ["sequence", "when", "id", "type", "code", "reason"],
            [_rejected_row(one) for one in found.rejected],
        )
    if found.entries:
        write_table(
            "events",
            ["sequence", "state", "id", "type"],
            [[str(one.sequence), one.state, one.event.id, one.event.type] for one in found.entries],
        )


@app.command
def drain(
    directory: Directory,
    *,
    url: Annotated[str | None, Parameter(help="Another node than the one it knows.")] = None,
    channel: Annotated[str | None, Parameter(help="Another channel than it knows.")] = None,
    token_file: TokenFileOption = None,
    timeout: Annotated[str, Parameter(help="Give up after this long.")] = "60s",
) -> int:
    """Deliver what is left after the program has ended; exit code 1 when some of it still waits."""
    known = read_identity(directory)
    target_url = url or (known.url if known else "")
    target_channel = channel or (known.channel if known else "")
    if not target_url or not target_channel:
        inspect_outbox(directory)  # raises when there is no outbox
        raise InvalidInput(
            f"{directory} does not say where it delivers",
            code="outbox.no_target",
            hint="say --url and --channel",
        )
    seconds = parse_duration(timeout) / 1_000
    publisher = Publisher(
        directory, target_url, channel=target_channel, token=read_token(token_file)
    )
    try:
        waiting = publisher.status().pending
        print_note(f"{waiting} events wait for {without_password(target_url)}")
        publisher.flush(seconds)
        status = publisher.status()
    finally:
        publisher.close()
    write_json({"pending": status.pending, "settled": status.settled, "rejected": status.rejected})
    if status.pending:
        raise _still_waiting(status)
    return 0


@app.command
def forget(
    directory: Directory,
    *sequences: Annotated[int, Parameter(help="Numbers of rejected events, as status shows them.")],
    all: Annotated[bool, Parameter(help="All rejected events.")] = False,
) -> None:
    """Forget rejected events that nobody needs any more; what waits to be sent stays."""
    if bool(sequences) == all:
        raise InvalidInput(
            "say which rejected events", code="outbox.none_named", hint="their numbers, or --all"
        )
    forgotten = forget_rejected(directory, SystemClock(), None if all else sequences)
    write_json({"forgotten": forgotten})


def _still_waiting(status: Status) -> Unavailable:
    why = f": {status.trouble.message}" if status.trouble else ""
    return Unavailable(
        f"{status.pending} events still wait{why}",
        code=status.trouble.code if status.trouble else "outbox.not_drained",
        hint="they are kept; run drain again later, or with another --url, token or --timeout",
    )


def _rejected_row(one: RejectedEvent) -> list[str]:
    return [
        str(one.sequence),
        format_time(one.time),
        one.event.id,
        one.event.type,
        one.reason.code,
        one.reason.message,
    ]


def _as_json(found: OutboxInspection) -> dict[str, Any]:
    return {
        "directory": found.directory,
        "identity": found.identity,
        "holder": found.holder,
        "pending": found.pending,
        "settled": found.settled,
        "damaged": found.damaged,
        "rejected": [
            {
                "sequence": one.sequence,
                "time": format_time(one.time),
                "id": one.event.id,
                "source": one.event.source,
                "type": one.event.type,
                "code": one.reason.code,
                "reason": one.reason.message,
            }
            for one in found.rejected
        ],
        "events": [
            {"sequence": one.sequence, "state": one.state, "id": one.event.id}
            for one in found.entries
        ],
    }
