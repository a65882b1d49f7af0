"""The tables in PostgreSQL: what they hold, which version they are, how they are made. [CH-13]

Everything stands in one schema of the database, so that several sites can share a database. The
rest of the code names tables without the schema: it is the session's `search_path`.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import sql

from rapport.core.errors import InvalidInput, StoreUnavailable, Unsupported
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

SCHEMA = "rapport"
"""Schema of the database unless the site says otherwise."""
OLDEST_SERVER = 14
"""Major version of PostgreSQL below which we do not go."""

_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}\Z")

# One row per event. `block` is the first position and `size` the number of events that were
# appended together: a block is read as it was written. `data` and `headers` are JSON texts, kept to
# the byte. An event whose JSON PostgreSQL cannot take has neither but its packed form. A block that
# is none of events is one row at its last position: its `source` is NULL, its bytes are `packed`.
# `events_undecided` finds the rows whose payload PostgreSQL cannot look into.
# The two functions are what conditions speak of (channel/query/postgres_sql.py). There they must
# expect any text; here `data` is known to be JSON, so they are plain SQL that the planner sees
# through.
_TABLES = """
CREATE TABLE logs (
  number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  first bigint NOT NULL DEFAULT 1,
  last bigint NOT NULL DEFAULT 0,
  bytes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE events (
  log integer NOT NULL,
  position bigint NOT NULL,
  block bigint NOT NULL,
  size integer NOT NULL,
  received bigint NOT NULL,
  time bigint,
  source text COLLATE "C",
  id text COLLATE "C",
  type text COLLATE "C",
  subject text COLLATE "C",
  data text COLLATE "C",
  headers text COLLATE "C",
  packed bytea,
  PRIMARY KEY (log, position)
);
CREATE INDEX events_by_id ON events (id);
CREATE INDEX events_undecided ON events (log, position)
WHERE packed IS NOT NULL OR headers ILIKE '%xml%';

CREATE FUNCTION rapport_payload(data text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT data::jsonb $$;
CREATE FUNCTION rapport_element(list jsonb, place integer) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(list) WHEN 'array' THEN list -> place END
$$;

CREATE TABLE records (
  in_table text COLLATE "C" NOT NULL,
  key bytea NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (in_table, key)
);
"""
_STEPS = (_TABLES,)
"""The n-th step leads from version n to n + 1; steps are only ever added."""
VERSION = len(_STEPS)


def check_schema_name(name: str) -> None:
    """Raises InvalidInput unless the name can be a schema's without quoting."""
    if not _NAME.match(name):
        raise InvalidInput(
            f"{name[:60]!r} cannot be the name of a schema",
            code="store.bad_schema",
            hint="1 to 48 of a-z, 0-9 and '_', not beginning with a digit or with pg_",
        )


def prepare_schema(connection: psycopg.Connection[tuple[Any, ...]], schema: str) -> None:
    """Makes or renews the tables; does nothing when they are as they should be.

    Processes that start together wait for each other. Raises Unsupported for a server or tables we
    do not know.
    """
    _check_server(connection)
    if _version(connection) == VERSION:
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (schema,))
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        version = _version(connection)
        if version > VERSION:
            raise StoreUnavailable(
                f"the schema {schema!r} has version {version}; this Rapport knows {VERSION}",
                code="store.newer_schema",
                hint="a newer Rapport made it: use that one, or another schema",
            )
        if version == 0:
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer)")
            connection.execute("INSERT INTO schema_version VALUES (0)")
        for step in _STEPS[version:]:
            connection.execute(step)
        connection.execute("UPDATE schema_version SET version = %s", (VERSION,))


def _version(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    found = connection.execute("SELECT to_regclass('schema_version') IS NOT NULL").fetchone()
    if found is None or not found[0]:
        return 0
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    return 0 if row is None else int(row[0])


def _check_server(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    query = "SELECT current_setting('server_encoding'), current_setting('fsync')"
    encoding, fsync = connection.execute(query).fetchone() or ("", "")
    if encoding != "UTF8":
        raise Unsupported(
            f"a database with the encoding {encoding}",
            "the PostgreSQL store",
            hint="make one with: createdb --encoding=UTF8 --template=template0 NAME",
        )
    if connection.info.server_version < OLDEST_SERVER * 10_000:
        raise Unsupported(
            f"PostgreSQL {connection.info.server_version // 10_000}",
            "the PostgreSQL store",
            hint=f"use version {OLDEST_SERVER} or newer",
        )
    if fsync != "on":
        _log.warning("PostgreSQL runs with fsync off: a power cut may lose what was acknowledged")
