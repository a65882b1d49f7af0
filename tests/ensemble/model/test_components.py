"""Components: fields, first values, and what is said of mistakes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport.ensemble import Component, Local, Role, process
from rapport.ensemble.model.role import RoleType, plan_of, role_names


class Place(msgspec.Struct):
    x: float
    y: float


class Located(Role):
    place: Place


class Loaded(Role):
    load: Annotated[float, "kg"] = 0.0


class Truck(Component, Located, Loaded):
    limit: ClassVar[int] = 7
    stops: list[str] = dataclasses.field(default_factory=list)
    notes: dict[str, int] = {}  # noqa: RUF012 - copied for each component
    secret: Local[object] = None

    def is_full(self) -> bool:
        return self.load >= self.limit


def truck(**given: Any) -> Truck:
    return Truck(**{"id": "t", "place": Place(1, 2), **given})


def test_a_component_has_what_it_was_given_and_its_defaults() -> None:
    made = truck(load=8)
    assert (made.id, made.place, made.load, made.stops) == ("t", Place(1, 2), 8.0, [])
    assert made.is_full()
    assert repr(made) == "<Truck t>"


def test_changeable_defaults_are_not_shared() -> None:
    one, other = truck(), truck()
    one.notes["a"] = 1
    one.stops.append("x")
    assert (other.notes, other.stops) == ({}, [])


def test_the_names_of_roles_and_base_components_travel_but_not_the_words_of_the_model() -> None:
    class Lorry(Truck): ...

    assert role_names(Lorry) == ("Lorry", "Truck", "Located", "Loaded")


def test_units_and_local_fields_leave_plain_fields() -> None:
    plan = plan_of(Truck)
    assert plan.published == ("load", "place", "stops", "notes")
    assert plan.local == {"secret"}
    assert "limit" not in plan.fields


@pytest.mark.parametrize(
    ("given", "code", "hint"),
    [
        ({"plcae": 1}, "ensemble.unknown_field", "did you mean 'place'?"),
        ({"load": "much"}, "ensemble.bad_value", "float"),
        ({"id": ""}, "ensemble.bad_id", "1 to 200"),
        ({"id": 7}, "ensemble.bad_id", "1 to 200"),
        ({"id": "a\n"}, "ensemble.bad_id", "1 to 200"),
        ({"id": "a" * 201}, "ensemble.bad_id", "1 to 200"),
    ],
)
def test_what_cannot_be_given_is_refused_with_a_hint(
    given: dict[str, Any], code: str, hint: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        truck(**given)
    assert caught.value.code == code
    assert hint in caught.value.hint


def test_a_field_without_a_value_is_told() -> None:
    with pytest.raises(InvalidInput, match="'place' has no value") as caught:
        Truck(id="t")  # type: ignore[call-arg]
    assert caught.value.code == "ensemble.missing_value"


def test_a_role_is_not_made() -> None:
    with pytest.raises(InvalidInput) as caught:
        Located(id="x", place=Place(0, 0))
    assert caught.value.code == "ensemble.not_a_component"


def test_a_field_that_is_no_data_must_be_local() -> None:
    class Wired(Component):
        line: object

    with pytest.raises(InvalidInput, match="'line' cannot be published") as caught:
        Wired(id="w", line=object())
    assert "Local[object]" in caught.value.hint


def test_no_data_is_found_deep_in_a_type() -> None:
    @dataclasses.dataclass
    class Box:
        inside: dict[str, list[object]]

    Holder = RoleType("Holder", (Component,), {"__annotations__": {"box": Box}})
    with pytest.raises(InvalidInput, match="object is not data"):
        Holder(id="h", box=Box({}))


def test_types_that_are_not_known_are_told() -> None:
    class Vague(Component):
        thing: Nowhere  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(InvalidInput, match="Nowhere") as caught:
        Vague(id="v", thing=1)
    assert caught.value.code == "ensemble.bad_field"


def test_roles_that_disagree_about_a_field_cannot_both_be_played() -> None:
    class InKilos(Role):
        weight: float

    class InWords(Role):
        weight: str

    class Both(Component, InKilos, InWords): ...  # type: ignore[misc]

    with pytest.raises(InvalidInput, match=r"disagree about the field 'weight' \("):
        Both(id="b", weight=1)

    class Decided(Component, InKilos, InWords):
        weight: Any

    assert Decided(id="d", weight=1).weight == 1


@pytest.mark.parametrize("name", ["id", "now_ms", "created_ms", "is_full", "check_definition"])
def test_fields_cannot_hide_what_there_is(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"cannot be called '{name}'"):
        RoleType("Odd", (Truck,), {"__annotations__": {name: str}})


def test_a_name_that_is_no_field_is_told_with_the_nearest() -> None:
    with pytest.raises(AttributeError) as caught:
        truck().lod  # type: ignore[attr-defined] # noqa: B018
    assert caught.value.hint == "did you mean 'load'?"  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["reads", "writes", "on_change"])
def test_a_process_that_names_no_field_is_refused_when_its_class_is_defined(option: str) -> None:
    options: dict[str, Any] = {"every": "1 s", option: "laod"}
    with pytest.raises(UnknownName) as caught:

        class Careless(Truck):
            @process(**options)
            def work(self) -> None: ...

    assert caught.value.code == "ensemble.unknown_field"
    assert caught.value.hint == "did you mean 'load'?"
    assert "Careless (process work)" in caught.value.message


@pytest.mark.parametrize("every", ["", "often", "0 s", "-1 s", "400 days"])
def test_a_process_needs_a_schedule_that_can_be(every: str) -> None:
    with pytest.raises(InvalidInput) as caught:

        @process(every=every)
        def work(self: Truck) -> None: ...

    assert caught.value.code == "ensemble.bad_schedule"
    assert caught.value.hint


def test_a_process_is_a_plain_function() -> None:
    with pytest.raises(InvalidInput, match="not a plain function"):

        @process(every="1 s")  # type: ignore[type-var]
        async def work(self: Truck) -> None: ...

    with pytest.raises(InvalidInput, match="not a plain function"):

        @process(every="1 s")
        def give(self: Truck) -> Any:
            yield 1


def test_a_process_can_still_be_called_as_a_method() -> None:
    class Counting(Component):
        count: int = 0

        @process(every="1 s", writes="count")
        def step(self) -> None:
            self.count += 1

    one = Counting(id="c")
    one.step()
    assert one.count == 1


def test_a_subclass_may_replace_a_process_or_take_it_away() -> None:
    class First(Component):
        count: int = 0

        @process(every="1 s", writes="count")
        def step(self) -> None: ...

    class Faster(First):
        @process(every="100 ms", writes="count")
        def step(self) -> None: ...

    class Still(First):
        def step(self) -> None: ...

    assert [plan.every_ms for plan in Faster.process_plans] == [100]
    assert Still.process_plans == ()
