"""Who may what, by the owner of the key. [CX-9]"""

import pytest

from rapport.context.rights import LOCAL, ContextGrant, ContextRights
from rapport.core.context_record import EntityRef
from rapport.core.errors import InvalidInput

ROOM, CAR = EntityRef("room", "r3"), EntityRef("car", "7")


def test_who_is_not_named_may_nothing() -> None:
    rights = ContextRights({"ana": ContextGrant(read=("*",))})
    for right in ("read", "write", "control"):
        assert not rights.allows("eve", right, ROOM, "status")


def test_patterns_name_entities_and_scopes() -> None:
    rights = ContextRights(
        {"ana": ContextGrant(read=("room/* status", "car/7"), write=("car/7 *",))}
    )
    assert rights.allows("ana", "read", ROOM, "status")
    assert not rights.allows("ana", "read", ROOM, "door code")
    assert rights.allows("ana", "read", CAR, "anything")
    assert rights.allows("ana", "write", CAR, "position")
    assert not rights.allows("ana", "write", ROOM, "status")
    assert not rights.allows("ana", "control", None, "")


def test_a_pattern_reaches_no_further_than_it_says() -> None:
    rights = ContextRights({"ana": ContextGrant(read=("room/r3 status",))})
    assert not rights.allows("ana", "read", EntityRef("room", "r3\nx"), "status")
    assert not rights.allows("ana", "read", EntityRef("room", "r33"), "status")
    assert not rights.allows("ana", "read", ROOM, "status2")


def test_brackets_in_a_pattern_are_those_of_a_name() -> None:
    rights = ContextRights({"ana": ContextGrant(read=("room/r[3-9]",), write=("room/[*]",))})
    assert rights.allows("ana", "read", EntityRef("room", "r[3-9]"), "status")
    assert not rights.allows("ana", "read", EntityRef("room", "r3"), "status")
    assert rights.allows("ana", "write", EntityRef("room", "[a]"), "status")
    assert not rights.allows("ana", "write", EntityRef("room", "a"), "status")


def test_a_grant_to_everybody_adds_to_ones_own() -> None:
    rights = ContextRights({"*": ContextGrant(read=("room/*",)), "ana": ContextGrant(write=("*",))})
    assert rights.allows("eve", "read", ROOM, "status")
    assert rights.allows("ana", "read", ROOM, "status")
    assert not rights.allows("eve", "write", ROOM, "status")


def test_without_declared_rights_keys_read_and_write_and_only_members_control() -> None:
    rights = ContextRights.of_key_holders(lambda owner: owner == "brokers")
    assert rights.allows("ana", "write", ROOM, "status")
    assert not rights.allows("ana", "control", None, "")
    assert rights.allows("brokers", "control", None, "")


def test_the_brokers_own_process_may_everything() -> None:
    assert ContextRights({}).allows(LOCAL, "control", None, "")


@pytest.mark.parametrize("pattern", ["", "room status", "room"])
def test_a_pattern_without_an_entity_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="names no entities"):
        ContextRights({"ana": ContextGrant(read=(pattern,))})
