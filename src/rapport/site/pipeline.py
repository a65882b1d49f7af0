"""The pipeline's process of a site: `[pipeline]` in site.toml, its files, and its status. Shared by
the process, its node and the command line. [PI-12]
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Literal

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile
from rapport.site.parts import SiteParts

State = Literal["starting", "running", "stopping", "ended", "failed"]
JobState = Literal["waiting", "running", "failed", "off"]
_KEYS = ("on", "every", "figures", "figures_every", "live", "buckets", "keep")
SPARK_KEYS = (
    *("master", "memory", "shuffle_partitions", "rows_per_batch", "ui_port"),
    *("log_level", "driver_host", "java_options", "options"),
)
"""Of `[spark]`, which the pipeline reads; it stands above this package."""
_LAYERS = ("bronze", "silver", "gold")
_SILENT_MS = 30_000
FORMAT = 1
BY_NODE = "RAPPORT_PIPELINE_BY_NODE"
"""Set for a process that a node starts."""


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a site's pipeline runs; the `[pipeline]` table of the site file."""

    on: bool = False
    """The node starts the pipeline's process and watches over it."""
    every_ms: int = 60_000
    """How often history is taken into the lake: export, silver."""
    figures: bool = True
    """Figures are made from it."""
    figures_every_ms: int = 600_000
    """How often."""
    live: bool = True
    """Policies that the site lets run on Spark run there."""
    buckets: int = 0
    """Parts in which they run; 0: one for two cores. Settled by the first start."""
    keep: dict[str, int] = {}
    """Days that tables or layers of the lake are kept, such as `bronze/raw.*`; all others stay."""


def pipeline_settings(file: TomlFile) -> tuple[PipelineSettings, list[Problem]]:
    """The site's settings, with defaults for wrong ones."""
    problems: list[Problem] = []
    fields = Fields(file.section("pipeline"), problems, known=_KEYS)
    default = PipelineSettings()
    settings = PipelineSettings(
        on=fields.flag("on"),
        every_ms=fields.duration_ms("every", default.every_ms, least=1),
        figures=fields.flag("figures", default=True),
        figures_every_ms=fields.duration_ms("figures_every", default.figures_every_ms, least=1),
        live=fields.flag("live", default=True),
        buckets=fields.number("buckets", 0, low=0, high=1_000),
        keep=_keep(Fields(file.section("pipeline", "keep"), problems)),
    )
    return settings, problems


def _keep(fields: Fields) -> dict[str, int]:
    """`[pipeline.keep]`: days by table or layer."""
    for name in fields.section.values:
        if name.split("/")[0] not in _LAYERS:
            fields.fault(
                name,
                "lake.bad_rule",
                f"{name!r} is no layer or table of the lake",
                hint='write "bronze/raw.*" = 30, or silver = 365',
            )
    return {name: fields.number(name, 0, low=0, high=100_000) for name in fields.section.values}


def check_pipeline(parts: SiteParts) -> list[Problem]:
    """Every mistake in `[pipeline]`, and keys of `[spark]` that the pipeline would refuse."""
    problems = pipeline_settings(parts.file)[1]
    Fields(parts.file.section("spark"), problems, known=SPARK_KEYS, strict=True)
    return problems


class JobStatus(msgspec.Struct, kw_only=True):
    """One job: what it did last and how far it is behind. Times are ms UTC, 0 where there is
    none.
    """

    job: str
    state: JobState = "waiting"
    batches: int = 0
    """Since the process started."""
    reached: int = 0
    """The last position of `events` that was taken; of live policies."""
    rows: int = 0
    """Of the last batch."""
    began: int = 0
    ended: int = 0
    rows_per_s: float = 0.0
    busy_ms: int = 0
    """What its batches took together since the process started."""
    behind_events: int = 0
    behind_ms: int = 0
    """How long ago the oldest event was received that waits for it."""
    due: int = 0
    """When it runs next."""
    failures: int = 0
    """In a row."""
    problem: Problem | None = None
    checkpoint: str = ""


class RunStatus(msgspec.Struct, kw_only=True):
    """The status of the process."""

    pid: int
    site: str
    master: str
    state: State = "starting"
    started: int = 0
    updated: int = 0
    spark_ui: str = ""
    live: bool = True
    jobs: list[JobStatus] = []
    problem: Problem | None = None
    """What ended it."""
    format: int = FORMAT


class RunPlaces(msgspec.Struct, frozen=True):
    """Where the pipeline's process keeps what it knows of itself, in a site's data directory."""

    directory: Path

    @staticmethod
    def of(data: Path) -> RunPlaces:
        return RunPlaces(data / "pipeline")

    @property
    def status(self) -> Path:
        return self.directory / "status.json"

    @property
    def lock(self) -> Path:
        """Held as long as it runs: it goes with the process, however that ends."""
        return self.directory / "run.lock"

    @property
    def stop(self) -> Path:
        """Stands there when it should end, and not be started by the node."""
        return self.directory / "stop"

    @property
    def watched(self) -> Path:
        """Held by a node that starts the process."""
        return self.directory / "watch.lock"

    @property
    def live_checkpoint(self) -> Path:
        """Of the policies that run on Spark."""
        return self.directory / "live"


def read_status(places: RunPlaces) -> RunStatus | None:
    """The last status of the process; None when there is no readable one."""
    try:
        found = msgspec.json.decode(places.status.read_bytes(), type=RunStatus)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if found.format == FORMAT else None


def is_held(lock: Path) -> bool:
    """Whether a living process holds a lock."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def run_state(status: RunStatus | None, *, runs: bool, now_ms: int) -> str:
    """In one word how the process is: `down` also when its last word was another; `silent` when it
    runs and has reported nothing for long.
    """
    if not runs:
        return (
            "killed" if status is not None and status.state not in ("ended", "failed") else "down"
        )
    if status is None:
        return "starting"
    return "silent" if now_ms - status.updated > _SILENT_MS else status.state
