"""Tables evolve, refuse what does not fit, and are the same in an object store.
[LK-1, LK-2, LK-7]
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rapport.core.errors import Conflict, Corrupt, UnknownName
from rapport.kernel.clock import SystemClock
from rapport.lake.places import Lake
from rapport.lake.table import CONCURRENT_WRITER, Table, TableFile, field, write_files

DEGREES = pa.schema([field("n", pa.int64()), field("value", pa.float64(), unit="degC")])


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "value": [float(n) for n in numbers]}, schema=DEGREES)


def test_a_changed_unit_is_a_version_of_the_schema(tmp_path: Path) -> None:
    table = Table.ensure(str(tmp_path / "t"), DEGREES)
    table.append(rows(1))
    assert Table.ensure(table.uri, DEGREES).version == table.version
    other = DEGREES.set(1, field("value", pa.float64(), unit="degF"))
    changed = Table.ensure(table.uri, other)
    assert (table.unit("value"), changed.unit("value")) == ("degC", "degF")
    assert changed.version == table.version + 1
    assert changed.rows() == 1


def test_a_new_column_is_null_in_older_rows(tmp_path: Path) -> None:
    Table.ensure(str(tmp_path / "t"), DEGREES).append(rows(1))
    wider = DEGREES.append(field("room", pa.string()))
    table = Table.ensure(str(tmp_path / "t"), wider)
    table.append(pa.table({"n": [2], "value": [2.0], "room": ["r1"]}, schema=wider))
    found = pl.read_delta(table.uri).sort("n")
    assert found["room"].to_list() == [None, "r1"]


def test_another_type_of_a_column_is_refused(tmp_path: Path) -> None:
    Table.ensure(str(tmp_path / "t"), DEGREES)
    with pytest.raises(Conflict) as caught:
        Table.ensure(str(tmp_path / "t"), pa.schema([("value", pa.string())]))
    assert caught.value.code == "lake.other_type"


def test_files_are_chosen_by_partition_and_by_statistics(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    table = Table.ensure(str(tmp_path / "t"), schema, partition_by=["day"])
    for day in "abc":
        numbers = [ord(day), ord(day) + 10]
        table.append(pa.table({"day": [day, day], "n": numbers}, schema=schema))
    assert [file.partition["day"] for file in table.files(day=("b", None))] == ["b", "c"]
    assert [file.partition["day"] for file in table.files(n=(None, 98))] == ["a", "b"]
    table.commit([], removed=table.files(day=("a", "b")))
    assert table.rows() == 2


def test_a_compaction_refuses_the_removal_of_files_that_it_has_joined(tmp_path: Path) -> None:
    table = Table.ensure(str(tmp_path / "t"), DEGREES)
    table.append(rows(1))
    table.append(rows(2))
    first, second = Table(table.uri), Table(table.uri)
    new = write_files(table.uri, rows(3), [])
    Table(table.uri).compact()
    with pytest.raises(Conflict):
        first.commit(new, removed=first.files())
    with pytest.raises(Conflict):
        second.rewrite(new, DEGREES, progress={"unit": 1}, notes={})
    assert sorted(Table(table.uri).read()["n"].to_pylist()) == [1, 2]


def test_replacing_takes_its_turn_after_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.ensure(str(tmp_path / "t"), DEGREES)
    table.append(rows(1))
    table.append(rows(2))
    files, waiting = Table.files, [1]

    def compacted_meanwhile(one: Table, **bounds: tuple[object, object]) -> list[TableFile]:
        found = files(one, **bounds)
        if waiting:
            waiting.pop()
            Table(table.uri).compact()
        return found

    monkeypatch.setattr(Table, "files", compacted_meanwhile)
    table.replace(rows(3))
    assert not waiting
    assert Table(table.uri).read()["n"].to_pylist() == [3]


def test_a_step_is_refused_when_the_snapshot_has_moved_past_it(tmp_path: Path) -> None:
    check_moved_snapshot(str(tmp_path / "t"), {})


def check_moved_snapshot(uri: str, options: dict[str, str]) -> None:
    """The protocol refuses what was committed after a snapshot. A commit moves the snapshot: past
    that of another process, which it refuses no longer. `after` does.
    """
    table = Table.ensure(uri, DEGREES, options=options)
    behind, other = Table(uri, options), Table(uri, options)
    table.append(rows(1), progress={"export": 1}, after={"export": 0})
    other.append(rows(2), progress={"other": 1})
    with pytest.raises(Conflict):  # two versions behind: each of them is looked at
        behind.append(rows(1), progress={"export": 1})
    other.append(rows(3), progress={"other": 2})
    assert other.progress("export") == 1
    with pytest.raises(Conflict) as caught:
        other.append(rows(1), progress={"export": 1}, after={"export": 0})
    assert caught.value.code == CONCURRENT_WRITER
    assert sorted(Table(uri, options).read()["n"].to_pylist()) == [1, 2, 3]


def test_a_reader_of_an_older_version_is_not_disturbed(tmp_path: Path) -> None:
    table = Table.ensure(str(tmp_path / "t"), DEGREES)
    table.append(rows(1, 2))
    reader = Table(table.uri)
    table.replace(rows(3))
    assert reader.read()["n"].to_pylist() == [1, 2]
    assert reader.refresh().read()["n"].to_pylist() == [3]


def test_a_table_that_others_wrote_is_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "gold" / "theirs"), pa.table({"a": [1, 2]}))
    table = Lake.at(tmp_path).open("gold", "theirs")
    assert table.read()["a"].to_pylist() == [1, 2]
    assert table.rows() == 2
    with pytest.raises(UnknownName) as caught:
        Lake.at(tmp_path).open("gold", "their")
    assert "gold/theirs" in caught.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    table = Table.ensure(str(tmp_path / "t"), DEGREES)
    table.append(rows(1))
    (file,) = (tmp_path / "t").glob("*.parquet")
    file.unlink()
    with pytest.raises(Exception, match=file.name):
        table.read()
    (tmp_path / "t" / "_delta_log" / "00000000000000000001.json").write_bytes(b"{")
    with pytest.raises(Corrupt):
        Table(table.uri).rows()


@pytest.fixture(scope="module")
def object_store() -> Iterator[dict[str, str]]:
    """A server of the S3 protocol on loopback; the options to reach its bucket `lake`."""
    import boto3

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
            boto3.client("s3", endpoint_url=url, region_name="eu-1", **keys).create_bucket(
                Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-1"}
            )
            yield {
                "AWS_ENDPOINT_URL": url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "eu-1",
                **{name.upper(): value for name, value in keys.items()},
            }
        finally:
            server.kill()


def _wait_for(port: int) -> None:
    clock = SystemClock()
    end = clock.steady_ns() + 60 * 10**9
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if clock.steady_ns() > end:
                raise


@pytest.mark.slow
def test_a_lake_in_an_object_store_has_the_same_promises(object_store: dict[str, str]) -> None:
    lake = Lake.at("s3a://lake/site", object_store)
    uri = lake.table_uri("bronze", "raw.a/b")
    table = Table.ensure(uri, DEGREES, options=object_store)
    table.append(rows(1, 2), progress={"export": 2})
    assert lake.names("bronze") == ["raw.a/b"]
    assert table.read()["n"].to_pylist() == [1, 2]
    first, second = Table(uri, object_store), Table(uri, object_store)
    first.append(rows(3), progress={"export": 3})
    with pytest.raises(Conflict):
        second.append(rows(3), progress={"export": 3})
    second.refresh()
    assert (second.progress("export"), second.rows()) == (3, 3)
    check_moved_snapshot(lake.table_uri("bronze", "moved"), object_store)
    second.compact()
    assert len(second.files()) == 1
    assert second.vacuum(0)
    assert sorted(Table(uri, object_store).read()["n"].to_pylist()) == [1, 2, 3]
