"""Whatever a source gives, it is loaded or refused. [PO-2]"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import SiteError
from rapport.tables.declaration import TableDeclaration
from rapport.tables.loaded_table import load_table
from rapport.tables.sources import rows_of_json
from rapport.tables.xml_source import rows_of_xml

CONCEPTS = {"person": {"status": "text", "age": "number", "armed": "boolean", "home": "point"}}
TABLE = TableDeclaration(
    name="people",
    concept="person",
    csv="people.csv",
    key="id",
    columns={"status": ("status",), "age": ("age",), "armed": ("armed",), "home": ("home",)},
)

fields = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(fields, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
rows = st.dictionaries(st.sampled_from(["id", "status", "age", "armed", "home", "x.y"]), values)
documents = st.lists(rows, max_size=5).map(msgspec.json.encode) | st.binary(max_size=50)


@pytest.mark.slow
@given(documents)
def test_any_json_is_loaded_or_refused(data: bytes) -> None:
    try:
        file = rows_of_json(data, "", TABLE.fields, name="people")
        load_table(TABLE, file, CONCEPTS)
    except SiteError as error:
        assert all(problem.code.startswith("tables.") for problem in error.problems)


texts = st.text("ab <&;1,.\u00e9\n", max_size=8)
xml_rows = st.lists(
    st.tuples(st.sampled_from(["id", "status", "age", "home"]), texts).map(
        lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0]}>"
    ),
    max_size=5,
).map(lambda inner: f"<p>{''.join(inner)}</p>")


@given(
    st.lists(xml_rows, max_size=4).map(lambda inner: f"<d>{''.join(inner)}</d>".encode())
    | st.binary(max_size=50)
)
def test_any_xml_is_loaded_or_refused(data: bytes) -> None:
    try:
        file = rows_of_xml(data, "/d/p", TABLE.fields, name="d.xml", namespaces={})
        load_table(TABLE, file, CONCEPTS)
    except SiteError as error:
        assert all(problem.code.startswith("tables.") for problem in error.problems)
