"""A delivery as the JSON of the source's listing 1, for media that machines read. Pure. [CO-1,
CO-16]
"""

from __future__ import annotations

import msgspec

from rapport.communication.adapters.base import Delivery
from rapport.core.times import format_time


def delivery_json(delivery: Delivery, proof: str = "") -> bytes:
    """The message with the idempotency `key`, and with `answer`, the token that proves an answer;
    the same bytes for every attempt, so that a receiver can drop what it knows.
    """
    needed = {
        "id": delivery.message,
        "type": delivery.type or "NOTIFICATION",
        "subtype": delivery.subtype or delivery.policy,
        "sender": delivery.sender or "component:policy",
        "receiver": f"peer:{delivery.peer}",
        "content": delivery.text,
        "urgent": delivery.urgent,
        "key": delivery.key,
        "time": format_time(delivery.time),
        "wants-answer": delivery.wants_answer,
    }
    perhaps = {
        "conversation-id": delivery.conversation,
        "language": delivery.language,
        "refers-to": delivery.refers_to,
        "answer": proof,
    }
    return msgspec.json.encode(needed | {key: text for key, text in perhaps.items() if text})
