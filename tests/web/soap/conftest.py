"""A stock SOAP client whose proxies are built from our WSDL, and every answer held against our
schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import requests
import zeep
from lxml import etree
from zeep.plugins import HistoryPlugin

from rapport.channel.xmessages.envelope import SOAP_11, SOAP_12
from rapport.web.soap import soap_schema

SCHEMA = etree.XMLSchema(etree.fromstring(soap_schema()))


class Stock:
    """zeep on one channel; `version` is "" for SOAP 1.1 or "12"."""

    def __init__(self, url: str, channel: str, version: str = "", token: str = "") -> None:
        session = requests.Session()
        session.trust_env = False
        if token:
            session.headers["Authorization"] = f"Bearer {token}"
        self.history = HistoryPlugin(maxlen=1)
        self.client = zeep.Client(
            f"{url}/soap/channels/{channel}?wsdl",
            transport=zeep.Transport(session=session, timeout=20, operation_timeout=20),
            plugins=[self.history],
        )
        self._sink = self.client.bind("XMessageChannel", f"XMessageSink{version}")
        self._source = self.client.bind("XMessageChannel", f"XMessageSource{version}")

    def publish(self, *messages: Any, **batch: Any) -> None:
        """handleMessages with events (dicts) and other elements."""
        wrapped = [
            {"XEvent": one} if isinstance(one, dict) else {"_value_1": one} for one in messages
        ]
        answer = self._sink.handleMessages(batch={"messages": {"_value_1": wrapped}, **batch})
        assert answer is None
        self._check_schema()

    def request(self, **fields: Any) -> Any:
        """requestMessages; the batch."""
        batch = self._source.requestMessages(request=fields)
        self._check_schema()
        return batch

    def template(self, **fields: Any) -> Any:
        """A query by example."""
        kind = self.client.get_type("{urn:rapport:xmessages:1}XEvent")
        return zeep.xsd.AnyObject(kind, kind(**fields))

    def _check_schema(self) -> None:
        """Sent and received are valid by our schema."""
        for side in (self.history.last_sent, self.history.last_received):
            check_against_schema(side["envelope"])


def check_against_schema(envelope: Any) -> None:
    body = next(
        child for child in envelope if child.tag in (f"{{{SOAP_11}}}Body", f"{{{SOAP_12}}}Body")
    )
    SCHEMA.assertValid(etree.fromstring(etree.tostring(body[0])))


def messages_of(batch: Any) -> list[Any]:
    """The messages of a batch as zeep gives them: events, or elements of other schemas."""
    found = batch.messages._value_1 if batch.messages is not None else None
    return [one["XEvent"] if isinstance(one, dict) else one for one in found or []]


@pytest.fixture
def play(served_node: Callable[..., Any]) -> Callable[..., None]:
    """`play(steps)` runs blocking steps against a node: steps(url)."""

    def run(steps: Callable[[str], None], **settings: Any) -> None:
        async def scenario() -> None:
            async with served_node(**settings) as api:
                await asyncio.to_thread(steps, api.url)

        asyncio.run(scenario())

    return run


@pytest.fixture
def stock() -> type[Stock]:
    return Stock


@pytest.fixture
def messages() -> Callable[[Any], list[Any]]:
    return messages_of


@pytest.fixture
def is_valid() -> Callable[[bytes], None]:
    """Raises unless an envelope's content is valid by our schema."""

    def check(body: bytes) -> None:
        check_against_schema(etree.fromstring(body))

    return check
