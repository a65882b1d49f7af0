"""The shared Spark session."""

from __future__ import annotations

from support.servers.spark import spark

__all__ = ["spark"]
