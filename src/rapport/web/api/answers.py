"""Answer links of messages. [CO-10, CO-11]

Opening an answer link only shows a page with a button: mail scanners follow links, people press
buttons. A link is valid while its message is open and for a while after; the same answer given
twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
from litestar import Response, get
from litestar.params import FromPath

from rapport.channel.access.identities import FailedAttempts
from rapport.communication.arrival_checks import Allowances
from rapport.communication.ledger_rows import CLOSED, LedgerRow, MessageRow
from rapport.communication.links import name_from_link
from rapport.communication.texts import DEFAULT_READER, TextReader, shown_moment
from rapport.core.errors import InvalidInput, NotAllowed, TooFast
from rapport.core.json_objects import ObjectDecoder
from rapport.node.node import Node
from rapport.web.api.directory import origin_of
from rapport.web.endpoint import HttpRequest, NodeDependency, post
from rapport.web.endpoint_docs import HTML, JSON, OPEN_PAGE, TEXT, documented
from rapport.web.page_texts import translated
from rapport.web.pages import message_facts, render

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_ANSWER = 500
_FIELD = "answer"
_SAID = {"yes": "I take care of it", "no": "I cannot"}


class PostedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer as JSON."""

    answer: str


_EXAMPLE = 'send {"answer": "..."}, a form with `answer`, or the text itself'
_READ = ObjectDecoder(
    PostedAnswer, fault="the answer cannot be read", code="answer.bad", hint=_EXAMPLE
)


class LinkGuard:
    """Limits the rate of bad links per address and of answers per link."""

    def __init__(self) -> None:
        self._failures = FailedAttempts()
        self._allowances = Allowances(rate=1, burst=10)

    def note_bad_link(self, origin: str, now_ms: int) -> None:
        """Raises TooFast for an address that shows too many bad links."""
        self._failures.note(origin, now_ms)

    def check_answers(self, message: str, peer: str, now_ms: int) -> None:
        """Raises TooFast for a link by which too many answers come."""
        if not self._allowances.takes(message, peer, now_ms):
            raise TooFast(
                "too many answers by one link", code="answer.too_fast", retry_after_seconds=1
            )


@get("/answer/{message:str}/{peer:str}/{token:str}", opt=OPEN_PAGE)
async def show_answer_page(
    request: HttpRequest,
    message: FromPath[str],
    peer: FromPath[str],
    token: FromPath[str],
    node: NodeDependency,
) -> Response[str]:
    """The page behind the link in a message; it changes nothing."""
    message, peer = name_from_link(message), name_from_link(peer)
    with _slowing(request, node):
        row = await node.linked_message(message, peer, token)
    own, reader = await node.answer_of(message, peer), await node.reader_of(peer)
    return Response(answer_page(peer, row, own, reader=reader), media_type="text/html")


@post(
    "/answer/{message:str}/{peer:str}/{token:str}",
    opt=documented(
        bodies={JSON: PostedAnswer},
        example={"answer": "yes"},
        answer=TEXT,
        media=(HTML,),
        is_open=True,
        any_query=True,
    ),
)
async def take_answer(
    request: HttpRequest,
    message: FromPath[str],
    peer: FromPath[str],
    token: FromPath[str],
    node: NodeDependency,
) -> Response[str]:
    """Records the person's answer; the same answer again counts once."""
    message, peer = name_from_link(message), name_from_link(peer)
    with _slowing(request, node):
        node.check_answer_token(message, peer, token)
    guard: LinkGuard = request.app.state.link_guard
    guard.check_answers(message, peer, node.clock.now_ms())
    answer = await _answer_text(request)
    with _slowing(request, node):
        row = await node.linked_message(message, peer, token)
    is_new = await node.answer(message, peer, token, answer)
    reader = await node.reader_of(peer)
    page = answered_page(peer, row, answer, is_new=is_new, reader=reader)
    return Response(page, media_type="text/html")


@contextmanager
def _slowing(request: HttpRequest, node: Node) -> Iterator[None]:
    """Counts bad links; an address with many of them has to wait."""
    try:
        yield
    except NotAllowed:
        guard: LinkGuard = request.app.state.link_guard
        guard.note_bad_link(origin_of(request), node.clock.now_ms())
        raise


def answer_page(
    peer: str, row: MessageRow, own: LedgerRow | None, *, reader: TextReader = DEFAULT_READER
) -> str:
    """The message with its sender and two buttons."""
    return render(
        "answer.html",
        reader,
        title=translated(reader.language, "Answer"),
        peer=peer,
        row=row,
        facts=message_facts(row, reader),
        note=_note(row, peer, own, reader),
    )


def answered_page(
    peer: str,
    row: MessageRow,
    answer: str,
    *,
    is_new: bool,
    reader: TextReader = DEFAULT_READER,
) -> str:
    t = partial(translated, reader.language)
    recorded = "is recorded" if is_new else "was recorded already"
    sentence = t(f"Your answer “{{answer}}” {recorded}.", answer=t(_SAID.get(answer, answer)))
    if row.state == CLOSED and row.answered_by not in ("", peer):
        sentence += " " + t("{name} took care of it before.", name=row.answered_by)
    return render("answered.html", reader, title=t("Thank you"), peer=peer, said=sentence, row=row)


def _note(row: MessageRow, peer: str, own: LedgerRow | None, reader: TextReader) -> str:
    """This person's own earlier answer, or the person who answered first."""
    t = partial(translated, reader.language)
    if own is not None:
        answer, time = t(_SAID.get(own.answer, own.answer)), shown_moment(own.time, reader)
        text = "You answered “{answer}” on {time}. You can change your answer."
        return t(text, answer=answer, time=time)
    if row.answered_by and row.answered_by != peer:
        time = shown_moment(row.answered_at, reader)
        return t("{name} answered on {time}.", name=row.answered_by, time=time)
    return ""


async def _plain_text(request: HttpRequest) -> str:
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the answer cannot be read: {error}", code="answer.bad") from None


async def _form_text(request: HttpRequest) -> str:
    try:
        answer = (await request.form()).get(_FIELD, "")
    except (UnicodeDecodeError, LookupError) as error:  # no text, or letters of an unknown kind
        raise InvalidInput(f"the answer cannot be read: {error}", code="answer.bad") from None
    if not isinstance(answer, str):
        raise InvalidInput("an answer is a text and no file", code="answer.bad")
    return answer


async def _answer_text(request: HttpRequest) -> str:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        answer = _READ.decode(await request.body()).answer
    elif kind in _FORMS:
        answer = await _form_text(request)
    else:
        answer = await _plain_text(request)
    answer = answer.strip()
    if not answer:  # nobody who says nothing takes care of an alarm
        raise InvalidInput("the answer is empty", code="answer.bad", hint=_EXAMPLE)
    if len(answer) > _MAX_ANSWER:
        raise InvalidInput(
            f"an answer has at most {_MAX_ANSWER} characters", code="answer.too_long"
        )
    return answer
