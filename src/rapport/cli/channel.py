"""`rapport channel`: state, readers and interceptors of channels on a running node; `move` moves a
channel to another store and keeps every position. [CH-10, CH-13, CH-14]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.channel.backends.migration import ChannelMover, MoveResult, ReportStep, Step
from rapport.channel.backends.stores import Stores
from rapport.channel.config import channels_from_site
from rapport.channel.validation import check_channel_name
from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.local_site import no_log
from rapport.cli.node_api import HERE, Remote, Where
from rapport.cli.output import print_note, stderr, write_json, write_table
from rapport.core.errors import InvalidInput, SiteError, StoreUnavailable
from rapport.core.times import format_duration
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile

app = App(name="channel", help="Look after the channels of a site.")


intercept = App(name="intercept", help="What happens around append and around delivery.")
app.command(intercept)


@app.command
def state(channel: str, *, where: Where = HERE, json: JsonOption = False) -> None:
    """Show what a channel holds, how long, and where its readers stand."""
    found = where.remote().get(f"/channels/{_part(channel)}/state")
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


@app.command
def forget_reader(channel: str, reader: str, *, where: Where = HERE) -> None:
    """Forget the place of a reader that will not come back: retention waits for it no more."""
    where.remote().delete(f"/channels/{_part(channel)}/readers/{_part(reader)}")
    print_note(f"{channel} waits for {reader} no more")


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
    where.remote().post(f"/channels/{_part(channel)}/interceptors", msgspec.json.encode(new))
    print_note(f"{name} works on {channel}")


@intercept.command
def remove(name: str, *, where: Where = HERE) -> None:
    """Take an interceptor out; one that follows the log finishes earlier events."""
    remote = where.remote()
    remote.delete(f"/channels/{_part(_channels_of(remote, name))}/interceptors/{_part(name)}")
    print_note(f"{name} is out")


@intercept.command
def on(name: str, *, where: Where = HERE) -> None:
    """Let an interceptor work again that was switched off after faults."""
    remote = where.remote()
    channel = _channels_of(remote, name)
    remote.post(f"/channels/{_part(channel)}/interceptors/{_part(name)}/on", b"")
    print_note(f"{name} works on {channel}")


@intercept.command(name="list")
def list_interceptors(
    channel: Annotated[str, Parameter(help="Only those that work on this channel.")] = "*",
    *,
    where: Where = HERE,
    json: JsonOption = False,
) -> None:
    """Show interceptors in their order, and how they fare."""
    found = where.remote().get(f"/channels/{_part(channel)}/interceptors")
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


_STEPS: dict[Step, str] = {
    "compared": "the copy is the same",
    "switched": "the new place counts",
    "removed": "the old copy is removed",
}


@app.command
def move(
    name: str,
    *,
    to: Annotated[Literal["embedded", "nats", "postgres"], Parameter(help="The store to go to.")],
    site: SiteOption = None,
    keep: Annotated[bool, Parameter(help="Leave the old copy where it is.")] = False,
    json: Annotated[bool, Parameter(help="Print what was moved as JSON.")] = False,
) -> None:
    """Move a channel to another store while its node is stopped.

    Positions stay the same, so readers, tokens and leases stay valid. When it is cut short,
    run it again.
    """
    check_channel_name(name)
    with _stores(site_directory(site)) as stores, _progress(name) as progress:
        stores.open(to)
        moved = _mover(stores).move(name, to, keep=keep, report=progress)
    if json:
        write_json(moved)
    else:
        print_note(_sentence(moved))


def _mover(stores: Stores) -> ChannelMover:
    return ChannelMover(stores.logs, stores.records, stores.placements().of)


@contextmanager
def _stores(site: Path) -> Iterator[Stores]:
    """The site's stores, for this process alone; the node must be stopped."""
    file = TomlFile.load(site / "site.toml")
    declared, problems = channels_from_site(file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    settings = load_settings(file.section("node"), flags={})
    directory = site / settings.data / "log"
    if not directory.is_dir():
        raise no_log(site)
    try:
        stores = Stores(directory, declared, site, segment_bytes=settings.segment_bytes)
    except StoreUnavailable as error:
        if error.code != "store.locked":
            raise
        raise StoreUnavailable(
            f"the node of {site} is running: {error.message}",
            code="store.locked",
            hint="stop the node, move the channel, start it again",
        ) from error
    try:
        yield stores
    finally:
        stores.close()


@contextmanager
def _progress(name: str) -> Iterator[ReportStep]:
    """A bar that counts positions on a terminal, lines of the steps elsewhere."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("[progress.description]{task.description}"),
        TextColumn("{task.completed:,} positions"),
        TimeElapsedColumn(),
    )
    console = stderr()
    # Where nobody can see it, a bar leaves an empty line behind.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"copying {name}", total=None)

        def show_step(what: Step | int) -> None:
            if isinstance(what, int):
                bar.update(task, completed=what)
            elif what in _STEPS:
                bar.console.print(f"{name}: {_STEPS[what]}")

        yield show_step


def _sentence(moved: MoveResult) -> str:
    if not moved.digest:
        return f"{moved.channel} is in {moved.target}"
    return (
        f"{moved.channel} moved from {moved.source} to {moved.target}: positions {moved.first} to "
        f"{moved.last}, digest {moved.digest}"
    )
