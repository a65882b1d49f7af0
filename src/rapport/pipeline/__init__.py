"""Spark over history: the only home of pyspark."""
