"""Where Spark finds the format `rapport`: it looks for packages named `pyspark_*`. [PI-2]"""

from rapport.pipeline.datasource.source import RapportSource as DefaultSource

__all__ = ["DefaultSource"]
