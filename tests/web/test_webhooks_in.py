"""The endpoint of inputs over HTTP: durable before it is answered, and only for who may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from rapport.channel.push import signed_headers
from rapport.communication.adapters.input_base import AdapterState
from rapport.communication.adapters.webhook import WebhookInput, WebhookInputSettings
from rapport.communication.arrival_checks import never
from rapport.communication.arrivals import ArrivalResult
from rapport.core.errors import InvalidInput, NotAllowed, TooFast
from rapport.core.message import Identifier
from rapport.web.api.messages import check_taken
from support.examples import examples

pytestmark = pytest.mark.slow

SECRET = "a-secret-of-some-length"
SAID = {"type": "REPLY", "subtype": "TEXT", "sender": "peer:ana", "content": "on my way"}


class Way:
    """What `Inputs` gives an input: the way into the engine."""

    def __init__(self, api: Any, name: str, *, trusted: bool) -> None:
        self.name = name
        self.state = AdapterState(name, api.node.channels.records)
        vouched = (lambda _message: True) if trusted else never
        self.publish = partial(api.node.arrivals.publish, adapter=name, trusted=vouched)


async def open_input(api: Any, *, trusted: bool = True, **changes: Any) -> WebhookInput:
    endpoint = WebhookInput(WebhookInputSettings(secret=SECRET, **changes))
    api.node._parts.communication.web_inputs["gateway"] = endpoint
    await endpoint.start(Way(api, "gateway", trusted=trusted))
    return endpoint


async def arrived(api: Any) -> list[Any]:
    stored = await api.node.channels.channel("input").read_after(0)
    return [(one.event.id, one.event.payload(), one.event.headers) for one in stored]


def signed(api: Any, body: bytes, secret: str = SECRET) -> dict[str, str]:
    return signed_headers(secret, body, api.node.clock.now_ms())


def test_a_signed_message_is_durable_when_it_is_answered_and_a_replay_is_known(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await open_input(api)
            body = json.dumps(SAID).encode()
            headers = signed(api, body)
            first = await api.call("POST", "/inputs/gateway", body, headers)
            (told,) = first.json()["messages"]
            assert (first.status, told["accepted"]) == (202, True)
            ((id, data, marks),) = await arrived(api)
            assert (id, data["content"]) == (told["id"], "on my way")
            assert (marks["proof"], marks["adapter"]) == ("medium", "gateway")
            again = await api.call("POST", "/inputs/gateway", body, headers)
            assert again.status == 202
            assert len(await arrived(api)) == 1

    asyncio.run(scenario())


def test_forms_and_events_are_taken(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await open_input(
                api,
                fields={"sender": "From", "content": "Body"},
                defaults={"type": "REPLY", "subtype": "SMS"},
                senders={"+43660": Identifier("peer", "ana")},
            )
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            body = b"From=%2B43660&Body=ja"
            headers = form | signed(api, body)
            assert (await api.call("POST", "/inputs/gateway", body, headers)).status == 202
            event = {"specversion": "1.0", "id": "1", "source": "crm", "type": "sms"}
            body = json.dumps(event | {"data": {"From": "+43660", "Body": "nein"}}).encode()
            kind = {"Content-Type": "application/cloudevents+json"}
            headers = kind | signed(api, body)
            assert (await api.call("POST", "/inputs/gateway", body, headers)).status == 202
            binary = {"ce-id": "2", "ce-source": "crm", "ce-type": "sms", "ce-specversion": "1.0"}
            body = json.dumps({"From": "+43660", "Body": "doch"}).encode()
            headers = binary | signed(api, body)
            assert (await api.call("POST", "/inputs/gateway", body, headers)).status == 202
            said = [data["content"] for _, data, _ in await arrived(api)]
            assert said == ["ja", "nein", "doch"]

    asyncio.run(scenario())


def test_who_posts_has_to_prove_it(served_node: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-token-of-the-gateway-1234567890")
    (tmp_path / "other").write_text("the-token-of-somebody-else-1234567890")
    access = f"""
[access.gateway]
token = "file:{tmp_path}/token"
publish = ["input.gateway"]
[access.other]
token = "file:{tmp_path}/other"
publish = ["input.elsewhere"]
"""

    async def scenario() -> None:
        async with served_node(site_text=access) as api:
            await open_input(api)
            body = json.dumps(SAID).encode()
            ask = partial(api.call, "POST", "/inputs/gateway", body)
            assert (await ask({})).status == 403
            wrong = await ask(signed(api, body, "another-secret-entirely"))
            assert (wrong.status, wrong.json()["title"]) == (401, "input.bad_signature")
            assert (await ask(signed(api, body + b" "))).status == 401
            bearer = "Bearer the-token-of-somebody-else-1234567890"
            assert (await ask({"Authorization": bearer})).status == 403
            bearer = "Bearer the-token-of-the-gateway-1234567890"
            assert (await ask({"Authorization": bearer})).status == 202
            assert (await ask(signed(api, body))).status == 202
            assert len(await arrived(api)) == 2

    asyncio.run(scenario())


def test_messages_count_against_the_rate_of_who_posts_them(
    served_node: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("the-token-of-the-gateway-1234567890")
    access = f"""
[access.signature]
token = "file:{tmp_path}/token"
publish = ["input.gateway", "mine"]
rate = 5
"""

    async def scenario() -> None:
        async with served_node(site_text=access) as api:
            await open_input(api)
            token = {"Authorization": "Bearer the-token-of-the-gateway-1234567890"}
            batch = token | {"Content-Type": "application/cloudevents-batch+json"}
            many = [
                {"id": str(n), "source": "s", "type": "t", "data": SAID | {"content": str(n)}}
                for n in range(50)
            ]
            body = json.dumps(many).encode()
            taken = await api.call("POST", "/inputs/gateway", body, batch)
            assert (taken.status, len(taken.json()["messages"])) == (202, 50)
            one = {"id": "1", "source": "s", "type": "t", "data": {}}
            for path, said in (("/inputs/gateway", SAID), ("/channels/mine/events", one)):
                late = await api.call("POST", path, said, token)
                assert (late.status, late.json()["title"]) == (429, "access.too_fast"), path
                assert int(late.headers["retry-after"]) >= 1
            assert len(await arrived(api)) == 50
            body = json.dumps(SAID).encode()  # a signature has a limit of its own, the input's
            again = await api.call("POST", "/inputs/gateway", body, signed(api, body))
            assert again.status == 202

    asyncio.run(scenario())


def test_many_wrong_signatures_are_told_to_wait(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await open_input(api)
            wrong = {"X-Rapport-Time": "1", "X-Rapport-Signature": "sha256=0"}
            answers = [
                (await api.call("POST", "/inputs/gateway", SAID, wrong)).status for _ in range(30)
            ]
            assert answers[0] == 401
            assert answers[-1] == 429

    asyncio.run(scenario())


def test_nothing_taken_because_of_haste_is_told_to_wait_and_what_is_held_is_taken() -> None:
    hasty = ArrivalResult(accepted=False, reason="message.too_fast")
    with pytest.raises(TooFast):
        check_taken([hasty, hasty])
    check_taken([hasty, ArrivalResult(id="m1", accepted=True)])
    check_taken([ArrivalResult(id="m1", accepted=False, held=True, reason="session.invalid")])
    with pytest.raises(NotAllowed):
        check_taken([ArrivalResult(accepted=False, reason="session.invalid")])
    with pytest.raises(InvalidInput):
        check_taken([ArrivalResult(accepted=False, reason="message.too_long")])


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"type":"T"}', 400), (b'"' + b"x" * 2_000 + b'"', 413)],
)
def test_what_cannot_be_taken_is_refused_with_a_reason(
    served_node: Callable[..., Any], body: bytes, status: int
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await open_input(api, most_bytes=1_000)
            answer = await api.call("POST", "/inputs/gateway", body)
            assert answer.status == status
            assert answer.json()["title"]
            assert await arrived(api) == []

    asyncio.run(scenario())


def test_a_message_of_nobody_proven_to_a_person_is_not_allowed(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            endpoint = await open_input(api, trusted=False)
            to_ben = SAID | {"receiver": "peer:ben"}
            answer = await api.call("POST", "/inputs/gateway", to_ben)
            assert answer.status == 403
            mixed = await api.call("POST", "/inputs/gateway", [to_ben, SAID])
            told = [one["accepted"] for one in mixed.json()["messages"]]
            assert (mixed.status, told) == (202, [False, True])
            await endpoint.stop()
            assert (await api.call("POST", "/inputs/gateway", SAID)).status == 503
            unknown = await api.call("POST", "/inputs/elsewhere", SAID)
            assert (unknown.status, unknown.json()["title"]) == (404, "input.unknown")

    asyncio.run(scenario())


def test_strangers_are_not_told_which_inputs_there_are(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token=SECRET * 2) as api:
            await open_input(api)
            stranger = await api.call("POST", "/inputs/gatewaz", SAID)
            assert (stranger.status, stranger.json()["title"]) == (404, "input.unknown")
            assert "gateway" not in stranger.body.decode()
            known = {"Authorization": f"Bearer {SECRET * 2}"}
            told = (await api.call("POST", "/inputs/gatewaz", SAID, known)).json()
            assert told["hint"] == "did you mean 'gateway'?"

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_to_inputs_or_inboxes_is_a_fault_of_ours(
    served_node: Callable[..., Any], mode: GenerationMode
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await open_input(api)
            await asyncio.to_thread(try_out, api.url, mode)

    asyncio.run(scenario())


def try_out(url: str, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{url}/schema/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    chosen = [one for one in operations if one.path.startswith(("/inputs", "/inbox"))]
    assert len(chosen) == 7
    for operation in chosen:

        @settings(
            max_examples=examples(8),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            if case.operation.path == "/inputs/{name}":
                case.path_parameters["name"] = "gateway"
            answer = case.call(timeout=30)
            case.validate_response(answer, checks=(not_a_server_error, status_code_conformance))

        ask()
