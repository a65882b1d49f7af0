"""`rapport channel move NAME --to STORE`: to another store, every position kept. [CH-13]"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Parameter

from rapport.channel.backends.migration import ChannelMover, MoveResult, Step, Told
from rapport.channel.backends.stores import Stores
from rapport.channel.config import channels_from_site
from rapport.channel.validation import check_channel_name
from rapport.cli.local import no_log
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stderr, write_json
from rapport.core.errors import SiteError, StoreUnavailable
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile
from rapport.store.base import MovableLogStore

_STEPS: dict[Step, str] = {
    "compared": "the copy is the same",
    "switched": "the new place counts",
    "removed": "the old copy is removed",
}


def move(
    name: str,
    *,
    to: Annotated[Literal["embedded", "nats", "postgres"], Parameter(help="The store to go to.")],
    site: SiteOption = None,
    keep: Annotated[bool, Parameter(help="Leave the old copy where it is.")] = False,
    json: Annotated[bool, Parameter(help="Print what was moved as JSON.")] = False,
) -> None:
    """Move a channel to another store while its node is stopped.

    Positions stay the same, so readers, tokens and what was taken stay valid. When it is cut short,
    run it again.
    """
    check_channel_name(name)
    with _stores(site_directory(site)) as stores, _progress(name) as told:
        stores.open(to)
        moved = _mover(stores).move(name, to, keep=keep, told=told)
    if json:
        write_json(moved)
    else:
        stderr().print(_sentence(moved), soft_wrap=True)


def _mover(stores: Stores) -> ChannelMover:
    movable = cast(dict[str, MovableLogStore], stores.logs)
    return ChannelMover(movable, stores.records, stores.placements().of)


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
def _progress(name: str) -> Iterator[Told]:
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

        def told(what: Step | int) -> None:
            if isinstance(what, int):
                bar.update(task, completed=what)
            elif what in _STEPS:
                bar.console.print(f"{name}: {_STEPS[what]}")

        yield told


def _sentence(moved: MoveResult) -> str:
    if not moved.digest:
        return f"{moved.channel} is in {moved.target}"
    return (
        f"{moved.channel} moved from {moved.source} to {moved.target}: positions {moved.first} to "
        f"{moved.last}, digest {moved.digest}"
    )
