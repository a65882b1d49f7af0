"""What a run of the pipeline would do: jobs with what waits for them, tables, policies with their
partition keys. Nothing is started. [PI-12]
"""

from __future__ import annotations

import os

import msgspec

from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.lake.catalogue import lake_tables
from rapport.lake.places import LAYERS
from rapport.pipeline.datasource.locations import location_of
from rapport.pipeline.datasource.source_options import LocationOptions
from rapport.pipeline.running.lag import Behind, Lag
from rapport.pipeline.running.run import (
    COMPACT_EVERY_MS,
    EXPIRE_EVERY_MS,
    VACUUM_EVERY_MS,
    RunWanted,
)
from rapport.pipeline.running.run_state import live_reached
from rapport.pipeline.streaming.live_job import assign_policies, policies_on_spark
from rapport.pipeline.streaming.live_query import default_buckets, read_checkpoint
from rapport.site.pipeline import RunPlaces
from rapport.site.site import Site


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job: how often, what waits for it, where it writes."""

    job: str
    every: str
    events: int
    into: tuple[str, ...]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would run where."""

    site: str
    master: str
    jobs: tuple[PlannedJob, ...]
    policies: tuple[str, ...]
    """Of each live policy how it is parted."""
    tables: tuple[str, ...]
    """Of the lake, as it is now."""


def plan_run(site: Site, wanted: RunWanted, clock: Clock) -> RunPlan:
    """Looks at the site's files, channels and lake; takes as long as that (no Spark)."""
    lake, now_ms = site.data_directory / "lake", clock.now_ms()
    lag = Lag(site.directory, lake)
    export, silver = lag.of_export(now_ms), lag.of_silver(now_ms)
    how, streams = wanted.pipeline, sorted(site.ontology.streams())
    every = "once" if wanted.once else format_duration(how.every_ms)
    figures = "once" if wanted.once else format_duration(how.figures_every_ms)
    policies, live = _policies(site, wanted, lag, now_ms)
    jobs = [
        PlannedJob(job="export", every=every, events=export.events, into=("bronze",)),
        PlannedJob(
            job="silver",
            every=every,
            events=silver.events,
            into=(*(f"silver/{name}" for name in streams), "gold/detected"),
        ),
    ]
    if how.figures:
        done = lag.exported()
        jobs.append(PlannedJob(job="figures", every=figures, events=done, into=("gold",)))
    if how.keep:
        kept = tuple(f"{table}: {days} days" for table, days in sorted(how.keep.items()))
        often = "once" if wanted.once else format_duration(EXPIRE_EVERY_MS)
        jobs.append(PlannedJob(job="expire", every=often, events=0, into=kept))
    for name, every_ms in (("compact", COMPACT_EVERY_MS), ("vacuum", VACUUM_EVERY_MS)):
        often = "once" if wanted.once else format_duration(every_ms)
        jobs.append(PlannedJob(job=name, every=often, events=0, into=LAYERS))
    if policies:
        into = ("detections", "quarantine")
        kind = "once" if wanted.once else "as events come"
        jobs.insert(0, PlannedJob(job="live", every=kind, events=live.events, into=into))
    return RunPlan(
        site=site.name,
        master=wanted.spark.master,
        jobs=tuple(jobs),
        policies=tuple(policies),
        tables=tuple(table.name for table in lake_tables(lake)),
    )


def _policies(site: Site, wanted: RunWanted, lag: Lag, now_ms: int) -> tuple[list[str], Behind]:
    """How each live policy would be parted, and how much it has to read."""
    if not wanted.live or not site.on_spark:
        return [], Behind()
    location = location_of(LocationOptions(site=str(site.directory)))
    plans = policies_on_spark(site, location).plans
    places = RunPlaces.of(site.data_directory)
    made = read_checkpoint(places.live_checkpoint, site.name)
    usual = default_buckets(wanted.spark.local_cores or os.cpu_count() or 1)
    buckets = made.buckets if made else wanted.pipeline.buckets or usual
    shares = assign_policies(
        plans, site.tables, site.ontology.sources, buckets, made.places if made else None
    )
    behind = lag.of_live(max(live_reached(places), made.after if made else 0), now_ms)
    return shares.explain(), behind
