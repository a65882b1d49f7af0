"""Rows on record: what was written gives back what tables held, however it was cut. [PO-2]"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.event import Event, StoredEvent
from rapport.tables import row_history
from rapport.tables.declaration import PairDeclaration, TableDeclaration
from rapport.tables.loaded_table import load_table
from rapport.tables.row_history import (
    BASE_AFTER,
    BASE_AT_LAST_AFTER,
    FROM_THE_BEGINNING,
    RecordableRows,
    RecordState,
    RowHistory,
    RowsPosition,
    RowsVersion,
    TableRows,
    decode_piece,
    draft_change,
    recorded_columns,
    rows_to_record,
)
from rapport.tables.rows import RowFile
from support.examples import examples

FIELD = st.sampled_from(["", "a", "b", "long " * 8])
ROWS = st.lists(st.tuples(FIELD, FIELD), max_size=8)
STATE = st.dictionaries(st.sampled_from(["people", "rooms"]), ROWS, max_size=2)
Told = dict[str, list[tuple[str, ...]]]


def of_table(
    rows: list[tuple[str, ...]], *, header: tuple[str, ...] = ("id", "x")
) -> RecordableRows:
    return RecordableRows(rows=TableRows.of(header, rows), keys=(0,), is_counted=False)


class Record:
    """A log of pieces, and who writes it."""

    def __init__(self) -> None:
        self.log: list[StoredEvent] = []
        self.standing = RecordState()
        self.made = 0

    def write(self, state: dict[str, RecordableRows], *, whole: bool = True) -> None:
        """The change to this state; not `whole`: its last piece is lost."""
        draft = draft_change(state, self.standing)
        self.made += 1
        place = RowsPosition(time=self.made, after=self.made, since=self.made)
        pieces = draft.at(place, self.standing.base)
        first = len(self.log)
        for piece in pieces if whole else pieces[:-1]:
            self.append(piece.to_event(source="site"))
        if not whole or not pieces:
            return
        version = RowsVersion(
            change=pieces[0].change,
            place=place,
            tables=draft.tables,
            changed=frozenset(piece.table for piece in pieces),
            is_base=draft.is_base,
        )
        self.standing = self.standing.after(version, draft.bytes, first)

    def append(self, event: Event) -> None:
        self.log.append(StoredEvent(len(self.log) + 1, event.time, event))

    def versions(self, after: int = 0) -> list[RowsVersion]:
        folded = RowHistory()
        return [found for one in self.log[after:] if (found := folded.take(one)) is not None]


def results(version: RowsVersion) -> Told:
    return {name: list(rows.rows) for name, rows in version.tables.items() if rows.is_known}


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_history, "PIECE_BYTES", 100)


@given(st.lists(STATE, max_size=8))
def test_every_state_is_read_back_once_and_in_order(states: list[Told]) -> None:
    record, wanted = Record(), list[Told]()
    for state in states:
        if state != (wanted[-1] if wanted else {}):
            wanted.append(state)
        record.write({name: of_table(rows) for name, rows in state.items()})
    assert [results(one) for one in record.versions()] == wanted


@given(st.lists(STATE, min_size=1, max_size=6), st.data())
def test_a_change_that_was_cut_off_is_none_and_the_next_is_whole(
    states: list[Told], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        small_pieces(patched)
        record = Record()
        for state in states:
            tables = {name: of_table(rows) for name, rows in state.items()}
            if data.draw(st.booleans()):
                record.write(tables, whole=False)
            record.write(tables)
        versions = record.versions()
        assert (results(versions[-1]) if versions else {}) == states[-1]
        assert all(rows.is_known for one in versions for rows in one.tables.values())


@given(st.lists(STATE, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_events_that_come_twice_change_nothing(states: list[Told], chance: object) -> None:
    record = Record()
    for state in states:
        record.write({name: of_table(rows) for name, rows in state.items()})
    once = [results(one) for one in record.versions()]
    for at in sorted(chance.sample(range(len(record.log)), len(record.log) // 2)):  # type: ignore[attr-defined]
        record.log.append(record.log[at])
    assert [results(one) for one in record.versions()] == once


@given(st.lists(STATE, min_size=1, max_size=6), st.integers(min_value=0, max_value=20))
def test_a_record_without_its_beginning_never_gives_wrong_rows(
    states: list[Told], lost: int
) -> None:
    record = Record()
    for state in states:
        record.write({name: of_table(rows) for name, rows in state.items()})
    whole = {one.change: results(one) for one in record.versions()}
    for version in record.versions(after=lost):
        assert results(version).items() <= whole[version.change].items()


@settings(max_examples=examples(20))
@given(st.integers(min_value=BASE_AFTER, max_value=3 * BASE_AFTER))
def test_reading_back_needs_a_bounded_number_of_changes(count: int) -> None:
    record = Record()
    people = [(str(key), "guest") for key in range(100)]
    for number in range(count):
        record.write({"people": of_table([*people, ("new", str(number))])})
    from_base = record.versions(after=record.standing.base)
    assert from_base[0].is_base
    assert len(from_base) <= BASE_AFTER
    assert from_base[-1].tables == record.versions()[-1].tables
    pieces = [piece for one in record.log if (piece := decode_piece(one)) is not None]
    assert pieces[-1].is_base or pieces[-1].base == record.standing.base


def test_a_change_of_one_row_of_many_is_small_and_counted() -> None:
    record = Record()
    people = [(str(key), "guest") for key in range(5_000)]
    record.write({"people": of_table(people)})
    record.write({"people": of_table([*people[:7], ("7", "employee"), *people[8:]])})
    last = record.log[-1]
    piece = decode_piece(last)
    assert piece is not None
    assert len(last.event.data) < 600
    assert (piece.added, piece.changed, piece.removed) == (0, 1, 0)
    assert record.versions()[-1].changed == {"people"}


def test_large_tables_are_written_in_pieces_of_bounded_size() -> None:
    record = Record()
    record.write({"people": of_table([(str(key), "x" * 1_000) for key in range(2_000)])})
    sizes = [len(one.event.data) for one in record.log]
    assert len(sizes) > 5
    assert max(sizes) < 300 * 1024
    assert len(record.versions()[-1].tables["people"].rows) == 2_000


def test_other_columns_are_another_whole_and_a_table_that_goes_makes_a_base() -> None:
    record = Record()
    record.write({"people": of_table([("a", "b")]), "rooms": of_table([])})
    record.write({"people": of_table([("a",)], header=("id",)), "rooms": of_table([])})
    record.write({"people": of_table([("a",)], header=("id",))})
    first, second, third = record.versions()
    assert second.tables["people"].header == ("id",)
    assert (first.is_base, second.is_base, third.is_base) == (True, False, True)
    assert third.tables.keys() == {"people"}
    assert third.changed == {"rooms"}


def test_unknown_fields_are_ignored_and_invalid_events_give_nothing() -> None:
    record = Record()
    record.write({"people": of_table([("a", "b")])})
    [stored] = record.log
    more = {**msgspec.json.decode(stored.event.data), "weather": {"fine": True}}
    event = msgspec.structs.replace(stored.event, data=msgspec.json.encode(more))
    record.log = [StoredEvent(1, 0, event)]
    assert results(record.versions()[0]) == {"people": [("a", "b")]}
    for data in (b"{", b"{}", b"[]", msgspec.json.encode({**more, "parts": 0})):
        record.log = [StoredEvent(1, 0, msgspec.structs.replace(event, data=data))]
        assert record.versions() == []


def test_rows_that_were_tampered_with_are_not_known() -> None:
    record = Record()
    record.write({"people": of_table([("a", "guest")])})
    [stored] = record.log
    data = stored.event.data.replace(b"guest", b"ghost")
    record.log = [StoredEvent(1, 0, msgspec.structs.replace(stored.event, data=data))]
    assert not record.versions()[0].tables["people"].is_known


def test_a_time_that_goes_back_holds_from_where_the_one_before_did() -> None:
    record = Record()
    record.write({"people": of_table([("a", "b")])})
    record.made = -5
    record.write({"people": of_table([("a", "c")])})
    assert [one.place.since for one in record.versions()] == [1, 1]


def loaded(declared: TableDeclaration, rows: list[list[str]]) -> object:
    header = ["id", "status", "salary", "other"]
    concepts = {"person": {"status": "text"}}
    return load_table(declared, RowFile("f", header, rows, "d"), concepts)  # type: ignore[arg-type]


def test_a_small_table_that_changes_all_the_time_does_not_repeat_a_large_one() -> None:
    record, large = Record(), of_table([(f"r{number}", "x" * 300) for number in range(2_000)])
    for number in range(BASE_AT_LAST_AFTER + 10):
        record.write({"large": large, "small": of_table([("a", str(number))])})
    versions = record.versions()
    assert len(versions) == BASE_AT_LAST_AFTER + 10
    assert [place for place, one in enumerate(versions) if one.is_base] == [0, BASE_AT_LAST_AFTER]
    assert results(versions[-1])["small"] == [("a", str(BASE_AT_LAST_AFTER + 9))]
    assert len(results(versions[-1])["large"]) == 2_000


PEOPLE = TableDeclaration(
    name="people", concept="person", csv="p.csv", key="id", columns={"status": ("status",)}
)


def test_only_declared_columns_are_recorded() -> None:
    found = rows_to_record(loaded(PEOPLE, [["a", "guest", "1000", "x"]]), ())  # type: ignore[arg-type]
    assert found is not None
    assert found.rows.header == ("id", "status")
    assert found.rows.rows == [("a", "guest")]


def test_a_table_for_look_ups_is_not_recorded_but_one_of_pairs_and_one_of_context_are() -> None:
    look_up = TableDeclaration(name="badges", csv="b.csv", key="id")
    context = TableDeclaration(
        name="c", concept="person", context="person where", key="id", columns={"x": ("lat",)}
    )
    pair = PairDeclaration(function="f", table="badges", keys=("id", "to"), value="far")
    assert recorded_columns(look_up, ()) == ()
    assert recorded_columns(context, ()) == ("id", "lat")
    assert recorded_columns(look_up, [pair]) == ("id", "to", "far")


def test_a_table_beyond_its_limit_is_recorded_by_digest_and_number() -> None:
    few = msgspec.structs.replace(PEOPLE, record_rows=1)
    rows = [["a", "guest", "", ""], ["b", "guest", "", ""]]
    found = rows_to_record(loaded(few, rows), ())  # type: ignore[arg-type]
    assert found is not None
    record = Record()
    record.write({"people": found})
    record.write({"people": found})
    [version] = record.versions()
    assert not version.tables["people"].is_known
    assert version.tables["people"].count == 2
    assert b"guest" not in record.log[0].event.data
    # Later it is allowed to have more.
    record.write({"people": msgspec.structs.replace(found, is_counted=False)})
    assert results(record.versions()[-1]) == {"people": [("a", "guest"), ("b", "guest")]}


def test_the_beginning_has_the_value_that_policies_use() -> None:
    from rapport.policy.operators.base import END_OF_TIME

    assert FROM_THE_BEGINNING == -END_OF_TIME
