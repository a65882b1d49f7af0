"""Doors for people: the answer link of a message. [CO-10, CO-11]

Opening an answer link only shows a page with a button: mail scanners follow links, people press
buttons.
"""

from __future__ import annotations

import html
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import FromPath

from rapport.communication.arriving.link_names import name_from_link
from rapport.core.errors import InvalidInput
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.pages import render

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_ANSWER = 500


@get("/answer/{message:str}/{peer:str}/{token:str}", opt={OPEN: True})
async def show_answer_page(
    message: FromPath[str], peer: FromPath[str], token: FromPath[str], node: NodeDependency
) -> Response[str]:
    """The page behind the link in a message."""
    message, peer = name_from_link(message), name_from_link(peer)
    node.check_answer_token(message, peer, token)
    row = await node.message_text(message)
    return Response(answer_page(peer, row), media_type="text/html")


@post("/answer/{message:str}/{peer:str}/{token:str}", opt={OPEN: True}, status_code=200)
async def take_answer(
    request: Request[Any, Any, Any],
    message: FromPath[str],
    peer: FromPath[str],
    token: FromPath[str],
    node: NodeDependency,
) -> Response[str]:
    """Records the person's answer; answering again is harmless."""
    message, peer = name_from_link(message), name_from_link(peer)
    node.check_answer_token(message, peer, token)
    answer = await _answer_text(request)
    await node.answer(message, peer, token, answer)
    return Response(answered_page(peer), media_type="text/html")


def answer_page(peer: str, text: str) -> str:
    """What the message says, and two buttons."""
    return render("answer.html", title="Answer", text=html.escape(text), peer=html.escape(peer))


def answered_page(peer: str) -> str:
    """What a person sees who has answered."""
    return render("answered.html", title="Thank you", peer=html.escape(peer))


async def _plain_text(request: Request[Any, Any, Any]) -> str:
    try:
        return (await request.body()).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the answer cannot be read: {error}", code="answer.bad") from None


async def _form_text(request: Request[Any, Any, Any]) -> str:
    try:
        answer = (await request.form()).get("answer", "")
    except (UnicodeDecodeError, LookupError) as error:  # no text, or letters of an unknown kind
        raise InvalidInput(f"the answer cannot be read: {error}", code="answer.bad") from None
    if not isinstance(answer, str):
        raise InvalidInput("an answer is a text and no file", code="answer.bad")
    return answer


async def _answer_text(request: Request[Any, Any, Any]) -> str:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        try:
            given = msgspec.json.decode(await request.body(), type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the answer cannot be read: {error}", code="answer.bad") from None
        answer = given.get("answer", "")
    elif kind in _FORMS:
        answer = await _form_text(request)
    elif not (answer := (await _plain_text(request)).strip()) and kind:
        # A button sends a form, and a program that says what it sends has something to say.
        raise InvalidInput(
            "the answer is empty",
            code="answer.bad",
            hint='send {"answer": "..."}, a form with `answer`, or the text itself',
        )
    if len(answer) > _MAX_ANSWER:
        raise InvalidInput(
            f"an answer has at most {_MAX_ANSWER} characters", code="answer.too_long"
        )
    return answer or "yes"
