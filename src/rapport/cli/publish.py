"""`rapport publish` sends events or raw readings to a node; `rapport listen` prints events of a
channel as they arrive. [CH-7, CH-12]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_state import ReceivedEvent
from rapport.channel.requests.request import event_json
from rapport.cli.arguments import STDIN, SiteOption, may_be_stdin, prompt_for_input, site_directory
from rapport.cli.hints import cannot_read
from rapport.cli.node_api import HERE, Remote, TokenFileOption, Where, read_token, request_bodies
from rapport.cli.output import print_note, visible, write_bytes, write_gaps, write_json
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import StoredEvent
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock


def publish(
    file: Annotated[
        str, may_be_stdin(lambda: publish), Parameter(help="JSON lines; - for standard input.")
    ] = STDIN,
    *,
    source: Annotated[str | None, Parameter(help="Send as readings of this source.")] = None,
    channel: Annotated[str | None, Parameter(help="Send CloudEvents to this channel.")] = None,
    where: Where = HERE,
) -> None:
    """Send events to a running node; each line of the file is one JSON object."""
    if (source is None) == (channel is None):
        raise InvalidInput(
            "say either --source or --channel",
            code="cli.wrong_use",
            hint="--source NAME for what an interpretation reads, --channel NAME for events",
        )
    lines = _read_lines(file)
    remote = where.remote()
    name = quote(source or channel or "", safe="")
    path = f"/sources/{name}" if source else f"/channels/{name}/events"
    sent = duplicates = 0
    for count, body in request_bodies(lines):
        duplicates += remote.post(path, body)["duplicates"]
        sent += count
    write_json({"published": sent - duplicates, "duplicates": duplicates})
    if duplicates:
        print_note(f"{duplicates} of {sent} had been published before")


def _typed() -> bytes:
    prompt_for_input()
    return sys.stdin.buffer.read()


def _read_lines(file: str) -> list[bytes]:
    try:
        raw = _typed() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        wanted = "a file of one JSON object per line, or - for what is piped in"
        raise cannot_read(Path(file), error, wanted=wanted) from None
    lines = [line.strip() for line in raw.splitlines()]
    for number, line in enumerate(lines, start=1):
        try:
            msgspec.json.decode(line or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(
                f"{file}:{number}: not JSON: {error}",
                code="event.bad_data",
                hint="each line is one JSON object (rapport import takes CSV and others); nothing "
                "was sent",
            ) from None
    return [line for line in lines if line]


_COLUMNS = ("position", "time", "source", "id", "type", "data")
_AT_ONCE = 500
_LOOK_UP_SECONDS = 1.0
_DATA_SHOWN = 120


def listen(
    channel: str,
    *,
    query: Annotated[
        str | None, Parameter(help="A condition, such as \"type = 'badge.seen'\".")
    ] = None,
    interpretation: Annotated[
        str, Parameter(name="--as", help="In the words of this interpretation, the query too.")
    ] = "",
    url: Annotated[str | None, Parameter(help="The node's address; else the site's.")] = None,
    site: SiteOption = None,
    token_file: TokenFileOption = None,
    from_start: Annotated[
        bool, Parameter(negative="--new", help="From the oldest event, or only new ones.")
    ] = True,
    count: Annotated[int | None, Parameter(help="End after this many events.")] = None,
    directory: Annotated[
        Path | None, Parameter(help="Keep the place here, and go on from it next time.")
    ] = None,
    handback: Annotated[str, Parameter(help="A text that comes back with each event.")] = "",
    json: Annotated[bool, Parameter(help="One CloudEvent per line.")] = False,
) -> int:
    """Print what a query finds in a channel: history first, then live, until Ctrl-C."""
    if count is not None and count < 1:
        raise InvalidInput(
            f"cannot wait for {count} events",
            code="cli.wrong_use",
            hint="--count is 1 or more; without it, events are printed until Ctrl-C",
        )
    try:
        remote = Remote(url, read_token(token_file)) if url else _node_of_site(site, token_file)
    except KeyboardInterrupt:
        return 0
    listener = Listener(
        remote.url,
        channel,
        {} if query is None else query,
        interpretation=interpretation,
        directory=directory,
        token=remote.token,
        from_start=from_start,
        handback=handback,
        acknowledging="explicit",
        on_gap=lambda gap: write_gaps((gap,), as_json=json),
    )
    try:
        _print_all(listener, count, as_json=json, start="" if url else _start(site))
    except KeyboardInterrupt:
        return 0  # the usual end: what was printed is acknowledged
    finally:
        listener.close()
    return 0


def _start(site: Path | None) -> str:
    return f"rapport up --site {site}" if site is not None else "rapport up"


def _print_all(listener: Listener, count: int | None, *, as_json: bool, start: str) -> None:
    """Prints until `count` events are out; acknowledged once they are. `start`: the command that
    starts the node.
    """
    if not as_json:
        write_bytes(_row(_COLUMNS))
    left, reported = count, None
    while left is None or left > 0:
        events = listener.pull(min(left or _AT_ONCE, _AT_ONCE), timeout=_LOOK_UP_SECONDS)
        if events:
            write_bytes(b"".join(_line(one, as_json) for one in events))
            listener.acknowledge(events[-1])
            left = None if left is None else left - len(events)
        reported = _report_once(listener.status().trouble, reported, start)


def _report_once(trouble: Reason | None, reported: Reason | None, start: str) -> Reason | None:
    """Says on stderr what keeps us, once; returns what was said last."""
    if trouble is not None and trouble != reported:
        _print_trouble(trouble.message, start if trouble.code == "node.unreachable" else "")
    return trouble


def _print_trouble(message: str, start: str) -> None:
    print_note(f"{message}; trying again")
    if start:
        print_note(f"hint: start it: {start}")


def _line(received: ReceivedEvent, as_json: bool) -> bytes:
    event = received.event
    if as_json:
        stored = StoredEvent(received.position, received.received, event)
        own = {"handback": received.handback} if received.handback else {}
        return msgspec.json.encode(event_json(stored, **own)) + b"\n"
    shown = event.data[:_DATA_SHOWN].decode("utf-8", "replace")
    return _row(
        (
            str(received.position),
            format_time(event.time),
            event.source,
            event.id,
            event.type,
            " ".join(shown.split()),
        )
    )


def _row(cells: tuple[str, ...]) -> bytes:
    return "\t".join(visible(cell) for cell in cells).encode("utf-8", "replace") + b"\n"


def _node_of_site(site: Path | None, token_file: Path | None) -> Remote:
    """The node of the site, once it answers: no other gets the token."""
    remote = Remote.of_site(site_directory(site), None, token_file)
    is_told = False
    while True:
        try:
            remote.verify()
        except Unavailable as error:
            if error.code != "node.unreachable":
                raise
            if not is_told:
                _print_trouble(error.message, _start(site))
            is_told = True
            asyncio.run(SystemClock().sleep(_LOOK_UP_SECONDS * 1_000))
        else:
            return remote
