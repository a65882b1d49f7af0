"""The only place that starts Spark: finds a Java, sets up one quiet session on loopback, cleans up.
[PI-1]

Starting takes 4 to 8 s. One session serves a process; Spark itself keeps its Java process until
Python ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rapport.core.errors import Conflict, RapportError, Unavailable, Unsupported
from rapport.pipeline.cluster_watch import answers, watch_cluster
from rapport.pipeline.connect import connected_session, connected_to
from rapport.pipeline.faults import spark_faults
from rapport.pipeline.java import find_java, java_home
from rapport.pipeline.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Java writes its own console log; all of it belongs on stderr, where the data of a command never
# goes.
_CHOOSES_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_LOGGING = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} spark %p %c{{1}}: %m%n%ex
# Spark's shell would announce a level of its own unless one is given for its class.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
# A failed task's exception comes to us; a page of it on stderr beside our one line helps nobody.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = {failures}
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = {failures}
"""


def spark_session(settings: SparkSettings | None = None) -> SparkSession:
    """The running session with these settings, started if there is none.

    Raises Unsupported without pyspark or Java, Conflict when a session with another master runs in
    this process, Unavailable when the master does not answer. With a Connect server as master the
    session is a thin client: what needs more raises Unsupported (`spark.connect_unsupported`).
    """
    chosen = settings or SparkSettings()
    _require_pyspark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return _same_master(running, chosen)
    _check_master_answers(chosen.master)
    if chosen.is_connect:
        return connected_session(chosen)
    directory = Path(tempfile.mkdtemp(prefix="rapport-spark-"))
    atexit.register(_clean_up, directory)
    home = java_home(find_java(os.environ), directory)
    # Another Spark on this machine, or a server that its variables name, is not meant.
    variables = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": None}
    # Where nobody else is to reach the driver its web page listens on loopback, too.
    variables |= {"SPARK_LOCAL_IP": "127.0.0.1" if _is_loopback(chosen) else None}
    variables |= {"SPARK_REMOTE": None}
    builder = SparkSession.builder.master(chosen.master).appName("rapport")
    for name, value in spark_options(chosen, directory).items():
        builder = builder.config(name, value)
    # py4j logs a broken connection with its traceback and raises it too; once is enough.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _environment(variables), spark_faults("starting Spark"):
        started = builder.getOrCreate()
    if chosen.master.startswith("spark://"):
        watch_cluster(started, chosen.master)
    return started


@contextmanager
def running_spark(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A session for the time of a block; one that runs already is used and left running."""
    _require_pyspark()
    from pyspark.sql import SparkSession

    ours = SparkSession.getActiveSession() is None
    spark = spark_session(settings)
    try:
        yield spark
    except BaseException:
        # What went wrong is the news, not that a Spark that broke cannot be stopped either.
        with suppress(RapportError):
            if ours:
                stop_session(spark)
        raise
    if ours:
        stop_session(spark)


def master_of(spark: SparkSession) -> str:
    """Where a session does its work."""
    return connected_to(spark) or str(spark.sparkContext.master)


def web_page_of(spark: SparkSession) -> str:
    """The address of Spark's own web page; "" when it has none."""
    return "" if connected_to(spark) else str(spark.sparkContext.uiWebUrl or "")


def stop_session(spark: SparkSession) -> None:
    """Ends the session; what it kept on disk goes when Python ends."""
    with spark_faults("stopping Spark"):
        spark.stop()


def spark_options(settings: SparkSettings, directory: Path) -> dict[str, str]:
    """Every option we give Spark; files it needs are written into `directory`."""
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(_logging(settings.log_level), encoding="utf-8")
    # Spark looks for the cause of an error with a regular expression that needs a deep stack.
    # The parallel collector gives a fifth more rows per second in joins on two cores.
    collector = "" if _CHOOSES_COLLECTOR.search(settings.java_options) else "-XX:+UseParallelGC "
    java = (
        f"-Xss4m {collector}-Duser.timezone=UTC -Dlog4j2.configurationFile={log_settings.as_uri()}"
    )
    options = {
        "spark.driver.memory": settings.memory,
        "spark.executor.memory": settings.memory,
        "spark.driver.host": settings.driver_host,
        "spark.driver.bindAddress": _bind_address(settings),
        "spark.driver.extraJavaOptions": f"{java} {settings.java_options}".strip(),
        "spark.log.structuredLogging.enabled": "false",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        "spark.pyspark.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(settings.rows_per_batch),
        # A channel or type that looks like a number is still text.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # Live policies and history share the cores; by default the first job would have them all.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "true" if settings.ui_port else "false",
        "spark.ui.port": str(settings.ui_port or 4040),
        "spark.ui.showConsoleProgress": "false",
    }
    return options | settings.options


def _logging(level: str) -> str:
    return _LOGGING.format(level=level.lower(), failures="off" if level == "ERROR" else "error")


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise Unsupported(
            "a Spark command without pyspark", hint="add it with: pip install 'rapport[spark]'"
        ) from None


def _same_master(running: SparkSession, settings: SparkSettings) -> SparkSession:
    master = master_of(running)
    if master != settings.master:
        raise Conflict(
            f"this process has a Spark session on {master}, not on {settings.master}",
            code="spark.other_session",
            hint="stop it first, or use another process",
        )
    return running


def _check_master_answers(master: str) -> None:
    """Spark itself would try for a minute before it says that nobody is there."""
    if master.partition("://")[0] not in ("spark", "sc") or answers(master):
        return
    raise Unavailable(
        f"the Spark master {master} does not answer",
        code="spark.master_unreachable",
        hint="check the address, or work on this machine with local[*]",
    )


def _bind_address(settings: SparkSettings) -> str:
    return "127.0.0.1" if _is_loopback(settings) else "0.0.0.0"


def _is_loopback(settings: SparkSettings) -> bool:
    return settings.driver_host in ("127.0.0.1", "localhost")


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets or removes variables while Spark starts its Java process, which inherits them, and puts
    them back."""
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


def _clean_up(directory: Path) -> None:
    """Runs when Python ends, whatever became of Spark: a Java process that is gone has stopped."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    with suppress(Py4JError, OSError):
        running = SparkSession.getActiveSession()
        if running is not None:
            running.stop()
    shutil.rmtree(directory, ignore_errors=True)
