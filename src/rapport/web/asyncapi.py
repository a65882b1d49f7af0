"""The AsyncAPI 3.0 document: Server-Sent Events, WebSocket and MQTT. [CH-12]

Uses the same structures as the OpenAPI document. Served at `/schema/asyncapi.json`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.channel.mqtt.bridge import Bridge, IncomingTopic, OutgoingTopic
from rapport.core.event import Gap, content_id
from rapport.web.channel_socket import ClientFrame
from rapport.web.schemas import (
    CHANNEL_PATTERN,
    AnswerFrame,
    BatchFrame,
    CloudEvent,
    ErrorFrame,
    GapFrame,
    StoredCloudEvent,
    reference,
    schema_components,
)

Members = dict[str, Any]
Topic = tuple[Bridge, IncomingTopic | OutgoingTopic]

_NAME: Members = {"name": {"description": f"The channel, {CHANNEL_PATTERN}"}}


def asyncapi_document(version: str, bridges: Sequence[Bridge] = ()) -> Members:
    """The whole document, with the topics of the site's MQTT bridges."""
    topics: list[Topic] = []
    for bridge in bridges:
        topics += [(bridge, one) for one in bridge.incoming]
        topics += [(bridge, one) for one in bridge.outgoing]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Rapport",
            "version": version,
            "description": "Endpoints that push events, and the socket that accepts them as well.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "node": {
                "host": "localhost:8484",
                "protocol": "http",
                "description": "HTTP for streams, WebSocket for sockets; bearer token when asked.",
                "security": [{"$ref": "#/components/securitySchemes/bearer"}],
            },
            **{f"mqtt-{bridge.name}": _broker(bridge) for bridge in bridges},
        },
        "channels": _channels() | {_topic_name(one): _topic(*one) for one in topics},
        "operations": _operations() | {_topic_name(one): _topic_use(one) for one in topics},
        "components": {
            "messages": _messages(),
            "schemas": schema_components(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _channels() -> Members:
    return {
        "stream": {
            "address": "/channels/{name}/stream",
            "title": "Server-Sent Events",
            "parameters": _NAME,
            "messages": _of("storedEvent", "gap"),
        },
        "socket": {
            "address": "/channels/{name}/socket",
            "title": "WebSocket",
            "parameters": _NAME,
            "messages": _of("clientFrame", "batchFrame", "gapFrame", "answerFrame", "errorFrame"),
            "bindings": {"ws": {"method": "GET"}},
        },
    }


def _operations() -> Members:
    """Seen from the node: it sends what readers receive."""
    return {
        "followStream": _operation("send", "stream", "storedEvent", "gap"),
        "pushBatches": _operation("send", "socket", "batchFrame", "gapFrame"),
        "answerFrames": _operation("send", "socket", "answerFrame", "errorFrame"),
        "takeFrames": _operation("receive", "socket", "clientFrame"),
    }


def _broker(bridge: Bridge) -> Members:
    return {
        "host": f"{bridge.host}:{bridge.port}",
        "protocol": "mqtts" if bridge.secure else "mqtt",
        "description": f"The broker of the bridge {bridge.name!r}.",
    }


def _topic_name(topic: Topic) -> str:
    """A name of letters, digits and lines, different for each topic of each bridge."""
    bridge, one = topic
    way = "in" if isinstance(one, IncomingTopic) else "out"
    return f"mqtt-{bridge.name}-{way}-{content_id(one.topic, one.channel)[:12]}"


def _topic(bridge: Bridge, one: IncomingTopic | OutgoingTopic) -> Members:
    fields = [name for _, name, _, _ in string.Formatter().parse(one.topic) if name]
    is_event = isinstance(one, OutgoingTopic) and one.payload == "cloudevent"
    return {
        "address": one.topic,
        "title": f"MQTT, channel {one.channel}",
        "servers": [{"$ref": f"#/servers/mqtt-{bridge.name}"}],
        "parameters": {name: {"description": f"The event's {name}"} for name in fields},
        "messages": _of("event" if is_event else "payload"),
    }


def _topic_use(topic: Topic) -> Members:
    action = "receive" if isinstance(topic[1], IncomingTopic) else "send"
    return {"action": action, "channel": {"$ref": f"#/channels/{_topic_name(topic)}"}}


def _operation(action: str, channel: str, *messages: str) -> Members:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
    }


def _of(*names: str) -> Members:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _messages() -> Members:
    return {
        "event": _message("A CloudEvent", CloudEvent),
        "payload": {"title": "The data of an event, as the device or the event has them"},
        "storedEvent": _message(
            "One event of the channel; its id is the position", StoredCloudEvent
        ),
        "clientFrame": _message("What a client says over a socket", ClientFrame),
        "batchFrame": _message("Events pushed to a subscription", BatchFrame),
        "gap": _message("Positions that could not be read; the event's name is `gap`", Gap),
        "gapFrame": _message("Positions of a subscription that could not be read", GapFrame),
        "answerFrame": _message("The answer to a frame", AnswerFrame),
        "errorFrame": _message("A fault; the socket goes on", ErrorFrame),
    }


def _message(title: str, kind: type[msgspec.Struct]) -> Members:
    return {"title": title, "contentType": "application/json", "payload": reference(kind)}
