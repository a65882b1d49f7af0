"""Real servers for tests of tables."""

from rapport.testing.servers.postgres import postgres, postgres_server
from rapport.testing.servers.rows import rows_server

__all__ = ["postgres", "postgres_server", "rows_server"]
