"""`rapport channel state|forget-reader|intercept`: a running node's channels. [CH-10, CH-14]"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.remote import Remote
from rapport.cli.terminal import stderr, write_json, write_table
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput
from rapport.core.times import format_duration

JsonOption = Annotated[bool, Parameter(name="--json", help="As JSON.")]

intercept = App(name="intercept", help="What happens around append and around delivery.")


def state(
    channel: str,
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """Show what a channel holds, how long, and where its readers stand."""
    remote = where.remote()
    found = remote.get(f"/channels/{_part(channel)}/state")
    if json:
        write_json(found)
        return
    kept = format_duration(found["keep_for_ms"]) if found["keep_for_ms"] else "any age"
    rows = [
        ["positions", f"{found['first']} to {found['last']}"],
        ["keeps", f"{kept}, {found['keep_bytes'] or 'any number of'} bytes"],
        ["time to live", "any" if found["ttl_ms"] < 0 else format_duration(found["ttl_ms"])],
    ]
    write_table(channel, ["what", "value"], rows)
    columns = ("reader", "position", "behind", "skipped")
    write_table("readers", columns, [[str(one[c]) for c in columns] for one in found["readers"]])


def forget_reader(
    channel: str,
    reader: str,
    *,
    where: Where = HERE,
) -> None:
    """Forget the place of a reader that will not come back: retention waits for it no more."""
    remote = where.remote()
    remote.delete(f"/channels/{_part(channel)}/readers/{_part(reader)}")
    stderr().print(f"{channel} waits for {reader} no more", highlight=False)


@intercept.command
def add(
    name: str,
    channel: Annotated[str, Parameter(help="A name or a pattern such as raw.*")],
    kind: Annotated[str, Parameter(help="count, filter, drop, mediate, forward, trigger, ...")],
    *settings: Annotated[str, Parameter(help="KEY=VALUE, as the kind has them.")],
    at: Annotated[Literal["append", "delivery"], Parameter(help="Where.")] = "append",
    before: Annotated[str, Parameter(help="Put it before this one; else at the end.")] = "",
    where: Where = HERE,
) -> None:
    """Add an interceptor to a running node, for good."""
    new = {
        "name": name,
        "kind": kind,
        "settings": dict(_setting(text) for text in settings),
        "at": at,
        "before": before,
    }
    remote = where.remote()
    remote.post(f"/channels/{_part(channel)}/interceptors", msgspec.json.encode(new))
    stderr().print(f"{name} works on {channel}", highlight=False)


@intercept.command
def remove(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Take an interceptor out; one that follows the log finishes what was appended by now."""
    remote = where.remote()
    remote.delete(f"/channels/{_part(_channels_of(remote, name))}/interceptors/{_part(name)}")
    stderr().print(f"{name} is out", highlight=False)


@intercept.command
def on(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Let an interceptor work again that was switched off after faults."""
    remote = where.remote()
    channel = _channels_of(remote, name)
    remote.post(f"/channels/{_part(channel)}/interceptors/{_part(name)}/on", b"")
    stderr().print(f"{name} works on {channel}", highlight=False)


@intercept.command(name="list")
def list_interceptors(
    channel: Annotated[str, Parameter(help="Only those that work on this channel.")] = "*",
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """Show interceptors in their order, and how they fare."""
    remote = where.remote()
    found = remote.get(f"/channels/{_part(channel)}/interceptors")
    if json:
        write_json(found)
        return
    columns = ("name", "channels", "at", "kind", "state", "seen", "dropped", "faults", "last_error")
    write_table("interceptors", columns, [[str(one[c]) for c in columns] for one in found])


def _channels_of(remote: Remote, name: str) -> str:
    """The channels that an interceptor works on; `*` when there is none of that name."""
    known = {one["name"]: one["channels"] for one in remote.get("/channels/%2A/interceptors")}
    return str(known.get(name, "*"))


def _part(text: str) -> str:
    return quote(text, safe="")


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInput(
            f"{text!r} is no setting", code="cli.bad_setting", hint="write KEY=VALUE"
        )
    return key, value
