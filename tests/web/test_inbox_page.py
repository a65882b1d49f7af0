"""The inbox as HTML: whatever names and texts hold, they stay text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from rapport.communication import texts
from rapport.communication.ledger_rows import MessageRow
from rapport.communication.links import (
    form_token,
    inbox_link,
    inbox_token,
    is_form_token,
    is_inbox_token,
    name_in_link,
)
from rapport.communication.texts import TextReader
from rapport.web import pages
from rapport.web.inbox import answer_text, session_cookie
from rapport.web.inbox_page import (
    DecidedMessage,
    InboxView,
    group_repeats,
    inbox_page,
    inbox_path,
    login_page,
)
from rapport.web.page_texts import GERMAN_TEXTS

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


GERMAN = TextReader("Europe/Vienna", "de")


def test_the_inbox_speaks_the_language_of_its_reader():
    page = inbox_page(view("ana", "Help", "ben"), "form", reader=GERMAN)
    assert '<html lang="de">' in page
    for words in (
        "Posteingang von ana",
        "1 Nachricht wartet",
        "Ich kümmere mich darum",
        "übernommen von ben,",
        "2. März 2026, 13:02 CET",
        "Zur Kenntnis",
        'value="yes"',  # what is recorded is the same in all languages
    ):
        assert words in page
    assert "Help" in page


def test_every_german_text_is_of_a_text_that_a_page_has():
    root = Path(pages.__file__).parent
    files = [*root.glob("*.py"), *root.glob("api/answers.py"), *root.glob("static/*.html")]
    files += [Path(texts.__file__)]
    written = "".join(path.read_text() for path in files if path.name != "page_texts.py")
    joined = re.sub(r'"\s*\n\s*"', "", written)
    named = {"Task", "Notification", "Drill", "request", "message"}  # kinds, as types name them
    named |= {
        f"Your answer “{{answer}}” {each}." for each in ("is recorded", "was recorded already")
    }
    assert [text for text in GERMAN_TEXTS if text not in named and text not in joined] == []


def rows(*given):
    return [
        MessageRow(message=f"m{number}", conversation=conversation, policy=policy, text=text)
        for number, (conversation, policy, text) in enumerate(given)
    ]


def test_messages_of_a_conversation_and_repeated_alarms_are_grouped():
    found = group_repeats(
        rows(
            ("c1", "warm", "f1 is warm"),
            ("c2", "warm", "f2 is warm"),
            ("c3", "warm", "f1 is warm"),
            ("c3", "warm", "f1 was warm"),
            ("", "", "hello"),
            ("", "", "hello"),
        )
    )
    names = [[row.message for row in group] for group in found]
    assert names == [["m0", "m2", "m3"], ["m1"], ["m4"], ["m5"]]


def test_a_group_shows_its_newest_message_and_how_many_came_before():
    waiting = rows(
        ("c", "warm", "f1 is warm"), ("c", "warm", "f1 is warm"), ("d", "", "Who comes?")
    )
    page = inbox_page(InboxView(peer="ana", waiting=waiting), "form")
    assert page.count("1 earlier message<") == 1
    before, _, after = page.partition("<details")
    assert 'data-message="m0"' in before
    assert 'data-message="m1"' in after.partition("</details>")[0]
    assert 'data-message="m2"' in after.partition("</details>")[2]
    assert " open>" not in page
    waiting[1].urgent = True  # never behind a message that is not
    assert " open>" in inbox_page(InboxView(peer="ana", waiting=waiting), "form")
