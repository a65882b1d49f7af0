"""The endpoints of interpretations: looking, checking, changing, rights, bad input.

[ME-6, ME-7, ME-12]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.config import SiteInterpretations
from rapport.mediation.interpretations.change_log import CHANNEL, ChangeRecord
from rapport.mediation.interpretations.change_requests import request_from_file, request_from_json
from rapport.mediation.interpretations.change_state import InterpretationState

SITE = """
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "us"
[interpretations.us]
units = { "station.temperature" = "degF" }
[interpretations."us/weather"]
parent = "us"
"""
FRENCH = """
[interpretations.fr]
about = "a station that counts in Kelvin"
[interpretations.fr.types.Meteo]
station = "text"
temperature = "K"
[[interpretations.fr.mappings]]
from = "Meteo"
to = "station"
direction = "in"
rename = { station = "key" }
"""
TOML = {"Content-Type": "application/toml"}


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_everything_in_force_is_listed_shown_and_told_as_python(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            listed = (await api.call("GET", "/interpretations")).json()
            rows = {row["name"]: row for row in listed["interpretations"]}
            assert {"root", "us", "us/weather", "cameras"} <= set(rows)
            assert (rows["us/weather"]["parent"], rows["us"]["form"]) == ("us", "typed")
            assert rows["cameras"]["form"] == "fields"
            assert listed["refused"] == []
            shown = (await api.call("GET", "/interpretations/us/weather")).json()
            assert shown["resolved"]["lineage"] == ["root", "us", "us/weather"]
            assert shown["declared"]["rules"] == []
            assert shown["resolved"]["rules"][0]["owner"] == "us"
            text = await api.call(
                "GET", "/interpretations/us/weather/transformers/us%20station?direction=in"
            )
            assert text.headers["content-type"].startswith("text/x-python")
            assert "def transform" in text.body.decode()
            plain = (await api.call("GET", "/interpretations/cameras")).json()
            assert plain["declared"]["name"] == "cameras"
            for path, code in (
                ("/interpretations/uss", "interpretation.unknown"),
                ("/interpretations/us/transformers/Nothing", "type.unknown"),
                ("/interpretations/cameras/transformers/x", "interpretation.unknown"),
                ("/interpretations/us@000000000000", "interpretation.unknown"),
            ):
                answer = await api.call("GET", path)
                assert (answer.status, answer.json()["title"]) == (404, code), path

    run(scenario)


def test_a_change_is_checked_made_listed_and_known_by_its_stamp(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            tried = await api.call("POST", "/interpretations/check", FRENCH.encode(), TOML)
            assert (tried.status, list(tried.json()["versions"])) == (200, ["fr"])
            assert (await api.call("GET", "/interpretations/changes")).json() == []
            made = await api.call("POST", "/interpretations/changes", FRENCH.encode(), TOML)
            assert made.status == 200, made.body
            stamp = made.json()["versions"]["fr"]
            again = await api.call("POST", "/interpretations/changes", FRENCH.encode(), TOML)
            assert (again.status, again.json()["changed"]) == (200, False)
            (change,) = (await api.call("GET", "/interpretations/changes")).json()
            assert (change["what"], change["state"], change["by"]) == (
                ["declare fr"],
                "in force",
                "local",
            )
            version = (await api.call("GET", f"/interpretations/{stamp}")).json()
            assert version["version"]["name"] == "fr"
            removed = await api.call(
                "POST", "/interpretations/changes", {"type": "remove", "name": "fr"}
            )
            assert removed.json()["versions"] == {"fr": ""}
            version = await api.call("GET", f"/interpretations/{stamp}")
            assert version.status == 200

    run(scenario)


def test_the_next_events_mean_what_the_change_says_and_the_reading_names_its_version(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            await send(api, 212)
            shown = (await api.call("GET", "/interpretations/us")).json()
            declared = shown["declared"]
            kelvin = json.loads(json.dumps(declared).replace("degF", "K"))
            body = {
                "changes": [{"type": "declare", "interpretation": kelvin}],
                "expects": {"us": shown["stamp"]},
            }
            made = await api.call("POST", "/interpretations/changes", body)
            assert made.status == 200, made.body
            assert set(made.json()["versions"]) == {"us", "us/weather"}
            stale = await api.call(
                "POST",
                "/interpretations/changes",
                body | {"changes": [{"type": "remove", "name": "us/weather"}]},
            )
            assert (stale.status, stale.json()["title"]) == (409, "state.stale_version")
            await send(api, 300)
            events = (await api.call("GET", "/channels/events/events")).json()["events"]
            assert [one["data"]["value"][0] for one in events] == [
                pytest.approx(100.0),
                pytest.approx(26.85),
            ]
            for one, unit in zip(events, ("degF", "K"), strict=True):
                version = (
                    await api.call("GET", f"/interpretations/{one['interpretation']}")
                ).json()
                assert f'"{unit}"' in json.dumps(version)
                told = (await api.call("GET", f"/explain/{one['id']}")).json()
                assert told["interpretation"] == one["interpretation"]

    run(scenario)


async def send(api: Any, temperature: float) -> None:
    events = api.node.channels.channel("events")
    before = events.last_position()
    raw = {"key": "s1", "temperature": temperature}
    assert (await api.call("POST", "/sources/weather", raw)).status == 200
    assert await events.wait_after(before, timeout_ms=10_000)


FAULTS: list[tuple[Any, dict[str, str], int, str]] = [
    ({"type": "remove", "name": "us"}, {}, 409, "interpretation.in_use"),
    ({"type": "remove", "name": "nobody"}, {}, 422, "interpretation.unknown"),
    (
        {"type": "declare", "interpretation": {"name": "a", "parent": "nobody"}},
        {},
        422,
        "interpretation.unknown_parent",
    ),
    (
        [
            {"type": "declare", "interpretation": {"name": "a", "parent": "root"}},
            {"type": "declare", "interpretation": {"name": "a", "parent": "a"}},
        ],
        {},
        422,
        "interpretation.parent_cycle",
    ),
    (
        {"type": "augment", "name": "us", "rules": [{"pattern": "No.Way", "conversion": "x"}]},
        {},
        422,
        "pattern.invalid",
    ),
    (
        {"type": "declare", "interpretation": {"name": "changes"}},
        {},
        422,
        "interpretation.bad_name",
    ),
    (
        {"type": "declare", "interpretation": {"name": "a", "rulez": []}},
        {},
        400,
        "change.unknown_member",
    ),
    ({"type": "vary"}, {}, 400, "change.not_a_change"),
    (b"{", {}, 400, "change.not_a_change"),
    (b"", {}, 400, "change.not_a_change"),
    (b"\xff\xfe", {}, 400, "change.not_a_change"),
    (b"[" * 200_000, {}, 400, "change.not_a_change"),
    ([], {}, 422, "change.empty"),
    ([{"type": "remove", "name": "x"}] * 300, {}, 422, "change.too_large"),
    (b"x = [", TOML, 422, "site.bad_toml"),
    (b"", TOML, 422, "change.empty"),
    (b"interpretations: *x", {"Content-Type": "text/yaml"}, 422, "yaml.alias"),
    (b"<x>", {"Content-Type": "application/xml"}, 422, "xml.not_well_formed"),
    (b"GIF89a", {"Content-Type": "image/gif"}, 400, "change.unknown_form"),
    (FRENCH.replace('"K"', '"Kelwin"').encode(), TOML, 422, "type.unknown"),
]


@pytest.mark.slow
def test_bad_input_is_told_with_code_and_hint_and_changes_nothing(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            last = api.node.channels.channel(CHANNEL).last_position()
            for body, headers, status, code in FAULTS:
                for endpoint in ("changes", "check"):
                    answer = await api.call("POST", f"/interpretations/{endpoint}", body, headers)
                    told = answer.json()
                    assert (answer.status, told["title"]) == (status, code), (body, told)
                    assert told["detail"]
            assert api.node.channels.channel(CHANNEL).last_position() == last

    run(scenario)


def test_a_fault_in_a_file_is_told_at_its_line(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            body = FRENCH.replace('to = "station"', 'to = "station"\ncolour = 1').encode()
            answer = await api.call("POST", "/interpretations/check", body, TOML)
            (problem,) = answer.json()["problems"]
            assert (answer.status, problem["code"]) == (422, "interpretation.unknown_key")
            assert problem["line"] == 10

    run(scenario)


def test_a_header_of_very_many_parts_is_refused_at_once(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(site_text=SITE) as api:
            body = f"[interpretations.{'a.' * 100_000}a]\n".encode()
            async with asyncio.timeout(10):
                answer = await api.call("POST", "/interpretations/check", body, TOML)
            (problem,) = answer.json()["problems"]
            assert (answer.status, problem["code"]) == (422, "site.too_many_parts")
            assert problem["hint"]
            assert len(answer.body) < 2_000

    run(scenario)


TOKENS = {"reader": "Kq7xW2mZ9pLr4TnV8cYd1BfG", "chief": "bH3sJ6vQ1zXw5RtN9kMe7UaP"}


def test_who_has_any_right_may_look_and_who_may_change_the_node_may_change(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, token in TOKENS.items():
        monkeypatch.setenv(f"{name.upper()}_TOKEN", token)
    access = """
[access.reader]
token = "env:READER_TOKEN"
subscribe = ["events"]
[access.chief]
token = "env:CHIEF_TOKEN"
admin = true
"""

    async def scenario() -> None:
        async with served_node(site_text=SITE + access) as api:
            body = {"type": "declare", "interpretation": {"name": "fr"}}
            for name, looks, changes in (("", 401, 401), ("reader", 200, 403), ("chief", 200, 200)):
                shown = {"Authorization": f"Bearer {TOKENS[name]}"} if name else {}
                for path in ("", "/changes", "/spoken", "/us"):
                    answer = await api.call("GET", f"/interpretations{path}", headers=shown)
                    assert answer.status == looks, (name, path)
                for path in ("check", "changes"):
                    answer = await api.call("POST", f"/interpretations/{path}", body, shown)
                    assert answer.status == changes, (name, path, answer.body)
            chief = {"Authorization": f"Bearer {TOKENS['chief']}"}
            (made,) = (await api.call("GET", "/interpretations/changes", headers=chief)).json()
            assert made["by"] == "chief"
            forged = await api.call("POST", "/channels/interpretations/events", {}, chief)
            assert forged.status == 403

    run(scenario)


# --- the JSON endpoint without HTTP: nothing but what it promises ---

CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}
NAMES = st.sampled_from(
    ["root", "us", "fr", "station", "T", "degC", "number", "text", "key", "", "[T]"]
)
TEXTS = st.one_of(NAMES, st.text(max_size=8))
PATTERNS = st.one_of(TEXTS, st.sampled_from(["T.key", "station.degC", '"degC"', "T.*number", "*"]))
KINDS = [
    {"type": "identity"},
    {"type": "formula", "multiply": 2},
    {"type": "formula", "divide": 0},
    {"type": "units", "from_unit": "degF", "to_unit": "degC"},
    {"type": "units", "from_unit": "nonsense", "to_unit": "degC"},
    {"type": "lookup", "entries": [["a", "b"], [1, True]]},
    {"type": "rename", "names": [["key", "id"]]},
    {"type": "join"},
    {"type": "cut", "separator": ""},
    {"type": "gather", "names": ["key"]},
    {"type": "scatter", "names": ["key", "x"]},
    {"type": "call", "function": "os:system"},
    {"type": "stateful", "function": "f", "initial": "bm90IGpzb24="},
    {"type": "chain", "steps": []},
]
CONVERSIONS = st.fixed_dictionaries(
    {
        "name": TEXTS,
        "arguments": st.lists(TEXTS, max_size=2),
        "results": st.lists(TEXTS, max_size=2),
        "how": st.sampled_from(KINDS),
    }
)
TYPES = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("complex"),
            "name": TEXTS,
            "attributes": st.lists(
                st.fixed_dictionaries({"name": TEXTS, "type": TEXTS}), max_size=3
            ),
            "super_types": st.lists(TEXTS, max_size=2),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("primitive"),
            "name": TEXTS,
            "kind": st.sampled_from(["text", "number", "integer", "boolean", "json"]),
            "super_types": st.lists(TEXTS, max_size=1),
        }
    ),
)
PARTS = {
    "types": st.lists(TYPES, max_size=3),
    "mappings": st.lists(
        st.fixed_dictionaries(
            {"source": TEXTS, "target": TEXTS, "direction": st.sampled_from(["in", "out"])},
            optional={"each": TEXTS},
        ),
        max_size=2,
    ),
    "rules": st.lists(
        st.fixed_dictionaries({"pattern": PATTERNS, "conversion": TEXTS}), max_size=2
    ),
    "conversions": st.lists(CONVERSIONS, max_size=2),
}
CHANGES = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("declare"),
            "interpretation": st.fixed_dictionaries(
                {"name": TEXTS, "parent": TEXTS}, optional=PARTS
            ),
        }
    ),
    st.fixed_dictionaries({"type": st.just("augment"), "name": TEXTS}, optional=PARTS),
    st.fixed_dictionaries({"type": st.just("remove"), "name": TEXTS}),
    st.fixed_dictionaries(
        {
            "type": st.just("replace"),
            "old": TEXTS,
            "new": TYPES,
            "forth": CONVERSIONS,
            "back": CONVERSIONS,
        }
    ),
)
START = InterpretationState.from_files(SiteInterpretations(concepts=CONCEPTS))[0]


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(CHANGES, min_size=1, max_size=4))
def test_whatever_is_asked_is_made_or_refused_with_problems(changes: list[Any]) -> None:
    standing = START
    for change in changes:
        try:
            wanted = request_from_json(json.dumps(change).encode())
        except InvalidInput as error:
            assert error.code
            continue
        new, problems = standing.apply(ChangeRecord(number=1, changes=wanted.changes))
        assert all(problem.code and problem.message for problem in problems)
        assert new is standing or not any(each.severity == "error" for each in problems)
        standing = new
        assert standing.in_force.stamps


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["type", "changes", "name", "interpretation", "x"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_bytes_are_no_change_and_are_refused(body: bytes) -> None:
    try:
        assert request_from_json(body).changes == ()
    except InvalidInput as error:
        assert error.code
    for kind in ("toml", "yaml", "xml"):
        with pytest.raises(InvalidInput):
            request_from_file("body", body, kind, START.in_force)  # type: ignore[arg-type]
