"""Spark finds the format `rapport` here by itself: it looks for packages named `pyspark_*`. [PI-2]"""

from rapport.pipeline.datasource.source import RapportSource as DefaultSource

__all__ = ["DefaultSource"]
