"""The scheduler of all simulations against SimPy: the same program on both, whose outcomes must be
equal. [EN-11]

Each node beats after a drawn time and sends a message to a drawn node, which arrives after a drawn
delay. SimPy gets it twice: with processes, as its manual writes programs, and with bare timeouts
and callbacks, the fastest it can.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from benchmarks.results import Result, absent, rate
from rapport.kernel.clock import Chance, SystemClock
from rapport_lab.scheduler import Scheduler, without_collector

GOAL: Final = 1.5
_NODES: Final = 1_000
_BEAT_MS, _DELAY_MS = 1_000.0, 200.0
_ROUNDS: Final = 3
_CLOCK = SystemClock()


class Ran(NamedTuple):
    """What a program did."""

    arrived: int
    beats: int
    checksum: float
    """Of who received when, in order."""


class _Program:
    """What beats and arrivals do, whoever calls them; draws in the order of calls."""

    def __init__(self) -> None:
        self.arrived = self.beats = 0
        self.checksum = 0.0
        self.random = Chance(1).random

    def arrive(self, node: int, time_ms: float) -> None:
        self.arrived += 1
        self.checksum = (self.checksum * 0.5) + node * time_ms

    def ran(self) -> Ran:
        return Ran(self.arrived, self.beats, self.checksum)


def on_scheduler(until_ms: float) -> Ran:
    """On ours."""
    scheduler, program = Scheduler(), _Program()
    after, random = scheduler.after, program.random

    def beat(node: int) -> None:
        program.beats += 1
        after(random() * _DELAY_MS, arrive, int(random() * _NODES))
        after(random() * _BEAT_MS, beat, node)

    def arrive(node: int) -> None:
        program.arrive(node, scheduler.time_ms)

    for node in range(_NODES):
        after(random() * _BEAT_MS, beat, node)
    scheduler.run(until_ms)
    return program.ran()


def on_simpy_callbacks(simpy: Any, until_ms: float) -> Ran:
    """On SimPy, with timeouts and callbacks."""
    environment, program = simpy.Environment(), _Program()
    timeout, random = environment.timeout, program.random

    def beat(event: Any) -> None:
        program.beats += 1
        timeout(random() * _DELAY_MS, int(random() * _NODES)).callbacks.append(arrive)
        timeout(random() * _BEAT_MS, event.value).callbacks.append(beat)

    def arrive(event: Any) -> None:
        program.arrive(event.value, environment.now)

    for node in range(_NODES):
        timeout(random() * _BEAT_MS, node).callbacks.append(beat)
    environment.run(until=until_ms)
    return program.ran()


def on_simpy_processes(simpy: Any, until_ms: float) -> Ran:
    """On SimPy, with a process for each node and each message."""
    environment, program = simpy.Environment(), _Program()
    timeout, random = environment.timeout, program.random
    first = [random() * _BEAT_MS for _ in range(_NODES)]

    def node(number: int) -> Iterator[Any]:
        yield timeout(first[number])
        while True:
            program.beats += 1
            environment.process(message(random() * _DELAY_MS, int(random() * _NODES)))
            yield timeout(random() * _BEAT_MS)

    def message(delay_ms: float, to: int) -> Iterator[Any]:
        yield timeout(delay_ms)
        program.arrive(to, environment.now)

    for number in range(_NODES):
        environment.process(node(number))
    environment.run(until=until_ms)
    return program.ran()


def against_simpy(quick: bool) -> list[Result]:
    """Some 20 s; the best of three rounds of each, taken in turn."""
    try:
        simpy: Any = importlib.import_module("simpy")
    except ImportError:
        return [absent("Scheduler against SimPy (not installed here)", "times")]
    until_ms = 20_000.0 if quick else 200_000.0
    ways: dict[str, Callable[[], Ran]] = {
        "Scheduler": lambda: on_scheduler(until_ms),
        "SimPy, callbacks": lambda: on_simpy_callbacks(simpy, until_ms),
        "SimPy, processes": lambda: on_simpy_processes(simpy, until_ms),
    }
    best: dict[str, float] = {}
    outcomes: dict[str, Ran] = {}
    for _ in range(1 if quick else _ROUNDS):
        for name, way in ways.items():
            outcomes[name], per_second = _timed(way)
            best[name] = max(per_second, best.get(name, 0.0))
    ours, fast, usual = best.values()
    is_same = len(set(outcomes.values())) == 1
    return [
        *(
            rate(f"{name}: events of the same program", value, "events/s")
            for name, value in best.items()
        ),
        rate("outcomes of the three are equal to the last bit", float(is_same), "", 1.0),
        rate("Scheduler against SimPy with callbacks", ours / fast, "times", GOAL),
        rate("Scheduler against SimPy with processes", ours / usual, "times"),
    ]


def _timed(way: Callable[[], Ran]) -> tuple[Ran, float]:
    """Without the collector of cycles, which would hold up both alike."""
    gc.collect()
    with without_collector():
        began = _CLOCK.steady_ns()
        ran = way()
        seconds = (_CLOCK.steady_ns() - began) / 1e9
    return ran, (ran.arrived + ran.beats) / seconds
