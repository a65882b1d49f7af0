"""Signed bodies: who has the secret can tell a pushed batch from any other. [CH-2]"""

from __future__ import annotations

import pytest

from rapport.channel.config import channels_from_site
from rapport.channel.push import FRESH_MS, SENT_AT, SIGNATURE, is_signed, signature, signed_headers
from rapport.kernel.toml import TomlFile

BODY, NOW = b'{"events":[]}', 1_790_000_000_000
HEADERS = signed_headers("secret", BODY, NOW)


def test_the_receiver_knows_what_was_signed() -> None:
    assert is_signed("secret", HEADERS[SENT_AT], HEADERS[SIGNATURE], BODY, NOW + FRESH_MS)
    assert HEADERS[SIGNATURE] == signature("secret", b"1790000000000." + BODY)


@pytest.mark.parametrize(
    ("secret", "sent_at", "given", "body", "now_ms"),
    [
        ("other", HEADERS[SENT_AT], HEADERS[SIGNATURE], BODY, NOW),
        ("secret", str(NOW + 1), HEADERS[SIGNATURE], BODY, NOW),
        ("secret", HEADERS[SENT_AT], "sha256=00", BODY, NOW),
        ("secret", HEADERS[SENT_AT], "\udcff", BODY, NOW),
        ("secret", HEADERS[SENT_AT], HEADERS[SIGNATURE], BODY + b" ", NOW),
        ("secret", HEADERS[SENT_AT], HEADERS[SIGNATURE], BODY, NOW + FRESH_MS + 1),
        ("secret", "", HEADERS[SIGNATURE], BODY, NOW),
        ("secret", "\u0661", HEADERS[SIGNATURE], BODY, NOW),
        ("secret", "9" * 40, HEADERS[SIGNATURE], BODY, NOW),
    ],
)
def test_anything_else_is_refused(
    secret: str, sent_at: str, given: str, body: bytes, now_ms: int
) -> None:
    assert not is_signed(secret, sent_at, given, body, now_ms)


def test_the_site_names_the_secret() -> None:
    text = b'[channels]\npush_secret = "file:push.secret"\n'
    declared, problems = channels_from_site(TomlFile.parse(text, name="site.toml"))
    assert (declared.push_secret, problems) == ("file:push.secret", [])
