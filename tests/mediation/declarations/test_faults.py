"""Every fault of a file has its code, line and hint; a faulty table refuses only itself. [ME-7]"""

import pytest

from rapport.mediation.declarations.files import read_declarations
from rapport.mediation.declarations.placed_values import MAX_FILE_BYTES

GOOD = """\
[interpretations.us]
about = "ten lines"
[interpretations.us.types.UsWeather]
station = "text"
temperature = "degF"
humidity = { type = "%", optional = true }
[[interpretations.us.mappings]]
from = "UsWeather"
to = "station"
direction = "in"
[[interpretations.us.mappings]]
from = "station"
to = "UsWeather"
direction = "out"
[[interpretations.us.rules]]
match = "UsWeather.station"
convert = "keep"
[interpretations.us.conversions.keep]
identity = true
[interpretations.other]
units = { "station.temperature" = "degF" }
"""
KNOWN = ("station", "Time")
KINDS = ("keep", "units")


@pytest.mark.parametrize(
    ("before", "after", "code", "line", "hint"),
    [
        ("about =", "abouut =", "interpretation.unknown_key", 2, "did you mean 'about'?"),
        ('"degF"\nhum', '"degFF"\nhum', "type.unknown", 5, "did you mean 'degF'?"),
        ('"degF"\nhum', '"[degF"\nhum', "type.bad_reference", 5, "write Name, or [Name]"),
        ('"degF"\nhum', '"[in_i]"\nhum', "type.unknown", 5, 'write { unit = "[in_i]" }'),
        ('"degF"\nhum', '{ unit = "grad F" }\nhum', "unit.unknown", 5, "did you mean 'grad'?"),
        ('"degF"\nhum', "5\nhum", "interpretation.bad_value", 5, "write temperature ="),
        ('"degF"\nhum', '{ type = "text", unit = "m" }\nhum', "unit.mismatch", 5, "not both"),
        ("optional", "optionl", "interpretation.unknown_key", 6, "did you mean 'optional'?"),
        ('station = "text"', 'kind = "number"', "interpretation.bad_value", 4, "attributes = {"),
        ("types.UsWeather]", 'types."Us[Weather"]', "type.bad_name", 3, "printable"),
        ("types.UsWeather]", "types.text]", "type.duplicate", 3, "another name"),
        ('from = "UsWeather"', 'form = "UsWeather"', "interpretation.unknown_key", 8, "'from'"),
        ('to = "UsWeather"', 'to = "UsWether"', "type.unknown", 13, "did you mean 'UsWeather'?"),
        ('"out"', '"uot"', "interpretation.bad_value", 14, "did you mean 'out'?"),
        ('direction = "out"\n', "", "interpretation.missing_key", 11, 'add direction = "in"'),
        ('"out"', '"both"\ndrop = ["key"]', "mapping.one_way", 14, 'else write one "in"'),
        ('"out"', '"out"\nrename = 5', "interpretation.bad_value", 15, "write rename ="),
        ('"out"', '"out"\nmerge = [{ tak = "a" }]', "interpretation.unknown_key", 15, "'take'"),
        (
            '"out"',
            '"out"\ncreate = { a = { type = "text", value = [1] } }',
            "interpretation.bad_value",
            15,
            "write value =",
        ),
        ('"UsWeather.station"', '"UsWeather..station"', "pattern.syntax", 16, "write Type"),
        ("match =", "mach =", "interpretation.unknown_key", 16, "did you mean 'match'?"),
        ('convert = "keep"\n', "", "interpretation.missing_key", 15, 'add convert = "to-celsius"'),
        ("identity = true", "identitty = true", "interpretation.unknown_key", 19, "'identity'"),
        ("identity = true", "", "interpretation.missing_key", 18, "one of "),
        ("identity = true", 'units = ["degF", "m"]', "unit.mismatch", 19, "one dimension"),
        ("identity = true", 'units = ["degF"]', "interpretation.bad_value", 19, "degC"),
        ("identity = true", 'units = ["degF", "degX"]', "unit.unknown", 19, "did you mean"),
        ("identity = true", "formula = { divide = 0 }", "conversion.formula", 19, "divide"),
        ("identity = true", "formula = { add = inf }", "interpretation.bad_value", 19, "add = 1.8"),
        ("identity = true", "lookup = { entries = 5 }", "interpretation.bad_value", 19, "entries"),
        ("identity = true", 'call = "os.system"', "interpretation.unknown_conversion", 19, ":name"),
        ("identity = true", 'chain = ["kep"]', "rule.unknown_conversion", 19, "'keep'"),
        ("identity = true", 'chain = ["keep"]', "conversion.signature", 19, "other conversions"),
        (
            "identity = true",
            'parse-angle = { axis = "up" }',
            "interpretation.bad_value",
            19,
            "keys: axis",
        ),
        (
            "identity = true",
            'parse-time = { zonne = "UTC" }',
            "interpretation.unknown_key",
            19,
            "did you mean 'zone'?",
        ),
        (
            "[interpretations.us]",
            '[interpretations."u s"]\nparent = "us"',
            "interpretation.bad_name",
            1,
            "with /",
        ),
        ('about = "ten lines"', 'format = "xlm"', "format.unknown", 2, "did you mean 'xml'?"),
        ('about = "ten lines"', 'parent = ""', "interpretation.bad_value", 2, "write parent ="),
        ('about = "ten lines"', 'classes = ["a.B"]', "type.unknown_class", 2, "never load code"),
        ('about = "ten lines"', 'units = { t = "degF" }', "interpretation.bad_value", 2, "units"),
        (
            "[interpretations.us]\n",
            "x = 1\n[interpretations.us]\n",
            "interpretation.unknown_key",
            1,
            "",
        ),
        ("[interpretations.us]\nabout", "[interpretations.us\nabout", "site.bad_toml", 1, ""),
    ],
)
def test_a_fault_in_toml_has_its_code_line_and_hint(
    before: str, after: str, code: str, line: int, hint: str
) -> None:
    text = GOOD.replace(before, after, 1)
    assert text != GOOD
    found = read_declarations("us.toml", text.encode(), "toml", known=KNOWN)
    results = [(each.code, each.line) for each in found.problems]
    assert (code, line) in results, "\n".join(each.as_text() for each in found.problems)
    assert any(hint in each.hint for each in found.problems if each.code == code)
    assert all(each.file == "us.toml" for each in found.problems)
    assert "us" not in found.interpretations or line == 1


def test_the_good_example_has_no_fault_and_the_others_go_on_beside_a_faulty_one() -> None:
    assert not read_declarations("us.toml", GOOD.encode(), "toml", known=KNOWN).problems
    text = GOOD.replace("identity", "identitty")
    found = read_declarations("us.toml", text.encode(), "toml", known=KNOWN)
    assert list(found.interpretations) == ["other"]


def test_all_faults_are_reported_at_once() -> None:
    text = GOOD.replace("about", "abouut").replace('"degF"\nh', '"degFF"\nh').replace("true", "5")
    found = read_declarations("us.toml", text.encode(), "toml", known=KNOWN)
    assert {each.line for each in found.problems} == {2, 5, 6, 19}


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "hint"),
    [
        ("interpretations:\n  us: [\n", "yaml.syntax", 3, 1, "indented"),
        ("a: &x 1\nb: *x\n", "yaml.alias", 2, 4, "again"),
        ("interpretations: !!python/object:os.system x\n", "yaml.tag", 1, 18, "plain"),
        ("interpretations:\n  us:\n    a: 1\n    a: 2\n", "yaml.duplicate_key", 4, 5, "remove"),
        ("a: 1\n---\nb: 2\n", "yaml.syntax", 2, 1, "---"),
        ("- a\n", "yaml.syntax", 1, 1, "interpretations:"),
        ("? [a]\n: b\n", "yaml.syntax", 1, 3, "texts"),
        ("x: " + "[" * 60 + "]" * 60, "yaml.too_deep", 1, 43, "flatter"),
        (
            "interpretations:\n  us:\n    tipes: {}\n    parent: a",
            "interpretation.unknown_key",
            3,
            5,
            "did you mean 'types'?",
        ),
        (
            "interpretations:\n  us:\n    types:\n      A: { t: degFF }\n",
            "type.unknown",
            4,
            12,
            "did you mean 'degF'?",
        ),
        (
            "interpretations:\n  us:\n    mappings:\n"
            "      - { from: A, to: station, direction: in }\n"
            "      - { from: station, to: A, direction: uot }\n    types: { A: {} }\n",
            "interpretation.bad_value",
            5,
            33,
            "did you mean 'out'?",
        ),
        (
            "interpretations:\n  us:\n    parent: NO\n    types: { A: { x: no } }\n",
            "type.unknown",
            4,
            19,
            "",
        ),
        ("interpretations:\n  us: 5\n", "interpretation.bad_value", 2, 3, "types"),
    ],
)
def test_a_fault_in_yaml_has_its_code_place_and_hint(
    text: str, code: str, line: int, column: int, hint: str
) -> None:
    found = read_declarations("us.yaml", text.encode(), "yaml", known=KNOWN)
    results = [(each.code, each.line, each.column) for each in found.problems]
    assert (code, line, column) in results, results
    assert any(hint in each.hint for each in found.problems if each.code == code)


@pytest.mark.parametrize(
    ("text", "code", "line", "hint"),
    [
        ("<context id='us'>\n<types>\n</context>", "xml.not_well_formed", 3, "closed tags"),
        ("<!DOCTYPE a>\n<context id='us'/>", "xml.doctype_refused", 1, "DOCTYPE"),
        ("<interpretation/>", "interpretation.unknown_key", 1, "<context"),
        ("<context>\n<types/></context>", "interpretation.missing_key", 1, 'id="..."'),
        ("<context id='us'>\n<tipes/></context>", "interpretation.unknown_key", 2, "'types'"),
        (
            "<context id='us'><rules>\n<rule patternn='A' function='f'/></rules></context>",
            "interpretation.unknown_key",
            2,
            "did you mean 'pattern'?",
        ),
        (
            "<context id='us'><rules>\n<rule pattern='A..b' function='f'/></rules></context>",
            "pattern.syntax",
            2,
            "write Type",
        ),
        (
            "<context id='us'><types><type name='A'>\n<attribute name='t' type='degFF'/>\n"
            "</type></types></context>",
            "type.unknown",
            2,
            "did you mean 'degF'?",
        ),
        (
            "<context id='us'><types><type name='A'/>\n<type name='A'/></types></context>",
            "interpretation.duplicate",
            2,
            "remove one",
        ),
        (
            "<context id='us'><mappings>\n<mapping from='A' to='B'/></mappings></context>",
            "interpretation.missing_key",
            2,
            'dir="..."',
        ),
        (
            "<context id='us'><functions><function name='f'>\n<formla add='1'/></function>"
            "</functions></context>",
            "interpretation.unknown_key",
            2,
            "did you mean 'formula'?",
        ),
        (
            "<context id='us'><types>\n<type>com.Nobody</type></types></context>",
            "type.unknown_class",
            2,
            "attributes",
        ),
    ],
)
def test_a_fault_in_xml_has_its_code_line_and_hint(
    text: str, code: str, line: int, hint: str
) -> None:
    found = read_declarations("us.xml", text.encode(), "xml", known=KNOWN)
    results = [(each.code, each.line) for each in found.problems]
    assert (code, line) in results, results
    assert any(hint in each.hint for each in found.problems if each.code == code)
    assert all(each.file == "us.xml" for each in found.problems)


@pytest.mark.slow
def test_files_that_are_too_large_or_full_are_refused() -> None:
    large = read_declarations("a", b"#" * (MAX_FILE_BYTES + 1), "toml")
    assert [each.code for each in large.problems] == ["interpretation.too_large"]
    full = read_declarations("a", b"a: [" + b"1," * 150_000 + b"1]", "yaml")
    assert [each.code for each in full.problems] == ["yaml.too_large"]
    odd = read_declarations("a", b"a: \xff", "yaml")
    assert [each.code for each in odd.problems] == ["yaml.not_utf8"]
    number = read_declarations("a", b"a = " + b"9" * 5_000, "toml")
    assert [each.code for each in number.problems] == ["site.bad_toml"]


def test_parents_that_go_in_circles_are_read_without_end() -> None:
    text = b'[interpretations.a]\nparent = "b"\n[interpretations.b]\nparent = "a"\n'
    found = read_declarations("a", text, "toml")
    assert not found.problems, "the checks of all interpretations together tell it"
    assert found.interpretations["a"].parent == "b"


def test_types_and_conversions_of_a_parent_are_known_in_its_children() -> None:
    text = b"""
    [interpretations."us/weather".types.Wind]
    speed = "Speed"
    [interpretations."us/weather".conversions]
    twice = { from = "Speed", to = "Speed", chain = ["half", "half"] }
    [interpretations.us.types.Speed]
    kind = "number"
    [interpretations.us.conversions.half]
    from = "Speed"
    to = "Speed"
    formula = { divide = 2 }
    """
    found = read_declarations("a", text, "toml", known=())
    assert not found.problems, found.problems
    assert found.interpretations["us/weather"].parent == "us"
