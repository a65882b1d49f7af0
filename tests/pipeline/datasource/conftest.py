"""Channels on disk for the source and the sink, and a node before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from support.processes.node import NodeProcess

SITE = '[site]\nname = "small"\n\n[concepts.sample.attributes]\nmass = "number"\n'
Fill = Callable[..., None]


def numbered(first: int, last: int) -> list[Event]:
    """Events e<first> .. e<last>, some with headers."""
    return [
        make_event(
            source=f"s{n % 2}",
            id=f"e{n}",
            type=f"t{n % 3}",
            subject=f"thing/{n}",
            time=1_000 + n,
            data={"n": n, "text": "Ærø"},
            headers={"cause": f"c{n}", "n": str(n)} if n % 2 else None,
        )
        for n in range(first, last + 1)
    ]


async def append(log: Path, channel: str, events: Sequence[Event], group: int) -> None:
    clock = ManualClock(1_772_442_000_000)
    channels = open_embedded(log, clock, segment_bytes=4_000)
    for start in range(0, len(events), group):
        clock.set_ms(1_772_442_000_000 + int(events[start].time))
        await channels.channel(channel).append(events[start : start + group])
    await channels.close()


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Appends numbered events to a channel of the log in `tmp_path/log`, in groups."""

    def appended(first: int, last: int, *, channel: str = "events", group: int = 7) -> None:
        asyncio.run(append(tmp_path / "log", channel, numbered(first, last), group))

    return appended


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A small site without a log."""
    directory = tmp_path / "site"
    directory.mkdir()
    # Port 1 is nobody's: no node of another site is found there.
    (directory / "site.toml").write_text(SITE + "\n[node]\nport = 1\n")
    return directory


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A running node with two keys: `all` may everything, `few` only reads `events`; site, url."""
    directory = tmp_path_factory.mktemp("node")
    keys = {"all": "k3Jx9TqLw7Vb2Nc8Rd5Fg1Hs", "few": "p8Zx4YqMw6Ub3Kc9Td2Jg7Ls"}
    for name, key in keys.items():
        (directory / f"{name}.key").write_text(key)
    access = (
        '\n[access.spark]\ntoken = "file:all.key"\npublish = ["*"]\nsubscribe = ["*"]\n'
        'admin = true\n\n[access.few]\ntoken = "file:few.key"\nsubscribe = ["events"]\n'
    )
    (directory / "site.toml").write_text(SITE + access)
    with NodeProcess(directory) as process:
        process.start()
        assert process.doors is not None
        yield directory, "http://{}:{}".format(*process.doors)
