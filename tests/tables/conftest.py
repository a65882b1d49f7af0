"""Real servers for tests of tables."""

from rapport.testing.postgres import postgres, postgres_server
from rapport.testing.rows_server import rows_server

__all__ = ["postgres", "postgres_server", "rows_server"]
