"""Sends pushed batches to their receivers by HTTP. [CH-2, CH-12]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import httpx2

from rapport.channel.push import LONGEST_WSDL, PushFailure, PushForm, PushTrouble, signed_headers
from rapport.channel.requests.request import Batch
from rapport.channel.requests.request import write_batch as write_json_batch
from rapport.channel.requests.tokens import token_digest
from rapport.channel.xmessages.envelope import (
    HANDLE,
    MEDIA_TYPES,
    SOAP_11,
    SOAP_12,
    XMESSAGES,
    write_envelope,
)
from rapport.channel.xmessages.messages import write_batch as write_xml_batch
from rapport.channel.xmessages.messages import write_gaps
from rapport.core.errors import InvalidInput, RapportError, SourceUnavailable
from rapport.core.xml import XmlNode, parse_xml
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import cancel_until_done

DEADLINE_MS = 10_000
"""For one batch, from connecting to the answer: a receiver that hangs costs no more."""
_LONGEST_ANSWER = 64 * 1024
_REFUSALS = frozenset((400, 405, 409, 411, 413, 415, 422))
_VERSIONS = {"soap": SOAP_11, "soap12": SOAP_12}
T = TypeVar("T")


class PushSender:
    """Kept connections to the receivers. Calls may run side by side."""

    def __init__(self, clock: Clock, *, secret: str = "", deadline_ms: int = DEADLINE_MS) -> None:
        """With a `secret` every body is signed; see channel/push.py."""
        self._clock, self._deadline_ms, self._secret = clock, deadline_ms, secret
        self._client = httpx2.AsyncClient(
            timeout=deadline_ms / 1_000,
            follow_redirects=False,
            trust_env=False,
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=32),
        )

    async def send(
        self, address: str, form: PushForm, channel: str, batch: Batch
    ) -> PushFailure | None:
        """Posts a batch; None when the receiver has it."""
        body, headers = write_push(form, channel, batch)
        if self._secret:
            headers |= signed_headers(self._secret, body, self._clock.now_ms())
        try:
            status, answer = await self._within(
                self._exchange("POST", address, _LONGEST_ANSWER, content=body, headers=headers)
            )
        except SourceUnavailable as error:
            return PushFailure("unreachable", error.message)
        if 200 <= status < 300 or (status == 500 and form != "json"):
            return None if form == "json" else _fault_in(status, answer)
        if status == 410:
            return PushFailure("gone", "the receiver answered HTTP 410: it wants nothing more")
        kind: PushTrouble = "refused" if status in _REFUSALS else "unreachable"
        return PushFailure(kind, f"the receiver answered HTTP {status}")

    async def fetch(self, address: str) -> bytes:
        """A small document; raises SourceUnavailable or InvalidInput (too long, not there)."""
        status, answer = await self._within(self._exchange("GET", address, LONGEST_WSDL + 1))
        if status != 200:
            raise InvalidInput(
                f"the subscriber's WSDL was answered with HTTP {status}", code="push.bad_wsdl"
            )
        return answer

    async def close(self) -> None:
        """Closes kept connections."""
        await self._client.aclose()

    async def _exchange(
        self, method: str, address: str, longest: int, **what: object
    ) -> tuple[int, bytes]:
        """Status and the beginning of the answer; raises SourceUnavailable."""
        try:
            async with self._client.stream(method, address, **what) as response:
                answer = b""
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) >= longest:
                        break
                return response.status_code, answer[:longest]
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            # The driver's own text could show the address, which may hold a secret.
            raise SourceUnavailable(
                f"the receiver cannot be reached: {type(error).__name__}", code="push.unreachable"
            ) from None

    async def _within(self, work: Awaitable[T]) -> T:
        """The result of the work, unless the deadline passes first."""
        working = asyncio.ensure_future(work)
        deadline = asyncio.ensure_future(self._clock.sleep(self._deadline_ms))
        try:
            await asyncio.wait({working, deadline}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise SourceUnavailable("the receiver did not answer in time", code="push.unreachable")
        finally:
            await cancel_until_done(working, deadline)


def write_push(form: PushForm, channel: str, batch: Batch) -> tuple[bytes, dict[str, str]]:
    """Body and HTTP headers of one pushed batch."""
    key = {"Idempotency-Key": token_digest(batch.current_token)}
    if form == "json":
        return write_json_batch(channel, batch), key | {"Content-Type": "application/json"}
    version = _VERSIONS[form]
    content = f"<x:{HANDLE}>{write_xml_batch(batch)}</x:{HANDLE}>"
    body = write_envelope(version, content, header=write_gaps(batch.gaps))
    action = f"{XMESSAGES}#{HANDLE}"
    if version == SOAP_12:
        return body, key | {"Content-Type": f'{MEDIA_TYPES[version]}; action="{action}"'}
    return body, key | {"Content-Type": MEDIA_TYPES[version], "SOAPAction": f'"{action}"'}


def _fault_in(status: int, answer: bytes) -> PushFailure | None:
    """What a SOAP receiver answered: nothing and anything but a fault are fine with 2xx."""
    try:
        root = parse_xml(answer) if answer.strip() else None
    except RapportError:
        root = None
    body = next((one for one in root.children if one.name == "Body"), None) if root else None
    fault = body.child("Fault") if body is not None else None
    if fault is None:
        return (
            None if status < 300 else PushFailure("unreachable", f"HTTP {status} without a fault")
        )
    code, reason = fault.child("faultcode"), fault.child("faultstring")
    blame = code.text if code is not None else _value_of(fault.child("Code"))
    blamed = blame.rpartition(":")[2] in ("Client", "Sender")
    text = reason.text if reason is not None else blame
    shown = "".join(c if c.isprintable() else " " for c in text[:200])
    return PushFailure("refused" if blamed else "unreachable", f"the receiver's fault: {shown}")


def _value_of(code: XmlNode | None) -> str:
    """The code of a SOAP 1.2 fault."""
    value = code.child("Value") if code is not None else None
    return value.text if value is not None else ""
