"""The node's own way to consumers: events of root said in their words, for the first of them and
for those who come after. [ME-9]
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import uvloop

from benchmarks.mediation.events import ROOT_TYPE, interpretations, values
from benchmarks.results import Result, rate
from rapport.channel.backends.local import open_memory
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository, activate
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.types import Attribute, ComplexType

_BATCH = 100
_CLOCK = SystemClock()
_CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}
_READER = "consumer-0"
_HEADERS = {"cause": "e1", "interpretation": "feed@1", "rawchannel": "raw.feed", "rawposition": "7"}


def said(quick: bool) -> list[Result]:
    """Through `Outgoing.view`, which every door calls."""
    count, rounds = (500, 1) if quick else (5_000, 7)
    results = []
    for what, in_force, stored in (
        ("events of 15 attributes", _typed(), _events(count)),
        ("readings", _readings(), _reading_events(count)),
    ):
        new, again = uvloop.run(_best(in_force, stored, rounds))
        where = f"{what}, root to consumer in the node (Outgoing.view), batches of {_BATCH}"
        results.append(rate(f"said for the first consumer, {where}", count / new, "events/s"))
        results.append(rate(f"said for another one, {where}", count / again, "events/s"))
    return results


async def _best(
    in_force: ActiveInterpretations, stored: Sequence[StoredEvent], rounds: int
) -> tuple[float, float]:
    """Seconds for the first and for the second consumer."""
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        outgoing = OutgoingMediation(Repository(in_force), open_memory(_CLOCK))
        first, second = [await _seconds(outgoing, stored) for _ in range(2)]
        found.append((first, second))
        counts = outgoing.statistics.of(_READER)
        assert (counts.transformed, counts.from_cache) == (len(stored), len(stored))
    return min(first for first, _ in found), min(second for _, second in found)


async def _seconds(outgoing: OutgoingMediation, stored: Sequence[StoredEvent]) -> float:
    began = _CLOCK.steady_ns()
    for start in range(0, len(stored), _BATCH):
        await outgoing.view("events", stored[start : start + _BATCH], _READER)
    return (_CLOCK.steady_ns() - began) / 1e9


def _typed() -> ActiveInterpretations:
    return activate({}, interpretations("flat")[1], concepts={})[0]


def _readings() -> ActiveInterpretations:
    attributes = (Attribute("key", "text"), Attribute("time", "Time", optional=True))
    told = ComplexType("Told", (*attributes, Attribute("temperature", "K", optional=True)))
    reader = Interpretation(
        name=_READER,
        types=(unit_type("K"), told),
        mappings=(TypeMapping("station", "Told", "out"),),
        rules=(Rule("degC", "to-kelvin"),),
        conversions=(converts("to-kelvin", "degC", "K", UnitChange("degC", "K")),),
    )
    return activate({}, [reader], concepts=_CONCEPTS)[0]


def _events(count: int) -> list[StoredEvent]:
    encode = msgspec.json.Encoder().encode
    return [
        _stored(place, ROOT_TYPE, encode(value))
        for place, value in enumerate(values("flat", 5, count), 1)
    ]


def _reading_events(count: int) -> list[StoredEvent]:
    return [
        _stored(place, "station.temperature", b'{"key":"s%d","value":[%.2f]}' % (place, place / 7))
        for place in range(1, count + 1)
    ]


def _stored(place: int, type_name: str, data: bytes) -> StoredEvent:
    return StoredEvent(place, 0, Event("feed", f"{place:012d}", type_name, "", 0, data, _HEADERS))
