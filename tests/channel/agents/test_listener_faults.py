"""A listener that pushes, pulls and pushes again, with a fault between any two steps. [CH-7]

The script is run once for every step it has; at that step an answer is lost, an answer is broken,
or the whole program is killed and started again on the same directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.channel.agents import listener_directory, listener_threads
from rapport.channel.agents.connection import CallFailed, Reason
from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_state import ListenerSettings, ReceivedEvent, SourceAnswer
from rapport.channel.requests.request import Request
from rapport.core.errors import StoreUnavailable
from support.judge.model_source import ModelSource

EVENTS = 14
QUICK = ListenerSettings(
    batch_events=3, most_events=6, first_pause_ms=1, longest_pause_ms=2, retry_pause_ms=1
)
LOST = CallFailed(Reason("node.unreachable", "no node answers"))


class Killed(StoreUnavailable):
    """The process is no more."""


class World:
    """Counts steps; the fault comes at one of them."""

    def __init__(self, fault: str, at: int) -> None:
        self.fault, self.at = fault, at
        self.count = 0
        self.dead = False
        self.names: list[str] = []
        self.changed = threading.Condition()
        """Told of a death and of every result: who waits for either need not wait for long."""
        self._guard = threading.Lock()

    def step(self, name: str) -> bool:
        """Whether the fault is here; raises Killed in a process that is dead."""
        with self._guard:
            if self.dead:
                raise Killed("dead")
            self.count += 1
            self.names.append(name)
            here = self.count == self.at
            if not (here and self.fault == "killed"):
                return here
            self.dead = True
        with self.changed:
            self.changed.notify_all()
        raise Killed("dead")

    def answer(self, _request: Request, truth: Callable[[], SourceAnswer]) -> SourceAnswer:
        try:
            if self.step("send"):
                return LOST
            answer = truth()
            return LOST if self.step("answered") else answer
        except Killed:
            return LOST  # nobody is there to see it


class Program:
    """Keeps each result with its position, as a program with a file or a database does."""

    def __init__(self, world: World, source: ModelSource, directory: Path) -> None:
        self.world, self.source, self.directory = world, source, directory
        self.results: list[int] = []
        self.runs: list[list[int]] = []

    def run_until_done(self) -> None:
        while len(set(self.results)) < EVENTS:
            self.world.dead = False
            self.runs.append([])
            listener = None
            try:
                listener = self.open()
                self.script(listener)
            except Killed:
                pass  # started again
            finally:
                if listener is not None:
                    listener.close()

    def open(self) -> Listener:
        raise NotImplementedError

    def script(self, listener: Listener) -> None:
        """Push, pull, push, pull ... with a switch every few events."""
        while len(set(self.results)) < EVENTS:
            self.world.step("switch to push")
            listener.push(self.handle)
            wanted = min(len(set(self.results)) + 3, EVENTS)
            self.wait_for(wanted)
            if wanted == EVENTS:
                return
            self.world.step("switch to pull")
            for received in listener.pull(2, timeout=0.5):
                self.handle(received)
            self.world.step("pulled")

    def wait_for(self, count: int) -> None:
        with self.world.changed:
            self.world.changed.wait_for(
                lambda: self.world.dead or len(set(self.results)) >= count, 10
            )
        if self.world.dead:
            raise Killed("dead")

    def handle(self, received: ReceivedEvent) -> None:
        try:
            self.world.step("handed over")
            self.results.append(received.position)
            self.runs[-1].append(received.position)
            self.world.step("result written")
            self.done(received)
        finally:
            with self.world.changed:
                self.world.changed.notify_all()

    def done(self, received: ReceivedEvent) -> None:
        """What the program does to acknowledge."""


class Exact(Program):
    """Acknowledges each event itself, and says at the start where its results end."""

    def open(self) -> Listener:
        listener = make_listener(self, acknowledging="explicit")
        self.listener = listener
        if self.results:
            listener.acknowledge(self.results[-1])
        return listener

    def done(self, received: ReceivedEvent) -> None:
        self.listener.acknowledge(received)


class Plain(Program):
    """Leaves acknowledging to the listener."""

    def open(self) -> Listener:
        return make_listener(self, acknowledging="automatic")


def make_listener(program: Program, **options) -> Listener:
    return Listener(
        "http://127.0.0.1:9",
        "c",
        directory=program.directory,
        settings=QUICK,
        source=program.source,
        on_failure=lambda _event, _error: None,
        **options,
    )


@pytest.fixture
def saving(monkeypatch):
    """Steps around each write of the place."""
    write = listener_directory._write_position
    world: list[World] = []

    def write_in_steps(*given) -> None:
        world[-1].step("before the place is kept")
        write(*given)
        world[-1].step("after the place is kept")

    monkeypatch.setattr(listener_directory, "_write_position", write_in_steps)
    monkeypatch.setattr(listener_threads, "_STUMBLE_MS", 1)
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(Exact, "lost", marks=pytest.mark.long),
        (Exact, "killed"),
        (Plain, "lost"),
        pytest.param(Plain, "killed", marks=pytest.mark.long),
    ],
)
def test_whatever_fails_between_any_two_steps_the_result_is_the_same(
    tmp_path, saving, fault: str, kind: type[Program]
):
    at, names = 0, set()
    while True:
        at += 1
        world, source = World(fault, at), ModelSource()
        saving.append(world)
        source.append(EVENTS)
        source.fail = world.answer
        program = kind(world, source, tmp_path / str(at))
        program.run_until_done()
        expected = list(range(1, EVENTS + 1))
        assert sorted(set(program.results)) == expected, world.names
        if kind is Exact or fault == "lost":
            assert program.results == expected, world.names
        for run in program.runs:
            assert run == sorted(set(run)), "within a process each event once, in order"
        names.update(world.names)
        if world.count < at:
            break
    assert at > 40
    assert {"send", "answered", "switch to push", "switch to pull", "result written"} <= names
    assert {"before the place is kept", "after the place is kept"} <= names
