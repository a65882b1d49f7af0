"""The inbox as HTML: whatever names and texts hold, they stay text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rapport.communication.ledger_rows import MessageRow
from rapport.communication.links import (
    form_token,
    inbox_link,
    inbox_token,
    is_form_token,
    is_inbox_token,
    name_in_link,
)
from rapport.web.inbox import answer_text, session_cookie
from rapport.web.inbox_page import DecidedMessage, InboxView, inbox_page, inbox_path, login_page

NOON = 1_772_452_800_000
SECRET = b"s" * 32
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='x",
    "$title ${peer} %s {0}",
    "</template></article><h1>",
    "javascript:alert(1)",
    "\x00\x1b[31m\u202e",
]


class Read(HTMLParser):
    """All tags with their attributes, and the text in elements of class `text`."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def view(peer: str, text: str, other: str) -> InboxView:
    waiting = MessageRow(
        message=f"m-{text}",
        text=text,
        time=NOON,
        urgent=True,
        answered_by=other,
        answer=text,
        answered_at=NOON + 120_000,
    )
    over = MessageRow(message="m2", text=text, time=NOON, answered_by=other, answered_at=NOON)
    own = DecidedMessage(message=over, own_answer=text, own_time=NOON)
    return InboxView(
        peer=peer, waiting=[waiting], notices=[over], decided=[DecidedMessage(message=over), own]
    )


PLAIN = Read(inbox_page(view("ana", "help", "ben"), "form"))


@given(st.text(max_size=40), st.text(max_size=80), st.text(min_size=1, max_size=40))
@example(HOSTILE[0], HOSTILE[1], HOSTILE[2])
@example(HOSTILE[3], HOSTILE[4], HOSTILE[5])
@example(HOSTILE[6], HOSTILE[3], HOSTILE[0])
@settings(max_examples=100)
def test_no_text_brings_a_tag_or_an_attribute_into_the_page(peer, text, other):
    if other == peer:
        return
    read = Read(inbox_page(view(peer, text, other), "form"))
    assert read.tags == PLAIN.tags
    assert text.strip() in "".join(read.words) or "\r" in text or "\0" in text


def test_the_page_says_who_took_it_and_when():
    page = inbox_page(view("ana", "Help", "ben"), "form")
    assert "taken by ben at" in page
    assert "12:02 UTC" in page


def test_nothing_in_the_page_comes_from_elsewhere():
    page = inbox_page(view("ana", "Help", "ben"), "form")
    for value in Read(page).values:
        assert not value.startswith(("http", "//", "javascript", "data:"))
    assert "<style" not in page
    assert "onclick" not in page


@given(st.text(max_size=30))
def test_the_login_page_repeats_nothing_of_what_it_is_asked(why):
    known = ("", "wrong", "fast", "later", "session", "link", "left")
    page = login_page(why)
    assert page == login_page("") or why in known


@given(st.text(min_size=1, max_size=30), st.integers(1, 2**45), st.text(max_size=30))
def test_a_link_counts_for_its_peer_until_it_is_over(peer, expires_ms, other):
    token = inbox_token(SECRET, peer, expires_ms)
    assert is_inbox_token(SECRET, peer, token, expires_ms - 1)
    assert not is_inbox_token(SECRET, peer, token, expires_ms)
    assert not is_inbox_token(b"x" * 32, peer, token, 0)
    assert other == peer or not is_inbox_token(SECRET, other, token, 0)
    later = f"{expires_ms + 1}.{token.partition('.')[2]}"
    assert not is_inbox_token(SECRET, peer, later, 0)
    assert not is_inbox_token(SECRET, peer, other, 0)


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_form_is_of_the_page_it_was_made_for(proof, other):
    assert is_form_token(SECRET, proof, form_token(SECRET, proof))
    assert other == proof or not is_form_token(SECRET, other, form_token(SECRET, proof))
    assert not is_form_token(SECRET, proof, other)


def test_paths_carry_names_that_need_quoting():
    assert inbox_path("ana/../ben ?#") == f"/inbox/{name_in_link('ana/../ben ?#')}"
    assert re.fullmatch(r"/inbox/~[\w-]+", inbox_path("ana/../ben ?#"))
    assert inbox_link("http://here/", SECRET, "a b", 1).startswith("http://here/inbox/a%20b/1.")


def test_the_cookie_is_kept_from_scripts_and_other_sites():
    cookie = session_cookie("t.o-k_en", seconds=60, is_secure=True)
    for word in ("HttpOnly", "SameSite=Strict", "Secure", "Path=/inbox", "Max-Age=60"):
        assert word in cookie
    assert "Secure" not in session_cookie("t", seconds=60, is_secure=False)
    assert "Max-Age=0" in session_cookie("", seconds=-5, is_secure=False)


def test_an_answer_is_the_button_the_words_or_both():
    assert answer_text({"answer": "no", "text": " at home "}) == "no: at home"
    assert answer_text({"answer": "", "text": "later"}) == "later"
    assert answer_text({}) == ""


def test_the_enter_key_never_says_yes():
    page = inbox_page(view("ana", "Help", "ben"), "form")
    first = page.partition("<article")[2].partition("<button ")[2]
    assert first.startswith('name="answer" value=""')
