"""Fitting interpretations to sources: parts, units and steps are checked before anything runs."""

import pytest

from rapport.core.errors import InterpretationError
from rapport.kernel.toml import TomlFile
from rapport.mediation.fields_compiler import check_binding, check_bindings, resolve

WHO = 'identity = { field = "i" }\n'


def codes(load, bind, body, **binding):
    found, problems = load(f"[interpretations.a]\n{WHO}{body}")
    assert problems == []
    return [problem.code for problem in check_binding(found["a"], bind(**binding))]


@pytest.mark.parametrize(
    ("body", "binding", "expected"),
    [
        ('value.x = { field = "x", unit = "m" }', {}, ["mediation.part_missing"]),
        ('value = { field = "x", unit = "m" }', {}, ["mediation.part_missing"]),
        ('value = { field = "v" }', {"type": "text"}, []),
        ('value = { field = "v" }', {"type": "boolean"}, []),
        ('value = { field = "v", unit = "m" }', {"type": "text"}, ["mediation.unit_of_text"]),
        ('value = { field = "v" }', {"type": "number"}, ["unit.undeclared"]),
        ('value = { field = "v", unit = "degF" }', {"type": "number"}, ["unit.no_target"]),
        ('value = { field = "v", unit = "degF", to = "degC" }', {"type": "number"}, []),
        ('value = { field = "v", unit = "degF" }', {"type": "number", "units": ("K",)}, []),
        (
            'value = { field = "v", unit = "degF", to = "degC" }',
            {"type": "number", "units": ("K",)},
            ["unit.not_root"],
        ),
        (
            'value = { field = "v", unit = "degF", to = "m" }',
            {"type": "number"},
            ["unit.mismatch"],
        ),
        (
            'value.bearing = { field = "b", unit = "m" }\n'
            'value.distance = { field = "d", unit = "deg" }',
            {},
            ["unit.mismatch", "unit.mismatch"],
        ),
        (
            'value.x = { field = "x", unit = "m", to = "ft" }\n'
            'value.y = { field = "y", unit = "m" }',
            {},
            ["unit.not_root"],
        ),
        (
            'value = { field = "v" }\nrelative_to = { table = "t", key = "k", x = "x", y = "y" }',
            {"type": "text"},
            ["mediation.origin_needs_point"],
        ),
        (
            'value.lat = { field = "lat", unit = "deg" }\n'
            'value.lon = { field = "lon", unit = "deg" }\n'
            'convert = [{ call = "a:b", take = ["lat", "lon"], give = ["x", "y"] }]',
            {},
            [],
        ),
        (
            'value.lat = { field = "lat", unit = "deg" }\n'
            'convert = [{ call = "a:b", take = ["lat", "lon"], give = ["x", "y"] }]',
            {},
            ["mediation.unknown_value"],
        ),
    ],
)
def test_a_binding_fits_or_has_faults(load, bind, body, binding, expected):
    assert codes(load, bind, body, **binding) == expected


def test_a_missing_unit_warns_with_a_hint_and_does_not_refuse(load, bind):
    body = 'value.x = { field = "x_ft" }\nvalue.y = { field = "y", unit = "m" }'
    found, _ = load(f"[interpretations.a]\n{WHO}{body}")
    (problem,) = check_binding(found["a"], bind())
    assert problem.severity == "warning"
    assert problem.hint == "add unit = \"...\"; the name 'x_ft' looks like unit = 'ft'"
    assert (problem.file, problem.line) == ("site.toml", 1)
    resolve(found["a"], bind())


@pytest.mark.parametrize("fault", [{"value": ("x",)}, {"units": ("m", "m", "m")}])
def test_a_source_that_names_the_wrong_number_of_parts_is_refused(bind, fault):
    with pytest.raises(InterpretationError) as caught:
        resolve(None, bind(**fault))
    assert caught.value.code == "mediation.part_missing"
    assert [problem.hint for problem in check_bindings([bind(**fault)], {})] == [
        "in this order: x, y"
    ]


def test_every_fault_is_raised_at_once(load, bind):
    body = (
        'value.bearing = { field = "b", unit = "m" }\n'
        'value.distance = { field = "d", unit = "deg" }'
    )
    found, _ = load(f"[interpretations.a]\n{WHO}{body}")
    with pytest.raises(InterpretationError) as caught:
        resolve(found["a"], bind())
    assert len(caught.value.problems) == 2


def test_a_source_that_names_an_unknown_interpretation_is_placed_in_the_site_file(bind, feeds):
    text = '[sources.badges]\nconcept = "person"\ninterpretation = "badge-reader"\n'
    file = TomlFile.parse(text.encode(), name="site.toml")
    bindings = [bind("badges", "badge-reader"), bind("cameras", "cameras"), bind("plain")]
    (problem,) = check_bindings(bindings, feeds, file)
    assert (problem.code, problem.line) == ("interpretation.unknown", 3)
    assert problem.hint == "did you mean 'badge-readers'?"
