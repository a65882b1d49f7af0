"""The two feeds of the secure building, their tables, and a way to make events of them."""

import pytest

from rapport.core.event import Event, make_event
from rapport.kernel.toml import TomlFile
from rapport.mediation.config import interpretations_from_site
from rapport.mediation.fields_transformer import FieldsTransformer
from rapport.mediation.source_bindings import SourceBinding

FEEDS = """
[interpretations.badge-readers]
about       = "metres relative to the reader, a tag instead of a person"
time        = { field = "t", format = "iso8601" }
identity    = { field = "tag", lookup = { table = "badges", column = "person" } }
value.x     = { field = "dx", unit = "m" }
value.y     = { field = "dy", unit = "m" }
relative_to = { table = "sensors", key = "reader", x = "x_m", y = "y_m" }

[interpretations.cameras]
about          = "bearing and feet from where the camera looks, seconds since 1970"
time           = { field = "ts", format = "epoch_s" }
identity       = { field = "face", nobody = "unknown", otherwise = "unknown:{track}" }
value.bearing  = { field = "bearing_deg", unit = "deg" }
value.distance = { field = "dist_ft", unit = "ft" }
relative_to    = { table = "sensors", key = "cam", x = "x_m", y = "y_m", heading = "heading_deg" }
"""

BADGE = {"reader": "r7", "tag": "E200-34", "dx": 1.2, "dy": -0.4, "t": "2026-03-02T09:14:05.210Z"}
CAMERA = {
    "cam": "c2",
    "track": "t91",
    "face": "p17",
    "bearing_deg": 31.0,
    "dist_ft": 12.4,
    "ts": 1772442845.3,
}


class SmallTables:
    """A site's tables as a dict: {table: {key: {column: text}}}."""

    def __init__(self, tables):
        self.tables = tables

    revision = 0

    def lookup(self, table, key, column):
        return self.tables.get(table, {}).get(key, {}).get(column)


@pytest.fixture
def tables():
    return SmallTables(
        {
            "badges": {
                "E200-34": {"person": "p5"},
                "E200-35": {"person": "p5"},
                "77": {"person": "p6"},
            },
            "sensors": {
                "r7": {"x_m": "10.5", "y_m": "3", "heading_deg": "0"},
                "c2": {"x_m": "20", "y_m": "8.25", "heading_deg": "90"},
                "broken": {"x_m": "ten", "y_m": "1"},
                "endless": {"x_m": "1e999", "y_m": "1"},
            },
        }
    )


@pytest.fixture
def load(tmp_path):
    """Interpretations and problems of a text."""

    def load(text, tables=None):
        found, declared = interpretations_from_site(
            TomlFile.parse(text.encode(), name="site.toml"), tmp_path, tables
        )
        return found, list(declared.problems)

    return load


@pytest.fixture
def feeds(load):
    interpretations, problems = load(FEEDS)
    assert problems == []
    return interpretations


@pytest.fixture
def bind():
    """A source that gives a person's position."""

    def bind(source="badges", interpretation="", **more):
        fields = {"concept": "person", "attribute": "position", "type": "point"} | more
        return SourceBinding(source=source, interpretation=interpretation, **fields)

    return bind


@pytest.fixture
def build(load, bind, tables):
    """A transformer of the only interpretation in a text."""

    def build(text, conversions=None, **more):
        interpretations, problems = load(text)
        assert problems == []
        (one,) = interpretations.values()
        binding = bind("source", one.name, **more)
        return FieldsTransformer.build(one, binding, lookups=tables, conversions=conversions)

    return build


@pytest.fixture
def badges(feeds, bind, tables):
    return FieldsTransformer.build(
        feeds["badge-readers"], bind("badges", "badge-readers"), lookups=tables
    )


@pytest.fixture
def cameras(feeds, bind, tables):
    return FieldsTransformer.build(feeds["cameras"], bind("cameras", "cameras"), lookups=tables)


@pytest.fixture
def badge():
    return BADGE


@pytest.fixture
def camera():
    return CAMERA


@pytest.fixture
def feeds_text():
    return FEEDS


@pytest.fixture
def event():
    """A raw event of some data, or of raw bytes."""

    def event(data, id="e1", source="building", type="seen", time=7):
        if isinstance(data, bytes):
            return Event(source, id, type, "", time, data)
        return make_event(source=source, id=id, type=type, time=time, data=data)

    return event
