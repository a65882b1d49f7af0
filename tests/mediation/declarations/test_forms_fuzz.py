"""No file, however strange, makes reading it raise; mutated good ones neither. [ME-7, ME-10]"""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.mediation.concepts import ConceptAttribute, canonical_model
from rapport.mediation.declarations.files import read_declarations
from rapport.mediation.declarations.inference import complete_declarations
from rapport.mediation.interpretations.model import Interpretation
from rapport.mediation.interpretations.type_changes import load_all

TOML = """
[interpretations.us]
about = "x"
format = "json"
units = { "station.temperature" = "degF" }
[interpretations.us.types.A]
extends = ["B"]
a = "[degF]"
b = { type = "text", optional = true, unit = "m" }
[interpretations.us.types.B]
kind = "number"
[[interpretations.us.mappings]]
from = "A"
to = "station"
direction = "both"
rename = { a = "temperature" }
drop = ["b"]
create = { key = { type = "text", value = 1.5 } }
merge = [{ take = ["a", "b"], give = "c", convert = "f" }]
split = [{ take = "a", give = ["b"], convert = "f" }]
each = "a"
[[interpretations.us.rules]]
match = 'A.a("degF")'
convert = "f"
[interpretations.us.conversions]
f = { from = "degF", to = ["degC"], units = ["degF", "degC"] }
g = { chain = ["f", { formula = { add = 1, divide = 2 } }] }
h = { lookup = { entries = { a = 1 }, otherwise = true } }
i = { stateful = { call = "a:b", initial = [1], feed = "A", update = "a:c" } }
j = { relative-to-absolute = { origin = { kind = "fixed", x = 1, y = 2 } } }
"""
YAML = """
interpretations:
  us:
    parent: root
    units: { station.temperature: degF }
    types:
      A: { a: "[degF]", b: { unit: m, optional: true } }
      B: { kind: text, extends: [text] }
    mappings:
      - { from: A, to: station, direction: in, rename: { a: temperature }, drop: [b] }
    rules:
      - match: A.a
        convert: f
    conversions:
      f: { call: "a.b:c" }
      g: { join: ", ", from: [text, text], to: text }
"""
XML = """<contexts><context id="us" parent="root"><about>x</about>
<types><type name="A" extends="B, C"><attribute name="a" type="[degF]" optional="true"/></type>
<type>a.b.C</type><type name="B" kind="number"/></types>
<units><unit of="station.temperature" name="degF"/></units>
<mappings><mapping from="x.A" to="station" dir="incoming" each="a"><rename from="a" to="key"/>
<drop name="b"/><create name="c" type="text" value="1"/>
<merge give="d" function="f"><take>a</take></merge></mapping></mappings>
<rules><rule pattern="A.a" function="f" dir="both"/></rules>
<functions><function name="f" class="a.b" from="degF" to="degC"/>
<function name="g"><lookup otherwise="1"><entry from="a" to="2"/></lookup></function></functions>
</context></contexts>"""
GOOD = {"toml": TOML, "yaml": YAML, "xml": XML}
PIECES = [
    *["us", "A", "degF", "station", "f", "in", "both", "types", "units", "from", "to", "[", "]"],
    *["{", "}", '"', "'", "=", ":", ",", "<", ">", "/", "&", "*", "!", "-", "\n", "\t", "  ", "\0"],
    *[
        "null",
        "true",
        "1e999",
        "nan",
        "9" * 30,
        "@type",
        "root",
        "chain",
        "attributes",
        "é",
        "\ud7ff",
    ],
]
ROOT, _ = canonical_model({"station": {"temperature": ConceptAttribute("number", "degC")}})
KNOWN = [each.name for each in ROOT.types]


def check(kind: str, raw: bytes) -> None:
    """Reading, completing and loading give problems at the worst, and JSON can say the rest."""
    for known in (None, KNOWN):
        found = read_declarations("a", raw, kind, known=known)  # type: ignore[arg-type]
        for each in found.problems:
            assert each.code
            assert each.message
            each.as_text()
        for one in found.interpretations.values():
            result = msgspec.json.encode(one)
            assert msgspec.json.decode(result, type=Interpretation) == one
        whole = complete_declarations(found, ROOT)
        load_all([ROOT, *(each for name, each in whole.interpretations.items() if name != "root")])


@pytest.mark.parametrize("kind", GOOD)
def test_the_good_files_are_read(kind: str) -> None:
    check(kind, GOOD[kind].encode())


@given(st.sampled_from(sorted(GOOD)), st.binary(max_size=60))
def test_random_bytes_are_read_or_refused(kind: str, raw: bytes) -> None:
    check(kind, raw)


@given(st.sampled_from(sorted(GOOD)), st.lists(st.sampled_from(PIECES), max_size=25))
def test_random_words_are_read_or_refused(kind: str, pieces: list[str]) -> None:
    check(kind, "".join(pieces).encode("utf-8", "replace"))


@pytest.mark.slow
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_mutated_files_are_read_or_refused(kind: str, data: st.DataObject) -> None:
    text = GOOD[kind]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.sampled_from(["", *PIECES])) + text[end:]
    check(kind, text.encode("utf-8", "replace"))


KEYS = [
    "about",
    "parent",
    "types",
    "units",
    "mappings",
    "rules",
    "conversions",
    "format",
    "classes",
]
INNER = [
    *["A", "station", "a", "temperature", "from", "to", "direction", "match", "convert", "units"],
    *[
        "extends",
        "kind",
        "attributes",
        "type",
        "unit",
        "optional",
        "rename",
        "drop",
        "merge",
        "each",
    ],
    *["create", "split", "take", "give", "value", "formula", "lookup", "entries", "chain", "call"],
    *["identity", "stateful", "gather", "currency", "parse-time", "table", "context", "rates"],
]
scalars = st.one_of(
    st.sampled_from(["A", "a", "degF", "station", "number", "in", "f", "[A]", "", "a:b", "A.a"]),
    st.integers(-3, 2**70),
    st.floats(),
    st.booleans(),
    st.none(),
)
values = st.recursive(
    st.one_of(scalars, st.lists(scalars, max_size=3)),
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(INNER), below, max_size=4),
        st.lists(st.dictionaries(st.sampled_from(INNER), below, max_size=3), max_size=2),
    ),
    max_leaves=14,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=5))
def test_any_tables_are_read_or_refused(table: dict[str, object]) -> None:
    raw = json.dumps({"interpretations": {"us": table}}).encode()  # JSON is YAML
    check("yaml", raw)
