"""`no X of S for D` read literally: who was not heard of for how long. [PO-6, PO-7]"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from support.judge.holding import Reading
from support.judge.keys import SilentKey
from support.judge.known_world import KnownWorld, Occurrence


def silences(world: KnownWorld, key: SilentKey) -> Iterator[Occurrence]:
    """One occurrence per silence that long, of every identity that the alias may be."""
    if not world.readings:
        return  # the policy never began
    streams = world.streams(key)
    heard: dict[str, list[Reading]] = {}
    for reading in world.readings:
        if reading.stream in streams and world.holding.satisfies(key.alias, reading.key):
            heard.setdefault(reading.key, []).append(reading)
    known = world.holding.instances(key.alias)
    for identity in dict.fromkeys([*known, *heard]):
        readings = heard.get(identity, [])
        if identity in known and _first_silence(world, key, readings):
            began = world.readings[0].time
            yield world.occurrence({key.alias: identity}, (), began + key.duration)
        for last in _followed_by_silence(readings, key.duration):
            yield world.occurrence({key.alias: identity}, (last,), last.time + key.duration)


def _first_silence(world: KnownWorld, key: SilentKey, readings: list[Reading]) -> bool:
    """Before its first reading: from the policy's start, which is the first reading of all."""
    return not readings or readings[0].time >= world.readings[0].time + key.duration


def _followed_by_silence(readings: list[Reading], duration: int) -> Iterator[Reading]:
    for last, following in pairwise(readings):
        if following.time >= last.time + duration:
            yield last
    yield from readings[-1:]
