"""Kinds of input that an installed package offers: declared, checked, made and run like ours.
[CO-5, UX-9]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.folder import (
    FileInputSettings,
    FolderInput,
    FolderInputSettings,
)
from rapport.communication.adapters.input_base import InputAdapter, Intake
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import communication_from_site
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.testing.suites.input_adapter import InputSuite, Source

ANA = Identifier("peer", "ana")
PACKAGE = '''
"""A kind of input of somebody else: lines of a file, and one that is told by its medium."""

from rapport.core.message import Identifier, Message


class Lines:
    """Each line of a file is a message; its number is its id."""

    def __init__(self, settings, host):
        self.path = host.directory / settings["file"]
        self.done = 0

    async def open(self, state):
        self.state = state
        self.done = int(await state.get("done") or b"0")

    async def pull(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        sender = Identifier("peer", "ana")
        return [
            Message(type="TEXT", subtype="", sender=sender, id=f"desk-{number}", content=line)
            for number, line in enumerate(lines, 1)
            if number > self.done
        ]

    async def pulled(self, messages, arrivals):
        self.done += len(messages)
        await self.state.put("done", b"%d" % self.done)


class Bell:
    def __init__(self, settings, host):
        if settings:
            raise ValueError("a bell has no settings")

    async def start(self, intake):
        sender = Identifier("peer", "ana")
        said = Message(type="BELL", subtype="", sender=sender, id="ring-1", content="ring")

        async def ring():
            await intake.publish([said])

        intake.schedule(ring)

    async def stop(self):
        pass


def nothing(settings, host):
    return object()
'''


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """A package as pip would leave it."""
    place = tmp_path / "packages"
    about = place / "their_inputs-1.0.dist-info"
    about.mkdir(parents=True)
    (place / "their_inputs.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-inputs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[rapport.inputs]\n"
        "lines = their_inputs:Lines\n"
        "bell = their_inputs:Bell\n"
        "nothing = their_inputs:nothing\n"
    )
    monkeypatch.syspath_prepend(str(place))
    return tmp_path


def declared(text: str, directory: Path) -> tuple[Any, list[Any]]:
    file = TomlFile.parse(text.encode(), name="site.toml")
    return communication_from_site(file, directory)


async def running(text: str, directory: Path, work: Callable[[Any, Assembly], Awaitable[None]]):
    clock = SystemClock()
    channels = open_memory(clock)
    people, problems = declared(text, directory)
    assert problems == []
    assembly = Assembly(
        channels, channels.records, clock, people, AssemblyOptions(phrases={}, site=directory)
    )
    task = asyncio.create_task(assembly.work()["communication.inputs"]())
    try:
        await work(channels, assembly)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await assembly.close()


async def arrived(channels: Any, count: int) -> list[Any]:
    async with asyncio.timeout(10):
        while len(found := await channels.channel("input").read_after(0)) < count:
            await SystemClock().sleep(10)
    return [stored.event for stored in found]


def test_a_pulled_kind_of_a_package_brings_messages_in(installed: Path) -> None:
    text = '[inputs.desk]\nadapter = "lines"\nfile = "in.txt"\ninterval = "20ms"\ntrusted = true\n'
    (installed / "in.txt").write_text("one\ntwo\n")

    async def work(channels: Any, assembly: Assembly) -> None:
        events = await arrived(channels, 2)
        assert [event.payload()["content"] for event in events] == ["one", "two"]
        assert {event.headers["adapter"] for event in events} == {"desk"}
        assert {event.headers["proof"] for event in events} == {"medium"}
        (status,) = assembly.inputs.status()
        assert (status.name, status.kind, status.owner) == ("desk", "pull", "component:site")

    asyncio.run(running(text, installed, work))


def test_a_push_kind_is_started(installed: Path) -> None:
    async def work(channels: Any, assembly: Assembly) -> None:
        (event,) = await arrived(channels, 1)
        assert event.payload()["type"] == "BELL"
        assert [status.kind for status in assembly.inputs.status()] == ["push"]

    asyncio.run(running('[inputs.door]\nadapter = "bell"\n', installed, work))


def test_a_kind_that_nobody_offers_is_a_fault_with_the_nearest(installed: Path) -> None:
    people, (problem,) = declared('[inputs.desk]\nadapter = "limes"\nfile = "x"\n', installed)
    assert (problem.code, problem.line) == ("input.unknown_adapter", 2)
    assert "lines" in problem.hint
    assert people.inputs == ()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('adapter = "bell"\ncolour = "red"', "ValueError: a bell has no settings"),
        ('adapter = "nothing"', "neither `pull` nor `start`"),
        ('adapter = "lines"', "KeyError: 'file'"),
    ],
    ids=["raises", "no-adapter", "key-missing"],
)
def test_a_plug_in_that_gives_no_input_is_named(installed: Path, table: str, why: str) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidInput) as refused:
            await running(f"[inputs.desk]\n{table}\n", installed, None)  # type: ignore[arg-type]
        assert refused.value.code == "input.cannot_make"
        assert refused.value.message.startswith("[inputs.desk]: the plug-in")
        assert why in refused.value.message
        assert refused.value.hint

    asyncio.run(scenario())


# --- the suite, bound to a pulled kind of ours and to one that is told by its medium ---


class FolderSource(Source):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = 0

    def adapter(self) -> InputAdapter:
        settings = FolderInputSettings(
            directory=str(self.directory), files=FileInputSettings(settle_ms=1)
        )
        return FolderInput(settings, SystemClock())

    async def bring(self, text: str) -> None:
        self.count += 1
        said = {"type": "TEXT", "subtype": "", "sender": "peer:ana", "content": text}
        part = self.directory / f".{self.count}.part"
        part.write_text(json.dumps(said))
        part.rename(self.directory / f"{self.count:03d}.json")

    async def go_down(self) -> None:
        self.directory.rename(self.directory.with_name("away"))

    async def come_up(self) -> None:
        self.directory.with_name("away").rename(self.directory)


@pytest.mark.slow
class TestFolder(InputSuite):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "drop"
        self.directory.mkdir()

    @asynccontextmanager
    async def open_source(self) -> AsyncIterator[Source]:
        yield FolderSource(self.directory)


class Radio(Source):
    """What is said is heard by who listens, and said again until it was taken."""

    can_fail = False

    def __init__(self) -> None:
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.count = 0

    def adapter(self) -> InputAdapter:
        return Listener(self)

    async def bring(self, text: str) -> None:
        self.count += 1
        said = Message(type="TEXT", subtype="", sender=ANA, id=f"r{self.count}", content=text)
        await self.said.put(said)


class Listener:
    def __init__(self, radio: Radio) -> None:
        self.radio = radio

    async def start(self, intake: Intake) -> None:
        async def listen() -> None:
            while True:
                message = await self.radio.said.get()
                while not await self._taken(intake, message):
                    await SystemClock().sleep(10)

        intake.schedule(listen)

    async def _taken(self, intake: Intake, message: Message) -> bool:
        try:
            await intake.publish([message])
        except Unavailable:
            return False
        return True

    async def stop(self) -> None:
        return


@pytest.mark.slow
class TestRadio(InputSuite):
    @asynccontextmanager
    async def open_source(self) -> AsyncIterator[Source]:
        yield Radio()
