"""Makes `format("rapport")` known to a Spark session. [PI-2]"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.pipeline.faults import spark_faults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHES_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register_sources(spark: SparkSession) -> None:
    """The session can read and write channels from now on; a second call is no error.

    Spark's workers must have this package.
    """
    from rapport.pipeline.sources.datasource import RapportSource

    with spark_faults("registering the source of channels"):
        spark.conf.set(_PUSHES_FILTERS, "true")
        spark.dataSource.register(RapportSource)
