"""The ledger: deliveries of messages to people, and their answers. [CO-10, UX-6]

Needs the right to read `log`. The `Link` header (rel="next") leads to the next page.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from rapport.communication.ledger import (
    MESSAGE_STATES,
    MessageView,
    Question,
    check_state,
    show_message,
)
from rapport.communication.ledger_export import (
    ExportFormat,
    LedgerRecords,
    check_exportable,
    export_records,
    find_records,
)
from rapport.communication.ledger_rows import LedgerRow, MessageRow
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_time
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    require_unfiltered,
)
from rapport.web.endpoint_docs import CSV, JSON, documented

Limit = Annotated[int, QueryParameter(ge=1, le=10_000)]
State = Annotated[str, QueryParameter(name="state")]


@get("/ledger", opt=documented(answer=LedgerRow, is_list=True))
async def ledger(
    request: HttpRequest,
    node: NodeDependency,
    message: FromQuery[str] = "",
    person: FromQuery[str] = "",
    became: State = "",
    policy: FromQuery[str] = "",
    conversation: FromQuery[str] = "",
    since: FromQuery[str] = "",
    until: FromQuery[str] = "",
    after: FromQuery[str] = "",
    limit: Limit = 200,
) -> Reply:
    """The newest state of each message at each person and address, newest change first."""
    require_unfiltered(request, node, "log")
    question = Question(
        message=message,
        peer=person,
        state=check_state(became),
        policy=policy,
        conversation=conversation,
        since=_moment(since),
        until=_moment(until),
        after=after,
        limit=limit,
    )
    page = await node.ledger.find(question)
    return _paged(request, page.rows, page.next)


@get("/ledger/messages", opt=documented(answer=MessageRow, is_list=True))
async def ledger_messages(
    request: HttpRequest,
    node: NodeDependency,
    became: State = "",
    policy: FromQuery[str] = "",
    conversation: FromQuery[str] = "",
    since: FromQuery[str] = "",
    until: FromQuery[str] = "",
    after: FromQuery[str] = "",
    limit: Limit = 200,
) -> Reply:
    """The messages with their state and first answer, newest first."""
    require_unfiltered(request, node, "log")
    question = Question(
        state=check_state(became, of=MESSAGE_STATES),
        policy=policy,
        conversation=conversation,
        since=_moment(since),
        until=_moment(until),
        after=after,
        limit=limit,
    )
    page = await node.ledger.find_messages(question)
    return _paged(request, page.messages, page.next)


@get("/ledger/messages/{message:str}", opt=documented(answer=MessageView))
async def ledger_message(
    request: HttpRequest,
    message: FromPath[str],
    node: NodeDependency,
    timeline: FromQuery[bool] = True,
) -> Reply:
    """One message: how it stands, how far it got with each person, and what happened in order."""
    require_unfiltered(request, node, "log")
    return json_response(await show_message(node.ledger, message, with_timeline=timeline))


PARQUET = "application/vnd.apache.parquet"
_EXPORTS: dict[ExportFormat, str] = {"csv": CSV, "parquet": PARQUET}


@get("/ledger/records", opt=documented(answer=LedgerRecords, media=(JSON, CSV, PARQUET)))
async def ledger_records(
    request: HttpRequest,
    node: NodeDependency,
    person: FromQuery[str] = "",
    kind: FromQuery[str] = "",
    became: State = "",
    policy: FromQuery[str] = "",
    since: FromQuery[str] = "",
    until: FromQuery[str] = "",
    after: FromQuery[str] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=1_000)] = 100,
    wanted: Annotated[str, QueryParameter(name="format")] = "",
) -> Response[Any]:
    """The ledger with kind, sender and text of each message, newest change first; all of it as a
    file with `format` csv or parquet, or by `Accept`.
    """
    require_unfiltered(request, node, "log")
    question = Question(
        peer=person,
        state=check_state(became),
        policy=policy,
        since=_moment(since),
        until=_moment(until),
        after=after,
        limit=limit,
    )
    form = _export_format(wanted, request.headers.get("accept", ""))
    if form is None:
        return json_response(await find_records(node.ledger, question, kind))
    await check_exportable(node.ledger, question)
    return Stream(
        export_records(node.ledger, question, kind, form),
        media_type=_EXPORTS[form],
        headers={"Content-Disposition": f'attachment; filename="ledger.{form}"'},
    )


def _export_format(wanted: str, accepted: str) -> ExportFormat | None:
    """The kind of file, by name or else as the caller accepts it first; None for JSON."""
    if wanted not in ("", "json", *_EXPORTS):
        raise InvalidInput(
            f"there is no format {wanted[:40]!r}",
            code="ledger.bad_format",
            hint="json, csv or parquet",
        )
    first = accepted.split(",")[0].split(";")[0].strip()
    for form, media in _EXPORTS.items():
        if wanted == form or (not wanted and first == media):
            return form
    return None


def _moment(text: str) -> int:
    return parse_time(text) if text else 0


def _paged(request: HttpRequest, rows: list[Any], after: str) -> Reply:
    headers = {}
    if after:
        parameters = {key: value for key, value in request.query_params.items() if key != "after"}
        headers["Link"] = (
            f'<{request.url.path}?{urlencode(parameters | {"after": after})}>; rel="next"'
        )
    return json_response(rows, headers=headers)
