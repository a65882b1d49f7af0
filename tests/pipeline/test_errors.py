"""What Spark says becomes an error a person can act on."""

from __future__ import annotations

import pytest

from rapport.core.errors import Conflict, Corrupt, InvalidInput, RapportError, Unavailable
from rapport.pipeline.errors import (
    ConnectUnsupported,
    spark_errors,
    translate,
)

PYTHON_TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
ValueError: the first
During handling of the above exception, another exception occurred:
rapport.core.errors.InvalidInput: the window is empty
"""


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", Unavailable, "spark.out_of_memory"),
        ("java.io.IOException: No space left on device", Unavailable, "spark.disk_full"),
        ("All masters are unresponsive! Giving up.", Unavailable, "spark.master_unreachable"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", Unavailable, "spark.java_failed"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/x", InvalidInput, "spark.no_such_path"),
        ("[CANNOT_READ_FILE_FOOTER] Could not read footer", Corrupt, "lake.bad_file"),
        ("Python worker exited unexpectedly (crashed)", Unavailable, "spark.worker_lost"),
        ("Cannot call methods on a stopped SparkContext.", Unavailable, "spark.gone"),
        ("An error occurred while calling o78.collectToPython", Unavailable, "spark.gone"),
        ("[JVM_ATTRIBUTE_NOT_SUPPORTED] no", ConnectUnsupported, "spark.connect_unsupported"),
        ("StatusCode.UNAVAILABLE: failed", Unavailable, "spark.server_unreachable"),
        ("UnsupportedLogVersion v9", Conflict, "live.other_version"),
        ("[MALFORMED_LOG_FILE] Log file was malformed", Corrupt, "live.bad_checkpoint"),
        ("[STREAM_FAILED] next on empty iterator", Corrupt, "live.bad_checkpoint"),
        ("calling o9.start.\n: com.Json: x (`StreamReadFeature`", Corrupt, "live.bad_checkpoint"),
        ("something new", RapportError, "spark.job_failed"),
    ],
)
def test_known_faults_have_their_own_code(text: str, kind: type[RapportError], code: str) -> None:
    error = translate(Exception(text), "working")
    assert type(error) is kind
    assert error.code == code
    assert error.message.startswith("working")


def test_a_fault_on_a_worker_is_told_by_its_last_line() -> None:
    error = translate(Exception(PYTHON_TRACE), "working")
    assert error.message == "working: InvalidInput: the window is empty"


def test_a_fault_of_java_is_told_by_what_java_says() -> None:
    text = "An error occurred while calling o78.collect.\n: java.lang.Thing: no such table\n\tat x"
    assert (
        translate(Exception(text), "working").message == "working: java.lang.Thing: no such table"
    )


def test_a_vanished_java_process_is_told() -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(Unavailable) as caught, spark_errors("working"):
        raise ConnectionRefusedError(111, "Connection refused")
    assert caught.value.code == "spark.gone"


def test_our_own_errors_pass_untouched() -> None:
    pytest.importorskip("pyspark")
    mine = InvalidInput("wrong", code="mine")
    with pytest.raises(InvalidInput) as caught, spark_errors("working"):
        raise mine
    assert caught.value is mine
