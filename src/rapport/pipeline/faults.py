"""What goes wrong on Spark, said in our words; pyspark and py4j exceptions end here. [PI-10]"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    RapportError,
    Unavailable,
    Unsupported,
)
from rapport.pipeline.cluster_watch import why_cancelled
from rapport.pipeline.sources.faults import fault_in

_FILE = re.compile(r"file:(//)?(/.+?\.parquet)")
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"

_BROKEN_FILE = (
    "is not a Parquet file",
    "CANNOT_READ_FILE_FOOTER",
    "Could not read footer",
    "FAILED_READ_FILE",
    "corrupt",
    "ParquetDecodingException",
)
_NO_MEMORY = (
    "OutOfMemoryError",
    "Java heap space",
    "GC overhead limit",
    "MemoryError",
    "UNABLE_TO_ACQUIRE_MEMORY",
)
_NO_MASTER = ("All masters are unresponsive", "Could not parse Master URL", "Invalid master URL")
_NO_WORKER = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed")
_CALL_FAILED = "An error occurred while calling"
_GONE = ("SparkContext was shut down", "stopped SparkContext", "SparkContext.dagScheduler")
_NO_DISK = ("No space left on device",)
_CANCELLED = "cancelled as part of cancellation of all jobs"
_LOST_HINTS = {
    "spark.cluster_lost": "look at the cluster, and start again",
    "spark.no_workers": "look at the master's page: workers must run, with as much memory free as "
    "[spark] memory says",
}
FATAL = ("spark.gone", "spark.cluster_lost", "spark.no_workers", "spark.out_of_memory")
"""After these the session is of no use any more: the process has to be started again."""
_NOT_BY_CONNECT = (
    "JVM_ATTRIBUTE_NOT_SUPPORTED",
    "CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT",
    "[NOT_IMPLEMENTED]",
    "Spark Connect does not support",
)
_PY4J_ERROR = "py4j.protocol.Py4JJavaError"
_JAVA_PLACES = ("at ", "... ")
_BRIEF_CHARACTERS = 2_000
_NO_SERVER = ("StatusCode.UNAVAILABLE", "RETRIES_EXCEEDED", "StatusCode.CANCELLED")
_OTHER_FORM = ("UnsupportedLogVersion", "MALFORMED_LOG_FILE", "STATE_STORE_UNSUPPORTED")


class NotByConnect(Unsupported):
    """A thin client of a Spark Connect server cannot do it."""

    code = "spark.connect_unsupported"


@contextmanager
def spark_faults(doing: str) -> Iterator[None]:
    """Errors of Spark inside become RapportErrors that say what was being done; ours pass
    untouched."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JNetworkError, ConnectionError, EOFError) as error:
        raise _gone(doing) from error
    except (Py4JError, PySparkException) as error:
        raise translate(error, doing) from error


@contextmanager
def told_briefly() -> Iterator[None]:
    """For functions of ours that Spark calls: its errors inside go back without Java's stack.

    Spark searches the text of what such a function raised for an interruption, with a regular
    expression whose depth grows with the text: a long one overflows its stack, and a query that
    was merely stopped prints a thousand lines.
    """
    from py4j.protocol import Py4JError

    try:
        yield
    except Py4JError as error:
        raise RuntimeError(f"{_PY4J_ERROR}: {without_java_stack(str(error))}") from None


def without_java_stack(text: str) -> str:
    """The lines that say what happened, without those that say where in Java; at most 2,000
    characters, of which the end (the first cause) is the more telling half.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(_JAVA_PLACES)]
    brief = "\n".join(lines)
    half = _BRIEF_CHARACTERS // 2
    return brief if len(brief) <= 2 * half else f"{brief[:half]}\n...\n{brief[-half:]}"


def translate(error: Exception, doing: str) -> RapportError:
    """The RapportError that fits the text of a Spark exception; the exception itself stays its
    cause."""
    text = str(error)
    ours = fault_in(text, doing)
    if ours is not None:
        return ours
    if _CANCELLED in text and (lost := why_cancelled()) is not None:
        return Unavailable(f"{doing}: {lost[1]}", code=lost[0], hint=_LOST_HINTS[lost[0]])
    if _names(text, _NOT_BY_CONNECT):
        return connect_unsupported(doing)
    if _names(text, _NO_SERVER):
        return Unavailable(
            f"{doing}: the Spark Connect server does not answer",
            code="spark.server_unreachable",
            hint="look whether it still runs, and start again",
        )
    if _names(text, _OTHER_FORM):
        return Conflict(
            f"{doing}: the checkpoint was made by another version of Spark",
            code="live.other_version",
            hint="go on with that version, or use a new checkpoint directory",
        )
    if _names(text, _NO_MEMORY):
        return Unavailable(
            f"{doing}: Spark ran out of memory",
            code="spark.out_of_memory",
            hint="raise memory in the [spark] settings, or use more and smaller partitions",
        )
    if _names(text, _NO_DISK):
        return Unavailable(f"{doing}: the disk is full", code="spark.disk_full")
    if _names(text, _NO_WORKER):
        return Unavailable(
            f"{doing}: a worker of Spark died",
            code="spark.worker_lost",
            hint="mostly for want of memory: use more and smaller partitions, or fewer cores",
        )
    if _names(text, _NO_MASTER):
        return Unavailable(
            f"{doing}: the Spark master does not answer", code="spark.master_unreachable"
        )
    # A connection that breaks during a call is told by py4j without a reason.
    if _names(text, _GONE) or not _first_line(text):
        return _gone(doing)
    if "JAVA_GATEWAY_EXITED" in text:
        return Unavailable(
            f"{doing}: Java ended before Spark was up; what it said stands above on stderr",
            code="spark.java_failed",
            hint="check that memory in the [spark] settings fits this machine",
        )
    if "PATH_NOT_FOUND" in text:
        return InvalidInput(f"{doing}: {_first_line(text)}", code="spark.no_such_path")
    if _names(text, _BROKEN_FILE):
        return _broken_file(text, doing)
    return RapportError(f"{doing}: {_said_by_python(text)}", code="spark.job_failed")


def connect_unsupported(doing: str) -> NotByConnect:
    """What cannot be done by a thin client."""
    return NotByConnect(
        f"{doing} through Spark Connect",
        hint="use a master of your own: --master local[*] or spark://host:7077",
    )


def _gone(doing: str) -> Unavailable:
    return Unavailable(
        f"{doing}: Spark's Java process has gone",
        code="spark.gone",
        hint="start again; if it happens twice, raise memory in the [spark] settings",
    )


def _broken_file(text: str, doing: str) -> Corrupt:
    found = _FILE.search(text)
    # With two more slashes it is an address, percent-encoded; without, a plain path.
    name = "a Parquet file" if found is None else unquote(found[2]) if found[1] else found[2]
    return Corrupt(
        f"{doing}: {name} cannot be read; it is damaged or half written",
        code="lake.bad_file",
        hint="move the file aside; rows that still stand in the log can be exported again",
    )


def _said_by_python(text: str) -> str:
    """A Python function on a worker failed: its last error line says more than a page of Java."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    lines = _PYTHON_ERROR.findall(traceback.split("\n\tat ")[0]) if found else []
    return f"{lines[-1][0]}: {lines[-1][1]}" if lines else _first_line(text)


def _first_line(text: str) -> str:
    """The first line that says something; that a call from Python failed does not."""
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    told = (line for line in lines if line and not line.startswith(_CALL_FAILED))
    return next(told, "")


def _names(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)
