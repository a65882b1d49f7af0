"""The shared Spark session."""

from __future__ import annotations

from rapport.testing.spark import spark

__all__ = ["spark"]
