"""Entities as the FIWARE data models and the NGSI-LD specification show them."""

import copy
from typing import Any

import pytest

from rapport.mediation.formats.base import Document

TIME = "2016-11-30T07:00:00.00Z"
NORMALISED_V2 = {
    "id": "Valladolid",
    "type": "WeatherObserved",
    "dateObserved": {"type": "DateTime", "value": TIME},
    "temperature": {
        "type": "Number",
        "value": 3.3,
        "metadata": {"unitCode": {"type": "Text", "value": "CEL"}, "accuracy": {"value": 0.5}},
    },
    "relativeHumidity": {"type": "Number", "value": 0.15},
    "location": {
        "type": "geo:json",
        "value": {"type": "Point", "coordinates": [-4.754444444, 41.640833333]},
    },
    "refDevice": {"type": "Text", "value": "device-0A3478"},
}
KEY_VALUES = {
    "id": "Valladolid",
    "type": "WeatherObserved",
    "dateObserved": TIME,
    "temperature": 3.3,
    "relativeHumidity": 0.15,
    "location": {"type": "Point", "coordinates": [-4.754444444, 41.640833333]},
    "refDevice": "device-0A3478",
}
NORMALISED_LD = {
    "@context": ["https://uri.etsi.org/ngsi-ld/v1/ngsi-ld-core-context.jsonld"],
    "id": "urn:ngsi-ld:WeatherObserved:Valladolid",
    "type": "WeatherObserved",
    "temperature": {"type": "Property", "value": 3.3, "unitCode": "CEL", "observedAt": TIME},
    "relativeHumidity": {"type": "Property", "value": 0.15, "observedAt": TIME},
    "location": {
        "type": "GeoProperty",
        "value": {"type": "Point", "coordinates": [-4.754444444, 41.640833333]},
    },
    "refDevice": {"type": "Relationship", "object": "urn:ngsi-ld:Device:0A3478"},
}
CONCISE_LD = {
    "id": "urn:ngsi-ld:WeatherObserved:Valladolid",
    "type": "WeatherObserved",
    "temperature": {"value": 3.3, "unitCode": "CEL", "observedAt": TIME},
    "relativeHumidity": {"value": 0.15, "observedAt": TIME},
    "location": {"type": "Point", "coordinates": [-4.754444444, 41.640833333]},
    "refDevice": {"object": "urn:ngsi-ld:Device:0A3478"},
}
TIME_MS = 1_480_489_200_000


def test_normalised_v2_and_key_values_say_the_same(read: Any) -> None:
    (normalised,) = read("ngsi", NORMALISED_V2)
    (plain,) = read("ngsi", KEY_VALUES)
    assert normalised.value == {**plain.value, "temperature.accuracy": 0.5}
    assert normalised.units == {"temperature": "CEL"}
    assert plain == Document(KEY_VALUES, type="WeatherObserved")


def test_normalised_and_concise_ld_say_the_same(read: Any) -> None:
    (normalised,) = read("ngsi", NORMALISED_LD)
    assert [normalised] == read("ngsi", CONCISE_LD)
    assert normalised.time == TIME_MS
    assert normalised.units == {"temperature": "CEL"}
    assert normalised.value == {
        "id": "urn:ngsi-ld:WeatherObserved:Valladolid",
        "type": "WeatherObserved",
        "temperature": 3.3,
        "relativeHumidity": 0.15,
        "location": {"type": "Point", "coordinates": [-4.754444444, 41.640833333]},
        "refDevice": "urn:ngsi-ld:Device:0A3478",
    }


def test_attributes_observed_at_different_times_are_documents_of_their_own(read: Any) -> None:
    entity = copy.deepcopy(NORMALISED_LD)
    entity["relativeHumidity"]["observedAt"] = "2016-11-30T08:00:00Z"  # type: ignore[index]
    first, second = read("ngsi", entity)
    assert (first.time, second.time) == (TIME_MS, TIME_MS + 3_600_000)
    assert "relativeHumidity" not in first.value
    assert "temperature" not in second.value
    assert first.value["refDevice"] == second.value["refDevice"]
    assert first.id != second.id


def test_lists_and_notifications_hold_several_entities(read: Any) -> None:
    other = {**KEY_VALUES, "id": "Leon"}
    for data in (
        [KEY_VALUES, other],
        {"subscriptionId": "5", "data": [KEY_VALUES, other]},
        {"id": "n", "type": "Notification", "data": [KEY_VALUES, other]},
    ):
        assert [document.id for document in read("ngsi", data)] == ["Valladolid", "Leon"]


def test_several_instances_of_one_attribute_keep_their_names_apart(read: Any) -> None:
    speed = [
        {"type": "Property", "value": 55, "unitCode": "KMH"},
        {"type": "Property", "value": 54.5, "datasetId": "urn:gps"},
    ]
    (document,) = read("ngsi", {"id": "car", "type": "Vehicle", "speed": speed})
    assert document.value == {"id": "car", "type": "Vehicle", "speed": 55, "speed@urn:gps": 54.5}
    assert document.units == {"speed": "KMH"}


def test_values_that_look_like_attributes_can_be_declared_to_be_values(read: Any) -> None:
    entity = {"id": "x", "type": "T", "price": {"value": 5, "currency": "EUR"}}
    assert read("ngsi", entity)[0].value["price"] == 5
    assert read("ngsi", entity, form="key-values")[0].value["price"] == entity["price"]


def test_feeds_without_ids_are_read_all_the_same(read: Any) -> None:
    entity = {"type": "WeatherObserved", "windSpeed": {"value": 2}}
    assert read("ngsi", entity) == [
        Document({"type": "WeatherObserved", "windSpeed": 2}, type="WeatherObserved")
    ]
    assert len({document.id for document in read("ngsi", [entity, entity])}) == 2


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (1, "payload.not_an_object"),
        ([1], "payload.not_an_object"),
        ({"id": 5, "type": "T"}, "format.bad_entity"),
        ({"id": "x", "type": 5}, "format.bad_entity"),
        ({"id": "x", "a": {"value": 1, "observedAt": "yesterday"}}, "time.bad_time"),
        ({"id": "x", "a": {"value": 1, "observedAt": "2026-01-01T00:00:00"}}, "time.no_zone"),
        ({"id": "x", **{f"a{n}": n for n in range(2_001)}}, "format.too_many"),
    ],
)
def test_an_invalid_entity_is_refused(refusal: Any, data: Any, code: str) -> None:
    assert refusal("ngsi", data).code == code
