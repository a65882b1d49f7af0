"""Requests that name an interpretation: the query is in its words, and so are the messages. [ME-9,
CH-2]

The interpretation becomes part of the query (kind `own`), so tokens carry it and every door that
goes on by token stays in the same words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rapport.channel.query.kinds import OWN, SQL, TEMPLATE, Query
from rapport.channel.query.own_terms import OwnTermsRequest
from rapport.channel.requesting.batch import Request
from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.event import StoredEvent

ROOT = "root"
"""The words that everything is kept in: who names them is given it as it is."""
_RAW = "raw."

Present = Callable[[str, Sequence[StoredEvent], str, str], Awaitable[list[StoredEvent]]]
"""Messages of a channel in the words of an interpretation, for an identity."""


def in_own_terms(name: str, request: Request) -> Request:
    """The request with its interpretation in the query; raises InvalidInput, Unsupported."""
    if not request.interpretation:
        return request
    plain = msgspec.structs.replace(request, interpretation="")
    if request.interpretation == ROOT and not name.startswith(_RAW):
        return plain
    asked = _own_query(request)
    if name.startswith(_RAW) and (asked.where or asked.template):
        raise Unsupported(
            "a condition in own terms",
            f"channel {name!r}, whose messages have no meaning yet",
            hint="ask for all of them, or ask a channel of root such as 'events'",
        )
    return msgspec.structs.replace(plain, kind=OWN, query=_members(asked))


def interpretation_of(query: Query) -> str:
    """In whose words the matches of a query come; empty for those of root."""
    if query.kind != OWN:
        return ""
    return msgspec.json.decode(query.text, type=OwnTermsRequest).interpretation


def _own_query(request: Request) -> OwnTermsRequest:
    query, kind = request.query, request.kind
    if isinstance(query, str) and kind in ("", SQL):
        return OwnTermsRequest(request.interpretation, where=query)
    if isinstance(query, dict) and kind in ("", TEMPLATE):
        return OwnTermsRequest(request.interpretation, template=query or None)
    raise InvalidInput(
        f"a query of the kind {kind!r} cannot be asked in an interpretation",
        code="request.bad_field",
        hint="ask by a condition (text) or a template (object)",
    )


def _members(asked: OwnTermsRequest) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(asked)
    return found
