"""Generated code is ours alone: names from outside are constants in it, never code."""

import ast
import builtins

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.event import Event, make_event
from rapport.mediation.fields_compiler import generate_transformer, resolve
from rapport.mediation.fields_transformer import FieldsTransformer
from rapport.mediation.interpretations.model import (
    ConversionRule,
    FieldsInterpretation,
    IdentityLookup,
    IdentityRule,
    OriginRule,
    TimeRule,
    ValueRule,
)
from rapport.mediation.source_bindings import SourceBinding

NASTY = [
    "it's",
    'a "b"',
    "'); import os; os.abort() #",
    "\n    import os\n    os.abort()\n#",
    "\\",
    "\\'",
    "{raw}",
    "\r\x0b\x0c\u2028\u2029\x85",
    "\x00",
    "💥",
    "'''",
    "# comment",
]


def hostile(text):
    return FieldsInterpretation(
        name=text,
        type=text,
        time=TimeRule((text, text), text, zone=text),
        identity=IdentityRule(
            (text,), IdentityLookup(text, text), nobody=(text,), otherwise=(text, (text, text))
        ),
        values=(ValueRule("x", (text, text), unit="ft"), ValueRule("y", (text,))),
        origin=OriginRule(text, (text,), text, text, text),
        conversions=(ConversionRule(text, ("x",), ("x",), (("a", text),)),),
    )


def shape_of(source):
    """The program without its constants."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = 0
    return ast.dump(tree)


@pytest.mark.parametrize("text", NASTY)
def test_names_with_quotes_newlines_and_code_cannot_leave_their_literals(text):
    binding = SourceBinding(source=text, concept=text, attribute=text, type="point")
    harmless = SourceBinding(source="s", concept="c", attribute="a", type="point")
    written = generate_transformer(resolve(hostile(text), binding))
    assert shape_of(written) == shape_of(generate_transformer(resolve(hostile("plain"), harmless)))


@given(st.text(min_size=1, max_size=20))
def test_no_text_at_all_changes_the_program(text):
    binding = SourceBinding(source=text, concept=text, attribute=text, type="point")
    plain = SourceBinding(source="s", concept="c", attribute="a", type="point")
    written = generate_transformer(resolve(hostile(text), binding))
    assert shape_of(written) == shape_of(generate_transformer(resolve(hostile("plain"), plain)))


@pytest.mark.parametrize("text", NASTY)
def test_a_field_of_a_nasty_name_is_simply_read(text):
    one = FieldsInterpretation(
        name="nasty",
        identity=IdentityRule((text,)),
        values=(ValueRule("value", ("v" + text,)),),
    )
    binding = SourceBinding(source="s", concept="c", attribute="a", type="text")
    raw = make_event(source="s", id="1", type="t", time=0, data={text: "k", "v" + text: "found"})
    reading = FieldsTransformer.build(one, binding).apply(raw)
    assert isinstance(reading, Event)
    assert reading.payload() == {"key": "k", "value": ["found"]}


def test_the_generated_function_can_reach_no_builtins(badges):
    reachable = badges._transform.__globals__
    assert reachable["__builtins__"] == {}
    dangerous = {"open", "eval", "exec", "compile", "getattr", "setattr", "globals", "vars"}
    assert not dangerous & set(reachable)
    assert getattr(builtins, "__import__") not in reachable.values()  # noqa: B009


def test_generation_grows_linearly_with_the_values():
    def lines(count):
        values = tuple(ValueRule(f"n{index}", ("f",), unit="m") for index in range(count))
        parts = (ValueRule("x", ("x",), unit="m"), ValueRule("y", ("y",), unit="m"))
        one = FieldsInterpretation(name="i", identity=IdentityRule(("k",)), values=parts + values)
        binding = SourceBinding(source="s", concept="c", attribute="a", type="point")
        return generate_transformer(resolve(one, binding)).count("\n")

    assert lines(200) - lines(100) == lines(100) - lines(0)
