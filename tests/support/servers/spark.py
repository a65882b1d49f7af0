"""The one Spark session of a test run, as a pytest fixture. [PI-1]

A conftest imports the fixture `spark` from here (`noqa: F401`). Several may: the
session is started once, by the first test that asks, and ends with the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rapport.pipeline.session import SparkSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Starts soon and is slower on long work, which no test has."""
QUICK_START = {"RAPPORT_SPARK_JAVA_OPTIONS": QUICK_JAVA}
"""For commands that start a Spark of their own."""
_ROOM = "-XX:ReservedCodeCacheSize=160m -XX:MetaspaceSize=256m -Xmn192m"
"""One session serves all tests of a process: what it has loaded and compiled stays."""
TEST_SETTINGS = SparkSettings(
    master="local[2]",
    memory="512m",
    rows_per_batch=1_000,
    # Tests are many short jobs: neither Spark nor Java compiles more than it must. Tests that start
    # a service, a cluster or a submitted program run with the options of the product.
    options={
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    },
    java_options=f"{QUICK_JAVA} {_ROOM}",
)


@contextmanager
def product_plans(spark: SparkSession) -> Iterator[None]:
    """Spark plans as it does for users: whole stages are compiled, Parquet is read in batches."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    yield
    spark.conf.set("spark.sql.codegen.wholeStage", "false")


@pytest.fixture(scope="session")
def spark() -> Any:
    """A SparkSession on two cores; batches are small so that several make up a task."""
    return spark_session(TEST_SETTINGS)
