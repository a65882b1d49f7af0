"""Runs car sharing on real or simulated nodes, with a log of events and a map page. [EN-13]"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.knowledge import Knowledge
from rapport.kernel.clock import Chance, Clock, SystemClock
from rapport.transport.udp import MulticastGroup
from rapport_lab.car_sharing.cast import CastSettings, Part, draw_cast, make_town
from rapport_lab.car_sharing.map_page import PICTURE_MS, Happening, serving_map
from rapport_lab.car_sharing.map_watcher import Watcher
from rapport_lab.car_sharing.simulated_world import StreetWorld, StreetWorldSettings
from rapport_lab.car_sharing.socket_world import Meeting, free_group, observing, opened_parts
from rapport_lab.ensemble.simulation.street_files import read_streets
from rapport_lab.ensemble.simulation.streets import StreetMap

_LOOK_MS: Final = 250
_MOST_PROCESSES: Final = 16
_FEWEST_PLACES: Final = 2


class PlayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How it is played."""

    cast: CastSettings = CastSettings()
    minutes: float = 2.0
    """Of real time; 0: until it is stopped."""
    speed: float = 10.0
    """How many times as fast as in life."""
    is_simulated: bool = False
    is_on_ip: bool = False
    """Real nodes find each other by addresses instead of a multicast group."""
    streets_file: str = ""
    """GeoJSON or OSM XML; empty: a town is made up."""
    port: int | None = 0
    """Of the map page; none: there is no page, and a simulation runs as fast as it can."""
    processes: int = 1
    """Over how many the nodes are spread."""
    share: int = 0
    """Which of them this one is; others than 0 only play their parts."""
    group: MulticastGroup | None = None

    def __post_init__(self) -> None:
        is_good = self.minutes >= 0 and 0 < self.speed <= 100
        if not is_good or not 0 <= self.share < self.processes <= _MOST_PROCESSES:
            raise InvalidInput(
                f"it cannot be played for {self.minutes:g} minutes at {self.speed:g} times the "
                f"speed by {self.processes} processes",
                code="cars.bad_options",
                hint=f"minutes from 0, speed up to 100, 1 to {_MOST_PROCESSES} processes",
            )
        if self.processes > 1 and (self.is_simulated or self.is_on_ip):
            raise Unsupported(
                "several processes",
                "a simulation" if self.is_simulated else "this play on IP",
                hint="leave out --simulated and --ip",
            )


Tell = Callable[[Happening], None]
Announce = Callable[[str], None]


async def play(options: PlayOptions, clock: Clock, tell: Tell, announce: Announce) -> Watcher:
    """Plays until the minutes are over; returns who watched. Raises Unavailable when the port of
    the page is taken, InvalidInput for streets that cannot be read.
    """
    streets = streets_of(options)
    parts = draw_cast(options.cast, streets)
    watcher = Watcher(streets)
    async with AsyncExitStack() as stack:
        if options.port is not None:
            url = await stack.enter_async_context(serving_map(watcher, clock, port=options.port))
            announce(f"the map is at {url} (stop with Ctrl-C)")
        staged = simulated if options.is_simulated else on_sockets
        show = await stack.enter_async_context(staged(options, streets, parts, clock))
        await _watch(show, watcher, options, clock, tell)
        watcher.is_over = True
        if options.port is not None:
            await clock.sleep(2 * PICTURE_MS)  # so that open pages show the end
    return watcher


async def play_share(options: PlayOptions, clock: Clock) -> None:
    """Plays the parts of one of several processes, until it is ended."""
    streets = streets_of(options)
    parts = draw_cast(options.cast, streets)[options.share :: options.processes]
    meeting, chance = Meeting(options.group), Chance.from_machine()
    async with opened_parts(parts, streets, meeting, clock, chance, pace=options.speed):
        await asyncio.Event().wait()


def streets_of(options: PlayOptions) -> StreetMap:
    """The streets of a file, as far as cars reach every place; or a town made up."""
    if not options.streets_file:
        return make_town(options.cast)
    streets = read_streets(Path(options.streets_file)).largest_part()
    if len(streets.places) < _FEWEST_PLACES:
        raise InvalidInput(
            f"{options.streets_file} has only {len(streets.places)} places that cars reach from "
            "each other",
            code="streets.no_places",
            hint="give a map with streets that are joined",
        )
    return streets


Show = Callable[[float], Sequence[Knowledge]]
"""Is given the time since the beginning, and returns what everybody says then."""


@asynccontextmanager
async def simulated(
    options: PlayOptions, streets: StreetMap, parts: Sequence[Part], clock: Clock
) -> AsyncIterator[Show]:
    """A simulated world, `speed` times as fast as the clock."""
    world = StreetWorld(streets, parts, StreetWorldSettings(seed=options.cast.seed))

    def show(time_ms: float) -> Sequence[Knowledge]:
        world.run(time_ms * options.speed)
        return world.knowledge()

    yield show


@asynccontextmanager
async def on_sockets(
    options: PlayOptions, streets: StreetMap, parts: Sequence[Part], clock: Clock
) -> AsyncIterator[Show]:
    """Real nodes here and in other processes, and an observer among them."""
    chance = Chance.from_machine()
    group = None if options.is_on_ip else options.group or free_group()
    meeting = Meeting(group)
    async with AsyncExitStack() as stack:
        own = parts[:: options.processes]
        nodes = await stack.enter_async_context(
            opened_parts(own, streets, meeting, clock, chance, pace=options.speed)
        )
        for share in range(1, options.processes):
            await stack.enter_async_context(_other_process(options, share, group))
        if group is None:
            meeting = Meeting(join=(nodes[0].address,))
        observer = await stack.enter_async_context(observing(meeting, clock, chance))
        yield lambda _time_ms: observer.knowledge()


@asynccontextmanager
async def _other_process(
    options: PlayOptions, share: int, group: MulticastGroup | None
) -> AsyncIterator[None]:
    """A process with its share of the parts, while the block runs."""
    assert group is not None
    given = msgspec.structs.replace(options, share=share, group=group, port=None)
    program = "from rapport_lab.car_sharing.play import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us; it ends when we close its input
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(given) + b"\n")
    await process.stdin.drain()
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()


def main() -> None:
    """Plays the share that is told on standard input, until that is closed."""
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=PlayOptions)
    asyncio.run(_play_until_closed(options))


async def _play_until_closed(options: PlayOptions) -> None:
    told = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(told), sys.stdin
    )
    closed = asyncio.create_task(told.read())
    playing = asyncio.create_task(play_share(options, SystemClock()))
    await asyncio.wait([playing, closed], return_when=asyncio.FIRST_COMPLETED)
    if playing.done():
        playing.result()  # raises what ended it
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


async def _watch(
    show: Show, watcher: Watcher, options: PlayOptions, clock: Clock, tell: Tell
) -> None:
    """Looks again and again, and tells what happens. Without a page a simulation does not wait."""
    is_hurried = options.is_simulated and options.port is None
    start_ms, time_ms = clock.steady_ns() / 1e6, 0.0
    until_ms = options.minutes * 60_000 if options.minutes else float("inf")
    while time_ms < until_ms:
        await clock.sleep(0 if is_hurried else _LOOK_MS)
        since_ms = time_ms + _LOOK_MS if is_hurried else clock.steady_ns() / 1e6 - start_ms
        time_ms = min(since_ms, until_ms)
        for happening in watcher.look(show(time_ms), time_ms * options.speed):
            tell(happening)
