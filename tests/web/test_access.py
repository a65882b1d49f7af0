"""Who may do what, asked over real HTTP."""

import asyncio
import io
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
from litestar.routes import ASGIRoute, HTTPRoute, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from rapport.cli.main import run
from rapport.core.errors import InvalidInput
from rapport.node.node import Node
from rapport.web.app import make_app
from rapport.web.security import OPEN

pytestmark = pytest.mark.slow

TOKENS = {
    "gateway": "gateway-Jx9_PpQ7vTn2LwZr5bYc8d",
    "reader": "reader-K3mN7qR2sT5uV8wX1yZ4aB",
    "boss": "boss-Q1w2E3r4T5y6U7i8O9p0A1s2",
}
NEIGHBOUR = "0123456789abcdef"
NODE_TOKEN = "node-Zx8Cv7Bn6Mm5Lk4Jh3Gf2Ds1"
ACCESS = """
[access.gateway]
token = "file:gateway.token"
publish = ["raw.*", "mine"]
[access.reader]
token = "file:reader.token"
subscribe = ["mine", "raw.readers", "detections"]
[access.boss]
token = "file:boss.token"
publish = ["*"]
subscribe = ["*"]
admin = true
"""
NodeApi = Any
Open = Callable[..., AbstractAsyncContextManager[NodeApi]]


class Caller:
    """Asks as one identity."""

    def __init__(self, api: NodeApi, token: str | None) -> None:
        self._api = api
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def __call__(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        answer = await self._api.call(method, path, body, {**self._headers, **headers})
        told = json.loads(answer.body) if "json" in answer.headers["content-type"] else answer.body
        return answer.status, told, answer.headers


@pytest.fixture
def open_node(tmp_path: Path, served_node: Open) -> Open:
    """A node whose site has an `[access]`; every token lies in its file."""
    for name, token in TOKENS.items():
        (tmp_path / f"{name}.token").write_text(token + "\n")

    def opened(access: str = ACCESS, **given: Any) -> AbstractAsyncContextManager[NodeApi]:
        return served_node(site_text=access.replace("file:", f"file:{tmp_path}/"), **given)

    return opened


def event(id: str = "1") -> dict[str, Any]:
    return {"id": id, "source": "s", "type": "t", "data": {"a": 1}}


PUBLISH = ("POST", "/channels/mine/events", event())
PUBLISH_OTHER = ("POST", "/channels/other/events", event())
SOURCE = ("POST", "/sources/readers", {"a": 1})
READ = ("GET", "/channels/mine/events", None)
READ_OTHER = ("GET", "/channels/other/events", None)
REQUEST = ("POST", "/channels/mine/requests", {"query": {}})
LEDGER = ("GET", "/ledger", None)
METRICS = ("GET", "/metrics", None)
OVERVIEW = ("GET", "/overview", None)
HEALTH = ("GET", "/healthz", None)
RESERVED = ("POST", "/channels/events/events", event())

TABLE = {
    "gateway": {
        PUBLISH[:2]: 200, PUBLISH_OTHER[:2]: 403, SOURCE[:2]: 200, READ[:2]: 403,
        READ_OTHER[:2]: 403, REQUEST[:2]: 403, LEDGER[:2]: 403, METRICS[:2]: 200,
        OVERVIEW[:2]: 200, HEALTH[:2]: 200, RESERVED[:2]: 403,
    },
    "reader": {
        PUBLISH[:2]: 403, PUBLISH_OTHER[:2]: 403, SOURCE[:2]: 403, READ[:2]: 200,
        READ_OTHER[:2]: 403, REQUEST[:2]: 200, LEDGER[:2]: 403, METRICS[:2]: 200,
        OVERVIEW[:2]: 200, HEALTH[:2]: 200, RESERVED[:2]: 403,
    },
    "boss": {
        PUBLISH[:2]: 200, PUBLISH_OTHER[:2]: 200, SOURCE[:2]: 200, READ[:2]: 200,
        READ_OTHER[:2]: 200, REQUEST[:2]: 200, LEDGER[:2]: 200, METRICS[:2]: 200,
        OVERVIEW[:2]: 200, HEALTH[:2]: 200, RESERVED[:2]: 403,
    },
    None: {
        PUBLISH[:2]: 401, PUBLISH_OTHER[:2]: 401, SOURCE[:2]: 401, READ[:2]: 401,
        READ_OTHER[:2]: 401, REQUEST[:2]: 401, LEDGER[:2]: 401, METRICS[:2]: 401,
        OVERVIEW[:2]: 401, HEALTH[:2]: 200, RESERVED[:2]: 401,
    },
}  # fmt: skip
BODIES = {
    endpoint[:2]: endpoint[2]
    for endpoint in (
        PUBLISH, PUBLISH_OTHER, SOURCE, READ, READ_OTHER, REQUEST, LEDGER, METRICS, OVERVIEW,
        HEALTH, RESERVED,
    )
}  # fmt: skip


def test_every_identity_gets_through_its_own_endpoints_only(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            for identity, row in TABLE.items():
                ask = Caller(api, TOKENS[identity] if identity else None)
                for (method, path), expected in row.items():
                    status, _told, _ = await ask(method, path, BODIES[method, path])
                    assert status == expected, (identity, method, path)

    asyncio.run(scenario())


def paths_of(node: Node) -> list[tuple[str, str, bool]]:
    """(method or WEBSOCKET, path, is open) of every route of the application."""
    found = []
    for route in make_app(node).routes:
        path = "/".join(
            "x" if part.startswith("{") else part for part in route.path_format.split("/")
        )
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                methods = {method for method in handler.http_methods if method != "OPTIONS"}
                found += [(str(m), path, bool(handler.opt.get(OPEN))) for m in methods]
        elif isinstance(route, (WebSocketRoute, ASGIRoute)):
            found.append(("WEBSOCKET", path, bool(route.route_handler.opt.get(OPEN))))
    return found


def test_no_endpoint_is_forgotten_each_is_marked_open_or_asks_for_a_token(open_node: Open) -> None:
    known_open = {
        ("GET", "/"),
        ("GET", "/static/x"),
        ("GET", "/static/inbox.webmanifest"),
        ("GET", "/console"),
        ("GET", "/console/x"),
        ("GET", "/console-files/x"),
        # Logging in: a password, a token or a link of one use is the proof.
        ("GET", "/session"),
        ("POST", "/session"),
        ("DELETE", "/session"),
        ("GET", "/login/x"),
        ("GET", "/healthz"),
        ("GET", "/identity"),
        ("GET", "/readyz"),
        ("GET", "/answer/x/x/x"),
        ("POST", "/answer/x/x/x"),
        ("GET", "/soap/channels/x"),  # the WSDL, which is the same for all channels
        # Who comes here shows what a peer has: a password, a session, a signed link or body.
        ("POST", "/sessions"),
        ("DELETE", "/sessions"),
        ("POST", "/sessions/messages"),
        ("POST", "/inputs/x"),
        ("GET", "/inbox"),
        ("POST", "/inbox"),
        ("GET", "/inbox/x"),
        ("POST", "/inbox/x"),
        ("GET", "/inbox/x/x"),
        ("POST", "/inbox/x/x"),
        ("WEBSOCKET", "/inbox/x/socket"),
        ("WEBSOCKET", "/inbox/x/x/socket"),
    }

    async def scenario() -> None:
        async with open_node() as api:
            stranger, guessing = Caller(api, None), Caller(api, "x" * 30)
            paths = paths_of(api.node)
            assert len(paths) > 10
            for method, path, is_open in paths:
                if method == "WEBSOCKET":
                    assert await socket_status(api, path) in (401, 403), path
                    continue
                for ask in (stranger, guessing):
                    status, _told, _ = await ask(method, path, {} if method == "POST" else None)
                    if not is_open:
                        assert status == 401 or (status == 429 and ask is guessing), (method, path)
            opened = {(method, path) for method, path, is_open in paths if is_open}
            assert opened == known_open, "a door that asks for no token belongs into this list"
            assert await socket_status(api, "/channels/mine/socket") == 401

    asyncio.run(scenario())


async def socket_status(api: NodeApi, path: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        async with connect(api.url.replace("http", "ws") + path, additional_headers=headers):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def test_a_socket_is_opened_for_who_shows_a_token(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            path = "/channels/mine/socket"
            assert await socket_status(api, path, "x" * 30) == 401
            assert await socket_status(api, path, TOKENS["reader"]) == 101

    asyncio.run(scenario())


def test_the_nodes_own_token_may_everything_also_beside_identities(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node(token=NODE_TOKEN) as api:
            ask = Caller(api, NODE_TOKEN)
            assert (await ask(*PUBLISH_OTHER))[0] == 200
            assert (await ask(*LEDGER))[0] == 200
            assert (await Caller(api, TOKENS["reader"])(*LEDGER))[0] == 403
            api.node.rights.check_admin("node")

    asyncio.run(scenario())


def test_who_is_on_this_machine_may_what_the_site_says_and_forwarded_callers_are_not(
    open_node: Open,
) -> None:
    local = ACCESS + '[access.local]\nsubscribe = ["mine"]\n'

    async def scenario() -> None:
        async with open_node(local) as api:
            ask = Caller(api, None)
            assert (await ask(*READ))[0] == 200
            assert (await ask(*READ_OTHER))[0] == 403
            assert (await ask(*PUBLISH))[0] == 403
            for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-Ip"):
                assert (await ask(*READ, **{header: "127.0.0.1"}))[0] == 401
            assert (await Caller(api, "x" * 30)(*READ))[0] == 401

    asyncio.run(scenario())


def test_an_identity_makes_the_node_fit_to_be_reached_by_others(
    open_node: Open, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with open_node(host="0.0.0.0"):
            pass
        shutil.rmtree(tmp_path / "site")
        with pytest.raises(InvalidInput) as caught:
            async with open_node("[access.local]\n", host="0.0.0.0"):
                pass
        assert caught.value.code == "settings.open_door"

    asyncio.run(scenario())


def test_sandboxed_pages_of_other_sites_cannot_use_the_endpoints(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node("") as api:
            ask = Caller(api, None)
            assert (await ask(*PUBLISH, Origin="null"))[0] == 403
            assert (await ask(*PUBLISH, Origin="http://[::1"))[0] == 403
            assert (await ask(*HEALTH, Origin="null"))[0] == 200

    asyncio.run(scenario())


# --- reading ---


def test_a_request_token_is_of_no_use_to_another_identity(open_node: Open) -> None:
    two = ACCESS.replace('subscribe = ["mine", "raw.readers", "detections"]', 'subscribe = ["*"]')

    async def scenario() -> None:
        async with open_node(two) as api:
            reader, boss = Caller(api, TOKENS["reader"]), Caller(api, TOKENS["boss"])
            await boss(*PUBLISH)
            _status, batch, _ = await reader(*REQUEST)
            path = "/channels/mine/requests"
            asked = {"token": batch["current_token"]}
            status, again, _ = await reader("POST", path, asked)
            assert (status, again["events"]) == (200, batch["events"])
            status, told, _ = await boss("POST", path, asked)
            assert (status, told["title"]) == (403, "token.not_yours")
            assert "events" not in told

    asyncio.run(scenario())


def test_the_overview_shows_what_the_caller_may_read(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            boss = Caller(api, TOKENS["boss"])
            await boss(*PUBLISH)
            await boss(*PUBLISH_OTHER)
            names: dict[str, set[str]] = {}
            for identity in TOKENS:
                _status, told, _ = await Caller(api, TOKENS[identity])(*OVERVIEW)
                names[identity] = {channel["name"] for channel in told["channels"]}
            assert {"mine", "other"} <= names["boss"]
            assert names["reader"] == {"mine"}
            assert names["gateway"] == set()

    asyncio.run(scenario())


def test_a_chain_of_causes_is_told_to_who_may_read_all_of_it(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            boss, reader = Caller(api, TOKENS["boss"]), Caller(api, TOKENS["reader"])
            await boss("POST", "/channels/other/events", event("first"))
            then = [event("before"), {**event("then"), "cause": "first"}]
            await boss("POST", "/channels/mine/events", then)
            assert (await boss("GET", "/explain/then"))[0] == 200
            status, told, _ = await reader("GET", "/explain/then")
            assert (status, told["title"]) == (403, "access.no_right")
            await boss("POST", "/channels/mine/events", event("alone"))
            assert (await reader("GET", "/explain/alone"))[0] == 200

    asyncio.run(scenario())


# --- too much, too often ---


def test_who_sends_faster_than_its_rate_is_told_when_to_come_again(open_node: Open) -> None:
    slow = ACCESS.replace('publish = ["raw.*", "mine"]', 'publish = ["mine"]\nrate = 5')

    async def scenario() -> None:
        async with open_node(slow) as api:
            gateway, boss = Caller(api, TOKENS["gateway"]), Caller(api, TOKENS["boss"])
            many = [event(str(number)) for number in range(50)]
            path = "/channels/mine/events"
            assert (await gateway("POST", path, many))[0] == 200
            status, told, headers = await gateway("POST", path, event("late"))
            assert (status, told["title"]) == (429, "access.too_fast")
            assert 1 <= int(headers["retry-after"]) <= 10
            assert (await boss("POST", path, event("other")))[0] == 200
            assert api.node.channels.channel("mine").last_position() == 51

    asyncio.run(scenario())


def test_the_way_of_other_nodes_is_no_way_around_a_rate(open_node: Open) -> None:
    slow = ACCESS.replace('publish = ["raw.*", "mine"]', 'publish = ["mine"]\nrate = 5')

    async def scenario() -> None:
        async with open_node(slow) as api:
            gateway, path = Caller(api, TOKENS["gateway"]), "/federation/channels/mine/events"
            many = [event(str(number)) for number in range(50)]
            assert (await gateway("POST", path, {"node": NEIGHBOUR, "events": many}))[0] == 200
            late = {"node": NEIGHBOUR, "events": [event("late")]}
            status, told, headers = await gateway("POST", path, late)
            assert (status, told["title"]) == (429, "access.too_fast")
            assert int(headers["retry-after"]) >= 1
            assert api.node.channels.channel("mine").last_position() == 50

    asyncio.run(scenario())


def test_guessing_is_answered_by_come_again_later_and_locks_nobody_out(open_node: Open) -> None:
    async def scenario() -> None:
        async with open_node() as api:
            guess = Caller(api, "guess-" + "x" * 30)
            answers = [await guess(*READ) for _ in range(25)]
            assert {status for status, _, _ in answers} == {401, 429}
            status, told, headers = answers[-1]
            assert (status, told["title"]) == (429, "access.too_many_failures")
            assert int(headers["retry-after"]) >= 1
            assert (await Caller(api, TOKENS["reader"])(*READ))[0] == 200
            assert (await Caller(api, None)(*READ))[0] == 401

    asyncio.run(scenario())


# --- secrets stay secret ---


def test_secrets_appear_nowhere(
    open_node: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = io.StringIO()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(written))
    secrets = [*TOKENS.values(), NODE_TOKEN]

    async def scenario() -> str:
        told = ""
        async with open_node(token=NODE_TOKEN) as api:
            for token in (*secrets, "a-wrong-token-that-was-shown-123"):
                ask = Caller(api, token)
                for endpoint in (PUBLISH, PUBLISH_OTHER, READ_OTHER, LEDGER, METRICS, OVERVIEW):
                    _status, body, headers = await ask(*endpoint)
                    told += f"{body} {headers}"
            _status, schema, _ = await Caller(api, NODE_TOKEN)("GET", "/schema/openapi.json")
            assert "paths" in schema
            node = api.node
            told += f"{schema} {node.admission} {node.admission.tokens!r} {vars(node)} "
            told += (
                f"{node.admission.with_node_token(NODE_TOKEN)} {make_app(node, token=NODE_TOKEN)}"
            )
        return told

    try:
        told = asyncio.run(scenario())
    finally:
        structlog.reset_defaults()
    site = str(tmp_path / "site")
    (tmp_path / "boss.token").write_text(TOKENS["gateway"][:8])
    run(["check", "--site", site])
    run(["access", "list", "--site", site])
    run(["up", "--site", site])
    said = capsys.readouterr()
    everything = told + written.getvalue() + said.out + said.err
    assert "access.weak_token" in said.err
    assert "a wrong token was shown" in everything
    for secret in (*secrets, TOKENS["gateway"][:8] + " ", "a-wrong-token-that-was-shown-123"):
        assert secret not in everything


def test_an_identity_begins_as_many_channels_as_it_may_also_after_a_restart(
    open_node: Open, tmp_path: Path
) -> None:
    limited = "[channels]\nchannels_per_identity = 2\n" + ACCESS

    async def begin(ask: Caller, name: str) -> str:
        status, told, _ = await ask("POST", f"/channels/{name}/events", event())
        assert (status == 200) == ("title" not in told)
        return str(told.get("title", ""))

    async def scenario() -> None:
        async with open_node(limited) as api:
            boss, gateway = Caller(api, TOKENS["boss"]), Caller(api, TOKENS["gateway"])
            assert [await begin(boss, name) for name in ("a", "b")] == ["", ""]
            together = await asyncio.gather(*(begin(gateway, f"raw.{name}") for name in "abcd"))
            assert sorted(together) == ["", "", *["channel.too_many_channels"] * 2]
            assert await begin(boss, "c") == "channel.too_many_channels"
            assert not [name for name in _log_names(tmp_path) if name == "c"]
            assert await begin(boss, "a") == ""
        async with open_node(limited) as api:
            boss = Caller(api, TOKENS["boss"])
            assert await begin(boss, "b") == ""
            assert await begin(boss, "d") == "channel.too_many_channels"
            _status, told, _ = await boss(
                "POST", "/federation/channels/e/events", {"node": NEIGHBOUR, "events": [event()]}
            )
            assert told["title"] == "channel.too_many_channels"

    asyncio.run(scenario())


def _log_names(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("logs/*")]


def test_taking_needs_its_right_beside_reading(open_node: Open) -> None:
    rights = ACCESS.replace(
        'subscribe = ["mine",', 'take = ["mine", "other"]\nsubscribe = ["mine",'
    )

    async def scenario() -> None:
        async with open_node(rights) as api:
            boss, reader = Caller(api, TOKENS["boss"]), Caller(api, TOKENS["reader"])
            await boss("POST", "/channels/mine/events", event())
            for wishes in ({}, {"lease_ms": 1_000}, {"push_address": "http://127.0.0.1:9/"}):
                body = {"query": {}, "take": True, **wishes}
                status, told, _ = await boss("POST", "/channels/mine/requests", body)
                assert (status, told["title"]) == (403, "access.no_right")
                assert "take list" in told["hint"]
            leased = {"query": {}, "take": True, "lease_ms": 60_000}
            status, told, _ = await reader("POST", "/channels/mine/requests", leased)
            assert (status, len(told["events"])) == (200, 1)
            ids = {"ack": [one["id"] for one in told["deliveries"]]}
            assert (await boss("POST", "/channels/mine/acks", ids))[0] == 403
            settled = {"acked": 1, "returned": 0, "buried": 0, "stale": [], "renewed": 0}
            assert (await reader("POST", "/channels/mine/acks", ids))[:2] == (200, settled)
            # Who may take and not read gets nothing either.
            assert (await reader("POST", "/channels/other/requests", leased))[0] == 403
            for nonsense in ({"ack": ["x"]}, {"ack": 3}, {"nak": ["1.a"], "delay_ms": -1}):
                assert (await reader("POST", "/channels/mine/acks", nonsense))[0] == 400

    asyncio.run(scenario())
