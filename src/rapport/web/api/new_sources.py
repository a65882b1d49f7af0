"""New sources: what a sample seems to mean, writing it into the site's file, taking it back. [CN-6]

All of it needs the role of an editor; listening to a broker or an address, and adding what was
heard there, needs the right to change the node, which connects to them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, put
from litestar.params import FromPath

from rapport.channel.mqtt.bridge import Packet, check_subscription
from rapport.core.errors import InvalidInput
from rapport.core.json_objects import ObjectDecoder
from rapport.core.urls import address_parts
from rapport.mediation.guessing.choices import SourceChoices
from rapport.node.node import Node
from rapport.node.source_files import MAX_SAMPLE_BYTES, SourceFiles, SourceWritten
from rapport.site.new_source import NewSource, SourceDraft
from rapport.site.topics import survey_topics
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    json_response,
    post,
    require_admin,
    require_role,
)
from rapport.web.endpoint_docs import JSON, documented

_LONGEST_NAME = 61
_MOST_PACKETS = 200


class HeardPacket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a broker."""

    topic: str
    payload: bytes
    """In base64."""


class HeardMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of one form that a broker sent; they are the sample of their source."""

    broker: str
    """Such as mqtt://127.0.0.1:1883."""
    user: str = ""
    password: str = ""
    """The name of a secret of the site: `env:NAME` or `file:PATH`."""
    subscription: str
    """The topics; levels in braces become fields."""
    packets: list[HeardPacket]


class SourceSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample of the data of a source, and what somebody says about them."""

    sample: bytes = b""
    """The beginning of the data in base64, at most 1 MiB; a Parquet file as a whole."""
    heard: HeardMessages | None = None
    """Instead of `sample`: what listening to a broker gave."""
    name: str = ""
    """Of the source; not where the path says it."""
    origin: str = "a sample"
    """What it is of, such as the name of a file; stands in a comment."""
    format: str = ""
    """Such as `csv`; empty: found out."""
    choices: SourceChoices = SourceChoices()
    takes_likely: bool = False
    """Takes the likely answers for what the data do not say."""


class ListenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to listen."""

    address: str
    """mqtt://USER@HOST:PORT/TOPIC/FILTER, mqtts://..., http://... or https://..."""
    password: str = ""
    """Of a broker: the name of a secret of the site, `env:NAME` or `file:PATH`."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10
    """How long to listen to a broker."""


class HeardSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source that there is: to be sent to `guess` as a sample."""

    name: str
    origin: str
    rows: int = 0
    """How many messages were heard; 0 for an address."""
    things: list[str] = []
    """What a level of the topics names."""
    sample: bytes = b""
    heard: HeardMessages | None = None


class HeardSources(msgspec.Struct, frozen=True):
    """What was heard, sources with most things first."""

    sources: list[HeardSource]


class AddedSources(msgspec.Struct, frozen=True):
    """Sources that can be taken back."""

    sources: list[str]


_EXAMPLE = {
    "name": "freezers",
    "sample": "aWQsd2hlbix0X2RlZ0MKYSwyMDI2LTAzLTAyVDIwOjAwWiwxLjUK",
    "choices": {"zone": "Europe/Berlin", "units": {"temp": "degC"}},
}
_READ = ObjectDecoder(
    SourceSample,
    fault="this is no sample of a source",
    code="source.bad_sample",
    hint='such as {"name": "freezers", "sample": BASE64}',
)


_READ_LISTEN = ObjectDecoder(
    ListenBody,
    fault="this does not say where to listen",
    code="source.bad_address",
    hint='such as {"address": "mqtt://127.0.0.1/zigbee2mqtt/#"}',
)


@post(
    "/site/sources/listen",
    opt=documented(
        bodies={JSON: ListenBody},
        example={"address": "mqtt://127.0.0.1/zigbee2mqtt/#", "seconds": 1},
        answer=HeardSources,
    ),
)
async def listen_for_sources(request: HttpRequest, node: NodeDependency) -> Reply:
    """Listens to the topics of a broker for some seconds, or fetches the document at an address;
    answers with a sample of each source that was found. Nothing is changed.
    """
    require_admin(request, node)
    body = _READ_LISTEN.decode(await request.body())
    _check_secret(body.password, body.address)
    listen_ms = round(body.seconds * 1_000)
    found = await _files(request).listen(body.address, password=body.password, listen_ms=listen_ms)
    return json_response(HeardSources([_heard_source(one) for one in found]))


def _heard_source(new: NewSource) -> HeardSource:
    if new.topics is None:
        sample = new.raw[:MAX_SAMPLE_BYTES]
        if len(sample) < len(new.raw):  # whole lines
            sample = sample[: sample.rfind(b"\n") + 1] or sample
        return HeardSource(name=new.name, origin=new.origin, sample=sample)
    left, packets = MAX_SAMPLE_BYTES, list[HeardPacket]()
    for one in new.topics.packets[:_MOST_PACKETS]:
        left -= len(one.payload) + len(one.topic)
        if left < 0:
            break
        packets.append(HeardPacket(one.topic, one.payload))
    return HeardSource(
        name=new.name,
        origin=new.origin,
        rows=len(new.topics.packets),
        things=list(new.topics.things),
        heard=HeardMessages(**new.bridge, subscription=new.topics.subscription, packets=packets),
    )


@post(
    "/site/sources/guess",
    opt=documented(bodies={JSON: SourceSample}, example=_EXAMPLE, answer=SourceDraft),
)
async def guess_source(request: HttpRequest, node: NodeDependency) -> Reply:
    """What the columns of a sample seem to mean, with doubts and open questions, the text for
    site.toml, what the check says of it and the readings of the first rows. Nothing is changed.
    """
    new = await _new_source(request, node, "")
    return json_response(await _files(request).draft(new))


@get("/site/sources", opt=documented(answer=AddedSources))
async def list_added_sources(request: HttpRequest, node: NodeDependency) -> Reply:
    """The sources that were added from a sample and can be taken back."""
    require_role(request, node, "editor")
    return json_response(AddedSources(await _files(request).added()))


@put(
    "/site/sources/{source:str}",
    opt=documented(bodies={JSON: SourceSample}, example=_EXAMPLE, answer=SourceWritten),
)
async def add_source(request: HttpRequest, source: FromPath[str], node: NodeDependency) -> Reply:
    """Adds a source to the site's file after checking it with everything else, and takes it over.
    Refused with every problem at its place; then nothing is changed.
    """
    new = await _new_source(request, node, source)
    identity = require_role(request, node, "editor")
    return json_response(await _files(request).add(new, by=identity))


@delete("/site/sources/{source:str}", opt=documented(answer=SourceWritten))
async def take_source_back(
    request: HttpRequest, source: FromPath[str], node: NodeDependency
) -> Reply:
    """Takes a source out of the site's file that was added from a sample and not changed since; its
    readings stay in the log.
    """
    identity = require_role(request, node, "editor")
    return json_response(await _files(request).take_back(source, by=identity))


def _files(request: HttpRequest) -> SourceFiles:
    files: SourceFiles = request.app.state.source_files
    return files


async def _new_source(request: HttpRequest, node: Node, name: str) -> NewSource:
    """The source in the body, for somebody who may add it."""
    require_role(request, node, "editor")
    body = _READ.decode(await request.body())
    if body.heard is not None:
        require_admin(request, node)
    if len(body.sample) > MAX_SAMPLE_BYTES:
        raise InvalidInput(
            f"the sample has {len(body.sample):,} bytes",
            code="source.sample_too_large",
            hint="send the first 100 kB; rapport add FILE reads whole files of Parquet",
        )
    if len(name or body.name) > _LONGEST_NAME:
        raise InvalidInput("the name of a source has at most 61 characters", code="source.bad_name")
    new = NewSource(
        name=name or body.name or "source",
        raw=body.sample,
        origin=body.origin[:200],
        format=body.format,
        choices=body.choices,
        takes_likely=body.takes_likely,
    )
    return new if body.heard is None else _from_broker(new, body.heard)


def _check_secret(password: str, address: str) -> None:
    """A password never stands in the site's file: raises InvalidInput unless it is named."""
    if (password and not password.startswith(("env:", "file:"))) or address_parts(address).password:
        raise InvalidInput(
            "a password is named, not said",
            code="source.bad_password",
            hint="put it into a file of the site and say file:NAME, or env:NAME",
        )


def _from_broker(new: NewSource, heard: HeardMessages) -> NewSource:
    _check_secret(heard.password, heard.broker)
    check_subscription(heard.subscription)
    packets = [
        Packet(topic=one.topic, payload=one.payload, number=number)
        for number, one in enumerate(heard.packets[:_MOST_PACKETS], start=1)
    ]
    groups = survey_topics(heard.subscription, packets)
    if not groups:
        raise InvalidInput(
            "none of these messages holds a number",
            code="source.nothing_heard",
            hint="listen again",
        )
    given = {"broker": heard.broker, "user": heard.user, "password": heard.password}
    bridge = {key: value for key, value in given.items() if value}
    return msgspec.structs.replace(
        new,
        raw=groups[0].sample,
        origin=groups[0].subscription,
        bridge=bridge,
        topics=groups[0],
    )
