"""The inbox of a person: which messages it shows, and its page. [CO-10, CO-16, UX-6]

The page is plain HTML that works without a script (`static/inbox.html`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

import msgspec

from rapport.communication.ledger import IN_INBOX, Ledger, Question, is_there
from rapport.communication.ledger_rows import CLOSED, LedgerRow, MessageRow
from rapport.communication.links import name_in_link
from rapport.communication.texts import DEFAULT_READER, TextReader
from rapport.core.event import content_id
from rapport.kernel.tasks import run_blocking
from rapport.web.page_texts import translated
from rapport.web.pages import render

MOST_WAITING = 200
MOST_NOTICES = 30
MOST_DECIDED = 8
NOTICE_FOR_MS = 7 * 86_400_000
DECIDED_FOR_MS = 24 * 3_600_000
_LOOK_BACK = 300
_INBOX_PATH = re.compile(
    r"(?i)/inbox(?:/(?!(?:\.|%2e){1,2}(?:/|\Z))[\w.~%-]{1,300}){0,2}", re.ASCII
)


class DecidedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that needs nobody any more, or this person no more."""

    message: MessageRow
    own_answer: str = ""
    own_time: int = 0
    can_after_all: bool = False
    """This person declined, and the message is still open: a yes would count."""


class InboxView(msgspec.Struct, frozen=True, kw_only=True):
    """One person's inbox at a moment, newest first."""

    peer: str
    waiting: list[MessageRow]
    """An answer is awaited, from this person or from others too."""
    notices: list[MessageRow] = []
    """Nobody has to answer: they stay until they are marked as seen, or are old."""
    decided: list[DecidedMessage] = []
    more: int = 0
    """How many wait beyond those shown."""

    @property
    def mark(self) -> str:
        """Differs when anything that is shown differs."""
        return content_id(msgspec.json.encode(self).decode())

    def shows(self, message: str) -> bool:
        """Whether the person may answer it here."""
        again = [one.message for one in self.decided if one.can_after_all]
        return any(row.message == message for row in (*self.waiting, *self.notices, *again))


async def view_inbox(ledger: Ledger, peer: str, now_ms: int) -> InboxView:
    page = await ledger.find(Question(peer=peer, limit=_LOOK_BACK))
    return await run_blocking(partial(_looked, ledger, peer, page.rows, now_ms))


async def is_pending(ledger: Ledger, peer: str, message: str) -> bool:
    """Whether an open page may show a message that the ledger does not call handed yet: a person
    may be faster than the news that the page has it.
    """
    rows = await run_blocking(partial(ledger.rows, message=message, peer=peer))
    return any(row.adapter in IN_INBOX and row.state == "queued" for row in rows)


def _looked(ledger: Ledger, peer: str, rows: list[LedgerRow], now_ms: int) -> InboxView:
    waiting = ledger.inbox(peer)
    names = {row.message for row in waiting}
    here = dict.fromkeys(row.message for row in rows if row.adapter in IN_INBOX)
    over = [found for name in here if name not in names and (found := ledger.message(name))]
    own = {row.message: row for row in rows if not row.address and row.state == "answered"}
    taken = {row.message for row in rows if row.adapter in IN_INBOX and is_there(row)}
    notices = [row for row in over if row.message in taken and _is_notice(row, own, now_ms)]
    return InboxView(
        peer=peer,
        waiting=waiting[:MOST_WAITING],
        notices=notices[:MOST_NOTICES],
        more=max(len(waiting) - MOST_WAITING, 0),
        decided=_decided([row for row in over if row not in notices], own, now_ms),
    )


def _is_notice(row: MessageRow, own: dict[str, LedgerRow], now_ms: int) -> bool:
    """Delivered and closed without an answer, because none was required."""
    is_done = row.state == CLOSED and row.result == "done" and not row.answered_by
    return is_done and row.message not in own and now_ms - row.time <= NOTICE_FOR_MS


def _decided(
    over: list[MessageRow], own: dict[str, LedgerRow], now_ms: int
) -> list[DecidedMessage]:
    """The latest messages that stood here and are over, or that this person has answered."""
    found: list[DecidedMessage] = []
    for row in over:
        answer = own.get(row.message)
        if not (answer or row.answered_by or row.closed_at):
            continue
        if now_ms - max(row.time, row.closed_at) > DECIDED_FOR_MS:
            continue
        text, at = (answer.answer, answer.time) if answer else ("", 0)
        again = bool(answer and answer.declined) and row.state != CLOSED
        found.append(DecidedMessage(message=row, own_answer=text, own_time=at, can_after_all=again))
    return found[:MOST_DECIDED]


_WHY = {
    "wrong": "The name or the password is wrong.",
    "fast": "Too many attempts. Please wait a moment and try again.",
    "later": "The password cannot be checked now. Please try again soon.",
    "session": "Please log in.",
    "link": "This link is not valid any more. Please log in.",
    "left": "You are logged out.",
}
_NOTES = {
    "answered": "Thank you, your answer is recorded.",
    "empty": "Nothing was sent. Please press a button, or write some words.",
    "decided": "This was decided meanwhile; your answer is not needed any more.",
}


def login_page(why: str = "", language: str = "en") -> str:
    """The login page; `why` is one of the known reasons, others show no note."""
    note = translated(language, _WHY.get(why, ""))
    reader = TextReader(language=language)
    title = translated(language, "Inbox")
    return render("inbox_login.html", reader, title=title, note=note, path="/inbox")


def inbox_page(
    view: InboxView,
    form: str,
    *,
    reader: TextReader = DEFAULT_READER,
    note: str = "",
    link: str = "",
) -> str:
    """The inbox for a reader; `form` is the form token, `link` the signed link that opened it;
    empty = by a session.
    """
    return render(
        "inbox.html",
        reader,
        view=view,
        waiting_groups=group_repeats(view.waiting),
        notice_groups=group_repeats(view.notices),
        form=form,
        count=_count(view, reader.language),
        note=translated(reader.language, _NOTES.get(note, "")),
        path=inbox_path(view.peer, link),
        may_leave=not link,
        blank=MessageRow(message=""),
        results=_RESULTS,
    )


class AppIcon(msgspec.Struct, frozen=True):
    """An icon of an installed inbox."""

    src: str
    sizes: str
    type: str = "image/png"


class AppManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The web app manifest of an inbox."""

    id: str
    name: str
    short_name: str
    lang: str
    start_url: str
    scope: str = "/inbox"
    display: str = "standalone"
    background_color: str = "#f7f7f5"
    theme_color: str = "#0b6e6e"
    icons: tuple[AppIcon, ...] = tuple(
        AppIcon(f"/static/icon-{size}.png", f"{size}x{size}") for size in (192, 512)
    )


def app_manifest(start: str, language: str) -> AppManifest:
    """The manifest of the inbox at a path; of the login page for anything else."""
    path = start if _INBOX_PATH.fullmatch(start) else "/inbox"
    name = translated(language, "Inbox")
    return AppManifest(
        # A new link of the same person is the same app.
        id="/".join(path.split("/")[:3]),
        name=f"{name} · Rapport",
        short_name=name,
        lang=language,
        start_url=path,
    )


def inbox_path(peer: str, link: str = "") -> str:
    """The path of a person's inbox, by session or by link."""
    return f"/inbox/{name_in_link(peer)}" + (f"/{quote(link, safe='')}" if link else "")


def group_repeats(rows: Sequence[MessageRow]) -> list[list[MessageRow]]:
    """Messages of one conversation together, and those of a policy that say the same; each group
    stands where its first message does.
    """
    groups: list[list[MessageRow]] = []
    by_key: dict[tuple[str, str, str], list[MessageRow]] = {}
    for row in rows:
        keys = [("conversation", row.conversation, "")] if row.conversation else []
        keys += [("policy", row.policy, row.text)] if row.policy else []
        group = next((by_key[key] for key in keys if key in by_key), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(row)
        by_key |= {key: group for key in keys if key not in by_key}
    return groups


def _count(view: InboxView, language: str) -> str:
    number = len(view.waiting) + view.more
    if not number:
        return translated(language, "nothing waits for you")
    text = "{n} messages waiting" if number > 1 else "{n} message waiting"
    shown = f", {translated(language, '{n} shown', n=len(view.waiting))}" if view.more else ""
    return translated(language, text, n=number) + shown


_RESULTS = {
    "done": "done",
    "failed": "could not be delivered",
    "timed_out": "nobody answered",
    "ended": "the situation ended",
}
