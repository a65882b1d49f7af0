"""Spark's exceptions as RapportErrors, and RapportErrors on their way through Spark. [PI-2, PI-10]

`spark_errors` translates exceptions of pyspark and py4j at the edge: no other module catches them.
Spark keeps nothing of an exception raised in a Python worker but its text; `encoded_errors` puts
kind, code and hint into that text, and `spark_errors` reads them back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    Unavailable,
    Unsupported,
)

FATAL = ("spark.gone", "spark.cluster_lost", "spark.no_workers", "spark.out_of_memory")
"""Codes after which a session is of no use any more: the process has to be started again."""


class ConnectUnsupported(Unsupported):
    """A Spark Connect client cannot do it."""

    code = "spark.connect_unsupported"


class SourceError(RapportError):
    """A RapportError whose text carries its hint, kind and code."""

    code = "source.failed"

    @staticmethod
    def of(error: RapportError) -> SourceError:
        kind = next(kind.__name__ for kind in _KINDS if isinstance(error, kind))
        hint = f" (hint: {error.hint})" if error.hint else ""
        text = f"{error.message}{hint} [{kind} {error.code}]".replace("\n", " ")
        return SourceError(text, code=error.code, hint=error.hint)


@contextmanager
def encoded_errors() -> Iterator[None]:
    """For code that Spark calls: RapportErrors raised inside keep kind, code and hint."""
    try:
        yield
    except SourceError:
        raise
    except RapportError as error:
        raise SourceError.of(error) from error


@contextmanager
def spark_errors(action: str) -> Iterator[None]:
    """Translates Spark's exceptions raised inside; RapportErrors pass untouched. `action` begins
    the message."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JNetworkError, ConnectionError, EOFError) as error:
        raise _java_gone(action) from error
    except (Py4JError, PySparkException) as error:
        raise translate(error, action) from error


def connect_unsupported(action: str) -> ConnectUnsupported:
    """The error for an action that needs a Spark driver in this process."""
    return ConnectUnsupported(
        f"{action} through Spark Connect",
        hint="use a master of your own: --master local[*] or spark://host:7077",
    )


def set_cluster_loss(loss: tuple[str, str] | None) -> None:
    """Records code and reason when the session's watcher cancels all jobs; None forgets them."""
    global _cluster_loss
    _cluster_loss = loss


def translate(error: Exception, action: str) -> RapportError:
    """The RapportError that fits the text of a Spark exception."""
    text = str(error)
    ours = decoded_error(text, action)
    if ours is not None:
        return ours
    if _CANCELLED in text and _cluster_loss is not None:
        code, reason = _cluster_loss
        return Unavailable(f"{action}: {reason}", code=code, hint=_LOSS_HINTS[code])
    if _has(text, _NOT_BY_CONNECT):
        return connect_unsupported(action)
    if _is_damaged_checkpoint(text):
        return Corrupt(
            f"{action}: a file of the checkpoint is damaged",
            code="live.bad_checkpoint",
            hint="restore the checkpoint from a copy, or use a new checkpoint directory",
        )
    for markers, kind, code, message, hint in _TRANSLATIONS:
        if _has(text, markers):
            return kind(f"{action}: {message}", code=code, hint=hint)
    # py4j gives no reason when the connection breaks during a call.
    if _has(text, _GONE) or not _first_line(text):
        return _java_gone(action)
    if "PATH_NOT_FOUND" in text:
        return InvalidInput(f"{action}: {_first_line(text)}", code="spark.no_such_path")
    if _has(text, _BROKEN_FILE):
        return _broken_file(text, action)
    return RapportError(f"{action}: {_python_error(text)}", code="spark.job_failed")


def decoded_error(text: str, action: str) -> RapportError | None:
    """The error that `encoded_errors` put into the text of a Spark exception, if any."""
    found = _ENCODED.search(text)
    if found is None:
        return None
    kind = next((kind for kind in _KINDS if kind.__name__ == found["kind"]), RapportError)
    return kind(f"{action}: {found['message']}", code=found["code"], hint=found["hint"] or "")


_KINDS: tuple[type[RapportError], ...] = (
    *(NotAuthenticated, NotAllowed, InvalidInput, Conflict, Unavailable, Corrupt),
    RapportError,
)
_ENCODED = re.compile(
    r"SourceError: (?P<message>.+?)(?: \(hint: (?P<hint>.+?)\))? "
    r"\[(?P<kind>[A-Z]\w+) (?P<code>[a-z_]+\.[a-z_]+)\]"
)
_PARQUET_FILE = re.compile(r"file:(//)?(/.+?\.parquet)")
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
_CALL_FAILED = "An error occurred while calling"
_CANCELLED = "cancelled as part of cancellation of all jobs"
_LOSS_HINTS = {
    "spark.cluster_lost": "look at the cluster, and start again",
    "spark.no_workers": "look at the master's page: workers must run, with as much memory free as "
    "[spark] memory says",
}
_cluster_loss: tuple[str, str] | None = None
_GONE = ("SparkContext was shut down", "stopped SparkContext", "SparkContext.dagScheduler")
_NOT_BY_CONNECT = (
    "JVM_ATTRIBUTE_NOT_SUPPORTED",
    "CONTEXT_UNAVAILABLE_FOR_REMOTE_CLIENT",
    "[NOT_IMPLEMENTED]",
    "Spark Connect does not support",
)
_BROKEN_FILE = (
    "is not a Parquet file",
    "CANNOT_READ_FILE_FOOTER",
    "Could not read footer",
    "FAILED_READ_FILE",
    "corrupt",
    "ParquetDecodingException",
)
# The first entry with a marker in the exception's text decides.
_TRANSLATIONS: tuple[tuple[tuple[str, ...], type[RapportError], str, str, str], ...] = (
    (
        ("StatusCode.UNAVAILABLE", "RETRIES_EXCEEDED", "StatusCode.CANCELLED"),
        Unavailable,
        "spark.server_unreachable",
        "the Spark Connect server does not answer",
        "look whether it still runs, and start again",
    ),
    (
        ("UnsupportedLogVersion", "STATE_STORE_UNSUPPORTED"),
        Conflict,
        "live.other_version",
        "the checkpoint was made by another version of Spark",
        "go on with that version, or use a new checkpoint directory",
    ),
    (
        (
            "OutOfMemoryError",
            "Java heap space",
            "GC overhead limit",
            "MemoryError",
            "UNABLE_TO_ACQUIRE_MEMORY",
        ),
        Unavailable,
        "spark.out_of_memory",
        "Spark ran out of memory",
        "raise memory in the [spark] settings, or use more and smaller partitions",
    ),
    (
        ("No space left on device",),
        Unavailable,
        "spark.disk_full",
        "the disk is full",
        "",
    ),
    (
        ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed"),
        Unavailable,
        "spark.worker_lost",
        "a worker of Spark died",
        "mostly for want of memory: use more and smaller partitions, or fewer cores",
    ),
    (
        ("All masters are unresponsive", "Could not parse Master URL", "Invalid master URL"),
        Unavailable,
        "spark.master_unreachable",
        "the Spark master does not answer",
        "",
    ),
    (
        ("JAVA_GATEWAY_EXITED",),
        Unavailable,
        "spark.java_failed",
        "Java ended before Spark was up; its messages are above on stderr",
        "check that memory in the [spark] settings fits this machine",
    ),
)


def _is_damaged_checkpoint(text: str) -> bool:
    """Whether a query failed on a file of its checkpoint: no version in it, or no whole JSON."""
    if _has(text, ("MALFORMED_LOG_FILE", "Incomplete log file")):
        return True
    is_query = "[STREAM_FAILED]" in text or ".start.\n" in text
    return is_query and _has(text, ("StreamReadFeature", "next on empty iterator"))


def _java_gone(action: str) -> Unavailable:
    return Unavailable(
        f"{action}: Spark's Java process has gone",
        code="spark.gone",
        hint="start again; if it happens twice, raise memory in the [spark] settings",
    )


def _broken_file(text: str, action: str) -> Corrupt:
    found = _PARQUET_FILE.search(text)
    # With two more slashes it is a percent-encoded URI, without them a path.
    name = "a Parquet file" if found is None else unquote(found[2]) if found[1] else found[2]
    return Corrupt(
        f"{action}: {name} cannot be read; it is damaged or half written",
        code="lake.bad_file",
        hint="move the file aside; rows that still stand in the log can be exported again",
    )


def _python_error(text: str) -> str:
    """The last error line of a Python traceback; the first line of the text without one."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    lines = _PYTHON_ERROR.findall(traceback.split("\n\tat ")[0]) if found else []
    return f"{lines[-1][0]}: {lines[-1][1]}" if lines else _first_line(text)


def _first_line(text: str) -> str:
    """The first line that names a cause."""
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(_CALL_FAILED)), "")


def _has(text: str, markers: tuple[str, ...]) -> bool:
    return any(marker in text for marker in markers)
