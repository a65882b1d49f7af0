"""`rapport publish`: CloudEvents or a device's own readings, from a file or standard input, to a
node. [CH-12]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from rapport.cli.files import cannot_read
from rapport.cli.requests import request_bodies
from rapport.cli.standard_input import STDIN, may_be_stdin, tell_typing
from rapport.cli.terminal import stderr, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput


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
        stderr().print(f"{duplicates} of {sent} had been published before")


def _typed() -> bytes:
    tell_typing()
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
