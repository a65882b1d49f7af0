"""Real servers for tests of tables."""

from support.servers.postgres import postgres, postgres_server
from support.servers.rows import rows_server

__all__ = ["postgres", "postgres_server", "rows_server"]
