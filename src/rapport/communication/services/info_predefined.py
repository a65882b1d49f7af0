"""What is told of the messages that Rapport itself knows: CONTROL, AUTH, MESSAGEINFO, NOTIFICATION,
ACTION. [CO-2, CO-14]
"""

from __future__ import annotations

from typing import Any

from rapport.communication.services.info import Kind, MessageInformation, RelatedMessage


def _object(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | ({"required": required.split()} if required else {})


def _message(type: str, subtype: str = "", text: str = "") -> RelatedMessage:
    return RelatedMessage(type=type, subtype=subtype, text=text)


_TEXT = {"type": "string"}
_REASON = {"type": "string", "description": "What went wrong, for people."}
_CODE = {"type": "string", "description": "The stable code of the error."}
_FAULT = _object("code reason", code=_CODE, reason=_REASON)
_TOLD = {"type": "string", "description": "For people; may be empty."}
_WANTED = {
    "description": "Which message: its type and subtype, or the id of one that was sent. A plain "
    "text such as TASK REQUEST is understood, too.",
    "anyOf": [
        _object("type", type=_TEXT, subtype=_TEXT),
        _object("id", id=_TEXT),
        _TEXT,
    ],
}
_INFORMATION = _object(
    "type subtype text",
    type=_TEXT,
    subtype=_TEXT,
    text=_TEXT,
    schema={"type": "object"},
    answers={"type": "array", "items": {"$ref": "#/$defs/message"}},
    related={"type": "array", "items": {"$ref": "#/$defs/message"}},
)
_MESSAGE = _object("type", type=_TEXT, subtype=_TEXT, text=_TEXT)

PREDEFINED: dict[Kind, MessageInformation] = {
    ("CONTROL", ""): MessageInformation(
        text="Says how the delivery of another message went; refers-to names that message. Nobody "
        "has to answer it.",
        schema=_TOLD,
        related=(
            _message("CONTROL", "ACK", "it was delivered"),
            _message("CONTROL", "ERROR", "something went wrong"),
            _message("CONTROL", "COMERROR", "it could not be delivered"),
            _message("CONTROL", "TIMEOUT", "its time is over"),
        ),
    ),
    ("CONTROL", "ACK"): MessageInformation(
        text="The message named in refers-to was delivered as its delivery policy asks: the medium "
        "took it, or, where an answer counts, somebody answered. That the medium took it does not "
        "mean that somebody read it or agrees. Not sent for messages that want no acknowledgement.",
        schema=_TOLD,
        related=(_message("CONTROL", "COMERROR", "the contrary"),),
    ),
    ("CONTROL", "ERROR"): MessageInformation(
        text="Something about the message named in refers-to is wrong; the content says what. "
        "Correct the message and send it again. Routing rules may send this on to others.",
        schema=_TOLD,
        related=(_message("CONTROL", "COMERROR", "a fault on the way, not in the message"),),
    ),
    ("CONTROL", "COMERROR"): MessageInformation(
        text="The message named in refers-to did not reach its receiver: no address, no adapter, "
        "refused by the receiver's privacy rules, or every attempt failed; the content says which. "
        "It goes to the sender of the message, also when no acknowledgement was asked for. Reach "
        "the receiver in another way, or send it again when the reason is gone.",
        schema=_TOLD,
        related=(_message("CONTROL", "ACK", "the contrary"), _message("CONTROL", "TIMEOUT")),
    ),
    ("CONTROL", "TIMEOUT"): MessageInformation(
        text="The time to live of the message named in refers-to ended before it was delivered, or "
        "nobody answered in time. What comes in later is written down and changes nothing.",
        schema=_TOLD,
        related=(_message("CONTROL", "COMERROR", "it failed before its time was over"),),
    ),
    ("MESSAGEINFO", "REQUEST"): MessageInformation(
        text="Asks what a type of message means and how to answer it. Put the type and subtype "
        "into the content, or leave it empty and name a message in refers-to. For an answer in "
        "JSON set language to application/json.",
        schema=_WANTED,
        answers=(
            _message("MESSAGEINFO", "REPLY", "what is known"),
            _message("CONTROL", "ERROR", "nothing is known of such a message"),
        ),
    ),
    ("MESSAGEINFO", "REPLY"): MessageInformation(
        text="Says what a type of message means, what its content looks like, and how to answer "
        "it; refers-to names the request. Nobody has to answer it. A text for people, unless the "
        "request asked for JSON.",
        schema={"anyOf": [_TEXT, _INFORMATION], "$defs": {"message": _MESSAGE}},
        related=(_message("MESSAGEINFO", "REQUEST", "asks for it"),),
    ),
    ("AUTH", "REQUEST"): MessageInformation(
        text="A peer shows who it is and asks for a session token. The sender is the peer, the "
        "content its password. Without a password, and with a session token that is still good, "
        "it asks for a new one.",
        schema=_object(password={"type": "string", "description": "Never logged."}),
        answers=(
            _message("AUTH", "REPLY", "a session token"),
            _message("AUTH", "FAILED", "the name or the password is wrong"),
            _message("AUTH", "ERROR", "it could not be checked now"),
        ),
    ),
    ("AUTH", "REPLY"): MessageInformation(
        text="The peer is known; session-token has its token. Send it with every message until it "
        "expires, and ask for a new one before that.",
        schema=_object(
            "expires",
            expires={"type": "string", "format": "date-time"},
            seal_key={"type": "string", "description": "For signing and encrypting messages."},
        ),
        related=(_message("AUTH", "REQUEST", "asks for it, and renews it"),),
    ),
    ("AUTH", "FAILED"): MessageInformation(
        text="The name or the password is wrong, or the session token is not good any more. Ask "
        "again with the right password; after several failures one has to wait.",
        schema=_FAULT,
        answers=(_message("AUTH", "REQUEST", "with the right password"),),
    ),
    ("AUTH", "ERROR"): MessageInformation(
        text="Whether the password is right could not be found out now: what checks it cannot be "
        "reached, or there were too many attempts. Ask again later.",
        schema=_object(
            "code reason",
            code=_CODE,
            reason=_REASON,
            retry_after_seconds={"type": "number", "minimum": 0},
        ),
        answers=(_message("AUTH", "REQUEST", "after some time"),),
    ),
    ("NOTIFICATION", ""): MessageInformation(
        text="A policy found a situation that somebody wanted to be told of. The subtype is the "
        "policy's phrase, such as 'raise alarm'; the content says what was found and where. "
        "conversation-id names the detection. Where the message has a link, open it and press the "
        "button, or answer by the way it came: that tells the others that you see to it.",
        schema=_TEXT,
        related=(_message("ACTION", "", "what is done without people"),),
    ),
    ("ACTION", ""): MessageInformation(
        text="A policy found a situation in which a program is to do something: an address is "
        "called or an event is written. The subtype is the policy's phrase, the content says what "
        "is done. Nobody has to answer it.",
        schema=_TEXT,
        related=(_message("NOTIFICATION", "", "what people are told"),),
    ),
}
