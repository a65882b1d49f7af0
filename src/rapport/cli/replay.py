"""`rapport replay`: policies over recorded events in event time, in this process or on Spark. [PO-8, UX-3]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr, write_bytes
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa

    from rapport.policy.plan import Plan
    from rapport.policy.replay import Engine, EngineResult
    from rapport.policy.runners.base import PullData
    from rapport.site.site import Site

_SHOWN_PROBLEMS = 20


def replay(
    *,
    site: SiteOption = None,
    policy: Annotated[list[str] | None, Parameter(help="Only these policies.")] = None,
    events: Annotated[list[str] | None, Parameter(help="Event files, or SOURCE=FILE.")] = None,
    engine: Annotated[Literal["local", "spark"], Parameter(help="Where to run.")] = "local",
    lateness: Annotated[str | None, Parameter(help="How long to wait for stragglers.")] = None,
    out: Annotated[Path | None, Parameter(help="File to write to instead of stdout.")] = None,
    batch: Annotated[int, Parameter(help="Events per step.")] = 10_000,
    stop_after: Annotated[int | None, Parameter(help="Stop after this many events.")] = None,
    resume: Annotated[bool, Parameter(help="Go on where --stop-after ended.", negative="")] = False,
    partitions: Annotated[int | None, Parameter(help="Spark: number of time slices.")] = None,
    as_live: Annotated[bool, Parameter(help="Repeat what live decided.", negative="")] = False,
    master: Annotated[str | None, Parameter(help="Spark: where it runs.")] = None,
) -> int:
    """Run policies over recorded events; one detection per line as JSON, sorted."""
    from rapport.core.detection import detection_lines
    from rapport.core.errors import Unsupported
    from rapport.policy.replay import recordings_of
    from rapport.policy.replay import replay as run_replay
    from rapport.site.site import load_site

    if as_live:
        raise Unsupported("--as-live", "this version", hint="plain replay orders by event time")
    loaded = load_site(site_directory(site), policies=policy)
    plans = [compiled.plan for compiled in loaded.policies.values()]
    if not plans:
        raise InvalidInput("the site has no policies", code="replay.no_policies")
    lateness_ms = loaded.lateness_ms if lateness is None else parse_duration(lateness)
    recordings = recordings_of(loaded.ontology, loaded.directory, events or ())
    with _engine(engine, loaded, lateness_ms, partitions, master) as chosen, _watched() as seen:
        result = run_replay(
            loaded.ontology,
            loaded.tables,
            plans,
            recordings,
            lateness_ms=lateness_ms,
            batch=batch,
            engine=chosen,
            stop_after=stop_after,
            resume=resume,
            state_directory=loaded.data_directory / "replay",
            tables_version=loaded.tables.version(),
            progress=seen,
        )
    _write(detection_lines(result.detections), out)
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        show_problem(problem)
    _summarise(len(result.detections), result.events, len(result.late), len(result.problems))
    return int(bool(result.problems))


@contextmanager
def _engine(
    name: str, site: Site, lateness_ms: int, partitions: int | None, master: str | None
) -> Iterator[Engine | None]:
    """The engine to hand to the replay; None is the local runner."""
    if name == "local":
        yield None
        return
    from rapport.pipeline.detect import replay_spark
    from rapport.pipeline.session import spark_session, stop_session
    from rapport.pipeline.settings import load_spark_settings
    from rapport.policy.replay import EngineResult

    settings = load_spark_settings(site.file.section("spark").values, flags={"master": master})
    spark = spark_session(settings)

    def run(
        plans: Sequence[Plan], pull: PullData, readings: Iterable[pa.RecordBatch]
    ) -> EngineResult:
        made = replay_spark(
            spark, plans, pull, readings, lateness_ms=lateness_ms, partitions=partitions
        )
        return EngineResult(detections=made.detections, late=made.late, events=made.events)

    try:
        yield run
    finally:
        stop_session(spark)


@contextmanager
def _watched() -> Iterator[Callable[[int], None]]:
    """A line of progress on a terminal; nothing elsewhere."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _events: None
        return
    with console.status("replaying …") as status:
        yield lambda events: status.update(f"replaying … {events:,} events")


def _write(lines: bytes, out: Path | None) -> None:
    if out is None:
        write_bytes(lines)
        return
    try:
        out.write_bytes(lines)
    except OSError as error:
        raise InvalidInput(f"cannot write {out}: {error.strerror}", code="cli.no_file") from None


def _summarise(detections: int, events: int, late: int, problems: int) -> None:
    parts = [f"{detections:,} detections in {events:,} events"]
    if late:
        parts.append(f"{late:,} late and left out")
    if problems:
        parts.append(f"{problems:,} rows could not be read")
    stderr().print("; ".join(parts))
