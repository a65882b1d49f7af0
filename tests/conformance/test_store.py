"""The store suites bound to memory, segment files, the forgetful disk, and SQLite. [CH-13]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from rapport.store.nats_store import NatsLogStore
from rapport.store.postgres_log import PostgresLogStore
from rapport.store.postgres_records import PostgresRecordStore
from rapport.store.segment_store import SegmentLogStore
from rapport.store.sqlite import SqliteRecordStore
from support.faults.disk import ForgetfulDisk
from support.suites.store import LogStoreSuite, RecordStoreSuite

SMALL_SEGMENT = 4096


class MemoryLogs:
    name = "memory"

    def open(self):
        return MemoryLogStore()


class SegmentLogs:
    name = "segments"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self):
        return SegmentLogStore(self._directory, segment_bytes=SMALL_SEGMENT)


class ForgetfulLogs:
    name = "forgetful"

    def __init__(self) -> None:
        self._disk = ForgetfulDisk()

    def open(self):
        return SegmentLogStore(Path("/store"), files=self._disk, segment_bytes=SMALL_SEGMENT)


class NatsLogs:
    name = "nats"

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._prefix = url, prefix

    def open(self):
        return NatsLogStore([self._url], prefix=self._prefix)


class PostgresLogs:
    name = "postgres"

    def __init__(self, address) -> None:
        self._address = address

    def open(self):
        return PostgresLogStore(self._address.dsn, schema=self._address.schema)


class MemoryRecords:
    name = "memory"

    def open(self):
        return MemoryRecordStore()


class SqliteRecords:
    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "records.sqlite"

    def open(self):
        return SqliteRecordStore(self._path)


class PostgresRecords:
    name = "postgres"

    def __init__(self, address) -> None:
        self._address = address

    def open(self):
        return PostgresRecordStore(self._address.dsn, schema=self._address.schema)


class _Kept:
    """A place that closes at the end what it opened."""

    def __init__(self, place) -> None:
        self.name, self._place, self._opened = place.name, place, []

    def open(self):
        self._opened.append(self._place.open())
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture(
    params=[
        "memory",
        "segments",
        "forgetful",
        pytest.param("nats", marks=pytest.mark.slow),
        pytest.param("postgres", marks=pytest.mark.slow),
    ]
)
def log_place(request, tmp_path):
    places = {
        "memory": MemoryLogs,
        "segments": lambda: SegmentLogs(tmp_path / "store"),
        "forgetful": ForgetfulLogs,
        "nats": lambda: NatsLogs(
            request.getfixturevalue("nats_server").url, request.getfixturevalue("nats_prefix")
        ),
        "postgres": lambda: PostgresLogs(request.getfixturevalue("postgres")),
    }
    kept = _Kept(places[request.param]())
    yield kept
    kept.close()


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def record_place(request, tmp_path):
    places = {
        "memory": MemoryRecords,
        "sqlite": lambda: SqliteRecords(tmp_path),
        "postgres": lambda: PostgresRecords(request.getfixturevalue("postgres")),
    }
    kept = _Kept(places[request.param]())
    yield kept
    kept.close()


class TestLogStore(LogStoreSuite):
    @pytest.mark.lacks("memory", reason="memory is forgotten at the end of the process")
    def test_everything_is_there_after_opening_again(self, log_place):
        super().test_everything_is_there_after_opening_again(log_place)


class TestRecordStore(RecordStoreSuite):
    @pytest.mark.lacks("memory", reason="memory is forgotten at the end of the process")
    def test_records_are_there_after_opening_again(self, record_place):
        super().test_records_are_there_after_opening_again(record_place)
