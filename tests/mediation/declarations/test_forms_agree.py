"""The same interpretation in TOML, YAML, XML and Python is the same value. [ME-10]"""

from typing import Annotated, NamedTuple, NewType

import pytest

from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Cut,
    Enumeration,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
    converts,
)
from rapport.mediation.conversion.lookups import TableLookup
from rapport.mediation.conversion.notations import ParseTime
from rapport.mediation.declarations.files import Declarations, read_declarations
from rapport.mediation.declarations.python_classes import (
    Unit,
    context,
    conv_function,
    interpretation_of,
    maps_to,
)
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    FormatChoice,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    Rule,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType


class Example(NamedTuple):
    """One interpretation in each form; `python` is empty where annotations cannot say it."""

    expected: Interpretation
    toml: str
    yaml: str
    xml: str
    python: Interpretation | None = None


class Line:
    amount: float
    article: str | None


class Report:
    station: str


class UsWeather(Report):
    temperature: Annotated[float, Unit("fahrenheit")]
    humidity: Annotated[float, Unit("%")] | None
    lines: list[Line]
    gusts: list[Annotated[float, Unit("mph")]]


TYPES = Example(
    Interpretation(
        name="us/weather",
        parent="us",
        types=(
            PrimitiveType("%", "number"),
            PrimitiveType("degF", "number"),
            PrimitiveType("mph", "number"),
            ComplexType(
                "Line", (Attribute("amount", "number"), Attribute("article", "text", True))
            ),
            ComplexType("Report", (Attribute("station", "text"),)),
            ComplexType(
                "UsWeather",
                (
                    Attribute("temperature", "degF"),
                    Attribute("humidity", "%", True),
                    Attribute("lines", "[Line]"),
                    Attribute("gusts", "[mph]"),
                ),
                ("Report",),
            ),
        ),
    ),
    """
    [interpretations."us/weather".types.Line]
    amount = "number"
    article = { type = "text", optional = true }
    [interpretations."us/weather".types.Report]
    station = "text"
    [interpretations."us/weather".types.UsWeather]
    extends = ["Report"]
    temperature = "fahrenheit"
    humidity = { type = "%", optional = true }
    lines = "[Line]"
    gusts = "[mph]"
    """,
    """
interpretations:
  us/weather:
    types:
      Line:
        amount: number
        article: { type: text, optional: true }
      Report: { station: text }
      UsWeather:
        extends: Report
        temperature: fahrenheit
        humidity: { unit: "%", optional: true }
        lines: "[Line]"
        gusts: "[mph]"
    """,
    """
    <context id="us/weather">
      <types>
        <type name="Line">
          <attribute name="amount" type="number"/>
          <attribute name="article" type="text" optional="true"/>
        </type>
        <type name="Report"><attribute name="station" type="text"/></type>
        <type name="UsWeather" extends="Report">
          <attribute name="temperature" unit="[degF]"/>
          <attribute name="humidity" type="%" optional="true"/>
          <attribute name="lines" type="[Line]"/>
          <attribute name="gusts" type="[mph]"/>
        </type>
      </types>
    </context>
    """,
    interpretation_of([Line, Report, UsWeather], "us/weather"),
)

Celsius = NewType("Celsius", float)
Fahrenheit = NewType("Fahrenheit", float)


@context("us")
@maps_to("station", rename={"label": "key"}, create={"country": ("text", "US")})
class UsStation:
    label: str
    temperature: Fahrenheit


@context("us")
@conv_function(name="to-celsius")
def _to_celsius(value: Fahrenheit) -> Celsius:
    return Celsius((value - 32) / 1.8)


FUNCTION = f"{__name__}:_to_celsius"
MAPPINGS = Example(
    Interpretation(
        name="us",
        types=(
            PrimitiveType("Fahrenheit", "number"),
            PrimitiveType("Celsius", "number"),
            ComplexType(
                "UsStation", (Attribute("label", "text"), Attribute("temperature", "Fahrenheit"))
            ),
        ),
        mappings=(
            TypeMapping(
                "UsStation",
                "station",
                "in",
                (RenameAttribute("label", "key"), CreateAttribute("country", "text", "US")),
            ),
            TypeMapping(
                "station",
                "UsStation",
                "out",
                (DropAttribute("country"), RenameAttribute("key", "label")),
            ),
        ),
        conversions=(converts("to-celsius", "Fahrenheit", "Celsius", Call(FUNCTION)),),
    ),
    f"""
    [interpretations.us.types]
    Fahrenheit = {{ kind = "number" }}
    Celsius = {{ kind = "number" }}
    UsStation = {{ label = "text", temperature = "Fahrenheit" }}
    [[interpretations.us.mappings]]
    from = "UsStation"
    to = "station"
    direction = "both"
    rename = {{ label = "key" }}
    create = {{ country = {{ type = "text", value = "US" }} }}
    [interpretations.us.conversions.to-celsius]
    from = "Fahrenheit"
    to = "Celsius"
    call = "{FUNCTION}"
    """,
    f"""
interpretations:
  us:
    types:
      Fahrenheit: {{ kind: number }}
      Celsius: {{ kind: number }}
      UsStation: {{ label: text, temperature: Fahrenheit }}
    mappings:
      - from: UsStation
        to: station
        direction: both
        rename: {{ label: key }}
        create: {{ country: {{ type: text, value: US }} }}
    conversions:
      to-celsius: {{ from: Fahrenheit, to: Celsius, call: "{FUNCTION}" }}
    """,
    f"""
    <context id="us">
      <types>
        <type name="Fahrenheit" kind="number"/>
        <type name="Celsius" kind="number"/>
        <type name="UsStation">
          <attribute name="label" type="text"/>
          <attribute name="temperature" type="Fahrenheit"/>
        </type>
      </types>
      <mappings>
        <mapping from="UsStation" to="station" dir="both">
          <rename from="label" to="key"/>
          <create name="country" type="text" value="US"/>
        </mapping>
      </mappings>
      <functions>
        <function name="to-celsius" from="Fahrenheit" to="Celsius" class="{FUNCTION}"/>
      </functions>
    </context>
    """,
    interpretation_of([UsStation, _to_celsius], "us"),
)

SHAPES = Example(
    Interpretation(
        name="shop",
        mappings=(
            TypeMapping(
                "Order",
                "purchase",
                "in",
                (
                    DropAttribute("note"),
                    MergeAttributes(("first", "last"), "name", "join-names"),
                    SplitAttribute("place", ("x", "y"), "cut-place"),
                ),
                "lines",
            ),
            TypeMapping("purchase", "Order", "out"),
        ),
        rules=(
            Rule("Order.Money", "to-euros"),
            Rule('Order.wind("m/s")', "keep", "in"),
        ),
    ),
    """
    [[interpretations.shop.mappings]]
    from = "Order"
    to = "purchase"
    direction = "in"
    each = "lines"
    drop = ["note"]
    merge = [{ take = ["first", "last"], give = "name", convert = "join-names" }]
    split = [{ take = "place", give = ["x", "y"], convert = "cut-place" }]
    [[interpretations.shop.mappings]]
    from = "purchase"
    to = "Order"
    direction = "out"
    [[interpretations.shop.rules]]
    match = "Order.Money"
    convert = "to-euros"
    [[interpretations.shop.rules]]
    match = 'Order.wind("m/s")'
    convert = "keep"
    direction = "in"
    """,
    """
interpretations:
  shop:
    mappings:
      - from: Order
        to: purchase
        direction: in
        each: lines
        drop: [note]
        merge:
          - { take: [first, last], give: name, convert: join-names }
        split:
          - { take: place, give: [x, y], convert: cut-place }
      - { from: purchase, to: Order, direction: out }
    rules:
      - { match: Order.Money, convert: to-euros, direction: both }
      - { match: 'Order.wind("m/s")', convert: keep, direction: in }
    """,
    """
    <contexts>
    <context id="shop" parent="root">
      <mappings>
        <mapping from="com.shop.Order" to="purchase" dir="incoming" each="lines">
          <drop name="note"/>
          <merge give="name" function="join-names"><take>first</take><take>last</take></merge>
          <split take="place" function="cut-place"><give>x</give><give>y</give></split>
        </mapping>
        <mapping from="purchase" to="com.shop.Order" dir="outgoing"/>
      </mappings>
      <rules>
        <rule pattern="Order.Money" function="to-euros"/>
        <rule pattern='Order.wind("m/s")' function="keep" dir="incoming"/>
      </rules>
    </context>
    </contexts>
    """,
)

_TO_KELVIN = converts("to-kelvin", "degC", "K", UnitChange("degC", "K"))
CONVERSIONS = Example(
    Interpretation(
        name="all-kinds",
        types=(
            PrimitiveType("K", "number"),
            PrimitiveType("degC", "number"),
            PrimitiveType("degF", "number"),
        ),
        conversions=(
            _TO_KELVIN,
            converts("tenths", "number", "number", Formula(divide=10.0, add=1.0)),
            converts("words", "text", "text", Lookup((("N", "north"), ("S", "south")), "other")),
            converts("codes", "integer", "text", Lookup(((1, "one"), (2, "two")))),
            converts("colours", "text", "text", Enumeration((("rot", "red"),), backwards=True)),
            converts("names", "json", "json", Rename((("xValue", "x"),))),
            Conversion("join", ("text", "text"), ("text",), Join(", ")),
            Conversion("cut", ("text",), ("text", "text"), Cut()),
            Conversion("gather", ("number", "number"), ("Point",), Gather(("x", "y"))),
            Conversion("scatter", ("Point",), ("number", "number"), Scatter(("x", "y"))),
            converts("keep", "json", "json", Identity()),
            converts(
                "moved",
                "Point",
                "Point",
                Stateful("site.trucks:add", b'{"x":0}', "truck", "site.trucks:move"),
            ),
            converts(
                "both",
                "degF",
                "K",
                Chain((converts("step 1", "degF", "degC", UnitChange("degF", "degC")), _TO_KELVIN)),
            ),
            converts("person", "text", "text", TableLookup("badges", ("person",))),
            converts("when", "text", "Time", ParseTime(zone="Europe/Berlin")),
            Conversion("open", (), (), Call("site.money:to_dollars")),
        ),
    ),
    """
    [interpretations.all-kinds.conversions]
    to-kelvin = { units = ["celsius", "K"] }
    tenths = { from = "number", to = "number", formula = { divide = 10, add = 1.0 } }
    words.from = "text"
    words.to = "text"
    words.lookup = { entries = { N = "north", S = "south" }, otherwise = "other" }
    codes = { from = "integer", to = "text", lookup = { entries = [[1, "one"], [2, "two"]] } }
    colours.from = "text"
    colours.to = "text"
    colours.enumeration = { pairs = { rot = "red" }, backwards = true }
    names = { from = "json", to = "json", rename = { xValue = "x" } }
    join = { from = ["text", "text"], to = "text", join = ", " }
    cut = { from = "text", to = ["text", "text"], cut = true }
    gather = { from = ["number", "number"], to = "Point", gather = ["x", "y"] }
    scatter = { from = "Point", to = ["number", "number"], scatter = ["x", "y"] }
    keep = { identity = true }
    moved.from = "Point"
    moved.to = "Point"
    moved.stateful.call = "site.trucks:add"
    moved.stateful.initial = { x = 0 }
    moved.stateful.feed = "truck"
    moved.stateful.update = "site.trucks:move"
    both = { from = "degF", to = "K", chain = [{ units = ["degF", "degC"] }, "to-kelvin"] }
    person = { from = "text", to = "text", table = { table = "badges", columns = ["person"] } }
    when = { from = "text", to = "Time", parse-time = { zone = "Europe/Berlin" } }
    open = { call = "site.money:to_dollars" }
    """,
    """
interpretations:
  all-kinds:
    conversions:
      to-kelvin: { units: { from: celsius, to: K } }
      tenths: { from: number, to: number, formula: { divide: 10, add: 1 } }
      words:
        from: text
        to: text
        lookup: { entries: { N: north, S: south }, otherwise: other }
      codes: { from: integer, to: text, lookup: { entries: [[1, one], [2, two]] } }
      colours: { from: text, to: text, enumeration: { pairs: { rot: red }, backwards: true } }
      names: { from: json, to: json, rename: { xValue: x } }
      join: { from: [text, text], to: text, join: { separator: ", " } }
      cut: { from: text, to: [text, text], cut: " " }
      gather: { from: [number, number], to: Point, gather: [x, y] }
      scatter: { from: Point, to: [number, number], scatter: [x, y] }
      keep: { identity: true }
      moved:
        from: Point
        to: Point
        stateful:
          call: site.trucks:add
          initial: { x: 0 }
          feed: truck
          update: site.trucks:move
      both: { from: degF, to: K, chain: [{ units: [degF, degC] }, to-kelvin] }
      person: { from: text, to: text, table: { table: badges, columns: [person] } }
      when: { from: text, to: Time, parse-time: { zone: Europe/Berlin } }
      open: { call: "site.money:to_dollars" }
    """,
    """
    <context id="all-kinds">
      <functions>
        <function name="to-kelvin"><units from="celsius" to="K"/></function>
        <function name="tenths" from="number" to="number"><formula divide="10" add="1"/></function>
        <function name="words" from="text" to="text">
          <lookup otherwise="other">
            <entry from="N" to="north"/><entry from="S" to="south"/>
          </lookup>
        </function>
        <function name="codes" from="integer" to="text">
          <lookup><entry from="1" to="one"/><entry from="2" to="two"/></lookup>
        </function>
        <function name="colours" from="text" to="text">
          <enumeration backwards="true"><entry from="rot" to="red"/></enumeration>
        </function>
        <function name="names" from="json" to="json">
          <rename><entry from="xValue" to="x"/></rename>
        </function>
        <function name="join" from="text, text" to="text"><join separator=", "/></function>
        <function name="cut" from="text" to="text, text"><cut/></function>
        <function name="gather" from="number, number" to="Point">
          <gather><item>x</item><item>y</item></gather>
        </function>
        <function name="scatter" from="Point" to="number,number">
          <scatter><item>x</item><item>y</item></scatter>
        </function>
        <function name="keep"><identity/></function>
        <function name="moved" from="Point" to="Point">
          <stateful call="site.trucks:add" feed="truck" update="site.trucks:move">
            <initial x="0"/>
          </stateful>
        </function>
        <function name="both" from="degF" to="K">
          <chain><item><units from="degF" to="degC"/></item><item>to-kelvin</item></chain>
        </function>
        <function name="person" from="text" to="text">
          <table table="badges"><columns><item>person</item></columns></table>
        </function>
        <function name="when" from="text" to="Time"><parse-time zone="Europe/Berlin"/></function>
        <function name="open" class="site.money.to_dollars"/>
      </functions>
    </context>
    """,
)

EXAMPLES = {"types": TYPES, "mappings": MAPPINGS, "shapes": SHAPES, "conversions": CONVERSIONS}


def only(found: Declarations) -> Interpretation:
    assert not found.problems, "\n".join(each.as_text() for each in found.problems)
    (interpretation,) = found.interpretations.values()
    return interpretation


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
@pytest.mark.parametrize("kind", ["toml", "yaml", "xml"])
def test_each_form_declares_the_same(kind: str, example: Example) -> None:
    text = getattr(example, kind).strip().encode()
    assert only(read_declarations("a", text, kind)) == example.expected  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["types", "mappings"])
def test_python_declares_the_same(name: str) -> None:
    assert EXAMPLES[name].python == EXAMPLES[name].expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "toml",
            '[interpretations.us]\nabout = "feet"\nformat = { name = "csv", delimiter = ";" }\n'
            'units = { "station.temperature" = "degF" }',
        ),
        (
            "yaml",
            "interpretations:\n  us:\n    about: feet\n    format: { name: csv, delimiter: ; }\n"
            "    units:\n      station.temperature: degF\n",
        ),
    ],
)
def test_comments_formats_and_units_are_kept(kind: str, text: str) -> None:
    found = read_declarations("a", text.encode(), kind)  # type: ignore[arg-type]
    assert not found.problems
    assert {name: one.about for name, one in found.declared.items() if one.about} == {"us": "feet"}
    assert found.formats == {"us": FormatChoice("csv", {"delimiter": ";"})}
    (wish,) = found.declared["us"].units
    assert (wish.attribute, wish.unit) == ("station.temperature", "degF")


def test_xml_has_comments_and_units_too() -> None:
    text = b"""<context id="us"><about> feet </about>
    <units><unit of="station.temperature" name="degF"/></units></context>"""
    found = read_declarations("a", text, "xml")
    assert not found.problems
    assert {name: one.about for name, one in found.declared.items() if one.about} == {"us": "feet"}
    assert [each.unit for each in found.declared["us"].units] == ["degF"]
