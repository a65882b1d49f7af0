"""Keeping: log files and records, in memory, on disk, in SQL."""
