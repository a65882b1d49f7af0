"""A PostgreSQL for conditions to be tried on."""

from __future__ import annotations

from support.servers.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
