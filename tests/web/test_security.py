import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rapport.channel.access.identities import LOCAL, OPEN_TO_ALL
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.web.security import Proxies, RequestGuard, check_exposure, is_loopback


def test_a_node_is_not_opened_to_others_without_a_token() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_exposure(NodeSettings(host="0.0.0.0"), "")
    assert caught.value.code == "settings.open_door"
    check_exposure(NodeSettings(host="0.0.0.0"), "secret")
    check_exposure(NodeSettings(), "")


def test_loopback_is_known_in_all_its_forms() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("example.org", "10.0.0.1", "0.0.0.0", "")))


@pytest.mark.parametrize(
    ("host", "asked"),
    [("Building.example", "building.example:8420"), ("2001:DB8::7", "[2001:db8::7]:8420")],
)
def test_a_node_answers_to_its_name_however_it_is_written(host: str, asked: str) -> None:
    doorkeeper = RequestGuard(NodeSettings(host=host), OPEN_TO_ALL, SystemClock())
    assert doorkeeper.admit({"host": asked}, "10.0.0.1") == LOCAL
    with pytest.raises(NotAllowed):
        doorkeeper.admit({"host": "elsewhere.example"}, "10.0.0.1")


def test_with_a_token_only_health_and_answer_links_are_open(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(token="s3cret") as api:
            bearer = {"Authorization": "Bearer s3cret"}
            assert (await api.call("GET", "/overview")).status == 401
            assert (
                await api.call("GET", "/overview", headers={"Authorization": "Bearer no"})
            ).status == 401
            assert (await api.call("GET", "/overview", headers=bearer)).status == 200
            assert (await api.call("POST", "/sources/readers", {"a": 1})).status == 401
            assert (await api.call("GET", "/healthz")).status == 200

    asyncio.run(scenario())


def test_a_caller_who_is_not_known_is_told_how_to_say_who_he_is(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node(token="s3cret") as api:
            # Through the framework, past it, and as SOAP.
            for method, path in (
                ("GET", "/overview"),
                ("POST", "/sources/readers"),
                ("POST", "/soap/channels/events"),
            ):
                answer = await api.call(method, path, b"{}" if method == "POST" else None)
                assert answer.status == 401, path
                assert answer.headers["www-authenticate"] == "Bearer", path
            foreign = {"Authorization": "Bearer s3cret", "Origin": "https://evil.example"}
            refused = await api.call("GET", "/overview", headers=foreign)
            assert (refused.status, "www-authenticate" in refused.headers) == (403, False)

    asyncio.run(scenario())


def test_pages_of_other_sites_cannot_use_the_endpoints(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            foreign = {"Origin": "https://evil.example"}
            rebound = {"Host": "evil.example"}
            posted = await api.call("POST", "/sources/readers", {"a": 1}, foreign)
            assert (posted.status, posted.json()["title"]) == (403, "access.origin")
            asked = await api.call("GET", "/overview", headers=rebound)
            assert (asked.status, asked.json()["title"]) == (403, "access.unknown_host")
            assert api.node.channels.channel("raw.readers").last_position() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        ("http://127.0.0.1:8484", True),
        ("HTTP://127.0.0.1:8484", True),
        ("http://127.0.0.1:3000", False),
        ("http://127.0.0.1", False),
        ("https://127.0.0.1:8484", False),
        ("https://node.example.org", True),
        ("https://node.example.org:443", True),
        ("http://node.example.org", False),
        ("https://node.example.org:8443", False),
        ("http://localhost:8484", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(origin: str, is_own: bool) -> None:
    settings = NodeSettings(public_url="https://node.example.org/page")
    doorkeeper = RequestGuard(settings, OPEN_TO_ALL, SystemClock())
    headers = {"host": "127.0.0.1:8484", "origin": origin}
    if is_own:
        assert doorkeeper.admit(headers, "127.0.0.1") == LOCAL
    else:
        with pytest.raises(NotAllowed, match="pages of"):
            doorkeeper.admit(headers, "127.0.0.1")


@pytest.mark.parametrize(
    ("trusted", "address", "forwarded", "caller"),
    [
        ((), "127.0.0.1", "203.0.113.9", "127.0.0.1"),
        (("10.0.0.0/8",), "127.0.0.1", "203.0.113.9", "127.0.0.1"),
        (("127.0.0.1",), "127.0.0.1", "203.0.113.9", "203.0.113.9"),
        (("127.0.0.1",), "127.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        (("127.0.0.1", "10.0.0.0/8"), "127.0.0.1", "203.0.113.9, 10.1.1.1", "203.0.113.9"),
        (("127.0.0.1",), "127.0.0.1", "", "127.0.0.1"),
        (("127.0.0.1",), "127.0.0.1", "unknown", "unknown"),
        (("::1",), "::1", "2001:db8::7", "2001:db8::7"),
    ],
)
def test_a_forwarded_header_counts_only_from_a_proxy_that_the_site_names(
    trusted: tuple[str, ...], address: str, forwarded: str, caller: str
) -> None:
    assert Proxies(trusted).caller({"x-forwarded-for": forwarded}, address) == caller
