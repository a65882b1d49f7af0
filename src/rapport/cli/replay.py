"""`rapport replay`: policies over recorded events, in this process or on Spark. [PO-8, UX-3]"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr, write_bytes
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration

if TYPE_CHECKING:
    from rapport.policy.replay import ReplayResult
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
    from rapport.site.site import load_site

    if as_live:
        raise Unsupported("--as-live", "this version", hint="plain replay orders by event time")
    loaded = load_site(site_directory(site), policies=policy)
    if not loaded.policies:
        raise InvalidInput("the site has no policies", code="replay.no_policies")
    with _engine(engine, loaded, partitions, master) as run, _watched() as seen:
        result = run(
            loaded.ontology,
            loaded.tables,
            [compiled.plan for compiled in loaded.policies.values()],
            recordings_of(loaded.ontology, loaded.directory, events or ()),
            lateness_ms=loaded.lateness_ms if lateness is None else parse_duration(lateness),
            batch=batch,
            stop_after=stop_after,
            resume=resume,
            state_directory=loaded.data_directory / "replay",
            tables_version=loaded.tables.version(),
            progress=seen,
        )
    _write(detection_lines(result.detections), out)
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        show_problem(problem)
    _summarise(result)
    return int(bool(result.problems))


@contextmanager
def _engine(
    name: str, site: Site, partitions: int | None, master: str | None
) -> Iterator[Callable[..., ReplayResult]]:
    """What runs the replay: this process, or a Spark session that lives as long as the block."""
    if name == "local":
        from rapport.policy.replay import replay as replay_here

        yield replay_here
        return
    from rapport.pipeline.replay import replay_recorded
    from rapport.pipeline.session import running_spark
    from rapport.pipeline.settings import load_spark_settings

    settings = load_spark_settings(
        site.file.section("spark").values, flags={"master": master}, environment=os.environ
    )
    with running_spark(settings) as spark:
        yield partial(replay_recorded, spark, partitions=partitions)


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


def _summarise(result: ReplayResult) -> None:
    parts = [f"{len(result.detections):,} detections in {result.events:,} events"]
    if result.undecided:
        silent = sorted({name for item in result.undecided for name in item.silent})
        parts.append(f"{len(result.undecided):,} undecided (silent: {', '.join(silent)})")
    if result.late:
        parts.append(f"{len(result.late):,} late and left out")
    if result.problems:
        parts.append(f"{len(result.problems):,} rows could not be read")
    if result.stopped:
        parts.append("stopped; go on with --resume")
    stderr().print("; ".join(parts))
