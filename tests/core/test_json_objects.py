"""A misspelt key of a JSON body is refused, wherever it stands, with the nearest known one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.json_objects import ObjectDecoder


class Step(msgspec.Struct, forbid_unknown_fields=True):
    receiver: str
    answer_within: int = 0


class Body(msgspec.Struct, forbid_unknown_fields=True, rename={"refers_to": "refers-to"}):
    text: str = ""
    refers_to: str = ""
    steps: tuple[Step, ...] = ()
    by_name: dict[str, Step] = {}
    last: Step | None = None


class Lenient(msgspec.Struct):
    x: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Lenient] = []


DECODER = ObjectDecoder(Body, fault="this is no body", code="test.bad_body", hint="such as {}")


def refused(body: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        DECODER.decode(body)
    assert error.value.code == "test.bad_body"
    return error.value


@pytest.mark.parametrize(
    ("body", "key", "nearest"),
    [
        ('{"txt": "a"}', "'txt' has", "'text'"),
        ('{"refers_to": "a"}', "'refers_to' has", "'refers-to'"),
        ('{"steps": [{"receiver": "a"}, {"reciever": "b"}]}', "in steps[1]", "'receiver'"),
        ('{"by_name": {"x": {"receiver": "a", "anser_within": 1}}}', "by_name", "'answer_within'"),
        ('{"last": {"answer_withn": 1}}', "in last", "'answer_within'"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_known_one(
    body: str, key: str, nearest: str
) -> None:
    error = refused(body)
    assert key in error.message
    assert error.hint == f"did you mean {nearest}?"


def test_where_nothing_is_near_the_known_keys_are_listed() -> None:
    assert refused('{"zzz": 1}').hint == "known: by_name, last, refers-to, steps, text"


def test_another_fault_has_the_hint_of_its_kind_of_body() -> None:
    assert refused('{"text": 5}').hint == "such as {}"


def test_a_secret_body_is_not_repeated_but_its_unknown_key_is_named() -> None:
    decoder = ObjectDecoder(Body, fault="no", code="c", hint="h", is_secret=True)
    for body, message in [('{"text": tiger}', "no"), ('{"txt": "tiger"}', "no: the key 'txt' has")]:
        with pytest.raises(InvalidInput) as error:
            decoder.decode(body)
        assert error.value.message.startswith(message)
        assert "tiger" not in error.value.message


def test_a_kind_that_would_ignore_keys_somewhere_within_is_no_kind_of_body() -> None:
    with pytest.raises(TypeError, match="Lenient"):
        ObjectDecoder(Outer, fault="no", code="c")


@given(st.text())
def test_no_key_crashes_the_decoder(key: str) -> None:
    try:
        DECODER.decode(msgspec.json.encode({key: None}))
    except InvalidInput as error:
        assert error.code == "test.bad_body"
