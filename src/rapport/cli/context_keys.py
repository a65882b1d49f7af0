"""`rapport context keys`: make, list, retire and hand out the keys of a network. [CX-9]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption
from rapport.cli.output import print_note, write_json, write_table
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time, parse_duration, parse_time
from rapport.kernel.clock import SystemClock
from rapport.transport.keys import (
    FOREVER_MS,
    DatagramKey,
    KeyKind,
    add_key,
    make_key,
    read_key_file,
    retire_key,
    share_keys,
)

app = App(name="keys", help="Make, list, retire and hand out the keys of a network of brokers.")

FileArgument = Annotated[Path, Parameter(help="A file of keys, such as context-keys.toml.")]
_WHEN = "A time such as 2026-03-02T09:00:00Z, or how long from now: 2h, 7 days."


@app.command
def make(
    file: FileArgument,
    owner: Annotated[str, Parameter(help="The identity of its holder.")],
    *,
    kind: Annotated[
        KeyKind, Parameter(help="network: for brokers; client: for providers and consumers.")
    ] = "client",
    from_: Annotated[str, Parameter(name="--from", help=f"It seals from then on. {_WHEN}")] = "",
    until: Annotated[str, Parameter(help=f"It ends then. {_WHEN}")] = "",
) -> None:
    """Make a new key in a file that only you can read; print its id, never its secret.

    To exchange a key, make the new one `--from` a time by which every holder has the file.
    """
    now_ms = SystemClock().now_ms()
    key = make_key(
        owner,
        kind,
        from_ms=_moment(from_, now_ms) if from_ else now_ms,
        until_ms=_moment(until, now_ms) if until else FOREVER_MS,
    )
    add_key(file, key)
    print(key.id, flush=True)  # before the note on stderr
    begins = f" from {format_time(key.from_ms)}" if key.from_ms > now_ms else ""
    print_note(f"made a {kind} key of {owner}{begins} in {file} (mode 0600)")


@app.command(name="list")
def show(file: FileArgument, *, json: JsonOption = False) -> None:
    """Show the keys in a file: owner, kind, validity; never their secrets."""
    now_ms = SystemClock().now_ms()
    keys = sorted(read_key_file(file).keys, key=lambda key: (key.owner, key.from_ms, key.id))
    states = _states(keys, now_ms)
    if json:
        write_json([_as_dict(key, states[key.id]) for key in keys])
        return
    rows = [(key.id, key.owner, key.kind, *_times(key), states[key.id]) for key in keys]
    write_table("keys", ("id", "owner", "kind", "from", "until", "state"), rows)


@app.command
def retire(
    file: FileArgument,
    id: Annotated[str, Parameter(help="The key's id, as `list` shows it.")],
    *,
    at: Annotated[str, Parameter(help=f"When it ends; now by default. {_WHEN}")] = "",
) -> None:
    """Let a key end: holders of the changed file accept nothing that is sealed with it later."""
    now_ms = SystemClock().now_ms()
    key = retire_key(file, id, _moment(at, now_ms) if at else now_ms)
    print_note(f"the key {key.id} of {key.owner} ends at {format_time(key.until_ms)}")


@app.command
def share(
    file: FileArgument,
    owner: Annotated[str, Parameter(help="The owner of the keys to hand out.")],
    to: Annotated[Path, Parameter(help="The new file; it must not be there yet.")],
) -> None:
    """Make a file with the keys of one owner only, to be given to it; a client needs no others."""
    keys = share_keys(file, owner, to)
    print_note(f"made {to} (mode 0600) with {len(keys)} key(s) of {owner}: give it to nobody else")


def _moment(text: str, now_ms: int) -> int:
    try:
        return now_ms + parse_duration(text)
    except InvalidInput:
        return parse_time(text)


def _states(keys: Sequence[DatagramKey], now_ms: int) -> dict[str, str]:
    """How each stands: of those in force the newest of an owner seals, the others are accepted."""
    newest = {key.owner: key.id for key in keys if key.is_valid_at(now_ms)}
    return {key.id: _state(key, newest.get(key.owner, ""), now_ms) for key in keys}


def _state(key: DatagramKey, newest: str, now_ms: int) -> str:
    if key.until_ms <= now_ms:
        return "ended"
    if key.from_ms > now_ms:
        return "to come"
    return "seals" if key.id == newest else "accepted"


def _times(key: DatagramKey) -> tuple[str, str]:
    until = "-" if key.until_ms == FOREVER_MS else format_time(key.until_ms)
    return format_time(key.from_ms), until


def _as_dict(key: DatagramKey, state: str) -> dict[str, str | None]:
    begins, ends = _times(key)
    until = None if key.until_ms == FOREVER_MS else ends
    return {
        "id": key.id,
        "owner": key.owner,
        "kind": key.kind,
        "from": begins,
        "until": until,
        "state": state,
    }
