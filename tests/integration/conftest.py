"""The shared Spark session."""

from __future__ import annotations

from rapport.testing.servers.spark import spark

__all__ = ["spark"]
