"""How Spark is run: `[spark]` of a site, `RAPPORT_SPARK_*` variables, flags. [PI-1, UX-4]"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from rapport.core.errors import InvalidInput

_MASTERS = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?|spark://[^:/,\s]+:\d+(,[^:/,\s]+:\d+)*|yarn|k8s://\S+"
    r"|sc://[^:/,\s]+:\d+"
)
_MEMORY = re.compile(r"(\d{1,9})([mgMG])")
_LEAST_MEGABYTES = 512


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that fit a laptop of two cores; each field says what it trades."""

    master: str = "local[*]"
    """Where the work is done: `local[2]` on two cores of this machine, `spark://host:7077` on a
    cluster, `sc://host:15002` by a Spark Connect server (questions and reports only). Workers of a
    cluster need this package and must see the same files."""
    memory: str = "1g"
    """Heap of the driver and of each executor. Readings are held by the Python workers beside it,
    about 100 bytes times the rows of one Arrow batch."""
    shuffle_partitions: int = 2
    """Tasks after a shuffle: about one per core; more makes smaller tasks and more overhead (0.02 s
    each)."""
    rows_per_batch: int = 10_000
    """Rows of one Arrow batch handed to Python: larger is faster until the columns leave the
    cache."""
    ui_port: int = 0
    """Port of Spark's own web page on loopback; 0 leaves it off (and saves about a second of
    start)."""
    log_level: str = "ERROR"
    """What Spark's Java side writes to stderr: ERROR, WARN or INFO."""
    driver_host: str = "127.0.0.1"
    """Address at which executors reach the driver; on a cluster of several machines, this machine's
    name."""
    java_options: str = ""
    """Further arguments of the driver's Java, such as `-XX:TieredStopAtLevel=1`: quicker to start,
    slower on long work."""
    options: dict[str, str] = {}
    """Further `spark.*` options, taken as they are."""

    @property
    def is_connect(self) -> bool:
        """The work is given to a Spark Connect server: no Java is needed here."""
        return self.master.startswith("sc://")

    def __post_init__(self) -> None:
        if not _MASTERS.fullmatch(self.master):
            raise InvalidInput(
                f"{self.master!r} is not an address of a Spark master",
                code="spark.bad_master",
                hint="write local[2], local[*], spark://host:7077 or sc://host:15002",
            )
        size = _MEMORY.fullmatch(self.memory)
        if size is None or int(size[1]) * (1024 if size[2] in "gG" else 1) < _LEAST_MEGABYTES:
            raise InvalidInput(
                f"{self.memory!r} is not a size of memory that Spark can run in",
                code="spark.bad_memory",
                hint=f"write {_LEAST_MEGABYTES}m or more, such as 1g",
            )
        if self.log_level not in ("ERROR", "WARN", "INFO"):
            raise InvalidInput(
                f"{self.log_level!r} is not a log level of Spark",
                code="spark.bad_log_level",
                hint="write ERROR, WARN or INFO",
            )
        wrong = sorted(name for name in self.options if not name.startswith("spark."))
        if wrong:
            raise InvalidInput(
                f"{wrong[0]!r} is not a Spark option", code="spark.bad_option", hint="see spark.*"
            )


def load_spark_settings(
    values: Mapping[str, object],
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> SparkSettings:
    """The settings in force: flag, then `RAPPORT_SPARK_*` variable, then the site's `[spark]`, then
    default."""
    environ = os.environ if environment is None else environment
    merged: dict[str, object] = dict(values)
    for field in msgspec.structs.fields(SparkSettings):
        variable = f"RAPPORT_SPARK_{field.name.upper()}"
        if variable in environ and field.name != "options":
            merged[field.name] = environ[variable]
        if flags is not None and flags.get(field.name) is not None:
            merged[field.name] = flags[field.name]
    unknown = sorted(set(merged) - set(SparkSettings.__struct_fields__))
    if unknown:
        raise InvalidInput(
            f"[spark] has no setting {unknown[0]!r}",
            code="settings.invalid",
            hint=f"known: {', '.join(SparkSettings.__struct_fields__)}",
        )
    try:
        return msgspec.convert(merged, SparkSettings, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, InvalidInput):
            raise cause from None
        raise InvalidInput(f"spark settings: {error}", code="settings.invalid") from None
