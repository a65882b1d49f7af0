"""How soon a live query tells what the node was told: sensors, a node's door, mediation, Spark, and
back into the node's channel. [PI-5, PO-8, UX-3]

A detection is timed from when the reading that made it certain was appended to the raw channel of
its source until it stands in `detections`; both times are the node's own. Which reading that was
says a runner in this process, fed with the same readings in the same order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.channel.door_clients import post_all, post_request
from benchmarks.policy.building import STREAM, Building, walk
from benchmarks.policy.parts import CLOCK, SEED, say
from benchmarks.results import Result, share
from benchmarks.spark import node as spark_node
from benchmarks.spark.parts import Goals, require
from benchmarks.spark.site_files import (
    beats_in,
    detections_in,
    expected_in,
    log_of,
    read_channel,
    write_site,
)
from rapport.channel.backends.readonly import open_readonly
from rapport.core.errors import Unavailable
from rapport.core.times import format_time
from rapport.pipeline.streaming.live_query import LiveRun, LiveSettings
from rapport.policy.engine.spark_policies import CHANNEL
from rapport.policy.readings import split_events
from rapport.site.site import Site, load_site
from support.processes.node import NodeProcess
from support.servers.ports import free_port

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_BEAT_MS = 20
_STEP = 100
"""Readings at a time for the runner here: so exactly is known which made a detection certain."""
_WITHIN_MS = 120_000
_PREPARE_MS = 8_000
_LOOK_MS = 50
_MOST_BEHIND_S = 1.0
_PEOPLE_PER_ROOM = 2


class Offer(msgspec.Struct, frozen=True):
    """So many readings per second, one of each person per second, for so long. Nothing of the
    warm-up is counted: Java makes its code.
    """

    per_second: int
    seconds: int
    warm_up_s: int

    @property
    def rooms(self) -> int:
        """As many as keep the building as full as that of the other benchmarks."""
        return self.per_second // _PEOPLE_PER_ROOM


def latency(spark: SparkSession, directory: Path, offer: Offer, goals: Goals) -> list[Result]:
    """A node of its own, a query beside it, and sensors that post at their own pace."""
    building = Building(offer.per_second, offer.rooms, SEED)
    site = write_site(directory / "site", building, free_port())
    with NodeProcess(site, program=Path(spark_node.__file__)) as node:
        node.start()
        assert node.doors is not None
        running = LiveRun(spark, site, directory / "checkpoint", LiveSettings(), CLOCK)
        with Beside(running) as live:
            sent = asyncio.run(_play(live, site, node.doors, offer))
    return _judged(load_site(site), sent, offer, goals)


class Beside:
    """A live query in a thread, for the time of a block; when it fails, so does who waits."""

    def __init__(self, running: LiveRun) -> None:
        self.running = running
        self._stop, self._failed = threading.Event(), list[Exception]()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raises what ended it."""
        if self._failed:
            raise self._failed[0]

    async def until(self, is_so: Callable[[], bool], within_ms: int, what: str) -> None:
        """Returns when something is so; raises Unavailable when that takes too long."""
        deadline = CLOCK.steady_ns() + within_ms * 1_000_000
        while not is_so():
            self.check()
            if CLOCK.steady_ns() > deadline:
                raise Unavailable(f"waited too long until {what}", code="bench.too_slow")
            await CLOCK.sleep(_LOOK_MS)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():  # it ends when the node says that policies changed
                self.running.run(once=False, stop=self._stop)
        except Exception as error:
            self._failed.append(error)


class Sent(msgspec.Struct, frozen=True):
    """What was offered."""

    began_ms: int
    events: int
    seconds: float
    """How long it took to be rid of them."""


async def _play(live: Beside, site: Path, doors: tuple[str, int], offer: Offer) -> Sent:
    """Posts what is due at every beat, once the query has said that it is there; `seconds` is until
    the last was acknowledged.
    """
    await live.until(lambda: _last(site, CHANNEL) > 0, _WITHIN_MS, "the query reports")
    count = offer.per_second * offer.seconds
    gap_ms = 1_000 / offer.per_second
    work = walk(offer.per_second, offer.rooms, count, SEED, gap_ms=gap_ms)
    began_ms = CLOCK.now_ms() + _PREPARE_MS
    steady = CLOCK.steady_ns() + _PREPARE_MS * 1_000_000
    requests = _requests(work.readings, began_ms)
    async with asyncio.TaskGroup() as sensors:
        for beat, request in requests:
            await CLOCK.sleep((steady + beat * _BEAT_MS * 1_000_000 - CLOCK.steady_ns()) / 1e6)
            # Sensors do not wait for each other's answers.
            sensors.create_task(post_all(doors, [request], connections=1))
            live.check()
    took = (CLOCK.steady_ns() - steady) / 1e9
    await live.until(lambda: _last(site, "events") >= count, _WITHIN_MS, "all are mediated")
    await live.until(lambda: live.running.counts.reached >= count, _WITHIN_MS, "all are taken")
    return Sent(began_ms, count, took)


def _requests(readings: pa.RecordBatch, began_ms: int) -> list[tuple[int, bytes]]:
    """What sensors post at which beat: the readings of the time before it."""
    times = readings.column("time").to_numpy() - 1_000_000
    names = ("id", "key", f"{STREAM}.x", f"{STREAM}.y")
    columns = (readings.column(name).to_pylist() for name in names)
    due: dict[int, list[dict[str, object]]] = {}
    for time, id, person, x, y in zip(times.tolist(), *columns, strict=True):
        reading = {
            "id": id,
            "time": format_time(began_ms + time),
            "person": person,
            "x": x,
            "y": y,
        }
        due.setdefault(time // _BEAT_MS + 1, []).append(reading)
    return [
        (beat, post_request("/sources/positions", msgspec.json.encode(own)))
        for beat, own in sorted(due.items())
    ]


def _judged(site: Site, sent: Sent, offer: Offer, goals: Goals) -> list[Result]:
    """The same was found as here; how long each took, but for those of the warm-up."""
    offered = sent.events / sent.seconds
    raw = {one.event.id: one.received for one in read_channel(site.directory, "raw.positions")}
    stored = read_channel(site.directory, "events")
    readings, refused = split_events([one.event for one in stored], site.ontology)
    require(len(readings) == sent.events and not refused, "readings that were mediated")
    appended = [raw[one.event.headers["cause"]] for one in stored]
    found = {one.event.id: one for one in detections_in(site.directory)}
    # What comes after the node's clock has moved on is late for the query, too.
    *parts, (_, rest) = expected_in(site, readings, _STEP, beats_in(site.directory))
    certain = {one.id: (one, appended[had - 1]) for had, part in parts if had for one in part}
    later = {one.id: one for one in rest}
    later |= {one.id: one for had, part in parts if not had for one in part}
    right = {id: event for id, (event, _) in certain.items()} | later
    require(
        certain.keys() <= found.keys() and all(right[id] == found[id].event for id in found),
        f"live {len(found):,} detections, here {len(certain):,} and {len(later):,} by time alone",
    )
    since = sent.began_ms + offer.warm_up_s * 1_000
    took = [
        float(found[id].received - at) / 1_000 for id, (_, at) in certain.items() if at >= since
    ]
    middle, high, most = (_share(took, percent) for percent in (50, 95, 100))
    behind = sent.seconds - offer.seconds
    require(bool(took) or behind > _MOST_BEHIND_S, "there is no detection to be timed")
    if behind > _MOST_BEHIND_S:
        # So much was not offered at all: who could not append waits for his detections, too.
        say(f"sensors fell {behind:.1f} s behind; that counts as waiting")
        middle, high, most = (max(one, behind) for one in (middle, high, most))
    say(
        f"append to detection at {offered:,.0f} readings/s: {middle:.2f} s median, {high:.2f} s "
        f"p95, {most:.2f} s at most, {len(took):,} of {len(found):,} detections"
    )
    label = (
        f"live query, append to detection at {offer.per_second:,} readings/s offered over HTTP, "
        f"through the node's mediation and back into its channel, {len(took):,} detections"
    )
    return [
        goals.limit(f"{label}, p95", high, "s", 1.5),
        goals.limit(f"{label}, median", middle, "s"),
        goals.limit(f"{label}, longest", most, "s"),
        goals.rate("live query, readings offered and taken meanwhile", offered, "events/s"),
    ]


def _share(took: list[float], percent: int) -> float:
    return share(took, percent) if took else 0.0


def _last(site: Path, channel: str) -> int:
    """How far a channel goes."""
    return open_readonly(log_of(site), CLOCK).channel(channel).last_position()
