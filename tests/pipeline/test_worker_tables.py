"""Tables as bytes are the same tables again; other bytes are refused, whatever they are. [PI-10]"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Corrupt, UnknownName
from rapport.pipeline.worker_tables import WorkerTables, decode_tables
from rapport.tables.instances import Instances

NAMES = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def objects(values: list[Any]) -> np.ndarray:
    column = np.empty(len(values), object)
    column[:] = values
    return column


@st.composite
def columns(draw: st.DrawFn, rows: int) -> np.ndarray:
    kind = draw(st.sampled_from(("text", "boolean", "number", "point", "rectangle")))
    if kind in ("text", "boolean"):
        value = st.none() | (NAMES if kind == "text" else st.booleans())
        return objects(draw(st.lists(value, min_size=rows, max_size=rows)))
    width = {"number": 1, "point": 2, "rectangle": 4}[kind]
    flat = draw(st.lists(NUMBERS, min_size=rows * width, max_size=rows * width))
    return np.array(flat, np.float64).reshape(rows if width == 1 else (rows, width))


@st.composite
def tables(draw: st.DrawFn) -> WorkerTables:
    instances = {}
    for concept in draw(st.sets(NAMES, max_size=3)):
        ids = draw(st.lists(NAMES, max_size=5, unique=True))
        given_columns = draw(st.dictionaries(NAMES, columns(len(ids)), max_size=4))
        instances[concept] = Instances(concept, ids, given_columns)
    texts = st.tuples(NAMES) | st.tuples(NAMES, NAMES)
    pairs = draw(st.dictionaries(NAMES, st.dictionaries(texts, NUMBERS, max_size=4), max_size=2))
    return WorkerTables(instances, pairs)


@given(tables())
def test_they_come_back_as_they_were(made: WorkerTables) -> None:
    back = decode_tables(made.encoded)
    assert back.encoded == made.encoded
    held = {one.concept: one for one in made.held()}
    assert {one.concept for one in back.held()} == set(held)
    for one in back.held():
        before = held[one.concept]
        assert one.ids == before.ids
        assert one.columns.keys() == before.columns.keys()
        for name, values in one.columns.items():
            wanted = before.columns[name]
            assert (values.dtype, values.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(values, wanted)


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_tables(b"\xc1" + raw)  # nothing begins so


def test_a_column_of_another_length_is_refused() -> None:
    room = Instances("room", ["r", "s"], {"a": objects(["x"])})
    with pytest.raises(Corrupt, match="1 values for 2 rows"):
        decode_tables(WorkerTables({"room": room}, {}).encoded)


@given(tables(), st.data())
def test_damaged_bytes_are_refused_or_are_other_tables(made: WorkerTables, data: st.DataObject):
    raw = bytearray(made.encoded)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        decode_tables(bytes(raw))
    except Corrupt as error:
        assert error.code == "tables.bad_copy"


def test_the_order_in_which_they_were_given_says_nothing() -> None:
    room = Instances("room", ["r"], {"a": objects(["x"]), "b": objects([None])})
    other = Instances("room", ["r"], {"b": objects([None]), "a": objects(["x"])})
    hall = Instances("hall", [], {})
    pairs = {("a", "b"): 1.0, ("b",): 2.0}
    one = WorkerTables({"room": room, "hall": hall}, {"far": pairs, "near": {}})
    turned = dict(reversed(pairs.items()))
    two = WorkerTables({"hall": hall, "room": other}, {"near": {}, "far": turned})
    assert one.encoded == two.encoded


def test_what_is_not_there_is_empty_or_unknown() -> None:
    none = WorkerTables({}, {})
    assert len(none.instances("room")) == 0
    with pytest.raises(UnknownName):
        none.pairs("far")
