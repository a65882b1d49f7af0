"""What a site may say of links, and how wrong ones are told. [CH-11]"""

from __future__ import annotations

import pytest

from rapport.channel.federation import Link, links_from_site
from rapport.kernel.toml import TomlFile


def read(text: str):
    return links_from_site(TomlFile.parse(text.encode(), name="site.toml"))


def test_a_link_receives_sends_and_renames() -> None:
    (link,), problems = read(
        '[links.bologna]\nurl = "http://10.0.0.2:8484/"\nreceive = ["raw.*"]\nsend = "alarms"\n'
        "query = \"type LIKE 'a%'\"\n"
        'rename = { detections = "bologna.detections" }\n'
    )
    assert problems == []
    assert link.url == "http://10.0.0.2:8484"
    assert link.kept_as("raw.gate") == "raw.gate"
    assert link.kept_as("detections") == "bologna.detections"
    assert link.kept_as("alarms") is None
    assert link.is_sent("alarms")
    assert not link.is_sent("raw.gate")


def test_what_arises_here_is_neither_sent_nor_received_under_its_own_name() -> None:
    (link,), _problems = read('[links.b]\nurl = "http://h:1"\nreceive = ["*"]\nsend = ["*"]\n')
    for name in ("control", "log", "dead_letters", "quarantine", "detections", "output.mail"):
        assert link.kept_as(name) is None
        assert not link.is_sent(name)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('url = "ftp://h"\nreceive = ["a"]', "link.bad_url"),
        ('url = "http://[half"\nreceive = ["a"]', "link.bad_url"),
        ('url = "http://h:port"\nreceive = ["a"]', "link.bad_url"),
        ('url = "http://h"', "link.idle"),
        ('receive = ["a"]', "site.missing_key"),
        ('url = "http://h"\nrecieve = ["a"]', "site.unknown_key"),
        ('url = "http://h"\nreceive = ["a"]\nquery = "type ="', "query.unexpected"),
        ('url = "http://h"\nrename = { log = "log" }', "link.not_shared"),
        ('url = "http://h"\nrename = { log = "No Name" }', "channel.bad_name"),
        ('url = "http://h"\nreceive = ["log"]', "link.not_shared"),
        ('url = "http://h"\nreceive = ["intercepted"]', "link.not_shared"),
    ],
)
def test_a_wrong_link_is_reported_with_its_place(text: str, code: str) -> None:
    _links, problems = read(f"[links.b]\n{text}\n")
    assert code in [problem.code for problem in problems]
    assert all(problem.line > 0 for problem in problems)


def test_what_changes_a_node_is_shared_only_by_its_exact_name() -> None:
    wide = Link(name="n", url="http://a", receive=("*",), send=("inter*",))
    assert wide.kept_as("interpretations") is None
    assert not wide.is_sent("interpretations")
    named = Link(name="n", url="http://a", receive=("interpretations",), send=("interpretations",))
    assert named.kept_as("interpretations") == "interpretations"
    assert named.is_sent("interpretations")
