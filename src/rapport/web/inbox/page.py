"""The inbox as a page: plain HTML that works without a script. Pure. [CO-16, UX-6]

Every text that comes from elsewhere passes `html.escape` here, and nowhere else is HTML made.
"""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from rapport.communication.ledger_rows import MessageRow
from rapport.communication.links import name_in_link
from rapport.communication.presentation import shown_sender, shown_text
from rapport.web.inbox.view import Decided, InboxView
from rapport.web.message_view import about_message, time_element
from rapport.web.pages import render

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


def login_page(why: str = "") -> str:
    """Where a person says who they are; `why` is one of the known reasons, others say nothing."""
    told = _WHY.get(why, "")
    note = f'<p class="note" role="status">{told}</p>' if told else ""
    return render("inbox_login.html", title="Inbox", note=note)


def inbox_page(
    view: InboxView, form: str, *, zone: str = "UTC", note: str = "", may_leave: bool = True
) -> str:
    """The inbox; `form` is the form token, `zone` whose clock the person reads, `may_leave` whether
    there is a session to end.
    """
    told = _NOTES.get(note, "")
    waiting = "\n".join(_waiting(row, view.peer, form, zone) for row in view.waiting)
    notices = "\n".join(_notice(row, form, zone) for row in view.notices)
    decided = "\n".join(_decided(one, view.peer, form, zone) for one in view.decided)
    return render(
        "inbox.html",
        title=f"Inbox of {escape(view.peer)}",
        peer=escape(view.peer),
        form=escape(form),
        mark=escape(view.mark),
        count=_count(view),
        note=f'<p class="note" role="status">{told}</p>' if told else "",
        waiting=waiting or '<p class="empty">Nothing waits for your answer.</p>',
        notices=f"<h2>For your information</h2>{notices}" if notices else "",
        decided=f'<h2>Lately</h2><ul class="lately">{decided}</ul>' if decided else "",
        leave=_leave(form) if may_leave else "",
        blank=_waiting(MessageRow(message=""), view.peer, form, zone),
    )


def inbox_path(peer: str, link: str = "") -> str:
    """The path of a person's inbox, by session or by link."""
    return f"/inbox/{name_in_link(peer)}" + (f"/{quote(link, safe='')}" if link else "")


def _count(view: InboxView) -> str:
    number = len(view.waiting) + view.more
    if not number:
        return "nothing waits for you"
    return f"{number} message{'s' if number > 1 else ''} waiting" + (
        f", {len(view.waiting)} shown" if view.more else ""
    )


def _waiting(row: MessageRow, peer: str, form: str, zone: str) -> str:
    """One message with its buttons. The first one is what the Enter key presses: it must not say
    yes for who wrote that they cannot.
    """
    return f"""<article class="message{" urgent" if row.urgent else ""}" data-message="{escape(row.message)}">
  {_meta(row, zone, _taken(row, peer, zone))}
  <p class="text" dir="auto">{escape(shown_text(row.type, row.subtype, row.text))}</p>
  <form method="post" autocomplete="off">
    <input type="hidden" name="message" value="{escape(row.message)}">
    <input type="hidden" name="form" value="{escape(form)}">
    <input class="say" type="text" name="text" maxlength="400" placeholder="add a word (optional)" aria-label="your words">
    <div class="choices">
      <button name="answer" value="" class="quiet words">Send words only</button>
      <button name="answer" value="yes">I take care of it</button>
      <button name="answer" value="no" class="quiet">I cannot</button>
    </div>
  </form>
</article>"""  # noqa: E501


def _notice(row: MessageRow, form: str, zone: str) -> str:
    """One message that nobody has to answer."""
    return f"""<article class="message notice" data-message="{escape(row.message)}">
  {_meta(row, zone)}
  <p class="text" dir="auto">{escape(shown_text(row.type, row.subtype, row.text))}</p>
  <form method="post" autocomplete="off">
    <input type="hidden" name="message" value="{escape(row.message)}">
    <input type="hidden" name="form" value="{escape(form)}">
    <div class="choices"><button name="answer" value="seen" class="quiet">Seen</button></div>
  </form>
</article>"""


def _meta(row: MessageRow, zone: str, taken: str = "") -> str:
    """One line: urgent or not, who, which kind, which conversation, when, and who took it."""
    urgency = "urgent · " if row.urgent else ""
    about = escape(" · ".join(about_message(row)))
    return (
        f'<p class="meta"><span class="urgency">{urgency}</span>'
        f'<span class="about">{about}</span>{" · " if about else ""}'
        f'{time_element(row.time, zone)}<span class="taken">{taken}</span></p>'
    )


def _taken(row: MessageRow, peer: str, zone: str) -> str:
    """Who answered first, if it was somebody else."""
    if not row.answered_by or row.answered_by == peer:
        return ""
    said = f" ({escape(row.answer)})" if row.answer else ""
    return f" · taken by {escape(row.answered_by)} at {time_element(row.answered_at, zone)}{said}"


def _decided(one: Decided, peer: str, form: str, zone: str) -> str:
    row = one.message
    if one.own_time:
        fate = f"you answered {escape(one.own_answer)} at {time_element(one.own_time, zone)}"
    elif row.answered_by and row.answered_by != peer:
        fate = f"taken by {escape(row.answered_by)} at {time_element(row.answered_at, zone)}"
    else:
        fate = _RESULTS.get(row.result, "over")
    again = _again(row, form) if one.can_after_all else ""
    said = escape(shown_text(row.type, row.subtype, row.text))
    sender = escape(shown_sender(row.sender, row.policy))
    by = f'<small class="soft">{sender}</small>' if sender else ""
    text = f'<span class="text" dir="auto">{said}</span>'
    return f"<li>{text} {by}<small>{fate}</small>{again}</li>"


def _again(row: MessageRow, form: str) -> str:
    """For who declined what is still open."""
    return (
        '<form method="post" autocomplete="off">'
        f'<input type="hidden" name="message" value="{escape(row.message)}">'
        f'<input type="hidden" name="form" value="{escape(form)}">'
        '<button name="answer" value="yes" class="quiet">I can after all</button></form>'
    )


_RESULTS = {"done": "done", "failed": "could not be delivered", "timed_out": "nobody answered"}


def _leave(form: str) -> str:
    return (
        '<form method="post" class="leave">'
        f'<input type="hidden" name="form" value="{escape(form)}">'
        '<button name="leave" value="1" class="quiet">Log out</button></form>'
    )
