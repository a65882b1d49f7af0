"""No table of an interpretation, however strange, makes loading or compiling fall over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InterpretationError
from rapport.core.event import Event
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.declarations.fields_tables import read_interpretation
from rapport.mediation.fields_transformer import FieldsTransformer
from rapport.mediation.source_bindings import SourceBinding

words = st.sampled_from(
    [
        "t",
        "x",
        "m",
        "deg",
        "iso8601",
        "epoch_s",
        "%Y-%m-%d",
        "%",
        "%Q",
        "UTC",
        "comma",
        "a:b",
        "{t}",
    ]
)
scalars = st.one_of(
    words, words, st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.just("")
)
KEYS = [
    *["about", "type", "format", "time", "identity", "value", "relative_to", "convert"],
    *["field", "zone", "lookup", "nobody", "otherwise", "unit", "to", "decimal", "x", "y"],
    *["bearing", "distance", "table", "column", "key", "heading", "call", "take", "give"],
    *["arguments", "deadline"],
]
values = st.recursive(
    st.one_of(scalars, st.lists(scalars, max_size=3)),
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(KEYS), below, max_size=4),
        st.lists(st.dictionaries(st.sampled_from(KEYS), below, max_size=4), max_size=2),
    ),
    max_leaves=12,
)
fields = st.fixed_dictionaries({"field": words}, optional={"unit": words, "to": words})
likely = st.fixed_dictionaries(
    {
        "identity": st.fixed_dictionaries({"field": words}, optional={"otherwise": words}),
        "value": st.one_of(
            fields, st.fixed_dictionaries({"x": fields, "y": fields}), st.fixed_dictionaries({})
        ),
    },
    optional={
        "time": st.fixed_dictionaries({"field": words, "format": words}, optional={"zone": words}),
        "convert": values,
        "relative_to": values,
    },
)
tables = st.one_of(st.dictionaries(st.sampled_from(KEYS), values, max_size=8), likely)


@pytest.mark.slow
@given(tables, st.sampled_from(["point", "number", "text", "rectangle"]))
def test_any_table_loads_and_compiles_or_has_a_fault(table, kind):
    section = Section(TomlFile("site.toml", "", {}), ("interpretations", "a"), table)
    interpretation, problems = read_interpretation("a", section)
    assert (interpretation is None) == bool(problems)
    if interpretation is None:
        return
    binding = SourceBinding(source="s", concept="c", attribute="a", type=kind)
    try:
        transformer = FieldsTransformer.build(interpretation, binding)
    except InterpretationError as error:
        assert error.problems
        return
    for data in (b"{}", b'{"t": 1, "x": "2026-01-01", "m": 2.5}', b"nonsense"):
        result = transformer.apply(Event("s", "e", "t", "", 0, data))
        assert isinstance(result, Event) or result.code != "mediation.fault"
