"""The shared Spark session."""

from support.servers.spark import spark

__all__ = ["spark"]
