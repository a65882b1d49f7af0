"""A misspelt key of a posted object is refused at every endpoint, with the nearest known one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

INPUT = '[inputs.desk]\nadapter = "webhook"\n'
MESSAGE = {
    "type": "TASK",
    "subtype": "REQUEST",
    "sender": "component:test",
    "receiver": "peer:ana",
    "content": "come",
}
STEP = {"receiver": "peer:ana"}
WRONG = [
    ("POST", "/messages", MESSAGE | {"urgnt": True}, "urgent"),
    ("POST", "/messages", MESSAGE | {"conversation": "7"}, "conversation-id"),
    ("POST", "/messages", MESSAGE | {"wishes": {"escalte": []}}, "escalate"),
    ("POST", "/messages", MESSAGE | {"wishes": {"escalate": [STEP | {"within": 1}]}}, "within"),
    ("POST", "/messages", [MESSAGE, MESSAGE | {"contnt": "x"}], "content"),
    ("POST", "/sessions/messages", MESSAGE | {"urgnt": True}, "urgent"),
    ("POST", "/inputs/desk", MESSAGE | {"urgnt": True}, "urgent"),
    ("POST", "/sessions", {"peer": "a", "pasword": "tiger"}, "password"),
    ("POST", "/peers/ana/password", {"pasword": "tiger"}, "password"),
    ("PUT", "/peers/zoe", {"addresses": ["inbox:"], "quiett": "22-6"}, "quiet"),
    ("PUT", "/collectives/crew", {"delivry": "to-any"}, "delivery"),
    ("POST", "/collectives/guards/members", {"jion": []}, "join"),
    ("POST", "/routing", {"to": ["peer:ana"], "typ": "TASK"}, "type"),
    ("PUT", "/messages/info/TASK/REQUEST", {"txt": "what it means"}, "text"),
    ("PUT", "/context/door/d1/state", {"values": {}, "vald": "30s"}, "valid"),
    ("POST", "/channels/events/requests", {"query": {}, "max_message": 3}, "max_messages"),
    ("POST", "/channels/events/interceptors", {"name": "a", "kid": "b"}, "kind"),
    ("POST", "/dead-letters/replay", {"chanel": "events"}, "channel"),
    ("POST", "/dead-letters/forget", {"chanel": "events"}, "channel"),
    ("POST", "/quarantine/release", {"sorce": "x"}, "source"),
    ("POST", "/interpretations/again", {"source": "x", "since": 5}, "since_ms"),
    ("POST", "/federation/channels/events/events", {"node": "n", "event": []}, "events"),
    (
        "POST",
        "/interpretations/check",
        {"type": "remove", "name": "us", "expcts": {}},
        "has no meaning",
    ),
]


def test_a_misspelt_key_is_refused_with_its_name_and_the_nearest_one(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=INPUT) as api:
            for method, path, body, nearest in WRONG:
                answer = await api.call(method, path, body)
                assert answer.status == 400, (path, answer.body)
                said = answer.json()
                assert nearest in said["hint"] + said["detail"], (path, said)
                assert b"tiger" not in answer.body
            taken = await api.call("POST", "/messages", MESSAGE | {"key": "k", "time": "t"})
            assert taken.status == 202, "what our own outputs write beside a message is known"

    asyncio.run(scenario())


def test_an_event_may_have_attributes_of_its_own(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "extra": "x"}
            answer = await api.call("POST", "/channels/notes/events", event)
            assert answer.status == 200, answer.body

    asyncio.run(scenario())


def test_wishes_of_a_person_are_refused_instead_of_being_left_out(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            body = MESSAGE | {"sender": "peer:ana", "wishes": {"least": 2}}
            answer = await api.call("POST", "/messages", body)
            assert (answer.status, answer.json()["title"]) == (400, "message.bad_wishes")

    asyncio.run(scenario())
