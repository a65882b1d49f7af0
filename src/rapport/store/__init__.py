"""Stores of logs and records: in memory, in files, in SQLite, PostgreSQL and NATS."""
